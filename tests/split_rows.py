"""Splits checked rows as preprocess does, without Beam."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.parts import Parts, PartWriter
from trainyard.steps.preprocess.repeats import Repeats, find_repeated
from trainyard.steps.preprocess.split import assign, final_splits, with_splits
from trainyard.steps.preprocess.task_store import TaskStore


def split_rows(tasks: Iterable[pa.RecordBatch], recipe: Recipe, folder: Path) -> pa.Table:
    """The rows of all tasks with their `split`, those left out missing; the parts are in `folder`."""
    work, parts = TaskStore(str(folder)), []
    for number, batch in enumerate(tasks):
        writer = PartWriter(work, f"{number}")
        [*writer.add(assign(batch, recipe.seed, recipe.data)[0]), *writer.flush()]
        parts += writer.parts
    written = Parts(work, parts)
    final = final_splits(written, recipe, Repeats.from_parts(written, find_repeated(written)))
    batches = []
    for part in parts:
        rows = pa.Table.from_batches(part.batches(work)).combine_chunks().to_batches()[0]
        batches.append(with_splits(rows, final[part.name] if final else part.split_numbers, recipe.data)[0])
    return pa.Table.from_batches(batches)
