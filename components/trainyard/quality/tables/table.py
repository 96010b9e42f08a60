"""Reads CSV and Parquet files as batches of columns of text, each row with its number and every row that has none."""

from __future__ import annotations

import csv
import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from trainyard.errors import DataError
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.dialect import Dialect
from trainyard.quality.tables.parquet import column_names as parquet_columns
from trainyard.quality.tables.parquet import nested_columns, read_parquet
from trainyard.spec.tables.columns import DELIMITERS, Delimiter, Quote, column_names
from trainyard.storage.source_stream import unreadable
from trainyard.values.patterns import NUMBER, UTF16

_PLACE = re.compile(r"column #(\d+): Row #(\d+)")  # in Arrow's sentences; its rows begin below the header
_BLOCK = 4 << 20  # bytes of text that are parsed at once; chosen: a longer row is a lost quote
_ROWS = 1 << 14  # of a Parquet file that are read at once; chosen


@dataclass(frozen=True)
class RowBatch:
    """Rows of one file: columns of text, and for each row its number; the header of a CSV file is row 1."""

    file: str
    columns: Any  # pa.RecordBatch
    rows: NDArray[np.int64]

    def name(self, index: int) -> str:
        """Return the name of a row, such as `a.csv:17`."""
        return f"{self.file}:{self.rows[index]}"


@dataclass(frozen=True)
class Ragged:
    """A row with more or fewer cells than the header: none of it is counted."""

    file: str
    row: int
    cells: int
    expected: int


def read_table(source: SourceFiles) -> Iterator[RowBatch | Ragged]:
    """Yield the rows of all files in order; rows of nothing but empty cells are left out.

    Raises `DataError` that names the file if it is empty, its header differs from that of the first file or repeats
    a column, it is not UTF-8, or it cannot be read.
    """
    if source.kind == "parquet":
        yield from _parquet(source)
        return
    first: list[str] = []
    for file in source.files:
        try:
            with source.open(file) as stream:
                header, dialect = _header(stream, file.name, source.quote)
                first = first or header
                if header != first:
                    raise DataError(_other_header(header, first, file.name, source.files[0].name))
                yield from _rows(stream, header, file.name, dialect)
        except (OSError, EOFError, zlib.error) as error:
            raise unreadable(file.name, error) from error


def _parquet(source: SourceFiles) -> Iterator[RowBatch]:
    paths = {file.name: f"{source.root.rstrip('/')}/{file.name}" for file in source.files}
    columns: list[str] = []
    for name, path in paths.items():
        columns = columns or parquet_columns(path, name)
        rows = 0
        for texts in read_parquet(path, name, columns, _ROWS):
            yield RowBatch(name, texts, np.arange(rows + 1, rows + 1 + texts.num_rows))
            rows += texts.num_rows


def nested(source: SourceFiles) -> dict[str, Any]:
    """Return Arrow's types of the columns of the first file that hold lists or structs. Raises as `read_table`."""
    file = source.files[0]
    is_parquet = source.kind == "parquet"
    return nested_columns(f"{source.root.rstrip('/')}/{file.name}", file.name) if is_parquet else {}


def find_delimiter(source: SourceFiles) -> Delimiter:
    """Return what separates the cells of the first file. Raises as `read_table`."""
    file = source.files[0]
    try:
        with source.open(file) as stream:
            return _header(stream, file.name, source.quote)[1].delimiter
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(file.name, error) from error


def likely_delimiter(cell: str) -> Delimiter | None:
    """Return what seems to separate the cells of a header that a comma does not."""
    most = max(DELIMITERS[1:], key=cell.count)
    return most if most in cell else None


def _header(stream: IO[bytes], name: str, quote: Quote) -> tuple[list[str], Dialect]:
    """Return the names of the columns, and how cells stand: between commas, or what seems to if there is none."""
    start = stream.readline(_BLOCK)
    if start[:2] in UTF16:
        raise DataError(f"{name}: row 1: is UTF-16. UTF-8 is expected. Save the file as UTF-8.")
    if not start.strip():
        raise DataError(f"{name}: row 1: is empty. A header line with the names of the columns is expected.")
    lines = itertools.chain([start], iter(lambda: stream.readline(_BLOCK), b""))
    dialect = Dialect(quote=quote)
    try:
        texts = (line.decode("utf-8-sig") for line in lines)
        header = column_names(next(csv.reader(texts, **dialect.python_options)))
        if len(header) == 1 and (other := likely_delimiter(header[0])):
            dialect = Dialect(other, quote)
            first = [start.decode("utf-8-sig")]
            header = column_names(next(csv.reader(first, **dialect.python_options)))
    except (UnicodeDecodeError, csv.Error) as error:
        if b"\r" in start.rstrip(b"\r\n"):
            raise DataError(f"{name}: row 1: ends with CR alone. Save the file with lines that end with LF.") from error
        raise DataError(f"{name}: row 1: is no CSV in UTF-8 ({error}). Save the file as UTF-8.") from error
    repeated = [column for column, times in Counter(header).items() if times > 1]
    if repeated:
        raise DataError(
            f"{name}: row 1: the header names column '{repeated[0][:80]}' twice. Give each column a name of its own."
        )
    if all(re.fullmatch(NUMBER, cell) for cell in header):
        raise DataError(
            f"{name}: row 1: holds numbers alone ({', '.join(header)[:80]}), so the file has no header. "
            "Add a line with the names of the columns."
        )
    return header, dialect


