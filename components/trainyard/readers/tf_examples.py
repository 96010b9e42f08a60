"""Reads TFRecord files of tf.Example: named columns in batches of Arrow, encoded images one by one, or records."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import IO, Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainyard.errors import DataError
from trainyard.readers.parquet_rows import require_names
from trainyard.readers.rows import MOST_ROWS, WHOLE, BadRow, Piece, RowBatch, batched
from trainyard.readers.table_file import TableFile
from trainyard.storage.listing import open_file, unreadable
from trainyard.values.columns import as_texts
from trainyard.values.text import column_name

_GROUP_BYTES = 4 << 20  # of examples that are parsed at once; chosen
_IMAGE_NAMES = ("image/encoded", "image")

MOST_BYTES = 16 << 20
"""Of an example without its image; chosen."""

_Record = tuple[int, bytes]
# Fields 1 and 2 with a length, and the longest varint, as protobuf.dev/programming-guides/encoding has them.
_CONTEXT, _FEATURE_LISTS = b"\x0a", b"\x12"
_LONGEST_VARINT = 10  # bytes
HEADER_BYTES = 12
_MASK = 0xA282EAD8  # specified by the format
_CHUNK = 1 << 20
_NO_LENGTH = "its length does not match its checksum"
_DEFLATE = 8  # source: RFC 1950, 2.2


def example_columns(file: TableFile) -> list[str]:
    """Return the columns of the first examples of `file` that can be read. Raises `DataError` as `read_examples`."""
    readable: dict[str, bool] = {}
    for name, lists in _first(file):
        readable[name] = readable.get(name, True) and _is_readable(lists)
    return [name for name in readable if readable[name]]


def nested_examples(file: TableFile) -> dict[str, Any]:
    """Return the types of the columns of the first examples that hold several values, or bytes that are no text."""
    return {
        name: pa.list_(_texts(lists.values)[0].type) if _is_readable(lists) else pa.binary()
        for name, lists in _first(file)
        if not _is_readable(lists) or (_counts(lists) > 1).any()
    }


def example_pieces(_file: TableFile) -> list[Piece]:
    """Return the whole: where an example begins is known only once all before it are read."""
    return [WHOLE]


def read_examples(
    file: TableFile,
    columns: Sequence[str],
    lists: Collection[str] | None = None,
    _piece: Piece = WHOLE,
    whole_rows: bool = False,
) -> Iterator[RowBatch | BadRow]:
    """Yield `columns`, with `whole_rows` all, of the examples of `file` in batches; the first is row 1.

    What an example lacks is missing.

    lists: the columns that may hold several values, by default all. Raises `DataError` that names the record if the
    file is damaged.
    """
    decoder = _decoder()
    for group in _groups(file, MOST_BYTES):
        if not isinstance(group, list):
            yield group
            continue
        parsed = list(_parsed(decoder, group, file))
        extra = sorted({name for _, decoded in parsed if decoded is not None for name in decoded.schema.names})
        yield from _rows(parsed, file, columns, lists, [name for name in extra if whole_rows and name not in columns])


def read_image_examples(
    file: TableFile, limit: int, image: str | None = None, columns: Sequence[str] = (), lists: Collection[str] = ()
) -> Iterator[tuple[RowBatch, list[bytes | BadRow]] | BadRow]:
    """Yield `columns` of the examples of at most `limit` bytes in batches, and the encoded image of each.

    image: the feature that it is, by default one of the usual names. Raises `DataError` as `read_examples` does.
    """
    decoder = _decoder()
    for group in _groups(file, limit):
        if not isinstance(group, list):
            yield group
            continue
        parsed = list(_parsed(decoder, group, file))
        images = dict(found for records, decoded in parsed for found in _images(records, decoded, image, file))
        for item in _rows(parsed, file, columns, lists):
            yield item if isinstance(item, BadRow) else (item, [images[row] for row in item.rows.tolist()])


def _decoder() -> Any:
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder  # which other formats do not need

    return ExamplesToRecordBatchDecoder()


def _size(record: _Record) -> int:
    return len(record[1])


def _groups(file: TableFile, limit: int) -> Iterator[list[_Record] | BadRow]:
    """Yield the records in groups, and those that are not read. Raises `DataError` behind what came before a fault."""
    fault = None
    for group in batched(_records(file, limit), tuple, _size, MOST_ROWS, _GROUP_BYTES):
        if isinstance(group, DataError):
            fault = group
        elif isinstance(group, list) and any(_has_feature_lists(group[place][1]) for place in (0, -1)):  # all cost 20 %
            yield from _without_sequences(group, file)
        elif isinstance(group, list | BadRow):
            yield group
    if fault is not None:
        raise fault


def _records(file: TableFile, limit: int) -> Iterator[_Record | BadRow | DataError]:
    """Yield the records with their numbers, from 1 on, and last why the file cannot be read on.

    One of more than `limit` bytes is passed over.
    """
    with open_file(file.path) as stream:
        try:
            for number, record in enumerate(read_records(stream, limit), 1):
                if isinstance(record, int):
                    yield BadRow(file.name, number, "too_many_bytes", f"{record:,} bytes, at most {limit:,} are taken")
                else:
                    yield number, record
        except DamagedRecord as error:
            yield DataError(f"{file.name}: {error}")
        except (OSError, EOFError, zlib.error) as error:
            yield unreadable(file.name, error)


def _without_sequences(group: list[_Record], file: TableFile) -> Iterator[list[_Record] | BadRow]:
    examples: list[_Record] = []
    for number, record in group:
        if _has_feature_lists(record):
            detail = "is a tf.SequenceExample with feature_lists; tf.Example is read"
            yield BadRow(file.name, number, "not_an_example", detail)
        else:
            examples.append((number, record))
    if examples:
        yield examples


def _has_feature_lists(record: bytes) -> bool:
    """Return True if a tf.SequenceExample holds more than its context, of which parsing as tf.Example tells nothing.

    Field 1 has the same form in both; field 2, the feature lists, is of a tf.SequenceExample alone.
    """
    if record[:1] != _CONTEXT:
        return record[:1] == _FEATURE_LISTS
    length = shift = 0
    for place in range(1, min(len(record), _LONGEST_VARINT + 1)):
        length |= (record[place] & 0x7F) << shift
        shift += 7
        if record[place] < 0x80:
            end = place + 1 + length
            return record[end : end + 1] == _FEATURE_LISTS
    return False


def _parsed(decoder: Any, records: list[_Record], file: TableFile) -> Iterator[tuple[list[_Record], Any]]:
    """Yield the records in order, those of the same types together as columns of lists; None for what is no example."""
    try:
        decoded = decoder.DecodeBatch([record for _, record in records])
    except (RuntimeError, ValueError, pa.ArrowInvalid):  # one is no example, or of other types than others
        if len(records) == 1:
            yield records, None
            return
        yield from _parsed(decoder, records[: len(records) // 2], file)
        yield from _parsed(decoder, records[len(records) // 2 :], file)
        return
    names = [column_name(name) for name in decoded.schema.names]
    require_names(names, file.name)
    yield records, decoded.rename_columns(names)


def _first(file: TableFile) -> Iterator[tuple[str, Any]]:
    """Yield the columns of the first examples, once for each group of examples that are of the same types."""
    group = next((group for group in _groups(file, MOST_BYTES) if isinstance(group, list)), None)
    for _, decoded in _parsed(_decoder(), group, file) if group else ():
        if decoded is not None:
            yield from zip(decoded.schema.names, decoded.columns, strict=True)


def _is_readable(lists: Any) -> bool:
    return not _texts(lists.values)[1] if lists.null_count < len(lists) else True


def _rows(
    parsed: list[tuple[list[_Record], Any]],
    file: TableFile,
    columns: Sequence[str],
    lists: Collection[str] | None,
    extra: Sequence[str] = (),
) -> Iterator[RowBatch | BadRow]:
    """Yield the columns as one batch, and the bad rows in order; values of `extra` that cannot be read are missing."""
    bad: dict[int, BadRow] = {}
    numbers: list[int] = []
    parts: dict[str, list[Any]] = {name: [] for name in (*columns, *extra)}
    for records, decoded in parsed:
        rows = [number for number, _ in records]
        if decoded is None:
            detail = f"{len(records[0][1]):,} bytes are no tf.Example"
            bad[rows[0]] = BadRow(file.name, rows[0], "not_an_example", detail)
            continue
        numbers += rows
        for name, batches in parts.items():
            values, wrong = _column(decoded, name, len(rows), lists is None or name in lists or name in extra)
            batches.append(values)
            for index, why in wrong.items() if name in columns else ():
                bad.setdefault(rows[index], BadRow(file.name, rows[index], "mistyped_value", f"'{name}': {why}"))
    if numbers:
        together = pa.RecordBatch.from_pydict(
            {name: _together(values) for name, values in parts.items()} or {"": pa.nulls(len(numbers))}
        )
        batch = RowBatch(file.name, together, np.array(numbers, np.int64))
        good = ~np.isin(batch.rows, list(bad))
        if good.any():
            yield batch if good.all() else batch.filter(good)
    yield from (bad[number] for number in sorted(bad))


def _column(decoded: Any, name: str, rows: int, may_be_list: bool) -> tuple[Any, dict[int, str]]:
    """Return the value, or the list, of each example, and by row why it cannot be read."""
    index = decoded.schema.get_field_index(name)
    if index < 0 or decoded.column(index).null_count == rows:
        return pa.nulls(rows, pa.string()), {}
    column = decoded.column(index)
    counts, offsets = _counts(column), np.array(column.offsets.to_numpy())
    if may_be_list and (counts > 1).any():
        values, wrong = _texts(column.values)
        rows_of = {int(np.searchsorted(offsets, place, "right")) - 1: why for place, why in wrong.items()}
        return pa.ListArray.from_arrays(column.offsets, values), rows_of
    first = column.values.take(pa.array(offsets[:-1], mask=counts == 0))
    values, wrong = _texts(first)
    several = np.flatnonzero(counts > 1).tolist()
    return values, wrong | {row: f"one value is expected, {counts[row]} were found" for row in several}


def _counts(lists: Any) -> Any:
    if pa.types.is_null(lists.type):  # no example has a value
        return np.zeros(len(lists), np.int64)
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _texts(values: Any) -> tuple[Any, dict[int, str]]:
    """Return bytes as texts, null where they are not UTF-8, and which those are; numbers as they are."""
    if not _is_bytes(values.type):
        return values, {}
    try:
        return values.cast(pa.string()), {}
    except pa.ArrowInvalid:
        wrong = {}
        texts: list[str | None] = []
        for place, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                texts.append(None)
                wrong[place] = f"is not UTF-8, {value[:40]!r} was found"
        return pa.array(texts, pa.string()), wrong


def _is_bytes(kind: Any) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _together(parts: list[Any]) -> Any:
    """Return arrays of perhaps several types as one: of texts, or of lists of them."""
    if len(parts) == 1:
        return parts[0]
    if not any(pa.types.is_list(part.type) for part in parts):
        return pa.concat_arrays([as_texts(part) for part in parts])
    lists = [part if pa.types.is_list(part.type) else _single_lists(part) for part in parts]
    return pa.concat_arrays([pa.ListArray.from_arrays(part.offsets, as_texts(part.values)) for part in lists])


def _single_lists(values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1), pa.int32()), values)


def _images(
    records: list[_Record], decoded: Any, image: str | None, file: TableFile
) -> Iterator[tuple[int, bytes | BadRow]]:
    """Yield the number of each record and its image, or why it has none."""
    names = (image,) if image else _IMAGE_NAMES
    lists = {} if decoded is None else dict(zip(decoded.schema.names, decoded.columns, strict=True))
    found = [lists[name] for name in names if name in lists and _is_bytes(lists[name].type.value_type)]
    for place, (number, _) in enumerate(records):
        values = next((column[place].values for column in found if column[place].is_valid and len(column[place])), None)
        if values is not None:
            yield number, values[0].as_py()
        else:
            present = sorted(name for name, column in lists.items() if column[place].is_valid)
            detail = f"no bytes in {' or '.join(names)}; the example has {', '.join(present)[:80]}"
            yield number, BadRow(file.name, number, "not_an_image", detail)


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
