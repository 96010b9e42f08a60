"""The output of every table reader: batches of rows, and rows that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.errors import DataError
from trainyard.values.columns import as_texts, impossible_times, is_list, joined

MOST_ROWS = 4096
"""Of a batch; chosen: what costs once a batch is then little, and a batch of tables has 1 MiB."""

PIECE_BYTES = 64 << 20
"""About that many of a large file are read apart; chosen: half of the bytes per worker process of preprocess."""


@dataclass(frozen=True)
class Piece:
    """Some rows of a file: from `start` on, which has the row number `row`, up to `end`; None for the file's end.

    start, end: bytes of a CSV file, whose first piece has the header too, and row groups of a Parquet file.
    """

    start: int = 0
    end: int | None = None
    row: int = 1


WHOLE = Piece()


@dataclass(frozen=True)
class BadRow:
    """A row, or a file of one record, that cannot be used: why, as a code for counting and as a sentence.

    row: its number in the file; None if it is the file, or a row that has another name than a number.
    """

    file: str
    row: int | None
    reason: str
    detail: str

    @property
    def key(self) -> str:
        """The name of the row, such as `a.csv:17`."""
        return self.file if self.row is None else f"{self.file}:{self.row}"


@dataclass(frozen=True)
class RowBatch:
    """Rows of one file: columns of Arrow, and the number of each row; the header of a CSV file is row 1.

    hashes: if they are needed, two of each row (rows, 2): without what is predicted, and of the whole row.
    """

    file: str
    columns: pa.RecordBatch
    rows: NDArray[np.int64]
    hashes: NDArray[np.uint64] | None = None

    def name(self, index: int) -> str:
        """Return the name of a row, such as `a.csv:17`."""
        return f"{self.file}:{self.rows[index]}"

    @property
    def names(self) -> pa.Array:
        """The names of all rows."""
        return pc.binary_join_element_wise(f"{self.file}:", pc.cast(pa.array(self.rows), pa.string()), "")

    def without_impossible_times(self, columns: Iterable[str]) -> tuple[RowBatch, list[BadRow]]:
        """Return the rows without those that `unreadable_rows` finds, and these."""
        bad = unreadable_rows(self.columns, columns)
        if not bad:
            return self, []
        rows = [BadRow(self.file, int(self.rows[row]), "mistyped_value", detail) for row, detail in bad.items()]
        return self.filter(~np.isin(np.arange(len(self.rows)), [*bad])), rows

    def filter(self, kept: NDArray[np.bool_]) -> RowBatch:
        """Return the rows that are `kept`."""
        hashes = None if self.hashes is None else self.hashes[kept]
        return RowBatch(self.file, self.columns.filter(pa.array(kept)), self.rows[kept], hashes)

    def select(self, names: Iterable[str]) -> RowBatch:
        """Return the columns `names` in this order, of missing values those that are not there."""
        columns, missing = self._named(), pa.nulls(len(self.rows))
        return replace(self, columns=pa.RecordBatch.from_pydict({name: columns.get(name, missing) for name in names}))

    def slices(self, rows: int) -> Iterator[RowBatch]:
        """Yield the rows in batches of at most `rows`."""
        for start in range(0, len(self.rows), rows):
            end = start + rows
            hashes = None if self.hashes is None else self.hashes[start:end]
            yield RowBatch(self.file, self.columns.slice(start, rows), self.rows[start:end], hashes)

    def texts(self, separators: Mapping[str, str] | None = None) -> RowBatch:
        """Return the rows as a file of text has them, empty where a value is missing.

        separators: what stands between the values of a list, by column. Raises `DataError` if a value holds it.
        """
        try:
            texts = {
                name: joined(values, separators[name])
                if separators and name in separators and is_list(values.type)
                else as_texts(values)
                for name, values in self._named().items()
            }
        except ValueError as error:
            raise DataError(f"{self.file}: {error}.") from error
        return replace(self, columns=pa.RecordBatch.from_pydict(texts))

    def _named(self) -> dict[str, Any]:
        return dict(zip(self.columns.schema.names, self.columns.columns, strict=True))


def unreadable_rows(columns: pa.RecordBatch, names: Iterable[str]) -> dict[int, str]:
    """Return the rows whose value in one of the columns `names` is no time that can be read, and why, in order."""
    found: dict[int, str] = {}
    for name in names:
        for row, stored in impossible_times(columns[name]).items():
            detail = f"'{name}': a time of the years 1 to 9999 is expected, {stored} was found"
            found.setdefault(row, detail)
    return dict(sorted(found.items()))


_Item = TypeVar("_Item")
_Other = TypeVar("_Other")


def batched(
    items: Iterable[_Item | _Other], kind: type[_Item], size: Callable[[_Item], int], limit: int, size_limit: int
) -> Iterator[list[_Item] | _Other]:
    """Yield the items of `kind` in batches of at most `limit` items and, but for one alone, `size_limit`.

    What is of another kind is yielded as it comes.
    """
    batch: list[_Item] = []
    batch_size = 0
    for item in items:
        if not isinstance(item, kind):
            yield cast(_Other, item)
            continue
        item_size = size(item)
        if batch and (len(batch) == limit or batch_size + item_size > size_limit):
            yield batch
            batch, batch_size = [], 0
        batch.append(item)
        batch_size += item_size
    if batch:
        yield batch
