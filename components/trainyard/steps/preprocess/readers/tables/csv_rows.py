"""Reads CSV files (RFC 4180, header line, gzip too) in batches, with one judge for what goes by column and by row."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from trainyard.contract.artifacts.preprocess import Quarantined
from trainyard.errors import did_you_mean
from trainyard.quality.tables.dialect import Dialect
from trainyard.quality.tables.table import likely_delimiter
from trainyard.spec.recipe import Recipe
from trainyard.spec.tables.columns import column_names
from trainyard.steps.preprocess.readers.files import PIECE_BYTES, WHOLE, FilePiece, open_file
from trainyard.steps.preprocess.readers.records import MOST_ROWS, BadRecord, BadSource, Record, in_batches
from trainyard.steps.preprocess.readers.tables.columns import ColumnJudge
from trainyard.steps.preprocess.readers.tables.csv_blocks import PeekableReader, RowBlock, plain_block, row_starts
from trainyard.steps.preprocess.readers.tables.rows import check_row
from trainyard.storage.buckets import bucket_source
from trainyard.values.patterns import UTF16

_MAX_CELL = 1 << 20  # characters; chosen: a longer one is a lost quote
_MAX_ROW = 16 << 20  # characters; chosen: room for a million columns
_FIRST_BYTES = 1 << 16  # of the first block; chosen: enough to see how long rows are
_MOST_BYTES = 4 << 20  # of a block; chosen: numbers of one digit take four times that as doubles
_ODD_BYTES = 1 << 12  # chosen: how much goes row by row before the next block is tried
_FEW_ROWS = 96  # measured: fewer are judged sooner row by row
_NOT_TEXT = re.compile("[\0\udc80-\udcff]")


def csv_pieces(path: str, size: int, dialect: Dialect) -> list[FilePiece]:
    """Return the pieces of the file of `size` bytes at `path`, which can be read apart: of about 64 MiB.

    They end where every parser would begin a row, so all of the file is looked through. What follows on the first row
    that only a parser can read is one piece, and so is an archive, and a file that cannot be read at all.
    """
    count = 0 if path.endswith(".gz") else size // PIECE_BYTES
    if count < 2:
        return [WHOLE]
    try:
        with bucket_source.source_errors(path), open_file(path) as stream:
            starts = [(0, 1), *row_starts(stream, -(-size // count), _MOST_BYTES, dialect)]
    except OSError:
        return [WHOLE]
    ends = [*(start for start, _ in starts[1:]), None]
    return [FilePiece(start, end, row) for (start, row), end in zip(starts, ends, strict=True)]


def read_csv_batches(
    path: str, name: str, recipe: Recipe, piece: FilePiece = WHOLE
) -> Iterator[pa.RecordBatch | Quarantined]:
    """Yield the rows of the file at `path` in batches, and why one is bad; `name` stands for the file in messages.

    Plain blocks of rows go through Arrow, others row by row. Raises `BadSource` with row and column if the file is not
    UTF-8 (a byte-order mark is accepted) or its header lacks or repeats a column. Row 1 is the header.
    """
    with open_file(path, _MOST_BYTES if piece.start else None) as stream:  # there it begins with the header alone
        table = _Table(stream, name, recipe, piece)
        block_bytes, odd_bytes = _FIRST_BYTES, _ODD_BYTES
        while content := table.ahead.peek(block_bytes):
            ends = len(content) < block_bytes
            block = table.plain_block(content, ends=ends)
            if block.rows >= _FEW_ROWS:
                yield from table.by_column(block)
                odd_bytes = _ODD_BYTES
                block_bytes = min(block.size * MOST_ROWS // block.rows + _FIRST_BYTES, _MOST_BYTES)
            elif not (block.odd or ends) and block_bytes < _MOST_BYTES:
                block_bytes = min(8 * block_bytes, _MOST_BYTES)
            else:
                yield from in_batches(table.records(odd_bytes), recipe.data)
                odd_bytes = min(2 * odd_bytes, _FIRST_BYTES)


def read_csv(path: str, name: str, recipe: Recipe) -> Iterator[Record | Quarantined]:
    """Yield what `read_csv_batches` does, row by row."""
    with open_file(path) as stream:
        table = _Table(stream, name, recipe)
        while table.ahead.peek(1):
            yield from table.records(1)


class _Table:
    """A file behind its header: `ahead` are its bytes."""

    def __init__(self, stream: IO[bytes], name: str, recipe: Recipe, piece: FilePiece = WHOLE) -> None:
        csv.field_size_limit(_MAX_CELL)
        self._dialect = Dialect.of(recipe.data)
        self._begin(PeekableReader(stream, None if piece.start else piece.end), row=1)
        if self.ahead.peek(2) in UTF16:
            raise BadSource(f"{name}: row 1: is UTF-16. UTF-8 is expected. Save the file as UTF-8.")
        if self.ahead.peek(3) == codecs.BOM_UTF8:
            self.ahead.skip(3)
        self._name, self._data, self._task = name, recipe.data, recipe.task
        self._judge = ColumnJudge(recipe.data, recipe.task)
        self._header = column_names(self._next() or [])
        _check_header(self._header, name, recipe)
        if piece.start:
            stream.seek(piece.start)
            self._begin(PeekableReader(stream, None if piece.end is None else piece.end - piece.start), piece.row)

    def _begin(self, ahead: PeekableReader, row: int) -> None:
        """Go on with `ahead`, which begins with the row of that number."""
        self.ahead = ahead
        self._lines = _Lines(ahead)
        self._reader = csv.reader(self._lines, strict=True, **self._dialect.python_options)
        self._number = row - 1

    def plain_block(self, content: bytes, *, ends: bool) -> RowBlock:
        """Return the plain rows that `content`, the next bytes, begins with."""
        return plain_block(
            content,
            dialect=self._dialect,
            columns=len(self._header),
            most_rows=MOST_ROWS,
            most_row_bytes=min(_MAX_CELL, _MAX_ROW),
            ends=ends,
        )

    def by_column(self, block: RowBlock) -> Iterator[pa.RecordBatch | Quarantined]:
        """Yield the rows of `block`, the next ones."""
        first = self._number + 1
        self._number += block.rows
        self.ahead.skip(block.size)
        bad = {index: self._ragged(first + index, cells) for index, cells in block.ragged}
        if block.good.size:
            sources = pc.binary_join_element_wise(
                f"{self._name}:", pc.cast(pa.array(first + block.good), pa.string()), ""
            )
            batch, quarantined = self._judge.check(self._columns(block), sources)
            bad |= {int(block.good[index]): item for index, item in quarantined.items()}
            if batch.num_rows:
                yield batch
        yield from (item for _, item in sorted(bad.items()))

    def records(self, size: int) -> Iterator[Record | Quarantined]:
        """Yield the rows of the next `size` bytes."""
        end = self.ahead.taken + size
        while self.ahead.taken < end and (row := self._next()) is not None:
            if row:
                _check_text(row, self._header, f"{self._name}: row {self._number}")
                if (item := self._record(row)) is not None:
                    yield item

    def _next(self) -> list[str] | None:
        """Return the next row, empty if it is blank. Its number is that of a record, which may span lines."""
        self._number += 1
        self._lines.row = 0
        try:
            return next(self._reader, None)
        except csv.Error as error:
            raise BadSource(
                f"{self._name}: row {self._number}: not valid CSV ({error}). Quote cells as RFC 4180 says, or give "
                "data.quote, which may be none."
            ) from error

    def _record(self, row: list[str]) -> Record | Quarantined | None:
        if len(row) != len(self._header):
            return self._ragged(self._number, len(row))
        source = f"{self._name}:{self._number}"
        named = dict(zip(self._header, row, strict=True))
        try:
            return check_row(named, source, self._data, self._task)
        except BadRecord as error:
            return Quarantined(source=source, reason=error.reason, detail=error.detail)

    def _ragged(self, number: int, cells: int) -> Quarantined:
        detail = f"{cells} cells, the header has {len(self._header)}"
        return Quarantined(source=f"{self._name}:{number}", reason="ragged_row", detail=detail)

    def _columns(self, block: RowBlock) -> dict[str, pa.Array]:
        """Return the cells of the recipe's columns."""
        indices = {name: self._header.index(name) for name in self._data.columns}
        columns = [str(index) for index in indices.values()]
        # A mark that is no first character of the file is one of a cell, but Arrow leaves it out of any first row.
        content = b"\n" + block.content if block.content.startswith(codecs.BOM_UTF8) else block.content
        table = pa_csv.read_csv(
            pa.BufferReader(content),
            pa_csv.ReadOptions(
                use_threads=False, block_size=len(content) + 1, column_names=[*map(str, range(len(self._header)))]
            ),
            pa_csv.ParseOptions(newlines_in_values=True, **self._dialect.arrow_options),
            pa_csv.ConvertOptions(
                check_utf8=False, column_types=dict.fromkeys(columns, pa.string()), include_columns=columns
            ),
        ).combine_chunks()
        return {name: table.column(str(index)).chunk(0) for name, index in indices.items()}


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
            raise csv.Error(f"longer than {_MAX_ROW} characters")
        if not line:
            raise StopIteration
        return line


