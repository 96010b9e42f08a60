"""Cuts the bytes of a CSV file into whole rows, as far as they are so plain that every parser reads them alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

from trainyard.readers.table_file import Dialect

Positions = npt.NDArray[np.int64]

_LINE_END = re.compile(rb"\r\n?|\n")
_CHUNK = 1 << 16
_UTF8_BYTES = 4  # of one character, at most
_LF, _CR = b"\n\r"


class PeekableReader:
    """The bytes of `stream`, read ahead: taken line by line, or looked at and passed over. `consumed` counts them.

    limit: how many there are; all by default.
    """

    def __init__(self, stream: IO[bytes], limit: int | None = None) -> None:
        self._stream = stream
        self._remaining = limit
        self._buffer = b""
        self._at = 0
        self.consumed = 0

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer if the stream ends."""
        while (missing := self._at + size - len(self._buffer)) > 0 and self._read(missing):
            pass
        return self._buffer[self._at : self._at + size]

    def skip(self, size: int) -> None:
        """Pass over `size` bytes that were looked at."""
        self._at += size
        self.consumed += size

    def readline(self, limit: int) -> bytes:
        """Return the next line with its end (LF, CR LF or CR), or more than `limit` characters of it."""
        searched = 0
        while True:
            end = _LINE_END.search(self._buffer, self._at + searched)
            if end is None:
                searched = len(self._buffer) - self._at
                if searched > limit * _UTF8_BYTES or not self._read(_CHUNK):
                    return self._take(searched)
            elif end[0] != b"\r" or end.end() < len(self._buffer) or not self._read(_CHUNK):
                return self._take(end.end() - self._at)

    def _take(self, size: int) -> bytes:
        line = self._buffer[self._at : self._at + size]
        self.skip(size)
        return line

    def _read(self, size: int) -> bool:
        least = max(size, _CHUNK)
        more = self._stream.read(least if self._remaining is None else min(least, self._remaining))
        self._remaining = None if self._remaining is None else self._remaining - len(more)
        self._buffer, self._at = self._buffer[self._at :] + more, 0
        return bool(more)


@dataclass(frozen=True)
class RowBlock:
    """Whole rows of a file.

    content: the rows, each with its line end. row_ends: the positions of those. size: the bytes of the rows in the
    file, whose last one may have no line end. irregular: true if a row follows that only a parser can read.
    """

    content: bytes
    row_ends: Positions
    size: int
    irregular: bool

    @property
    def rows(self) -> int:
        """The number of rows, blank ones too."""
        return len(self.row_ends)


def plain_block(content: bytes, *, dialect: Dialect, max_rows: int, max_row_bytes: int, ends: bool) -> RowBlock:
    """Return the rows that `content` begins with, up to the first irregular one.

    Irregular: a quote inside a cell that does not begin with one, CR as a line end, NUL, bytes that are not UTF-8, or
    a row of more than `max_row_bytes`. `ends` says that the file ends with `content`.
    """
    in_file = len(content)
    if ends and not content.endswith(b"\n"):
        content += b"\n"
    _, _, row_ends, first_irregular = _scanned(content, dialect)
    row_ends = row_ends[:max_rows]
    too_long = np.flatnonzero(np.diff(row_ends, prepend=-1) > max_row_bytes)[:1]
    if too_long.size:
        row_ends = row_ends[: too_long[0]]
    size = int(row_ends[-1]) + 1 if row_ends.size else 0
    irregular = bool(too_long.size) or first_irregular < len(content)
    return RowBlock(content[:size], row_ends, min(size, in_file), irregular)


