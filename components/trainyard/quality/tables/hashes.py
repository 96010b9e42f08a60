"""Hashes the rows of a table, alike in every format.

    column                            hash of a cell                                    not present
    numbers, true and false           its number in 32 bits; whole ones below 2^53 as they are    NaN
    texts that are all numbers        the same                                          empty
    other texts, days                 of a number or a truth the same; its letters and digits     a word for missing
    dictionary                        that of its value
    list of floating-point numbers    that of its only number                           any other count
    other list                        that of its values as one text

A row's hash is the sum over its columns of the cell's hash mixed with the column's name, so their order is no matter.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.quality.tables.cells import as_mask, listed_as_missing
from trainyard.spec.columns import has_name
from trainyard.values.columns import as_texts, canonical_texts, is_list, is_text
from trainyard.values.patterns import FALSE, MAX_FLOAT32, NUMBER, TRUE

Hashes = NDArray[np.uint64]
_TRUE, _FALSE = (names.partition("|")[0] for names in (TRUE, FALSE))
_BETWEEN = bytes(byte for byte in range(128) if not chr(byte).isalnum())  # as separators of lists are
_LIKE_NUMBER = re.compile(NUMBER)
_CELLS = 1 << 18  # chosen: of several columns that are hashed at once
_EXACT_FLOAT64, _EXACT_FLOAT32 = 2.0**53, 2.0**24


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


class _Hashed(NamedTuple):
    """Hashes of cells (n,), and which cells are present (n,)."""

    hashes: Hashes
    present: NDArray[np.bool_]

    def take(self, indices: Any) -> _Hashed:
        """Return the hashes at `indices`, which are null where a value is missing."""
        if not len(self.hashes):
            return _Hashed(np.zeros(len(indices), np.uint64), np.zeros(len(indices), np.bool_))
        at = np.asarray(pc.fill_null(indices.cast(pa.int64()), 0))
        return _Hashed(self.hashes[at], self.present[at] & as_mask(indices.is_valid()))


def row_hashes(columns: pa.RecordBatch, without: Collection[str] = ()) -> Hashes:
    """Return two hashes of each row, (rows, 2), whatever the order and the types of its columns.

    The first is of the columns that `without` does not name, the second of all. Two writings of one value are equal,
    and so are some different values: numbers in 32 bits (integers below 2^53 exactly), and texts in letters and digits
    alone. A missing value is as a missing column. Columns without a name and lists of several floating-point numbers
    are left out.
    """
    hashes = np.zeros((2, len(columns)), np.uint64)
    for names, cells in _stacked(columns) if len(columns) else ():
        cell_hashes, present = (part.reshape(len(names), -1) for part in _hashed(cells))
        seeds = hash_texts([name.strip() for name in names])
        values = np.where(present, mixed(cell_hashes ^ seeds[:, None]), np.uint64(0))
        hashes[0] += values[[name not in without for name in names]].sum(axis=0, dtype=np.uint64)
        hashes[1] += values.sum(axis=0, dtype=np.uint64)
    return mixed(hashes).T


def _stacked(columns: pa.RecordBatch) -> Iterator[tuple[list[str], Any]]:
    """Yield the names of columns of one type, and their cells one column after the other."""
    alike: dict[tuple[str, bool, str], list[str]] = {}
    for name, kind in zip(columns.schema.names, columns.schema.types, strict=True):
        if has_name(name) and not pa.types.is_null(kind):
            alone = name if pa.types.is_dictionary(kind) or is_list(kind) else ""
            is_number = is_text(kind) and _is_like_number(columns[name][0].as_py())
            alike.setdefault((str(kind), is_number, alone), []).append(name)
    count = max(1, _CELLS // len(columns))
    for (_, is_number, _), names in alike.items():
        for start in range(0, len(names), count):
            chosen = names[start : start + count]
            cells = pa.concat_arrays([columns[name] for name in chosen])
            if is_number and len(chosen) > 1 and _all_numbers(as_texts(cells)) is None:  # so one makes not all slow
                yield from (([name], columns[name]) for name in chosen)
            else:
                yield chosen, cells


def _hashed(column: Any) -> _Hashed:
    """Return the hash of each cell by the type of its column."""
    kind = column.type
    if isinstance(column, pa.DictionaryArray):
        return _hashed(column.dictionary).take(column.indices)
    if is_list(kind):
        return _hashed(_single(column)) if pa.types.is_floating(kind.value_type) else _hashed_texts(_joined(column))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = np.asarray(pc.fill_null(pc.cast(column, pa.float64(), safe=False), np.nan))
        size = np.abs(numbers[~np.isnan(numbers)]).max(initial=0)
        # The digits of a large float32 are not those of the same float64.
        if size <= (_EXACT_FLOAT32 if pa.types.is_floating(kind) and kind != pa.float64() else MAX_FLOAT32):
            return _hashed_numbers(numbers)
    return _hashed_texts(as_texts(column))


def _hashed_numbers(numbers: NDArray[np.float64]) -> _Hashed:
    exact = (np.floor(numbers) == numbers) & (np.abs(numbers) < _EXACT_FLOAT64)
    return _Hashed(hash_numbers(np.where(exact, numbers, numbers.astype(np.float32))), ~np.isnan(numbers))


def _hashed_texts(texts: Any) -> _Hashed:
    if (numbers := _all_numbers(texts)) is not None:
        return _hashed_numbers(numbers)
    encoded = texts.dictionary_encode()
    return _hashed_values(canonical_texts(encoded.dictionary)).take(encoded.indices)


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


def _hashed_values(texts: Any) -> _Hashed:
    """Return the hash of each of different canonical texts; present are those that are no markers of a missing value.

    A text that is a number hashes as that, true and false as 1 and 0, all others by their letters and digits.
    """
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
    return _Hashed(hashes, is_number | ~listed_as_missing(texts))


def _single(lists: Any) -> Any:
    """Return the value of each list of one, otherwise null."""
    lengths, ends = _lengths(lists)
    starts = (ends - lengths).astype(np.int64)
    return pc.call_function("list_flatten", [lists]).take(pa.array(starts, mask=lengths != 1))


def _joined(lists: Any) -> Any:
    """Return the canonical values of each list as one text."""
    _, ends = _lengths(lists)
    texts = canonical_texts(pc.call_function("list_flatten", [lists]))
    parts = pa.ListArray.from_arrays(np.concatenate([[0], ends]).astype(np.int32), texts)
    return pc.call_function("binary_join", [parts, pa.scalar(";")])


def _lengths(lists: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of values of each list, and their sum up to there."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lengths, np.cumsum(lengths)
