"""Counts what repeats among any number of hashes, in bounded memory.

Beyond `KEPT` different hashes only every second, fourth ... of all possible ones is kept, whatever their order:

    level 0: all hashes           16,384 kept of 16,384: exact
    level 1: their last bit is 0  every estimate is what is kept, times 2
    level 2: the last two are 0   ... times 4

So all repeats of an example are counted or left out together.
Source: Flajolet (1990), On adaptive sampling, https://doi.org/10.1007/BF02241657
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainyard.quality.tables.hashes import Hashes, mixed

KEPT = 1 << 20
"""Different hashes that are kept. Chosen: 24 MiB."""


class _Sample:
    """Different hashes in order, each with a number a column.

    columns: the ufunc that makes one number of two when a hash repeats, with the type of the numbers.
    """

    columns: ClassVar[Mapping[np.ufunc, type[np.generic]]]

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._level = 0
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._columns: list[NDArray[Any]] = [np.empty(0, kind) for kind in self.columns.values()]

    def _add(self, hashes: Hashes, *columns: NDArray[Any]) -> None:
        is_sampled = self._is_sampled(hashes)
        hashes = np.concatenate([self._hashes, hashes[is_sampled]])
        if not len(hashes):
            return
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        starts = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]) != 0)
        self._hashes = hashes[starts]
        self._columns = [
            merge.reduceat(np.concatenate([mine, more[is_sampled]])[order], starts)
            for merge, mine, more in zip(self.columns, self._columns, columns, strict=True)
        ]
        while len(self._hashes) > self._kept:
            self._level += 1
            is_sampled = self._is_sampled(self._hashes)
            self._hashes = self._hashes[is_sampled]
            self._columns = [column[is_sampled] for column in self._columns]

    def _is_sampled(self, hashes: Hashes) -> NDArray[np.bool_]:
        return np.asarray(mixed(hashes) & np.uint64((1 << self._level) - 1) == 0)


class HashSample(_Sample):
    """The hashes that were seen, each with how often and where first."""

    columns: ClassVar = {np.add: np.int64, np.minimum: np.int64}

    def add(self, hashes: Hashes, rows: NDArray[np.int64]) -> None:
        """Count `hashes`, seen at `rows`."""
        self._add(hashes, np.ones(len(hashes), np.int64), rows)

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
        times, _ = self._columns
        return int(times.sum() - len(times)) << self._level

    def repeated(self, limit: int) -> list[tuple[int, int]]:
        """Return (first row, times) of up to `limit` hashes that were seen more than once, by row."""
        times, first = self._columns
        several = np.flatnonzero(times > 1)
        order = several[np.argsort(first[several], kind="stable")][:limit]
        return [(int(first[index]), int(times[index])) for index in order]


class ConflictSample(_Sample):
    """The hashes that were seen, each with the lowest and the highest value that came with it."""

    columns: ClassVar = {np.minimum: np.uint64, np.maximum: np.uint64}

    def add(self, hashes: Hashes, values: Hashes) -> None:
        """Note which of `values` came with each of `hashes`."""
        self._add(hashes, values, values)

    @property
    def conflicts(self) -> int:
        """The number of hashes with more than one value."""
        lowest, highest = self._columns
        return int(np.count_nonzero(lowest != highest)) << self._level