def _rows(stream: IO[bytes], header: list[str], name: str, dialect: Dialect) -> Iterator[RowBatch | Ragged]:
    ragged: list[Ragged] = []
    guarded = _Guarded(stream)

    def skip(row: Any) -> str:
        ragged.append(Ragged(name, row.number + 1, row.actual_columns, row.expected_columns))
        return "skip"

    try:
        reader = pyarrow.csv.open_csv(
            pa.PythonFile(guarded, mode="r"),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=header),
            parse_options=pyarrow.csv.ParseOptions(
                **dialect.arrow_options, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=skip
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False, null_values=[]
            ),
        )
    except pa.ArrowInvalid as error:
        guarded.require_whole()
        if "Empty CSV" not in str(error):
            raise DataError(_not_csv(name, error, header)) from error
        return
    good, yielded = 0, 0
    while True:
        try:
            columns = reader.read_next_batch()
        except StopIteration:
            break
        except pa.ArrowInvalid as error:
            guarded.require_whole()
            raise DataError(_not_csv(name, error, header)) from error
        yield from ragged[yielded:]
        yielded = len(ragged)
        batch = RowBatch(name, columns, _numbers(good, columns.num_rows, [item.row for item in ragged]))
        good += columns.num_rows
        yield _without_empty(batch)
    guarded.require_whole()
    yield from ragged[yielded:]


class _Guarded(io.RawIOBase):
    """A stream that ends at a fault, and keeps it: Arrow reads in a thread, which would end the process with it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._fault: Exception | None = None

    def readable(self) -> bool:
        """It can be read, and nothing else."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, none after a fault."""
        try:
            return self._stream.read(size)
        except Exception as error:  # noqa: BLE001 - of any kind, and raised again by `require_whole`
            self._fault = error
            return b""

    def require_whole(self) -> None:
        """Raise what kept the stream from being read."""
        if self._fault is not None:
            raise self._fault


def _numbers(good: int, count: int, ragged: list[int]) -> NDArray[np.int64]:
    """Return the row numbers of `count` rows that follow `good` others, between the ragged ones."""
    # A ragged row before which there are n good ones moves all after it by one.
    before = np.array(ragged, np.int64) - 2 - np.arange(len(ragged))
    index = np.arange(good, good + count)
    return index + 2 + np.searchsorted(before, index, side="right")


def _without_empty(batch: RowBatch) -> RowBatch:
    filled = np.zeros(batch.columns.num_rows, bool)
    for column in batch.columns.columns:
        filled |= np.asarray(pc.binary_length(column)) > 0
        if filled.all():
            return batch
    return RowBatch(batch.file, batch.columns.filter(pa.array(filled)), batch.rows[filled])


def _other_header(header: list[str], first: list[str], name: str, first_name: str) -> str:
    missing = [column for column in first if column not in header]
    new = [column for column in header if column not in first]
    parts = [f"lacks {', '.join(missing)[:200]}"] if missing else []
    parts += [f"has {', '.join(new)[:200]} besides"] if new else []
    return (
        f"{name}: row 1: the header {' and '.join(parts) or 'has another order'}, compared with {first_name}. "
        "All files of a source have the same columns in the same order. Correct it, or name the files by a glob."
    )


def _not_csv(name: str, error: Exception, header: Sequence[str]) -> str:
    if "straddl" in str(error):
        return f"{name}: a row is longer than {_BLOCK >> 20} MiB. A quote that is opened and not closed is the cause."
    if position := _PLACE.search(str(error)):
        name = f"{name}: row {int(position[2]) + 1}: column '{header[int(position[1])]}'"
    return f"{name}: is no CSV in UTF-8 ({error}). Save it as UTF-8, and quote cells as RFC 4180 or data.quote say."
