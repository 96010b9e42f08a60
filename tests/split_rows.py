"""Splits checked rows as preprocess does, without Beam."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from trainyard.contract.document import SPLITS
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.parts import SortedRunWriter
from trainyard.steps.preprocess.repeats import Repeats, find_repeated
from trainyard.steps.preprocess.split import assign, final_splits, with_splits
from trainyard.steps.preprocess.task_store import TaskStore


def split_rows(tasks: Iterable[pa.RecordBatch], recipe: Recipe, folder: Path) -> pa.Table:
    """The rows of all tasks with their `split`, those left out missing; the parts are in `folder`."""
    work, parts = TaskStore(str(folder)), []
    for number, batch in enumerate(tasks):
        writer = SortedRunWriter(work, f"{number}")
        [*writer.add(assign(batch, recipe.seed, recipe.data)[0]), *writer.flush()]
        parts += writer.parts
    final = final_splits(parts, work, recipe, Repeats.from_parts(parts, find_repeated(parts, work)))
    batches = []
    for part in parts:
        numbers = np.repeat(np.arange(3, dtype=np.int8), [part.rows[split] for split in SPLITS])
        rows = pa.Table.from_batches(part.batches(work)).combine_chunks().to_batches()[0]
        batches.append(with_splits(rows, final[part.name] if final else numbers, recipe.data)[0])
    return pa.Table.from_batches(batches)
