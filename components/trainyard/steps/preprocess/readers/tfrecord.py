"""Reads TFRecord files, with the faults of a record and of a file that the readers of preprocess have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from trainyard.steps.preprocess.readers.files import too_many_bytes
from trainyard.steps.preprocess.readers.records import BadRecord, BadSource
from trainyard.storage import tfrecord


def read_records(stream: IO[bytes], name: str, limit: int) -> Iterator[bytes | BadRecord]:
    """Yield the records of one TFRecord file, and for one of more than `limit` bytes, passed over, why it is not read.

    Raises `BadSource` that names file and record if a checksum differs, those of what is passed over included.
    """
    try:
        for record in tfrecord.read_records(stream, limit):
            yield too_many_bytes(record, limit) if isinstance(record, int) else record
    except tfrecord.DamagedRecord as error:
        raise BadSource(f"{name}: {error}") from error
