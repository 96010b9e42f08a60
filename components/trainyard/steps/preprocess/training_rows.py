"""The rows of a table's training split, read before there is a run: nobody chooses a model by the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from trainyard.contract.document import SPLITS
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import find_files
from trainyard.steps.preprocess.readers.records import WHOLE_HASH
from trainyard.steps.preprocess.readers.tables import judged_rows
from trainyard.steps.preprocess.repeats import Repeats
from trainyard.steps.preprocess.split import (
    Draws,
    Numbers,
    assign,
    by_rows,
    cut,
    misses_share,
    numbers_of,
    repeat_too_often,
    row_draws,
    split_by_class,
)

_TRAIN = SPLITS.index("train")


def training_rows(recipe: Recipe, most: int) -> Any:
    """Return the rows that preprocess puts into the training split: an Arrow table with `label` and `raw/<feature>`.

    In random order. None if the table has more than `most` rows, or is not split by content or by class. Raises as
    `judged_rows`.
    """
    data = recipe.data
    if data.split.by not in ("content", "class") or data.fraction < 1 or not data.path:
        return None
    files, batches, rows = find_files(data, data.path), [], 0
    for path in files.paths:
        file = TableFile(path, files.name(path), dialect=Dialect.from_recipe(recipe), may_lack=data.may_lack)
        for item in judged_rows(file, recipe):
            if isinstance(item, pa.RecordBatch):
                batches.append(assign(item, recipe.seed, data)[0])
                rows += item.num_rows
                if rows > most:
                    return None
    if not batches:
        return None
    table: Any = pa.Table.from_batches(batches).combine_chunks()
    kept = np.flatnonzero(_numbers(table, _draws(table, recipe), recipe) == _TRAIN)
    order = np.argsort(table["order"].take(pa.array(kept)).to_pylist(), kind="stable")
    return table.take(pa.array(kept[order]))


def _draws(table: Any, recipe: Recipe) -> Draws:
    """Return the final draw of each row, as `split.final_splits`."""
    draws = table["draw"].to_numpy()
    if not recipe.data.hashes_rows:
        return draws
    contents = np.frombuffer(b"".join(value[:8] for value in table["content"].to_pylist()), np.uint64)
    labels = table["label"].combine_chunks().dictionary_encode().indices.to_numpy()
    repeats = Repeats.from_rows(contents, labels)
    if not repeat_too_often(repeats):
        return draws
    return row_draws(draws, table[WHOLE_HASH].to_numpy(), recipe.seed, natural=repeats.are_natural)


def _numbers(table: Any, draws: Draws, recipe: Recipe) -> Numbers:
    split = recipe.data.split
    if split.by == "class":
        labels = table["label"].combine_chunks()
        encoded = labels.dictionary_encode()
        ids = encoded.indices.to_numpy()
        names = enumerate(encoded.dictionary.to_pylist())
        return split_by_class(labels, draws, {name: cut(np.sort(draws[ids == at]), split) for at, name in names})
    numbers = numbers_of(draws, split)
    counts = np.bincount(numbers, minlength=len(SPLITS))
    return by_rows(draws, split) if misses_share(counts, split) else numbers
