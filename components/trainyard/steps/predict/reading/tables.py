"""Reads rows from CSV, Parquet and TFRecord files in blocks, and sets aside what cannot be read."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from trainyard.contract.batches import batched
from trainyard.errors import DataError
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.table import Ragged, read_table
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.predict.reading.batches import Items, Rejected
from trainyard.steps.predict.reading.columns import ROWS, require_columns, table_items
from trainyard.steps.predict.reading.source import InputFiles
from trainyard.storage import tfrecord
from trainyard.storage.listing import SourceFile
from trainyard.storage.source_stream import seekable_file

_MOST_BYTES = 64 << 20  # of a record; chosen
_GROUP_BYTES = 4 << 20  # of records that are parsed at once; chosen

_Block = tuple[pa.RecordBatch, pa.Array]
_Form = Literal["text", "number", "list"]


def read_rows(source: InputFiles, model: PushedModel, key: str | None) -> Items:
    """Yield the rows of all files in order. A file that cannot be read on is set aside from there.

    Raises `DataError` if the first file lacks a column.
    """
    blocks = {"csv": _csv, "parquet": _parquet, "tfrecord": _tfrecord}[source.kind]
    for number, file in enumerate(source.files):
        if file.reason:
            yield Rejected(file.name, file.reason, file.detail)
            continue
        checked = False
        early: list[Rejected] = []  # rows that come before the columns are known
        try:
            for block in blocks(source, file, model, key):
                if isinstance(block, Rejected):
                    early.append(block)
                    if checked:
                        yield early.pop()
                    continue
                columns, names = block
                if not checked:
                    require_columns(columns.schema.names, model, key, file.name)
                    checked = True
                    yield from early
                    early = []
                yield from table_items(columns, names, model, key)
            yield from early
        except _Unreadable as error:
            yield from early
            yield Rejected(file.name, "unreadable_file", str(error))
        except DataError as error:
            if number == 0:
                raise
            yield Rejected(file.name, "missing_column", str(error))


class _Unreadable(Exception):
    """A file cannot be read, or not any further: why."""


def _csv(source: InputFiles, file: SourceFile, model: PushedModel, _key: str | None) -> Iterator[_Block | Rejected]:
    table = read_table(SourceFiles(source.path, "csv", source.root, [file], [], model.quote))
    while True:
        try:
            item = next(table)
        except StopIteration:
            return
        except DataError as error:
            raise _Unreadable(str(error)) from error
        if isinstance(item, Ragged):
            detail = f"{item.cells} cells, the header has {item.expected}"
            yield Rejected(f"{item.file}:{item.row}", "ragged_row", detail)
        else:
            yield item.columns, _names(file, pa.array(item.rows))


def _parquet(source: InputFiles, file: SourceFile, model: PushedModel, key: str | None) -> Iterator[_Block | Rejected]:
    required = {key, *(feature.name for feature in model.inputs)}
    done = 0
    try:
        with seekable_file(source.path_of(file.name)) as path, parquet.ParquetFile(path) as opened:
            names = opened.schema_arrow.names
            require_columns(names, model, key, file.name)  # before the others are left out
            for columns in opened.iter_batches(ROWS, columns=[name for name in names if name in required]):
                yield columns, _names(file, pa.array(np.arange(done + 1, done + 1 + columns.num_rows)))
                done += columns.num_rows
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _Unreadable(f"is no whole Parquet file ({error})") from error


def _tfrecord(source: InputFiles, file: SourceFile, model: PushedModel, key: str | None) -> Iterator[_Block | Rejected]:
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    decoder = ExamplesToRecordBatchDecoder()
    forms = {feature.name: _form(feature) for feature in model.inputs} | ({key: "text"} if key else {})
    records = numbered_records(source, file)
    for group in batched(records, tuple, lambda record: len(record[1]), ROWS, _GROUP_BYTES):
        yield from _decoded(decoder, group, file, forms) if isinstance(group, list) else [group]


def _form(of: RawInput) -> _Form:
    if of.column is not None and of.column.separator is not None:
        return "list"
    return "text" if of.dtype == "string" else "number"


def numbered_records(source: InputFiles, file: SourceFile) -> Iterator[tuple[int, bytes] | Rejected]:
    """Yield the records of a TFRecord file with their numbers, from 1 on; the last is what it cannot be read on for."""
    number = 0
    try:
        with source.open(file) as stream:
            for number, record in enumerate(tfrecord.read_records(stream, _MOST_BYTES), 1):
                if isinstance(record, int):
                    detail = f"{record} bytes, at most {_MOST_BYTES} are taken"
                    yield Rejected(f"{file.name}:{number}", "too_many_bytes", detail)
                else:
                    yield number, record
    except (tfrecord.DamagedRecord, OSError, EOFError, zlib.error) as error:
        yield Rejected(f"{file.name}:{number + 1}", "unreadable_file", str(error))


def _decoded(
    decoder: Any, records: list[tuple[int, bytes]], file: SourceFile, forms: dict[str, _Form]
) -> Iterator[_Block | Rejected]:
    """Yield the records as columns; one that is no tf.Example, or has several values that may not, is set aside."""
    try:
        decoded = decoder.DecodeBatch([record for _, record in records])
        columns = {name: _column(decoded, name, form) for name, form in forms.items()}
    except (RuntimeError, ValueError, pa.ArrowInvalid) as error:
        if len(records) == 1:
            yield Rejected(f"{file.name}:{records[0][0]}", "not_an_example", str(error).splitlines()[0][:200])
            return
        middle = len(records) // 2
        yield from _decoded(decoder, records[:middle], file, forms)
        yield from _decoded(decoder, records[middle:], file, forms)
        return
    if not set(decoded.schema.names) & set(forms):
        columns = {name: decoded.column(index) for index, name in enumerate(decoded.schema.names)}
    yield pa.RecordBatch.from_pydict(columns), _names(file, pa.array([number for number, _ in records]))


def _column(decoded: pa.RecordBatch, name: str, form: _Form) -> pa.Array:
    """Return the one value, or the list, of each example. Raises `ValueError` if one has several that may not."""
    rows, index = decoded.num_rows, decoded.schema.get_field_index(name)
    if index < 0 or decoded.column(index).null_count == rows:
        return pa.array([None] * rows, pa.string())
    lists = decoded.column(index)
    if form == "list":
        is_text = pa.types.is_binary(lists.values.type)
        return pa.ListArray.from_arrays(lists.offsets, lists.values.cast(pa.string()) if is_text else lists.values)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    if (counts > 1).any():
        raise ValueError(f"'{name}': one value is expected, {counts.max()} were found")
    starts = np.array(lists.offsets.to_numpy())[:-1]
    values = lists.values.take(pa.array(starts, mask=counts == 0))
    return pc.cast(values, pa.string()) if pa.types.is_binary(values.type) else values


def _names(file: SourceFile, numbers: pa.Array) -> pa.Array:
    """Return the names of rows, such as `a.csv:17`."""
    return pc.binary_join_element_wise(f"{file.name}:", pc.cast(numbers, pa.string()), "")
