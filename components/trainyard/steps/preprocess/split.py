"""The split of an example: a pure function of the seed and its identity, so that nothing moves when data are added.

The identity is the content of an image, and the hash of a whole row of a table: no row moves if the recipe reads other
columns of it.

By class, every class has its exact share of each split, so all rows must be known before one has its place. The
reader's tasks leave their rows with a draw each, which follows from seed and content; `class_limits` sorts the draws of
a class and cuts them where its shares end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from hashlib import sha256
from math import floor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.contract.document import SPLITS, Split
from trainyard.readers.rows import batched
from trainyard.spec.columns import SplitRows
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.parts import SortedRun, fixed_bytes
from trainyard.steps.preprocess.readers.records import ROW_HASH
from trainyard.steps.preprocess.readers.tables import SPLIT_NAMES
from trainyard.steps.preprocess.task_store import TaskStore

_DRAWS = 1 << 24  # chosen: draws of 8 bytes that are sorted at once, if no class has more

_SPLIT_BY_PART: dict[str, Split] = {"all_train": "train", "eval": "eval", "test": "test"}

Draws = NDArray[np.uint64]
Limits = dict[str, tuple[int, int]]


def assign(batch: pa.RecordBatch, seed: int, data: Data) -> tuple[pa.RecordBatch, dict[Split, int]]:
    """Return the rows with their `split` and `order` as `place` does, without `split_by`, and their digests."""
    splits = _splits(batch, seed, data.split)
    if data.split.by_value:
        batch = batch.drop_columns("split_by")
    return assign_rows(batch, splits, seed, data)


def draw(batch: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """Return the rows with their draw as `order` (binary(16)), all in the first split until `split_by_class`."""
    orders = [digest[:16] for digest in _drawn(b"split", seed, _identities(batch))]
    assigned = batch.append_column("split", pa.array(np.zeros(len(batch), np.int8)))
    return assigned.append_column("order", pa.array(orders, pa.binary(16)))


def assign_rows(
    batch: pa.RecordBatch, splits: list[Split], seed: int, data: Data
) -> tuple[pa.RecordBatch, dict[Split, int]]:
    """Return the rows with their `split` (int8, its number in `SPLITS`) and `order` (binary(16)).

    And the sum of the digests of each split's rows, label and weight included, modulo 2^256: no order changes it. Of
    the training split `data.fraction` stays.
    """
    if data.fraction < 1:
        draws = _uniform(b"fraction", seed, _identities(batch)).tolist()
        remaining = [split != "train" or drawn < data.fraction for split, drawn in zip(splits, draws, strict=True)]
        batch = batch.filter(pa.array(remaining, pa.bool_()))
        splits = [split for split, used in zip(splits, remaining, strict=True) if used]
    if ROW_HASH in batch.schema.names:
        batch = batch.drop_columns(ROW_HASH)
    contents, sources, labels = (batch[name].to_pylist() for name in ("content", "source", "label"))
    orders = order_keys(contents, sources, seed)
    if data.weight:
        weights = batch[f"measure/{data.weight}"].to_pylist()
        labels = [f"{label}\0{weight}" for label, weight in zip(labels, weights, strict=True)]
    encoded = [sha256(content + label.encode()).digest() for content, label in zip(contents, labels, strict=True)]
    words = np.frombuffer(b"".join(encoded), ">u4").reshape(-1, 8)
    numbers = np.array([SPLITS.index(split) for split in splits], np.int8)
    digests = {split: _sum_of(words[numbers == number]) for number, split in enumerate(SPLITS)}
    assigned = batch.append_column("split", pa.array(numbers))
    return assigned.append_column("order", pa.array(orders, pa.binary(16))), digests


def _sum_of(words: NDArray[np.uint32]) -> int:
    """Return the sum of numbers of 256 bits modulo 2^256, their `words` (numbers, 8) from the highest on."""
    sums = words.sum(axis=0, dtype=np.uint64).tolist()
    return int(sum(total << 32 * index for index, total in enumerate(reversed(sums)))) % 2**256


def _splits(batch: pa.RecordBatch, seed: int, split: SplitRows) -> list[Split]:
    if split.by == "content":
        return assign_splits(_identities(batch), seed, split)
    if split.by == "folder":
        draws = _uniform(b"split", seed, _identities(batch)).tolist()
        train: dict[bool, Split] = {True: "eval", False: "train"}  # without an eval folder, train has both
        rows = zip(batch["split_by"].to_pylist(), draws, strict=True)
        return [train[drawn < split.eval] if part == "train" else _SPLIT_BY_PART[part] for part, drawn in rows]
    encoded = batch["split_by"].dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if split.by == "group":
        splits = assign_splits([value.encode() for value in values], seed, split)
    else:
        splits = [_split_of(value, split) for value in values]
    return [splits[index] for index in encoded.indices.to_pylist()]


def _split_of(value: str, split: SplitRows) -> Split:
    """Return the split of the rows with `value` in the column that `split` goes by: a name of one, or a time."""
    if split.by == "column":
        return SPLIT_NAMES[value.lower()]
    if value >= (split.test_from or ""):
        return "test"
    return "eval" if value >= (split.eval_from or "") else "train"


def assign_splits(contents: Sequence[bytes], seed: int, fractions: SplitRows) -> list[Split]:
    """Return the split of what has each digest, or is each group; equal content meets in one split."""
    draws = _uniform(b"split", seed, contents)
    numbers = np.searchsorted([fractions.train, fractions.train + fractions.eval], draws, side="right")
    return [SPLITS[number] for number in numbers.tolist()]


def _identities(batch: pa.RecordBatch) -> list[bytes]:
    """Return the identity of each row: the hash of the whole row of a table, or the content of an image."""
    if ROW_HASH not in batch.schema.names:
        return batch["content"].to_pylist()
    content = batch[ROW_HASH].to_numpy().astype(">u8").tobytes()
    return [content[start : start + 8] for start in range(0, len(content), 8)]


def order_keys(contents: Sequence[bytes], sources: Sequence[str], seed: int) -> list[bytes]:
    """Return the keys by which a split's examples are sorted: a shuffle that only content, name and seed decide."""
    before = f"order\0{seed}\0".encode()
    rows = zip(contents, sources, strict=True)
    return [sha256(b"%b%b\0%b" % (before, source.encode(), content)).digest()[:16] for content, source in rows]