def split_ragged(block: RowBlock, dialect: Dialect, columns: int) -> tuple[bytes, Positions, list[tuple[int, int]]]:
    """Return the rows that have `columns` cells and their places in `block`, and of the others place and cells.

    Blank lines are in neither.
    """
    content, row_ends = block.content, block.row_ends
    data, quotes, _, _ = _scanned(content, dialect)
    lengths = np.diff(row_ends, prepend=-1)
    delimiters = _outside(np.flatnonzero(data == ord(dialect.delimiter or ",")), quotes)
    cells = np.diff(np.searchsorted(delimiters, row_ends), prepend=0) + 1
    blank = (lengths == 1) | ((lengths == 2) & (data[row_ends - 1] == _CR))
    good = (cells == columns) & ~blank
    ragged = np.flatnonzero((cells != columns) & ~blank)
    pairs = list(zip(ragged.tolist(), cells[ragged].tolist(), strict=True))
    return _selected(content, row_ends, good), np.flatnonzero(good), pairs


def row_starts(stream: IO[bytes], every: int, block_bytes: int, dialect: Dialect) -> Iterator[tuple[int, int]]:
    """Yield position and number (from 1) of a row about every `every` bytes, up to the first irregular row.

    block_bytes: that are looked through at once, more than a row has.
    """
    ahead, rows, last = PeekableReader(stream), 0, 0
    while content := ahead.peek(block_bytes):
        if ahead.consumed - last >= every:
            last = ahead.consumed
            yield last, rows + 1
        content = content[: content.rfind(b"\n") + 1]
        if not content:
            return
        _, _, row_ends, first_irregular = _scanned(content, dialect)
        if not row_ends.size or first_irregular < len(content):
            return
        ahead.skip(int(row_ends[-1]) + 1)
        rows += len(row_ends)


def _scanned(content: bytes, dialect: Dialect) -> tuple[npt.NDArray[np.uint8], Positions | None, Positions, int]:
    """Return the bytes, and the positions of quotes, line ends of simple rows, and the first irregular byte."""
    data, quote = np.frombuffer(content, np.uint8), dialect.quote_byte
    quotes = np.flatnonzero(data == quote[0]) if quote and quote in content else None
    first_irregular = _first_irregular(content, data, quotes, dialect)
    row_ends = _outside(np.flatnonzero(data == _LF), quotes)
    return data, quotes, row_ends[: np.searchsorted(row_ends, first_irregular)], first_irregular


def _outside(positions: Positions, quotes: Positions | None) -> Positions:
    """Return the `positions` outside quotes: after an even number of them."""
    return positions if quotes is None else positions[np.searchsorted(quotes, positions) % 2 == 0]


def _first_irregular(content: bytes, data: npt.NDArray[np.uint8], quotes: Positions | None, dialect: Dialect) -> int:
    """Return the position of the first byte that makes a row irregular, or the length of `content`."""
    irregular = [len(content)]
    if (nul := content.find(b"\0")) >= 0:
        irregular.append(nul)
    if not content.isascii():
        try:
            content.decode()
        except UnicodeDecodeError as error:
            irregular.append(error.start)
    if quotes is not None:
        irregular += _misplaced(data, quotes, ord(dialect.delimiter or ","))
    if b"\r" in content:
        returns = _outside(np.flatnonzero(data[:-1] == _CR), quotes)
        irregular += returns[data[returns + 1] != _LF][:1].tolist()
    return min(irregular)


def _misplaced(data: npt.NDArray[np.uint8], quotes: Positions, delimiter: int) -> list[int]:
    """Return the first quote that begins no cell, and the first that ends none: by RFC 4180 they take turns."""
    opening, closing, quote = quotes[::2], quotes[1::2], data[quotes[0]]
    before = data[opening - 1]
    begins = (opening == 0) | (before == delimiter) | (before == _LF) | (before == quote)
    closing = closing[closing + 1 < len(data)]
    after = data[closing + 1]
    ends = (after == delimiter) | (after == _LF) | (after == quote) | (after == _CR)
    return [*opening[~begins][:1].tolist(), *closing[~ends][:1].tolist()]


def _selected(content: bytes, row_ends: Positions, selection: npt.NDArray[np.bool_]) -> bytes:
    """Return the selected rows of `content`."""
    starts = np.concatenate([[0], row_ends[:-1] + 1])
    return b"".join(content[start : end + 1] for start, end in zip(starts[selection], row_ends[selection], strict=True))
