"""How the workers of a gang share a split that is read from its files: as one worker would, each its own part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import train_folders
from object_stores import Store

from trainyard.data.examples import ExampleFolder, open_examples
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Target
from trainyard.steps.train.input import input as training_input
from trainyard.steps.train.input import shard_ranges
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.input.micro_batches import LocalReplicas
from trainyard.steps.train.peers.settings import Rank
from trainyard.storage import storage

EPOCHS = 2
UNEVEN = [5, 31, 1, 17, 9, 20, 14]
# Examples of each shard, batch, slices of it, and (workers, devices of each).
GANGS = [
    ([40], 8, 1, [(4, 1)]),  # one shard range, shared by all
    (UNEVEN, 16, 1, [(4, 1), (4, 2), (2, 8)]),  # 97 examples, four shard ranges of four rows
    ([16] * 4, 16, 1, [(4, 1)]),  # no filling at all
    ([10] * 3, 6, 1, [(2, 1), (3, 1)]),  # three shard ranges of two rows: half a gang takes one and a half
    ([1, 1, 1, 0, 0, 0, 0, 0], 8, 1, [(2, 4)]),  # fewer examples than rows: shard ranges of filling alone
    (UNEVEN, 16, 4, [(2, 1), (4, 1), (2, 2)]),  # a shard range a replica and slice
]


@pytest.fixture(autouse=True)
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_input, "MEMORY_BYTES", 0)
    monkeypatch.setattr(shard_ranges, "SHUFFLE_EXAMPLES", 16)


@pytest.mark.parametrize(("shards", "batch", "slices", "gangs"), GANGS)
def test_any_number_of_workers_takes_the_same_batches_and_each_example_once_an_epoch(
    shards: list[int], batch: int, slices: int, gangs: list[tuple[int, int]], tmp_path: Path
) -> None:
    folder, count = rows(tmp_path, shards), sum(shards)
    steps = -(-count // batch)
    one = global_batches(folder, batch, slices, 1, 1)
    assert [len(numbers) for numbers, _ in one] == [batch] * steps * EPOCHS
    orders = []
    for epoch in range(EPOCHS):
        numbers, weights = (
            np.concatenate(part) for part in zip(*one[epoch * steps : (epoch + 1) * steps], strict=True)
        )
        assert sorted(numbers[weights > 0]) == list(range(count))
        assert np.all(weights[: (steps - 1) * batch] > 0), "only the last batch is filled up"
        orders.append(tuple(numbers[weights > 0]))
    assert len(set(orders)) == EPOCHS or count < 4
    for _, weights in one:
        assert np.sum(weights) == pytest.approx(1)
    for workers, local in gangs:
        for both, alone in zip(global_batches(folder, batch, slices, workers, local), one, strict=True):
            np.testing.assert_array_equal(both, alone)


def test_a_worker_that_starts_late_sees_what_it_would_have_seen(tmp_path: Path) -> None:
    data = Input(recipe(16), rows(tmp_path, UNEVEN), None, LocalReplicas(8, 3, 2))
    whole = [labels.numpy() for _, labels, _ in data.train(0)]
    for start in (2, 7, 12):
        np.testing.assert_array_equal([labels.numpy() for _, labels, _ in data.train(start)], whole[2 * start :])


def test_an_image_changes_alike_whichever_worker_reads_it(tmp_path: Path) -> None:
    folder = open_examples(train_folders.digits(tmp_path / "examples", limit=120, shards=4))
    changed = recipe(16, {"shift": 0.1, "rotate": 10, "contrast": 0.2})
    one = [features["image"] for features, _, _ in Input(changed, folder, None).train(0)]
    parts = [
        [features["image"] for features, _, _ in Input(changed, folder, None, LocalReplicas(2, rank, 1)).train(0)]
        for rank in range(2)
    ]
    for alone, both in zip(one, zip(*parts, strict=True), strict=True):
        np.testing.assert_allclose(np.concatenate(both), np.asarray(alone, float), atol=1)  # of 255: rounded


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_worker_opens_no_file_but_its_own(split: str, tmp_path: Path) -> None:
    folder = rows(tmp_path, [16] * 4)
    for number, file in enumerate(folder.files(split)):
        if number != 2:
            Path(file).unlink()
    data = Input(recipe(16), folder, None, LocalReplicas(4, 2, 1))
    batches = data.train(0) if split == "train" else data.evaluation()
    assert {int(label) // 16 for _, labels, _ in batches for label in labels} == {2}


@pytest.mark.parametrize(("examples", "workers", "local"), [(97, 1, 1), (97, 4, 1), (97, 2, 8), (3, 2, 8)])
def test_the_evaluation_holds_each_example_once_over_the_gang(
    examples: int, workers: int, local: int, tmp_path: Path
) -> None:
    folder = rows(tmp_path, [examples - 2, 2])
    seen = []
    for worker in range(workers):
        data = Input(recipe(16), folder, None, LocalReplicas(workers * local, worker * local, local))
        batches = [(labels.numpy(), weights.numpy()) for _, labels, weights in data.evaluation()]
        assert len(batches) == -(-examples // 16) * local
        assert len({weights.shape for _, weights in batches}) == 1
        seen += [label for labels, weights in batches for label in labels[weights == 1]]
    assert sorted(seen) == list(range(examples))


def test_a_worker_fetches_the_shards_that_it_reads_and_no_others(store: Store, tmp_path: Path) -> None:
    uri = train_folders.numbers(f"{store.uri}/{tmp_path.name}/examples", [16] * 4)
    needed = training_input.needed_files(recipe(16), uri, Rank(1, 2))
    copy = str(storage.local(uri, only=needed))
    read = {"train": [2, 3], "eval": [2, 3], "test": []}
    expected = [f"examples/{split}-{n:05}-of-00004.tfrecord" for split, own in read.items() for n in own]
    assert sorted(storage.require(copy).files) == sorted([*expected, "examples.json"])
    folder = open_examples(copy)
    data = Input(recipe(16), folder, None, LocalReplicas(4, 2, 2))
    assert {int(label) // 16 for _, labels, _ in data.train(0) for label in labels} == {2, 3}
    assert {int(label) // 16 for _, labels, _ in data.evaluation() for label in labels} == {2, 3}
    assert training_input.needed_files(recipe(16), uri, Rank(0, 1)) is None, (
        "a worker alone reads, and shares, the whole"
    )


@pytest.mark.parametrize(
    ("target", "shards"),
    [
        ({}, [2, 3]),
        ({"scale": "log1p"}, [2, 3]),
        ({"scale": "log1p", "mean": True}, [0, 2, 3]),  # its factor comes of the first examples
        ({"scale": "log"}, [0, 1, 2, 3]),  # which the targets do not fit: one is 0
        ({"clip": [0.01, 0.99]}, [0, 1, 2, 3]),
    ],
)
def test_a_regression_fetches_all_shards_only_for_moments_that_preprocess_does_not_know(
    target: dict[str, Any], shards: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_input, "MEAN_EXAMPLES", 20)
    uri = train_folders.table(tmp_path / "examples", 160, shards=4)
    settings = recipe(16)
    settings = settings.model_copy(
        update={"train": settings.train.model_copy(update={"target": Target.model_validate(target)})}
    )
    needed = training_input.needed_files(settings, uri, Rank(1, 2))
    names = [f"examples/train-{number:05}-of-00004.tfrecord" for number in range(4)]
    assert [number for number, name in enumerate(names) if needed is None or needed(name)] == shards
    assert bool(training_input.streamed_files(settings, uri, Rank(1, 2))) == (shards != [0, 1, 2, 3])


def test_an_epoch_begins_anywhere_in_a_lane_of_one_file(tmp_path: Path) -> None:
    """Else the examples at a file's head would come first for ever, shuffled among 4,096 neighbors or fewer."""
    folder = rows(tmp_path, [400])
    epochs = np.reshape([labels for _, labels, _ in Input(recipe(8, epochs=12), folder, None).train(0)], (12, 400))
    assert np.ptp(epochs[:, 0]) > 100  # numbers drawn from 400, 12 of them


