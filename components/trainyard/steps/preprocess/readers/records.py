"""The records of preprocess, and the reasons of bad ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from trainyard.readers.rows import MOST_ROWS, batched
from trainyard.spec.columns import IMAGE_MEASURES, Category, Date, Numeric, Text
from trainyard.spec.recipe import Data

MOST_BYTES = 16 << 20  # of a batch of more than one row; chosen
LABELS_APART = "\n"
"""Stands between the classes, or the targets, of one record's label. No class has a line break in its name."""

ROW_HASH, WHOLE_HASH = "row_hash", "whole_hash"
"""With `Data.hashes_rows`, until a row has its split: its hash without `Data.judging`, and of all columns (uint64)."""

_DIGEST_BYTES = 32
_PIXELS = ("constant", "level")

_Other = TypeVar("_Other")
Value = float | int | str | bytes


@dataclass(frozen=True)
class Record:
    """One checked example.

    source names its origin below the data's root. label is the class's name, or the target's number, as text; several,
    with `LABELS_APART` between them, are classes in order of their names, or the targets in theirs. raw holds the raw
    features by name. content is the SHA-256 of what the model learns from (the label left out), so equal
    examples have equal content. measures are what is counted, too: height, width and bytes of an image, and of a row
    the features that are computed and its weight. split_by is what `data.split` goes by, if it is a column or
    the folder.
    """

    source: str
    label: str
    raw: dict[str, Value]
    content: bytes
    measures: Mapping[str, Value]
    split_by: str = ""


@dataclass(frozen=True)
class Unselected:
    """Rows that `data.where` leaves out."""

    rows: int


class BadRecord(Exception):
    """One record cannot be used: why, as a code for counting and as a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def content_digest(raw: dict[str, Value]) -> bytes:
    """Return the SHA-256 over the raw features, whatever their order."""
    return hashlib.sha256(b"".join(digest_part(name, value) for name, value in sorted(raw.items()))).digest()


def digest_part(name: str, value: Value) -> bytes:
    """Return the bytes of feature `name` in the digest of a record; 0.0 and -0.0 are equal."""
    value = value + 0.0 if isinstance(value, float) else value
    encoded = value if isinstance(value, bytes) else repr(value).encode()
    return f"{name}\0{len(encoded)}\0".encode() + encoded


def batch_schema(data: Data) -> pa.Schema:
    """Return the columns of a batch of records: source, label, content, `raw/<feature>`, `measure/<name>`, split_by.

    Images have `pixels/constant`, 1 or 0, and `pixels/level` as well, as `CheckedImage` says; NaN is None. A number is
    a double, NaN if it is missing; a text or a day is a string; an encoded image is binary.
    """
    raw = {name: _stored(kind) for name, kind in data.inputs.items()}
    computed = {name: _stored(data.features[name]) for name in data.derived_features}
    weight = {data.weight: pa.float64()} if data.weight else {}
    measures = dict.fromkeys(IMAGE_MEASURES, pa.float64()) if data.is_image else computed | weight
    return pa.schema(
        [
            ("source", pa.string()),
            ("label", pa.string()),
            ("content", pa.binary(_DIGEST_BYTES)),
            *((f"raw/{name}", kind) for name, kind in (raw or {"image": pa.binary()}).items()),
            *((f"measure/{name}", kind) for name, kind in measures.items()),
            *((f"pixels/{name}", pa.float64()) for name in _PIXELS if data.is_image),
            *([("split_by", pa.string())] if data.split.by_value else []),
        ]
    )


def _stored(feature: Numeric | Category | Date | Text) -> pa.DataType:
    return pa.float64() if isinstance(feature, Numeric) else pa.string()


def record_batch(records: Sequence[Record], data: Data) -> pa.RecordBatch:
    """Return `records` as a batch of the schema `batch_schema`."""
    schema = batch_schema(data)
    columns: dict[str, list[Value]] = {
        "source": [record.source for record in records],
        "label": [record.label for record in records],
        "content": [record.content for record in records],
    }
    if "split_by" in schema.names:
        columns["split_by"] = [record.split_by for record in records]
    for name in [name for name in schema.names if name not in columns]:
        kind, _, key = name.partition("/")
        columns[name] = [record.raw[key] if kind == "raw" else record.measures[key] for record in records]
    return pa.RecordBatch.from_pydict(columns, schema=schema)


def in_batches(items: Iterable[Record | _Other], data: Data) -> Iterator[pa.RecordBatch | _Other]:
    """Yield the records of `items` in batches, and what is no record as it comes."""
    for batch in batched(items, Record, _bytes, MOST_ROWS, MOST_BYTES):
        yield record_batch(batch, data) if isinstance(batch, list) else batch


def _bytes(record: Record) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in record.raw.values())