def _check_header(header: list[str], name: str, recipe: Recipe) -> None:
    where = f"{name}: row 1"
    _check_text(header, header, where)
    repeated = [column for column, times in Counter(header).items() if times > 1]
    if repeated:
        raise BadSource(
            f"{where}: the header names column '{repeated[0][:80]}' twice. Give each column a name of its own."
        )
    other = likely_delimiter(header[0]) if len(header) == 1 else None
    if other and header[0] not in recipe.data.columns:
        raise BadSource(
            f"{where}: the header is one cell, {header[0][:80]!r}. It looks as if {other!r} separates the cells. Give "
            f"data.delimiter: {json.dumps(other)}."
        )
    for column in recipe.data.columns:
        if column not in header:
            raise BadSource(
                f"{where}: no column '{column}'.{did_you_mean(column, header[:1000])} "
                f"The header has: {', '.join(header)[:400]}. Correct the recipe's data."
            )


def _check_text(row: list[str], header: list[str], where: str) -> None:
    if not _NOT_TEXT.search("".join(row)):
        return
    for index, cell in enumerate(row):
        column = f"{where}: column {index + 1}" + (
            f" '{header[index]}'" if row is not header and index < len(header) else ""
        )
        if "\0" in cell:
            raise BadSource(f"{column}: holds a NUL byte. Text in UTF-8 is expected. Save the file as UTF-8.")
        if _NOT_TEXT.search(cell):
            raise BadSource(
                f"{column}: is not UTF-8, {cell.encode('utf-8', 'surrogateescape')[:40]!r} was found. "
                "Save the file as UTF-8 (it looks like Latin-1)."
            )