def rows(folder: Path, shards: list[int]) -> ExampleFolder:
    """Return a table whose label is the example's number; both splits hold the same."""
    return open_examples(train_folders.numbers(folder / "examples", shards))


def global_batches(
    folder: ExampleFolder, batch: int, slices: int, workers: int, local: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (numbers, weights) of each batch over the whole gang."""
    shares = [LocalReplicas(workers * local, worker * local, local) for worker in range(workers)]
    parts = [
        [(labels, weights) for _, labels, weights in Input(recipe(batch, slices=slices), folder, None, share).train(0)]
        for share in shares
    ]
    # A worker's devices take a slice at a time, and the workers' parts of it come one after another.
    whole = zip(*(zip(*[iter(part)] * local, strict=True) for part in parts), strict=True)
    batches = [batch_part for slice_ in whole for part in slice_ for batch_part in part]
    steps = zip(*[iter(batches)] * (slices * workers * local), strict=True)
    return [tuple(np.concatenate(column) for column in zip(*step, strict=True)) for step in steps]


def recipe(batch: int, augment: dict[str, float] | None = None, epochs: int = EPOCHS, slices: int = 1) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "seed": 5,
            "data": {"format": "image_folder", "bundled": "digits", "channels": 1},
            "model": {"name": "cnn_small"},
            "train": {
                "epochs": epochs,
                "batch_size": batch,
                "accumulation_steps": slices,
                "augment": augment or {},
            },
        }
    )
