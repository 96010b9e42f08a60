"""Reads TFRecord files from any file system that Beam opens, and misses no cut or flipped byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

import google_crc32c

from trainyard.preprocess.records import BadSource

_MAX_RECORD = 1 << 31  # bytes; chosen: a longer record is a flipped length
_MASK = 0xA282EAD8  # specified by the format
_HEADER = 12


def read_records(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the records of one TFRecord file. Raises `BadSource` that names file and record where a checksum differs.

    Source: tensorflow/core/lib/io/record_writer.h: uint64 length, masked crc32c of it, data, masked crc32c of them.
    """
    number = 0
    while header := stream.read(_HEADER):
        number += 1
        where = f"{name}: record {number}"
        if len(header) < _HEADER:
            raise BadSource(f"{where}: the file ends inside it. Copy the file again from its origin.")
        length, length_crc = struct.unpack("<QI", header)
        if _masked_crc(header[:8]) != length_crc or length > _MAX_RECORD:
            raise BadSource(f"{where}: its length does not match its checksum. Copy the file again from its origin.")
        data, footer = stream.read(length), stream.read(4)
        if len(data) < length or len(footer) < 4:
            raise BadSource(f"{where}: the file ends inside it. Copy the file again from its origin.")
        if _masked_crc(data) != struct.unpack("<I", footer)[0]:
            raise BadSource(f"{where}: its bytes do not match their checksum. Copy the file again from its origin.")
        yield data


def _masked_crc(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF
