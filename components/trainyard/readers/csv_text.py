"""Turns the bytes of a CSV file into UTF-8; lines that are no rows become blank lines, so that row numbers stay."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from functools import partial
from typing import IO, cast

from trainyard.errors import DataError
from trainyard.readers.table_file import TableFile
from trainyard.storage.listing import open_file
from trainyard.values.patterns import UTF16

_CHUNK = 1 << 20  # chosen: what costs once a chunk is then little
_MARK = codecs.BOM_UTF8


def open_text(file: TableFile, chunk: int | None = None) -> IO[bytes]:
    """Return the content of the CSV `file` in UTF-8, with blank lines for `skip_rows` and comments.

    chunk: bytes of one request to a bucket. Reading raises `DataError` if the file is not in the recipe's encoding.
    """
    stream = open_file(file.path, chunk)
    if file.dialect.is_plain:
        return stream
    chunks = _in_utf8(stream, file)
    if file.dialect.skip_rows or file.dialect.comment:
        chunks = _without_lines(chunks, file)
    return cast(IO[bytes], io.BufferedReader(_Chunks(stream, chunks)))


class _Chunks(io.RawIOBase):
    """The bytes of `chunks`, which are made of those of `source`."""

    def __init__(self, source: IO[bytes], chunks: Iterator[bytes]) -> None:
        self._source, self._chunks, self._remaining = source, chunks, b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._source.close()
        super().close()

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Fill `buffer` and return the number of bytes; 0 at the end."""
        while not self._remaining:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._remaining = chunk
        count = min(len(buffer), len(self._remaining))
        buffer[:count] = self._remaining[:count]
        self._remaining = self._remaining[count:]
        return count


def _in_utf8(stream: IO[bytes], file: TableFile) -> Iterator[bytes]:
    encoding = file.dialect.encoding
    chunks = iter(partial(stream.read, _CHUNK), b"")
    if encoding == "utf-8":
        yield from chunks
        return
    decoder, utf8 = codecs.getincrementaldecoder(encoding)(), codecs.getincrementaldecoder("utf-8")()
    is_judged, at = False, 0
    for chunk in chunks:
        if encoding == "utf-16" and not at and chunk[:2] not in UTF16:
            raise _other_encoding(file, "begins with no byte-order mark of UTF-16", "the file's, such as cp1252")
        if encoding != "utf-16" and not is_judged:
            if chunk[:2] in UTF16 and not at:
                raise _other_encoding(file, "is UTF-16", "utf-16")
            try:
                is_utf8 = not utf8.decode(chunk).isascii()
            except UnicodeDecodeError:
                is_judged, is_utf8 = True, False
            if is_utf8:
                raise _other_encoding(file, "is UTF-8", "utf-8")
        try:
            yield decoder.decode(chunk).encode()
        except UnicodeDecodeError as error:
            raise _other_encoding(
                file, f"has the bytes {error.object[error.start : error.end]!r}, which are no {encoding}", "the file's"
            ) from error
        at += len(chunk)
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _other_encoding(file, "ends inside a character", "the file's") from error


def _other_encoding(file: TableFile, fault: str, better: str) -> DataError:
    return DataError(
        f"{file.name}: {fault}, and data.encoding is {file.dialect.encoding}. Set data.encoding to {better}, or save "
        "the file as UTF-8 and leave it out."
    )


def _without_lines(chunks: Iterator[bytes], file: TableFile) -> Iterator[bytes]:
    """Yield the text without the lines of `skip_rows` and those that begin with `comment`, but with their line ends.

    A line inside a quoted cell is no comment.
    """
    dialect, number, in_quotes, remaining = file.dialect, 0, False, b""
    skipped, comment = frozenset(dialect.skip_rows), (dialect.comment or "").encode()
    for chunk in _with_end(chunks):
        if not comment and number >= max(skipped):
            yield remaining + (chunk or b"")
            remaining = b""
            continue
        lines = (remaining + (chunk or b"")).splitlines(keepends=True)
        remaining = lines.pop() if chunk is not None and lines else b""
        kept = []
        for line in lines:
            number += 1
            start = line.removeprefix(_MARK) if number == 1 else line
            if number in skipped or (comment and not in_quotes and start.startswith(comment)):
                kept.append(b"\n")
                continue
            in_quotes ^= bool(dialect.quote_byte) and line.count(dialect.quote_byte) % 2 == 1
            kept.append(line)
        yield b"".join(kept)


def _with_end(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    yield from chunks
    yield None
