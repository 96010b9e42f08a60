"""The split of an example: a function of the seed and its identity, so that little moves when data are added.

The identity is the content of an image, the hash of a table's row without what is predicted and its weight, or a group.
Reading gives each identity a draw, and by the draw a split. When all is read, `final_splits` changes what one row
cannot know: rows of a table that repeats get a draw each, splits that miss their shares are filled up, by class every
class is cut by its shares, and of the training split `data.fraction` stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from hashlib import sha256
from math import floor
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.contract.document import SPLITS, Split
from trainyard.quality.tables.hashes import combined
from trainyard.readers.rows import batched
from trainyard.spec.columns import SplitRows
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.parts import Part, Parts
from trainyard.steps.preprocess.readers.records import ROW_HASH, WHOLE_HASH
from trainyard.steps.preprocess.readers.tables import SPLIT_NAMES
from trainyard.steps.preprocess.repeats import Repeats

_DRAWS = 1 << 24  # chosen: draws of 8 bytes that are sorted at once, if no class has more
_LARGE_SHARE, _LARGE = 0.05, 10  # chosen: a split of a tenth cannot take more without missing its share
_MISSED = 0.5  # chosen: of its share; of 1,000 draws a split of a tenth misses that once in 5 million times
_SPLIT_BY_PART = {"all_train": 0, "eval": 1, "test": 2}
_DRAW, _ROW_DRAW = "draw", "row_draw"
_LEFT_OUT = len(SPLITS)  # of the training split, by data.fraction

Draws = NDArray[np.uint64]
Numbers = NDArray[np.int8]
Limits = dict[str, tuple[int, int]]
_Number = TypeVar("_Number", bound=np.generic)


def assign(batch: pa.RecordBatch, seed: int, data: Data) -> tuple[pa.RecordBatch, dict[Split, int]]:
    """Return the rows with a split, which may be changed by `final_splits`, and the rest as `with_splits` does."""
    by = data.split.by
    hashes = batch[WHOLE_HASH] if data.hashes_rows else None
    drawn = (
        identity_draws(seed, _identities(batch)) if data.fraction < 1 or by in ("content", "class", "folder") else None
    )
    split_draws = drawn
    if by == "group":
        encoded = batch["split_by"].dictionary_encode()
        groups = [value.encode() for value in encoded.dictionary.to_pylist()]
        split_draws = identity_draws(seed, groups)[encoded.indices.to_numpy()]
    numbers = _numbers(batch, split_draws, data.split)
    batch = batch.drop_columns([name for name in (ROW_HASH, WHOLE_HASH, "split_by") if name in batch.schema.names])
    orders = order_keys(batch["content"].to_pylist(), batch["source"].to_pylist(), seed)
    batch = batch.append_column("order", pa.array(orders, pa.binary(16)))
    if split_draws is not None and by in ("content", "class", "group"):
        batch = batch.append_column(_DRAW, pa.array(split_draws))
    if drawn is not None and data.fraction < 1:
        batch = batch.append_column(_ROW_DRAW, pa.array(drawn))
    if hashes is not None:
        batch = batch.append_column(WHOLE_HASH, hashes)
    return with_splits(batch, numbers, data)


def with_splits(batch: pa.RecordBatch, numbers: Numbers, data: Data) -> tuple[pa.RecordBatch, dict[Split, int]]:
    """Return the rows with their `split` (int8, its number in `SPLITS`), without those that are left out.

    And the sum of the digests of each split's rows, label and weight included, modulo 2^256: no order changes it.
    """
    if (numbers == _LEFT_OUT).any():
        batch, numbers = batch.filter(pa.array(numbers < _LEFT_OUT)), numbers[numbers < _LEFT_OUT]
    contents, labels = (batch[name].to_pylist() for name in ("content", "label"))
    if data.weight:
        weights = batch[f"measure/{data.weight}"].to_pylist()
        labels = [f"{label}\0{weight}" for label, weight in zip(labels, weights, strict=True)]
    encoded = [sha256(content + label.encode()).digest() for content, label in zip(contents, labels, strict=True)]
    words = np.frombuffer(b"".join(encoded), ">u4").reshape(-1, 8)
    digests = {split: _sum_of(words[numbers == number]) for number, split in enumerate(SPLITS)}
    return batch.append_column("split", pa.array(numbers)), digests


def _sum_of(words: NDArray[np.uint32]) -> int:
    """Return the sum of numbers of 256 bits modulo 2^256, their `words` (numbers, 8) from the highest on."""
    sums = words.sum(axis=0, dtype=np.uint64).tolist()
    return int(sum(total << 32 * index for index, total in enumerate(reversed(sums)))) % 2**256


def _numbers(batch: pa.RecordBatch, draws: Draws | None, split: SplitRows) -> Numbers:
    """Return the number of the split of each row."""
    if draws is not None and split.by in ("content", "group"):
        return numbers_of(draws, split)
    if split.by == "class":
        return np.zeros(len(batch), np.int8)  # until all are read
    encoded = batch["split_by"].dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if draws is not None and split.by == "folder":
        part_numbers = np.array([_SPLIT_BY_PART.get(value, -1) for value in values], np.int8)[
            encoded.indices.to_numpy()
        ]
        return np.where(part_numbers < 0, _uniform(draws) < split.eval, part_numbers).astype(np.int8)  # train has both
    numbers = np.array([SPLITS.index(_split_of(value, split)) for value in values], np.int8)
    return np.take(numbers, encoded.indices.to_numpy())


def _split_of(value: str, split: SplitRows) -> Split:
    """Return the split of the rows with `value` in the column that `split` goes by: a name of one, or a time."""
    if split.by == "column":
        return SPLIT_NAMES[value.lower()]
    if value >= (split.test_from or ""):
        return "test"
    return "eval" if value >= (split.eval_from or "") else "train"


def numbers_of(draws: Draws, split: SplitRows) -> Numbers:
    """Return the number of the split of each draw; equal draws meet in one split."""
    shares = [split.train, split.train + split.eval]
    return np.searchsorted(shares, _uniform(draws), side="right").astype(np.int8)


def _identities(batch: pa.RecordBatch) -> list[bytes]:
    """Return the identity of each row: its hash without what is predicted, or the content of an image."""
    if ROW_HASH not in batch.schema.names:
        return batch["content"].to_pylist()
    content = batch[ROW_HASH].to_numpy().astype(">u8").tobytes()
    return [content[start : start + 8] for start in range(0, len(content), 8)]


def order_keys(contents: Sequence[bytes], sources: Sequence[str], seed: int) -> list[bytes]:
    """Return the keys by which a split's examples are sorted: a shuffle that only content, name and seed decide."""
    before = f"order\0{seed}\0".encode()
    rows = zip(contents, sources, strict=True)
    return [sha256(b"%b%b\0%b" % (before, source.encode(), content)).digest()[:16] for content, source in rows]


