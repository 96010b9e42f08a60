"""Counts what is different and what repeats among any number of hashes, in bounded memory."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

KEPT = 1 << 20
"""Different hashes that are kept: up to here counts are exact, beyond they are estimates. Chosen: 24 MiB."""

Hashes = NDArray[np.uint64]


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


def combined(hashes: Hashes, second: Hashes) -> Hashes:
    """Return hashes of the pairs, in their order."""
    return mixed(hashes * np.uint64(0x9E3779B97F4A7C15) + second)


def hash_texts(texts: list[str]) -> Hashes:
    """Return a hash of each text, the same in every process."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, np.uint64)


def hash_numbers(numbers: NDArray[np.float64]) -> Hashes:
    """Return a hash of each number; 0.0 and -0.0 are equal."""
    return mixed((numbers + 0.0).view(np.uint64))
