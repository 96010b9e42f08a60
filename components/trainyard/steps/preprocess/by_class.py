"""Gives every class its share of each split: exactly, so all rows must be known before one has its place.

The reader's tasks leave their rows with a draw each, which follows from seed and content. Here the draws of a class are
sorted, and cut where its shares end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from math import floor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract.batches import batched
from trainyard.contract.document import SPLITS, Split
from trainyard.spec.tables.columns import SplitRows
from trainyard.steps.preprocess.parts import SortedRun, fixed_bytes
from trainyard.steps.preprocess.task_store import TaskStore

_DRAWS = 1 << 24  # chosen: draws of 8 bytes that are sorted at once, if no class has more
Draws = npt.NDArray[np.uint64]
Limits = dict[str, tuple[int, int]]


def class_limits(parts: list[SortedRun], work: TaskStore, split: SplitRows) -> Limits:
    """Return for each class the last draw of the training split, and that of the eval split.

    parts: rows whose `order` begins with the draw, in any order. Reads labels and draws once for the counts, and once
    for each 16 million rows; takes 8 bytes a row of so many, or of the largest class if that has more.
    """
    counts: Counter[str] = Counter()
    for rows in (rows for part in parts for rows in part.light_batches(work)):
        counted = pc.value_counts(rows["label"])
        counts.update(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))
    limits: Limits = {}
    for classes in batched(sorted(counts), str, lambda name: counts[name], len(counts), _DRAWS):
        ends = np.cumsum([counts[name] for name in classes])
        draws = _draws_of(parts, work, classes, ends)
        for name, class_draws in zip(classes, np.split(draws, ends[:-1]), strict=True):
            class_draws.sort()
            limits[name] = cut(class_draws, split)
    return limits


def split_by_class(rows: pa.RecordBatch, limits: Limits) -> list[Split]:
    """Return the split of each of `rows`, whose `order` begins with the draw."""
    encoded = rows["label"].dictionary_encode()
    class_limits = np.array([limits[name] for name in encoded.dictionary.to_pylist()], np.uint64)
    row_limits = class_limits[encoded.indices.to_numpy()]
    return [SPLITS[number] for number in (_draws(rows)[:, None] > row_limits).sum(axis=1)]


def cut(draws: Draws, split: SplitRows) -> tuple[int, int]:
    """Return the last draw of the training split and of the eval split, of a class with the sorted `draws` (n,), n > 0.

    Equal draws, which equal examples have, stay together. Of three different ones or more each split has one; a class
    of two has none for the test split, one of one trains.
    """
    first_end = int(np.searchsorted(draws, draws[0], "right"))
    last_start = int(np.searchsorted(draws, draws[-1], "left"))
    if first_end >= last_start:
        return int(draws[0]), int(draws[-1])
    train, evaluation, _ = share(len(draws), split)
    before_last = int(np.searchsorted(draws, draws[last_start - 1], "left"))
    train_end = _nearest_edge(draws, train, first_end, before_last)
    least = int(np.searchsorted(draws, draws[train_end], "right"))
    eval_end = _nearest_edge(draws, train + evaluation, least, last_start)
    return int(draws[train_end - 1]), int(draws[eval_end - 1])


def share(rows: int, split: SplitRows) -> tuple[int, int, int]:
    """Return the numbers of training, eval and test rows among `count`.

    Each number is less than one row away from its share; of three rows or more each has one at least. What whole rows
    leave over goes to the largest remainders, of equal ones to the training split, then to eval.
    """
    fractions = [Fraction(str(fraction)) for fraction in (split.train, split.eval, split.test)]
    exact = [rows * fraction / sum(fractions) for fraction in fractions]
    counts = [floor(quota) for quota in exact]
    remainders = sorted(range(3), key=lambda index: counts[index] - exact[index])
    for index in remainders[: rows - sum(counts)]:
        counts[index] += 1
    if rows >= 3:
        for index in range(3):
            if not counts[index]:
                counts[counts.index(max(counts))] -= 1
                counts[index] = 1
    return counts[0], counts[1], counts[2]


def _nearest_edge(draws: Draws, end: int, low: int, high: int) -> int:
    """Return the number of rows nearest to `end` after which other draws follow; low and high are such, and bounds."""
    end = min(max(end, low), high)
    before, after = (int(np.searchsorted(draws, draws[end], side)) for side in ("left", "right"))
    return before if end - before <= after - end else min(after, high)


def _draws_of(parts: Iterable[SortedRun], work: TaskStore, classes: list[str], ends: npt.NDArray[np.int64]) -> Draws:
    """Return the draws of `classes`, those of a class up to its number in `ends`."""
    draws = np.empty(int(ends[-1]), np.uint64)
    starts = dict(zip(classes, [0, *ends[:-1].tolist()], strict=True))
    for rows in (rows for part in parts for rows in part.light_batches(work)):
        encoded = rows["label"].dictionary_encode()
        by_class = np.argsort(encoded.indices.to_numpy(), kind="stable")
        sizes = np.bincount(encoded.indices.to_numpy(), minlength=len(encoded.dictionary))
        part_draws = np.split(_draws(rows)[by_class], np.cumsum(sizes)[:-1])
        for name, class_draws in zip(encoded.dictionary.to_pylist(), part_draws, strict=True):
            if name in starts:
                draws[starts[name] : starts[name] + len(class_draws)] = class_draws
                starts[name] += len(class_draws)
    return draws


def _draws(rows: pa.RecordBatch) -> Draws:
    return fixed_bytes(rows["order"])[:, :8].copy().view(">u8")[:, 0].astype(np.uint64)
