"""Reads CSV files (RFC 4180, header line, gzip too) in batches of columns of text.

Plain blocks of rows go through Arrow, what is left through Python's parser; row numbers are those of the file.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from trainyard.errors import DataError, did_you_mean
from trainyard.readers.csv_blocks import PeekableReader, RowBlock, plain_block, row_starts, split_ragged
from trainyard.readers.csv_text import open_text
from trainyard.readers.rows import PIECE_BYTES, WHOLE, BadRow, Piece, RowBatch
from trainyard.readers.table_file import ABSENT_HINT, Dialect, TableFile
from trainyard.spec.columns import DELIMITERS, Delimiter, column_names
from trainyard.storage.listing import is_gzip, open_file
from trainyard.values.columns import are_plain, is_text, plain_numbers
from trainyard.values.patterns import SPACE, UTF16, UTF32

_MAX_CELL = 1 << 20  # characters; chosen: a longer one is a lost quote
_MAX_ROW = 16 << 20  # characters; chosen: room for a million columns
_FIRST_BYTES = 1 << 16  # of the first block; chosen: enough to see how long rows are
_BLOCK_ROWS = 1 << 15  # measured: what costs once a batch is then little in `data inspect` and `predict`, too
_MOST_BYTES = 4 << 20  # of a block; chosen: numbers of one digit take four times that as doubles
_BLOCK_COLUMNS, _WIDEST = 1000, 8  # chosen: a block grows by `_MOST_BYTES` every 1,000 columns, up to 8 times that
_ODD_BYTES = 1 << 12  # chosen: how much goes row by row before the next block is tried
_FEW_ROWS = 96  # measured: fewer are parsed sooner row by row
_MANY_CELLS = 1 << 14  # chosen: of wide rows; row by row they would come one a batch, which costs its columns each time
_NOT_TEXT = re.compile("[\0\udc80-\udcff]")
_ZIP = b"PK\3\4"
_EXCEL = re.compile('"?sep=(.)"?\r?\n', re.IGNORECASE)  # the first line that Excel goes by where 1,5 is a number
_EXCEL_BYTES = 16
_WITH_COMMA = f"^{SPACE}*([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?){SPACE}*$"
_WITH_POINT = rf"^{SPACE}*([+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?){SPACE}*$"


def csv_columns(file: TableFile) -> list[str]:
    """Return the names in the header of `file`. Raises `DataError` as `read_csv` does."""
    with open_text(file, _FIRST_BYTES) as stream:
        return _Table(stream, file, None).header


def find_delimiter(file: TableFile) -> Delimiter:
    """Return the delimiter of `file`. Raises `DataError` as `read_csv` does."""
    with open_text(file, _FIRST_BYTES) as stream:
        return _Table(stream, file, None).dialect.delimiter or ","


def count_csv(file: TableFile) -> int | None:
    """Return the number of rows of a local file if no cell holds a line break; None if lines are not rows."""
    if not file.dialect.is_plain or is_gzip(file.path):
        return None
    lines, last, first = 0, b"\n", b""
    with open_file(file.path) as stream:
        while chunk := stream.read(1 << 20):
            first = first or chunk[:32]
            lines, last = lines + chunk.count(b"\n"), chunk[-1:]
    return max(0, lines + (last != b"\n") - 1 - (_said_by_excel(first.removeprefix(codecs.BOM_UTF8)) is not None))


def csv_pieces(file: TableFile) -> list[Piece]:
    """Return the pieces of `file` that can be read apart: of about 64 MiB.

    They end where every parser would begin a row, so all of the file is looked through. What follows on the first row
    that only a parser can read is one piece, and so is a file that is gzipped, not plain UTF-8, or not readable at all.
    """
    count = file.size // PIECE_BYTES if file.dialect.is_plain else 0
    try:
        if count < 2 or is_gzip(file.path):
            return [WHOLE]
        with open_file(file.path) as stream:
            starts = [(0, 1), *row_starts(stream, -(-file.size // count), _MOST_BYTES, file.dialect)]
    except OSError:
        return [WHOLE]
    ends = [*(start for start, _ in starts[1:]), None]
    return [Piece(start, end, row) for (start, row), end in zip(starts, ends, strict=True)]


def read_csv(
    file: TableFile,
    columns: Sequence[str],
    _lists: Collection[str] | None = None,
    piece: Piece = WHOLE,
    whole_rows: bool = False,
) -> Iterator[RowBatch | BadRow]:
    """Yield `columns`, with `whole_rows` all, of the rows of `file` in batches, and the rows that cannot be read.

    Those have another number of cells than the header. Blank lines are no rows. Raises `DataError` with row and column
    if the file is not UTF-8 (a byte-order mark is accepted), or its header lacks or repeats a column.
    """
    with open_text(file, _MOST_BYTES if piece.start else None) as stream:  # there it begins with the header alone
        table = _Table(stream, file, columns, piece, whole_rows)
        block_bytes, odd_bytes = _FIRST_BYTES, _ODD_BYTES
        most_bytes = _MOST_BYTES * max(1, min(len(table.header) // _BLOCK_COLUMNS, _WIDEST))
        while content := table.ahead.peek(block_bytes):
            ends = len(content) < block_bytes
            block = table.plain_block(content, ends=ends)
            can_grow = not (block.irregular or ends) and block_bytes < most_bytes
            is_wide = not can_grow and block.rows * len(table.header) >= _MANY_CELLS
            if block.rows >= _FEW_ROWS or is_wide:
                yield from table.plain_rows(block)
                odd_bytes = _ODD_BYTES
                block_bytes = min(block.size * _BLOCK_ROWS // block.rows + _FIRST_BYTES, most_bytes)
            elif can_grow:
                block_bytes = min(8 * block_bytes, most_bytes)
            else:
                yield from table.odd_rows(odd_bytes)
                odd_bytes = min(2 * odd_bytes, _FIRST_BYTES)


class _Table:
    """A file behind its header: `ahead` are its bytes. columns: those that are read, all by default."""

    def __init__(
        self,
        stream: IO[bytes],
        file: TableFile,
        columns: Sequence[str] | None,
        piece: Piece = WHOLE,
        whole_rows: bool = False,
    ) -> None:
        csv.field_size_limit(_MAX_CELL)
        self._name = file.name
        self.dialect = replace(file.dialect, delimiter=file.dialect.delimiter or ",")
        self._begin(PeekableReader(stream, None if piece.start else piece.end), row=1)
        self._require_csv()
        if not self._take_excel_line(file.dialect) and file.dialect.delimiter is None:
            self._guess_delimiter()
        self.header = self._read_header(columns or ())
        extra = self.header if whole_rows or not columns else ()
        places = {name: place for place, name in enumerate(self.header)}
        self._indices = {name: places[name] for name in dict.fromkeys([*(columns or ()), *extra])}
        commas = self.dialect.comma_numbers
        self._numbers = [name for name in self._indices if name in file.numbers and (not commas or name in commas)]
        if piece.start:
            stream.seek(piece.start)
            self._begin(PeekableReader(stream, None if piece.end is None else piece.end - piece.start), piece.row)

    def _begin(self, ahead: PeekableReader, row: int) -> None:
        """Continue with `ahead`, which begins with the row of that number."""
        self.ahead = ahead
        self._lines = _Lines(ahead)
        self._reader = csv.reader(self._lines, strict=True, **self.dialect.python_options)
        self._number = row - 1

    def _require_csv(self) -> None:
        start = self.ahead.peek(len(UTF32[0]))
        if start in UTF32 or start[:2] in UTF16:
            encoding, hint = ("UTF-32", "") if start in UTF32 else ("UTF-16", ", or set data.encoding: utf-16")
            raise DataError(f"{self._name}: row 1: is {encoding}. UTF-8 is expected. Save the file as UTF-8{hint}.")
        if self.ahead.peek(len(_ZIP)) == _ZIP:
            raise DataError(f"{self._name}: is a ZIP archive. CSV is read plain or as .csv.gz. Unpack it.")
        if self.ahead.peek(3) == codecs.BOM_UTF8:
            self.ahead.skip(3)

    def _take_excel_line(self, dialect: Dialect) -> bool:
        """Pass over the line `sep=;` of Excel, and return whether there is one. Cells are separated as it says."""
        said = _said_by_excel(self.ahead.peek(_EXCEL_BYTES))
        if said is None:
            return False
        delimiter = next((known for known in DELIMITERS if known == said), None)
        if delimiter is None or dialect.delimiter not in (None, delimiter):
            raise DataError(
                f"{self._name}: row 1: says that {said!r} separates the cells, data.delimiter is "
                f"{dialect.delimiter or ','!r}. Allowed: {', '.join(map(repr, DELIMITERS))}. Correct one of them."
            )
        self.dialect = replace(dialect, delimiter=delimiter)
        self.ahead.readline(_EXCEL_BYTES)
        self._begin(self.ahead, row=2)
        return True

    def _guess_delimiter(self) -> None:
        """Take what seems to separate the cells if the header is one cell between commas."""
        start = io.StringIO(self.ahead.peek(_FIRST_BYTES).decode("utf-8", "surrogateescape"), newline="")
        with suppress(csv.Error):  # which reading the header says
            cells = next(filter(None, csv.reader(start, **self.dialect.python_options)), [])
            if len(cells) == 1 and (other := likely_delimiter(cells[0])):
                self.dialect = replace(self.dialect, delimiter=other)
                self._begin(self.ahead, row=1)

    def _read_header(self, columns: Sequence[str]) -> list[str]:
        header = self._next()
        while header == [] and not self.dialect.is_plain:  # lines that are left out are blank
            header = self._next()
        header = column_names(header or [])
        place = f"{self._name}: row {self._number}"
        _check_text(header, header, place)
        if not header:
            raise DataError(f"{place}: is empty. A header line with the names of the columns is expected.")
        if len(header) == 1 and header[0] not in columns and (other := likely_delimiter(header[0])):
            raise DataError(
                f"{place}: the header is one cell, {header[0][:80]!r}. It looks as if {other!r} separates the cells. "
                f"Give data.delimiter: {json.dumps(other)}."
            )
        repeated = [column for column, times in Counter(header).items() if times > 1]
        if repeated:
            raise DataError(
                f"{place}: the header names column '{repeated[0][:80]}' twice. Give each column a different name."
            )
        for column in columns:
            if column not in header:
                raise DataError(
                    f"{place}: no column '{column}'.{did_you_mean(column, header[:1000])} "
                    f"The header has: {', '.join(header)[:400]}. Correct the recipe's data{ABSENT_HINT}."
                )
        return header

    def plain_block(self, content: bytes, *, ends: bool) -> RowBlock:
        """Return the plain rows that `content`, the next bytes, begins with."""
        return plain_block(
            content,
            dialect=self.dialect,
            max_rows=_BLOCK_ROWS,
            max_row_bytes=min(_MAX_CELL, _MAX_ROW),
            ends=ends,
        )

    def plain_rows(self, block: RowBlock) -> Iterator[RowBatch | BadRow]:
        """Yield the rows of `block`, which follow the earlier ones."""
        first = self._number + 1
        self._number += block.rows
        self.ahead.skip(block.size)
        try:
            rows = self._parsed(block.content)
        except pa.ArrowInvalid:  # a row with another number of cells
            rows = None
        if rows is not None and rows.num_rows == block.rows:  # no line is blank: Arrow leaves those out
            yield RowBatch(self._name, rows, first + np.arange(block.rows))
            return
        content, good, ragged = split_ragged(block, self.dialect, len(self.header))
        if good.size:
            yield RowBatch(self._name, self._parsed(content), first + good)
        yield from (self._ragged(first + index, cells) for index, cells in ragged)

    def odd_rows(self, size: int) -> Iterator[RowBatch | BadRow]:
        """Yield the rows of the next `size` bytes, which only a parser can read."""
        end = self.ahead.consumed + size
        rows: list[list[str]] = []
        numbers: list[int] = []
        ragged = []
        while self.ahead.consumed < end and (row := self._next()) is not None:
            if not row:
                continue
            _check_text(row, self.header, f"{self._name}: row {self._number}")
            if len(row) != len(self.header):
                ragged.append(self._ragged(self._number, len(row)))
                continue
            rows.append(row)
            numbers.append(self._number)
        if rows:
            columns = self._with_points(
                {name: pa.array([row[index] for row in rows], pa.string()) for name, index in self._indices.items()}
            )
            yield RowBatch(self._name, columns, np.array(numbers, np.int64))
        yield from ragged

    def _next(self) -> list[str] | None:
        """Return the next row, empty if it is blank. Its number is that of a record, which may span lines."""
        self._number += 1
        self._lines.row = 0
        try:
            return next(self._reader, None)
        except csv.Error as error:
            raise DataError(
                f"{self._name}: row {self._number}: not valid CSV ({error}). Quote cells as RFC 4180 says, or give "
                "data.quote, which may be none."
            ) from error

    def _ragged(self, number: int, cells: int) -> BadRow:
        return BadRow(self._name, int(number), "ragged_row", f"{cells} cells, the header has {len(self.header)}")

    def _parsed(self, content: bytes) -> pa.RecordBatch:
        """Return the cells of the columns that are read of whole rows.

        Texts, or float64 in columns of `file.numbers` as long as every cell of them is a plain number.
        """
        if self._numbers:
            with suppress(pa.ArrowInvalid):
                rows = self._converted(content, self._numbers)
                if all(are_plain(rows.column(name)) for name in self._numbers):
                    return rows
        rows = self._converted(content)
        self._numbers = [name for name in self._numbers if plain_numbers(rows.column(name)) is not None]
        return rows

    def _converted(self, content: bytes, numbers: Collection[str] = ()) -> pa.RecordBatch:
        """Return the cells of whole rows as Arrow converts them: `numbers` to float64, the others to texts."""
        types = {str(index): pa.float64() if name in numbers else pa.string() for name, index in self._indices.items()}
        # A mark that is no first character of the file is one of a cell, but Arrow leaves it out of any first row.
        content = b"\n" + content if content.startswith(codecs.BOM_UTF8) else content
        table = pa_csv.read_csv(
            pa.BufferReader(content),
            pa_csv.ReadOptions(
                use_threads=False, block_size=len(content) + 1, column_names=[*map(str, range(len(self.header)))]
            ),
            pa_csv.ParseOptions(newlines_in_values=True, **self.dialect.arrow_options),
            # Nothing stands for a missing number: such a cell is an error, and the block is read as texts.
            pa_csv.ConvertOptions(
                check_utf8=False,
                column_types=types,
                include_columns=[*types],
                null_values=[],
                decimal_point="," if self.dialect.comma_numbers else ".",
            ),
        ).combine_chunks()
        return self._with_points(
            {name: table.column(place).chunk(0) for name, place in zip(self._indices, types, strict=True)}
        )

    def _with_points(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """Return the columns with a decimal point for the comma.

        A number that has a point in the file is marked, so that nothing takes 1.234 for a number.
        """
        for name in self.dialect.comma_numbers:
            if name in columns and is_text(columns[name].type):
                marked = pc.replace_substring_regex(columns[name], _WITH_POINT, r"\1 (a point, not a comma)")
                columns[name] = pc.replace_substring_regex(marked, _WITH_COMMA, r"\1.\2")
        return pa.RecordBatch.from_pydict(columns)


def likely_delimiter(cell: str) -> Delimiter | None:
    """Return the likely delimiter of a header that has no comma."""
    separator = max(DELIMITERS[1:], key=cell.count)
    return separator if separator in cell else None


def _said_by_excel(start: bytes) -> str | None:
    """Return the delimiter of a leading line `sep=;`, None without one."""
    line = _EXCEL.match(start.decode("latin-1"))
    return line[1] if line else None


class _Lines:
    """The lines of a text, none of them read further than a row may be long; `row` counts the characters of one."""

    def __init__(self, ahead: PeekableReader) -> None:
        self._ahead = ahead
        self.row = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._ahead.readline(_MAX_ROW - self.row).decode("utf-8", "surrogateescape")
        self.row += len(line)
        if self.row > _MAX_ROW:
            raise csv.Error(f"longer than {_MAX_ROW:,} characters")
        if not line:
            raise StopIteration
        return line


def _check_text(row: list[str], header: list[str], place: str) -> None:
    if not _NOT_TEXT.search("".join(row)):
        return
    for index, cell in enumerate(row):
        column = f"{place}: column {index + 1}" + (
            f" '{header[index]}'" if row is not header and index < len(header) else ""
        )
        if "\0" in cell:
            raise DataError(f"{column}: holds a NUL byte. Text in UTF-8 is expected. Save the file as UTF-8.")
        if _NOT_TEXT.search(cell):
            raise DataError(
                f"{column}: is not UTF-8, {cell.encode('utf-8', 'surrogateescape')[:40]!r} was found. "
                "Set data.encoding, such as cp1252 for files of Windows or Latin-1, or save the file as UTF-8."
            )