def _uniform(purpose: bytes, seed: int, contents: Sequence[bytes]) -> NDArray[np.float64]:
    """Return a number in 0..1 for each of `contents`."""
    first = b"".join([digest[:8] for digest in _drawn(purpose, seed, contents)])
    return np.frombuffer(first, ">u8") / 2**64


def _drawn(purpose: bytes, seed: int, contents: Sequence[bytes]) -> list[bytes]:
    before = purpose + f"\0{seed}\0".encode()
    return [sha256(before + content).digest() for content in contents]


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
    return [SPLITS[number] for number in (_row_draws(rows)[:, None] > row_limits).sum(axis=1)]


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


def _draws_of(parts: Iterable[SortedRun], work: TaskStore, classes: list[str], ends: NDArray[np.int64]) -> Draws:
    """Return the draws of `classes`, those of a class up to its number in `ends`."""
    draws = np.empty(int(ends[-1]), np.uint64)
    starts = dict(zip(classes, [0, *ends[:-1].tolist()], strict=True))
    for rows in (rows for part in parts for rows in part.light_batches(work)):
        encoded = rows["label"].dictionary_encode()
        by_class = np.argsort(encoded.indices.to_numpy(), kind="stable")
        sizes = np.bincount(encoded.indices.to_numpy(), minlength=len(encoded.dictionary))
        part_draws = np.split(_row_draws(rows)[by_class], np.cumsum(sizes)[:-1])
        for name, class_draws in zip(encoded.dictionary.to_pylist(), part_draws, strict=True):
            if name in starts:
                draws[starts[name] : starts[name] + len(class_draws)] = class_draws
                starts[name] += len(class_draws)
    return draws


def _row_draws(rows: pa.RecordBatch) -> Draws:
    return fixed_bytes(rows["order"])[:, :8].copy().view(">u8")[:, 0].astype(np.uint64)
