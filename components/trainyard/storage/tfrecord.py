"""Reads the records of TFRecord files from any stream and detects every truncated or flipped byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

import google_crc32c

HEADER_BYTES = 12

_MASK = 0xA282EAD8  # specified by the format
_CHUNK = 1 << 20
_NO_LENGTH = "its length does not match its checksum"
_GZIP = b"\x1f\x8b"
_DEFLATE = 8  # source: RFC 1950, 2.2


class DamagedRecord(Exception):
    """The file cannot be read from this record on; the number is counted from 1."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"record {number}: {why}. Copy the file again from its origin.")


def read_records(stream: IO[bytes], limit: int) -> Iterator[bytes | int]:
    """Yield the records of a file; for a record with more than `limit` bytes, which is skipped, its size.

    Raises `DamagedRecord` if a checksum differs, also in skipped records. Source:
    tensorflow/core/lib/io/record_writer.h: uint64 length, masked crc32c of it, data, masked crc32c of them.
    """
    number = 0
    while header := stream.read(HEADER_BYTES):
        number += 1
        if len(header) < HEADER_BYTES:
            raise DamagedRecord(number, "the file ends inside it")
        if not is_header(header):
            raise DamagedRecord(number, _compressed(header) if number == 1 else _NO_LENGTH)
        (length,) = struct.unpack_from("<Q", header)
        data: bytes | int
        if length > limit:
            data = length
            size, crc = _skip(stream, length)
        else:
            data = stream.read(length)
            size, crc = len(data), google_crc32c.value(data)
        footer = stream.read(4)
        if size < length or len(footer) < 4:
            raise DamagedRecord(number, "the file ends inside it")
        if masked(crc) != struct.unpack("<I", footer)[0]:
            raise DamagedRecord(number, "its bytes do not match their checksum")
        yield data


def _compressed(header: bytes) -> str:
    """Return the error for a file that does not begin with a record."""
    if header.startswith(_GZIP):
        return "the file is compressed with GZIP, and its name does not end in .gz"
    if header[0] & 0x0F == _DEFLATE and int.from_bytes(header[:2], "big") % 31 == 0:
        return "the file is compressed with ZLIB. It is read plain, or with GZIP as .tfrecord.gz"
    return _NO_LENGTH


def is_header(content: bytes) -> bool:
    """Return True if `content` starts with a record's length and its checksum."""
    if len(content) < HEADER_BYTES:
        return False
    crc: int = struct.unpack_from("<I", content, 8)[0]
    return masked(google_crc32c.value(content[:8])) == crc


def masked(crc: int) -> int:
    """Return the checksum `crc` as the format stores it."""
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _skip(stream: IO[bytes], length: int) -> tuple[int, int]:
    """Skip `length` bytes; return the number that exist and their checksum."""
    size, crc = 0, 0
    while size < length and (chunk := stream.read(min(_CHUNK, length - size))):
        size, crc = size + len(chunk), google_crc32c.extend(crc, chunk)
    return size, crc
