"""Reads TFRecord files from any file system that Beam opens, and misses no cut or flipped byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

import google_crc32c

from trainyard.steps.preprocess.readers.files import too_many_bytes
from trainyard.steps.preprocess.readers.records import BadRecord, BadSource

_MASK = 0xA282EAD8  # specified by the format
_HEADER = 12
_CHUNK = 1 << 20


def read_records(stream: IO[bytes], name: str, limit: int) -> Iterator[bytes | BadRecord]:
    """Yield the records of one TFRecord file, and for one of more than `limit` bytes, passed over, why it is not read.

    Raises `BadSource` that names file and record if a checksum differs, those of what is passed over included.
    Source: tensorflow/core/lib/io/record_writer.h: uint64 length, masked crc32c of it, data, masked crc32c of them.
    """
    number = 0
    while header := stream.read(_HEADER):
        number += 1
        where = f"{name}: record {number}"
        if len(header) < _HEADER:
            raise BadSource(f"{where}: the file ends inside it. Copy the file again from its origin.")
        length, length_crc = struct.unpack("<QI", header)
        if _masked(google_crc32c.value(header[:8])) != length_crc:
            raise BadSource(f"{where}: its length does not match its checksum. Copy the file again from its origin.")
        data: bytes | BadRecord
        if length > limit:
            data = too_many_bytes(length, limit)
            size, crc = _passed_over(stream, length)
        else:
            data = stream.read(length)
            size, crc = len(data), google_crc32c.value(data)
        footer = stream.read(4)
        if size < length or len(footer) < 4:
            raise BadSource(f"{where}: the file ends inside it. Copy the file again from its origin.")
        if _masked(crc) != struct.unpack("<I", footer)[0]:
            raise BadSource(f"{where}: its bytes do not match their checksum. Copy the file again from its origin.")
        yield data


def _passed_over(stream: IO[bytes], length: int) -> tuple[int, int]:
    """Read `length` bytes and forget them: return how many there are, and their checksum."""
    size, crc = 0, 0
    while size < length and (chunk := stream.read(min(_CHUNK, length - size))):
        size, crc = size + len(chunk), google_crc32c.extend(crc, chunk)
    return size, crc


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF
