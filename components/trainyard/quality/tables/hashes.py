"""Hashes the rows of a table alike in every format, and counts what repeats among any number of hashes."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.quality.tables.cells import as_mask, listed_as_missing
from trainyard.spec.columns import has_name
from trainyard.values.columns import as_texts, canonical_texts, is_list, is_text
from trainyard.values.patterns import FALSE, MAX_FLOAT32, NUMBER, TRUE

KEPT = 1 << 20
"""Different hashes that are kept: up to here counts are exact, beyond they are estimates. Chosen: 24 MiB."""

Hashes = NDArray[np.uint64]
_TRUE, _FALSE = (names.partition("|")[0] for names in (TRUE, FALSE))
_BETWEEN = bytes(byte for byte in range(128) if not chr(byte).isalnum())  # as separators of lists are
_LIKE_NUMBER = re.compile(NUMBER)
_CELLS = 1 << 18  # chosen: of several columns that are hashed at once
_EXACT_FLOAT64, _EXACT_FLOAT32 = 2.0**53, 2.0**24


class HashSample:
    """The hashes that were seen, each with how often and where first.

    Beyond `KEPT` different ones only every second, fourth ... of all possible hashes counts: an example's repeats are
    counted or left out together. Source: Flajolet (1990), On adaptive sampling, https://doi.org/10.1007/BF02241657
    """

    def __init__(self, size: int = KEPT) -> None:
        self._kept = size
        self._level = 0
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._counts: NDArray[np.int64] = np.empty(0, np.int64)
        self._first: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, hashes: Hashes, rows: NDArray[np.int64]) -> None:
        """Count `hashes`, seen at `rows`."""
        sampled = _is_sampled(hashes, self._level)
        hashes, rows = hashes[sampled], rows[sampled]
        all_hashes = np.concatenate([self._hashes, hashes])
        counts = np.concatenate([self._counts, np.ones(len(hashes), np.int64)])
        first = np.concatenate([self._first, rows])
        order = np.argsort(all_hashes, kind="stable")
        all_hashes, counts, first = all_hashes[order], counts[order], first[order]
        starts = _starts(all_hashes)
        if len(starts):
            self._hashes = all_hashes[starts]
            self._counts = np.add.reduceat(counts, starts)
            self._first = np.minimum.reduceat(first, starts)
        while len(self._hashes) > self._kept:
            self._level += 1
            sampled = _is_sampled(self._hashes, self._level)
            self._hashes, self._counts, self._first = self._hashes[sampled], self._counts[sampled], self._first[sampled]

    @property
    def exact(self) -> bool:
        """True if every hash was kept."""
        return self._level == 0

    @property
    def distinct(self) -> int:
        """The number of distinct hashes."""
        return len(self._hashes) << self._level

    @property
    def repeats(self) -> int:
        """The number of hashes that repeat an earlier one."""
        return int(self._counts.sum() - len(self._counts)) << self._level

    def repeated(self, limit: int) -> list[tuple[int, int]]:
        """Return (first row, times) of up to `limit` hashes that were seen more than once, by row."""
        several = np.flatnonzero(self._counts > 1)
        order = several[np.argsort(self._first[several], kind="stable")][:limit]
        return [(int(self._first[index]), int(self._counts[index])) for index in order]


class ConflictSample:
    """The hashes that were seen, each with whether more than one value came with it. Sampled as a `HashSample` is."""

    def __init__(self, size: int = KEPT) -> None:
        self._kept = size
        self._level = 0
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._values: Hashes = np.empty(0, np.uint64)
        self._several: NDArray[np.bool_] = np.empty(0, np.bool_)

    def add(self, hashes: Hashes, values: Hashes) -> None:
        """Note which of `values` came with each of `hashes`."""
        sampled = _is_sampled(hashes, self._level)
        all_hashes = np.concatenate([self._hashes, hashes[sampled]])
        order = np.argsort(all_hashes, kind="stable")
        all_hashes, values = all_hashes[order], np.concatenate([self._values, values[sampled]])[order]
        several = np.concatenate([self._several, np.zeros(int(sampled.sum()), np.bool_)])[order]
        starts = _starts(all_hashes)
        if len(starts):
            first = np.repeat(values[starts], np.diff(starts, append=len(values)))
            self._hashes, self._values = all_hashes[starts], values[starts]
            self._several = np.logical_or.reduceat(several | (values != first), starts)
        while len(self._hashes) > self._kept:
            self._level += 1
            sampled = _is_sampled(self._hashes, self._level)
            self._hashes, self._values = self._hashes[sampled], self._values[sampled]
            self._several = self._several[sampled]

    @property
    def conflicts(self) -> int:
        """The number of hashes with more than one value."""
        return int(self._several.sum()) << self._level


def _is_sampled(hashes: Hashes, level: int) -> NDArray[np.bool_]:
    mask = np.uint64((1 << level) - 1)
    return np.asarray(mixed(hashes) & mask == 0)


def _starts(ordered: Hashes) -> NDArray[np.int64]:
    """Return the start index of each distinct hash."""
    return np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]) != 0)


def mixed(hashes: Hashes) -> Hashes:
    """Return the numbers so mixed that each bit depends on all. Source: splitmix64, https://prng.di.unimi.it/"""
    hashes = hashes + np.uint64(0x9E3779B97F4A7C15)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def combined(hashes: Hashes, second: Hashes | np.uint64) -> Hashes:
    """Return hashes of the pairs, in their order."""
    return mixed(hashes * np.uint64(0x9E3779B97F4A7C15) + second)


def hash_texts(texts: list[str]) -> Hashes:
    """Return a hash of each text, the same in every process."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, np.uint64)


def hash_numbers(numbers: NDArray[np.float64]) -> Hashes:
    """Return a hash of each number; 0.0 and -0.0 are equal."""
    return mixed((numbers + 0.0).view(np.uint64))


def row_hashes(columns: pa.RecordBatch, without: Collection[str] = ()) -> Hashes:
    """Return two hashes of each row, (rows, 2), whatever the order and the types of its columns.

    The first is of the columns that `without` does not name, the second of all. Two writings of one value are equal,
    and so are some different values: numbers in 32 bits (integers below 2^53 exactly), and texts in letters and digits
    alone. A missing value is as a missing column. Columns without a name and lists of several floating-point numbers
    are left out.
    """
    hashes = np.zeros((2, len(columns)), np.uint64)
    for names, cells in _stacked(columns) if len(columns) else ():
        found, present = (part.reshape(len(names), -1) for part in _hashed(cells))
        seeds = hash_texts([name.strip() for name in names])
        values = np.where(present, mixed(found ^ seeds[:, None]), np.uint64(0))
        hashes[0] += values[[name not in without for name in names]].sum(axis=0, dtype=np.uint64)
        hashes[1] += values.sum(axis=0, dtype=np.uint64)
    return mixed(hashes).T


def _stacked(columns: pa.RecordBatch) -> Iterator[tuple[list[str], Any]]:
    """Yield the names of columns of one type, and their cells one column after the other."""
    alike: dict[tuple[str, bool], list[str]] = {}
    for field in columns.schema:
        name, kind = field.name, field.type
        if has_name(name) and not pa.types.is_null(kind):
            is_number = is_text(kind) and _is_like_number(columns[name][0].as_py())
            alone = name if pa.types.is_dictionary(kind) or is_list(kind) else ""
            alike.setdefault((f"{kind} {alone}", is_number), []).append(name)
    count = max(1, _CELLS // len(columns))
    for (_, is_number), names in alike.items():
        for start in range(0, len(names), count):
            chosen = names[start : start + count]
            cells = pa.concat_arrays([columns[name] for name in chosen])
            if is_number and len(chosen) > 1 and _all_numbers(as_texts(cells)) is None:
                yield from (([name], columns[name]) for name in chosen)
            else:
                yield chosen, cells


def _hashed(column: Any) -> tuple[Hashes, NDArray[np.bool_]]:
    """Return the hash of each cell, and which are present."""
    kind = column.type
    if isinstance(column, pa.DictionaryArray):
        return _take(*_hashed(column.dictionary), column.indices)
    if is_list(kind):
        return _hashed(_single(column)) if pa.types.is_floating(kind.value_type) else _hashed_texts(_joined(column))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = np.asarray(pc.fill_null(pc.cast(column, pa.float64(), safe=False), np.nan))
        size = np.abs(numbers[~np.isnan(numbers)]).max(initial=0)
        # The digits of a large float32 are not those of the same float64.
        if size <= (_EXACT_FLOAT32 if pa.types.is_floating(kind) and kind != pa.float64() else MAX_FLOAT32):
            return _hashed_numbers(numbers)
    return _hashed_texts(as_texts(column))


def _hashed_numbers(numbers: NDArray[np.float64]) -> tuple[Hashes, NDArray[np.bool_]]:
    exact = (np.floor(numbers) == numbers) & (np.abs(numbers) < _EXACT_FLOAT64)
    return hash_numbers(np.where(exact, numbers, numbers.astype(np.float32))), ~np.isnan(numbers)


def _hashed_texts(texts: Any) -> tuple[Hashes, NDArray[np.bool_]]:
    if (numbers := _all_numbers(texts)) is not None:
        return _hashed_numbers(numbers)
    encoded = texts.dictionary_encode()
    return _take(*_hashed_values(canonical_texts(encoded.dictionary)), encoded.indices)


def _all_numbers(texts: Any) -> NDArray[np.float64] | None:
    """Return the numbers, NaN for an empty text; None if a text is another one."""
    if not len(texts) or not _is_like_number(texts[0].as_py()):  # measured: a cast that fails takes ten times as long
        return None
    empty = as_mask(pc.equal(texts, ""))
    try:
        numbers = np.array(pc.if_else(pa.array(empty), "0", texts).cast(pa.float64()))
    except pa.ArrowInvalid:
        return None
    return np.where(empty, np.nan, numbers) if np.abs(numbers).max() <= MAX_FLOAT32 else None  # false for NaN, too


def _is_like_number(text: str | None) -> bool:
    return not text or _LIKE_NUMBER.fullmatch(text) is not None


def _hashed_values(texts: Any) -> tuple[Hashes, NDArray[np.bool_]]:
    """Return the hash of each of different canonical texts, and which are no markers of a missing value."""
    numbers = np.full(len(texts), np.nan)
    for truth, word in enumerate((_FALSE, _TRUE)):
        numbers[as_mask(pc.equal(texts, word))] = truth
    like = as_mask(pc.match_substring_regex(texts, f"^{NUMBER}$"))
    if like.any():
        numbers[like] = pc.utf8_ltrim(texts.filter(pa.array(like)), "+").cast(pa.float64())
        numbers[np.abs(numbers) > MAX_FLOAT32] = np.nan
    hashes, is_number = _hashed_numbers(numbers)
    values = texts.cast(pa.binary()).to_pylist()
    sums = (zlib.crc32(value.translate(None, _BETWEEN) or value) for value in values)
    hashes = np.where(is_number, hashes, mixed(np.fromiter(sums, np.uint64, len(values))))
    return hashes, is_number | ~listed_as_missing(texts)


def _take(hashes: Hashes, present: NDArray[np.bool_], indices: Any) -> tuple[Hashes, NDArray[np.bool_]]:
    """Return the hashes at `indices`, null where a value is missing, and which are present."""
    if not len(hashes):
        return np.zeros(len(indices), np.uint64), np.zeros(len(indices), np.bool_)
    places = np.asarray(pc.fill_null(indices.cast(pa.int64()), 0))
    return hashes[places], present[places] & as_mask(indices.is_valid())


def _single(lists: Any) -> Any:
    """Return the value of each list of one, otherwise null."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
    return pc.call_function("list_flatten", [lists]).take(pa.array(starts, mask=lengths != 1))


def _joined(lists: Any) -> Any:
    """Return the canonical values of each list as one text."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    texts = canonical_texts(pc.call_function("list_flatten", [lists]))
    return pc.call_function("binary_join", [pa.ListArray.from_arrays(offsets, texts), pa.scalar(";")])
