"""The same rows as several programs write them."""

import csv
import datetime
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import tensorflow as tf
from hypothesis import strategies as st
from pyarrow import csv as pa_csv
from pyarrow import parquet

WORDS = [
    "",
    "null",
    "NA",
    "None",
    "[missing]",
    "True",
    "3.0",
    "007",
    "1.10",
    " padded ",
    "two\nlines",
    "a,b;c",
    'a "q"',
]
WORDS += [
    "café",
    "cafe\u0301",
    "你好",
    "日本\r\n語",
    "हिन्दी",
    "\u3000wide\u00a0",
    "1e+05",
    "-0.0e-18",
    "7e3",
    "2024-03-01T09:05:00Z",
]
texts = st.one_of(st.sampled_from(WORDS), st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8))


def by_pandas(table: pa.Table) -> bytes:
    """As pandas writes it: integers with gaps as floats, True and False, offsets with a colon."""
    frame = table.to_pandas()
    stream = io.BytesIO()
    frame.to_csv(stream, index=False)
    return stream.getvalue()


def by_arrow(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    pa_csv.write_csv(table, stream)
    return stream.getvalue().to_pybytes()


def by_excel(table: pa.Table) -> bytes:
    """As Excel writes CSV in UTF-8: a byte-order mark, CR LF, TRUE and FALSE."""
    return _written(table, "\ufeff", "\r\n", {bool: lambda value: f"{value}".upper()})


def by_german_excel(table: pa.Table) -> bytes:
    """As Excel writes CSV in German: decimal commas between semicolons."""
    return _written(table, "", "\r\n", {float: lambda value: f"{value}".replace(".", ",")}, ";")


def by_spark(table: pa.Table) -> bytes:
    """As Spark writes it: 1.0E10, times with T, milliseconds and an offset."""

    def number(value: float) -> str:
        text = repr(value)
        mantissa, exponent, places = text.partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(places)}" if exponent else text

    def time(value: datetime.datetime) -> str:
        return value.isoformat(timespec="milliseconds")

    return _written(table, "", "\n", {bool: lambda value: f"{value}".lower(), float: number, pd.Timestamp: time})


def _written(table: pa.Table, start: str, end: str, texts: dict, delimiter: str = ",") -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator=end, delimiter=delimiter)
    writer.writerow(table.column_names)
    columns = [column.to_pylist() for column in table.columns]
    columns = [
        [pd.Timestamp(value) if isinstance(value, datetime.datetime) else value for value in column]
        for column in columns
    ]
    for values in zip(*columns, strict=True):
        writer.writerow("" if value is None else texts.get(type(value), str)(value) for value in values)
    return (start + stream.getvalue()).encode()


def examples_of(table: pa.Table) -> list[bytes]:
    """As tf.Example: integers, floats and bytes; times, booleans and integers of 2^63 as Python writes them."""

    def feature(value: object) -> tf.train.Feature:
        if value is None:
            return tf.train.Feature()
        if isinstance(value, list):
            texts = [item.encode() for item in value if item is not None]
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
        if isinstance(value, float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        if isinstance(value, int) and not isinstance(value, bool) and value < 2**63:
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[str(value).encode()]))

    rows = table.to_pylist()
    return [
        tf.train.Example(
            features=tf.train.Features(feature={name: feature(value) for name, value in row.items()})
        ).SerializeToString()
        for row in rows
    ]


def plain(table: pa.Table) -> pa.Table:
    """The table as CSV can hold it: lists as texts with `;`, floats with the digits of a 32-bit float."""
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            lists = [";".join(filter(None, value or ())) for value in column.to_pylist()]
            table = table.set_column(place, name, pa.array(lists, pa.string()))
        elif pa.types.is_floating(column.type) and column.type != pa.float64():
            floats = [value and float(str(np.float32(value))) for value in column.to_pylist()]
            table = table.set_column(place, name, pa.array(floats, pa.float64()))
        elif pa.types.is_dictionary(column.type) or column.type in (pa.null(), pa.string_view()):
            table = table.set_column(place, name, pa.array(column.to_pylist(), pa.string()))
    return table


def write_each(table: pa.Table, folder: Path, stored: pa.Table | None = None) -> dict[str, Path]:
    """Write the table as several programs write CSV, as Parquet (`stored`, if that is another one) and TFRecord."""
    files = {name: folder / f"{name}.csv" for name in ("pandas", "arrow", "excel", "spark")}
    for write, file in zip((by_pandas, by_arrow, by_excel, by_spark), files.values(), strict=True):
        file.write_bytes(write(plain(table)))
    files |= {"parquet": folder / "a.parquet", "tfrecord": folder / "a.tfrecord"}
    parquet.write_table(table if stored is None else stored, files["parquet"])
    with tf.io.TFRecordWriter(str(files["tfrecord"])) as writer:
        for serialized in examples_of(table):
            writer.write(serialized)
    return files