def _uniform(draws: Draws) -> NDArray[np.float64]:
    return draws / 2**64


def identity_draws(seed: int, identities: Sequence[bytes]) -> Draws:
    """Return a random number of 64 bits for each of `identities`."""
    before = f"split\0{seed}\0".encode()
    first = b"".join([sha256(before + identity).digest()[:8] for identity in identities])
    return np.frombuffer(first, ">u8").astype(np.uint64)


def _salt(purpose: str, seed: int) -> np.uint64:
    return np.uint64(int.from_bytes(sha256(f"{purpose}\0{seed}".encode()).digest()[:8], "big"))


def final_splits(parts: Parts, recipe: Recipe, repeats: Repeats) -> dict[str, Numbers] | None:
    """Return the number of the split of each row of each part, by its name; None if the parts are right already.

    Takes a byte a row, and 40 while the rows of a table that repeats get their draws, or splits are filled up.
    """
    data, split = recipe.data, recipe.data.split
    provisional = {part.name: part.split_numbers for part in parts.parts}
    drawn: dict[str, Draws] = {}
    if data.hashes_rows and repeat_too_often(repeats):
        drawn_by = _DRAW if split.by in ("content", "class") else _ROW_DRAW
        draws, wholes = (
            np.concatenate([rows[name].to_numpy() for rows in parts.light_batches()]) for name in (drawn_by, WHOLE_HASH)
        )
        draws = row_draws(draws, wholes, recipe.seed, natural=repeats.are_natural)
        drawn = _by_part(draws, parts)

    def draws_of(part: Part, name: str) -> Draws:
        is_of_row = name == _ROW_DRAW or split.by in ("content", "class")
        return drawn[part.name] if drawn and is_of_row else _column(part, parts, name)

    splits = provisional
    if split.by == "class":
        limits = class_limits(parts, split, lambda part: draws_of(part, _DRAW))
        splits = {
            part.name: split_by_class(_labels(part, parts), draws_of(part, _DRAW), limits) for part in parts.parts
        }
    elif split.by in ("content", "group"):
        splits = {part.name: numbers_of(draws_of(part, _DRAW), split) for part in parts.parts}
        counts = np.sum([np.bincount(numbers, minlength=len(SPLITS)) for numbers in splits.values()], axis=0)
        if misses_share(counts, split):
            splits = _by_part(by_rows(np.concatenate([draws_of(part, _DRAW) for part in parts.parts]), split), parts)
    if data.fraction < 1:
        for part in parts.parts:
            kept = _uniform(combined(draws_of(part, _ROW_DRAW), _salt("fraction", recipe.seed))) < data.fraction
            splits[part.name] = np.where((splits[part.name] == 0) & ~kept, _LEFT_OUT, splits[part.name]).astype(np.int8)
    same = all(np.array_equal(splits[name], numbers) for name, numbers in provisional.items())
    return None if same and not rewrites(data) else splits


def rewrites(data: Data) -> bool:
    """Return True if all rows are written again when all are read."""
    return data.split.by == "class" or data.fraction < 1


def _column(part: Part, parts: Parts, name: str) -> Draws:
    return np.concatenate([rows[name].to_numpy() for rows in part.light_batches(parts.work)])


def _labels(part: Part, parts: Parts) -> pa.Array:
    return pa.concat_arrays([rows["label"] for rows in part.light_batches(parts.work)])


def _by_part(values: NDArray[_Number], parts: Parts) -> dict[str, NDArray[_Number]]:
    ends = np.cumsum([sum(part.rows.values()) for part in parts.parts])
    return dict(zip([part.name for part in parts.parts], np.split(values, ends[:-1]), strict=True))


def _large(rows: int) -> float:
    return max(_LARGE, _LARGE_SHARE * rows)


def repeat_too_often(repeats: Repeats) -> bool:
    """Return True if equal rows cannot share a draw, and `row_draws` has to give them theirs."""
    return repeats.are_natural or repeats.largest > _large(repeats.rows)


def row_draws(draws: Draws, wholes: Draws, seed: int, *, natural: bool) -> Draws:
    """Return the draw of each row of a table: that of its features or, if they are too frequent, one for each row.

    wholes: the hashes of the whole rows. A row's draw follows from this and the number of such rows before it, so it
    depends neither on the order of the rows nor on other rows. natural: draw all rows that repeat so.
    """
    _, places, counts = np.unique(draws, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[places] > (1 if natural else _large(len(draws))))
    keys = combined(combined(wholes[rows], _occurrences(wholes[rows])), _salt("row", seed))
    result = draws.copy()
    result[rows] = keys
    return result


def _occurrences(values: Draws) -> Draws:
    """Return the number of equal values before each."""
    order = np.argsort(values, kind="stable")
    _, starts, counts = np.unique(values[order], return_index=True, return_counts=True)
    result = np.empty(len(values), np.uint64)
    result[order] = np.arange(len(values)) - np.repeat(starts, counts)
    return result


