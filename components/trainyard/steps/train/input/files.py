"""Which files of the preprocess output a worker reads, before any of them is fetched."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.data.examples import ExampleFolder
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.input.input import Input, LocalReplicas
from trainyard.steps.train.peers.rank import Rank
from trainyard.storage import storage


def streamed_files(recipe: Recipe, examples: str, rank: Rank) -> set[str]:
    """Return which files of the preprocess output `examples` the worker `rank` reads bit by bit, epoch after epoch.

    None of a regression, whose targets' mean is that of all examples.
    """
    folder = ExampleFolder(examples)
    if folder.document.task == "regression":
        return set()
    data = Input(recipe, folder, None, LocalReplicas(rank.workers, rank.index))
    return {path.removeprefix(storage.join(examples, "")) for path in data.streamed_shards()}


def needed_files(
    recipe: Recipe, examples: str, rank: Rank, streamed: bool = False, served: bool = False
) -> Callable[[str], bool] | None:
    """Return which files of the preprocess output `examples` the worker `rank` reads; None if it reads all of them.

    streamed: without those of `streamed_files`. served: without those that its input workers read.
    """
    folder = ExampleFolder(examples)
    alone = rank.workers == 1 and not served
    if not streamed and (alone or folder.document.task == "regression"):  # its targets' mean is that of all
        return None
    data = Input(recipe, folder, None, LocalReplicas(rank.workers, rank.index))
    shards = {storage.join(examples, file) for split in folder.document.splits.values() for file in split.files}
    read = {*(() if served else data.shards("train")), *data.shards("eval")}.difference(
        data.streamed_shards() if streamed else ()
    )
    return lambda name: storage.join(examples, name) not in shards - read
