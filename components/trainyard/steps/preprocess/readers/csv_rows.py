"""Reads CSV files row by row (RFC 4180, header line, gzip too)."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import IO, cast

from trainyard.contract.artifacts import Quarantined
from trainyard.errors import did_you_mean
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import open_file
from trainyard.steps.preprocess.readers.records import BadRecord, BadSource, Record
from trainyard.steps.preprocess.readers.rows import check_row

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_MAX_CELL = 1 << 20  # characters; chosen: a longer one is a lost quote
_MAX_ROW = 16 << 20  # characters; chosen: room for a million columns
_NOT_TEXT = re.compile("[\0\udc80-\udcff]")


def read_csv(path: str, name: str, recipe: Recipe) -> Iterator[Record | Quarantined]:
    """Yield the rows of the file at `path`, or why one is bad; `name` stands for the file in messages.

    Raises `BadSource` with row and column where the file is not UTF-8 (a byte-order mark is accepted) or its header
    lacks or repeats a column. Row 1 is the header.
    """
    csv.field_size_limit(_MAX_CELL)
    with open_file(path) as stream:
        rows = _numbered(_text(stream, name), name)
        _, cells = next(rows, (1, []))
        header = [cell.strip() for cell in cells]
        _check_header(header, name, recipe)
        for number, row in rows:
            if row:
                _check_text(row, header, f"{name}: row {number}")
                yield _record(row, header, f"{name}:{number}", recipe)


def _text(stream: IO[bytes], name: str) -> io.TextIOWrapper:
    buffered = io.BufferedReader(cast(io.RawIOBase, stream))
    if buffered.peek(2)[:2] in _UTF16:
        raise BadSource(f"{name}: row 1: is UTF-16. UTF-8 is expected. Save the file as UTF-8.")
    return io.TextIOWrapper(buffered, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _numbered(text: io.TextIOWrapper, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows, each with its number: that of a record, which may span lines."""
    lines = _Lines(text)
    reader = csv.reader(lines, strict=True)
    number = 0
    while True:
        number += 1
        lines.row = 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise BadSource(f"{name}: row {number}: not valid CSV ({error}). Quote cells as RFC 4180 says.") from error
        yield number, row


class _Lines:
    """The lines of a text, none of them read further than a row may be long; `row` counts the characters of one."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self.row = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(_MAX_ROW + 1 - self.row)
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
    for column in (*recipe.data.features, recipe.data.label):
        if column not in header:
            raise BadSource(
                f"{where}: no column '{column}'.{did_you_mean(column, header[:1000])} "
                f"The header has: {', '.join(header)[:400]}. Correct the recipe's data.features or data.label."
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


def _record(row: list[str], header: list[str], source: str, recipe: Recipe) -> Record | Quarantined:
    try:
        if len(row) != len(header):
            raise BadRecord("ragged_row", f"{len(row)} cells, the header has {len(header)}")
        named = dict(zip(header, row, strict=True))
        return check_row(named, source, recipe.data, regression=recipe.task == "regression")
    except BadRecord as error:
        return Quarantined(source=source, reason=error.reason, detail=error.detail)
