"""Keeps some rows of any number, drawn by their position alone, for what needs whole rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainyard.quality.hashes import mixed

_CELLS = 400_000  # chosen: a hundred megabytes of text at the worst
_ROWS = 20_000  # chosen: a share is then known to about a hundredth


class RowSample:
    """At most 20,000 rows, fewer if there are many columns: those whose position has the smallest hash."""

    def __init__(self, columns: int) -> None:
        self._rows = max(200, min(_ROWS, _CELLS // max(1, columns)))
        self._limit = np.uint64(2**64 - 1)
        self._kept: list[Any] = []
        self._draws: list[Any] = []
        self._ids: list[Any] = []

    def add(self, batch: Any, first: int, ids: NDArray[np.int64]) -> None:
        """Draw from the rows of the Arrow `batch` with these `ids`, the first of which is the `first`-th to be read."""
        draws = mixed(np.arange(first + 1, first + 1 + batch.num_rows, dtype=np.uint64))
        chosen = draws <= self._limit
        self._kept.append(batch.filter(pa.array(chosen)))
        self._draws.append(draws[chosen])
        self._ids.append(ids[chosen])
        if sum(map(len, self._draws)) > 2 * self._rows:
            self._shrink()

    def table(self) -> Any:
        """Return the rows as a table of text, in their order."""
        if sum(map(len, self._draws)) > self._rows:
            self._shrink()
        return pa.Table.from_batches(self._kept) if self._kept else None

    def ids(self) -> list[int]:
        """Return the ids of the rows of `table`, which is asked for before."""
        return [int(row) for ids in self._ids for row in ids]

    def _shrink(self) -> None:
        self._limit = np.partition(np.concatenate(self._draws), self._rows - 1)[self._rows - 1]
        chosen = [draws <= self._limit for draws in self._draws]
        self._kept = [batch.filter(pa.array(mask)) for batch, mask in zip(self._kept, chosen, strict=True)]
        self._ids = [ids[mask] for ids, mask in zip(self._ids, chosen, strict=True)]
        self._draws = [draws[mask] for draws, mask in zip(self._draws, chosen, strict=True)]