def misses_share(counts: NDArray[np.int64], split: SplitRows) -> bool:
    """Return True if a split has less than half of its share of the rows, or more than one and a half."""
    shares = counts.sum() * np.array([split.train, split.eval, split.test])
    return bool((np.abs(counts - shares) > _MISSED * shares).any())


def by_rows(draws: Draws, split: SplitRows) -> Numbers:
    """Return the split of each draw such that each split has its share of the rows; equal draws stay together.

    As few as possible leave the split of `numbers_of`: eval and test give away what is too much, in the order of the
    draws, and take what is missing, each up to the number of rows that is nearest to its share. Of three different
    draws or more each split has one.
    """
    units, places, sizes = np.unique(draws, return_inverse=True, return_counts=True)
    first = numbers_of(units, split)
    chosen = np.zeros(len(units), np.int8)
    shares = len(draws) * np.array([split.train, split.eval, split.test])
    missing = shares.copy()
    for follows_draw in (True, False):
        for unit in np.flatnonzero(chosen == 0)[::-1].tolist():
            number = int(first[unit]) if follows_draw else 1 + int(np.argmax((missing / shares)[1:]))
            if number and sizes[unit] <= 2 * missing[number]:
                chosen[unit] = number
                missing[number] -= sizes[unit]
    for number in (0, 2, 1):
        if len(units) >= len(SPLITS) and not (chosen == number).any():
            movable = np.flatnonzero(np.bincount(chosen, minlength=len(SPLITS))[chosen] > 1)
            chosen[movable[np.argmin(sizes[movable])]] = number
    return chosen[places]


def class_limits(parts: Parts, split: SplitRows, draws_of: Callable[[Part], Draws]) -> Limits:
    """Return for each class the last draw of the training split, and that of the eval split.

    Reads labels and draws once for the counts, and once for each 16 million rows; takes 8 bytes a row of so many, or of
    the largest class if that has more.
    """
    counts: Counter[str] = Counter()
    for rows in parts.light_batches():
        counted = pc.value_counts(rows["label"])
        counts.update(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))
    limits: Limits = {}
    for classes in batched(sorted(counts), str, lambda name: counts[name], len(counts), _DRAWS):
        ends = np.cumsum([counts[name] for name in classes])
        draws = _draws_of(((_labels(part, parts), draws_of(part)) for part in parts.parts), classes, ends)
        for name, class_draws in zip(classes, np.split(draws, ends[:-1]), strict=True):
            class_draws.sort()
            limits[name] = cut(class_draws, split)
    return limits


def split_by_class(labels: pa.Array, draws: Draws, limits: Limits) -> Numbers:
    """Return the number of the split of each row."""
    encoded = labels.dictionary_encode()
    class_limits = np.array([limits[name] for name in encoded.dictionary.to_pylist()], np.uint64).reshape(-1, 2)
    row_limits = np.take(class_limits, encoded.indices.to_numpy(), axis=0)
    numbers: Numbers = (draws[:, None] > row_limits).sum(axis=1).astype(np.int8)
    return numbers


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


def _draws_of(parts: Iterable[tuple[pa.Array, Draws]], classes: list[str], ends: NDArray[np.int64]) -> Draws:
    """Return the draws of `classes`, those of a class up to its number in `ends`."""
    draws = np.empty(int(ends[-1]), np.uint64)
    starts = dict(zip(classes, [0, *ends[:-1].tolist()], strict=True))
    for labels, part_draws in parts:
        encoded = labels.dictionary_encode()
        by_class = np.argsort(encoded.indices.to_numpy(), kind="stable")
        sizes = np.bincount(encoded.indices.to_numpy(), minlength=len(encoded.dictionary))
        by_label = np.split(part_draws[by_class], np.cumsum(sizes)[:-1])
        for name, class_draws in zip(encoded.dictionary.to_pylist(), by_label, strict=True):
            if name in starts:
                draws[starts[name] : starts[name] + len(class_draws)] = class_draws
                starts[name] += len(class_draws)
    return draws
