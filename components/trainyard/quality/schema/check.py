"""Compares a source with a schema."""

from __future__ import annotations

import datetime

import pyarrow as pa

from trainyard.contract.artifacts.preprocess import Anomaly
from trainyard.errors import ConfigurationError
from trainyard.quality.arrow import block_pandas_import
from trainyard.quality.images.profiling import SizedImage, measure
from trainyard.quality.schema.conformity import SUCH_AS, Conformity, Rows, anomalies, check_rows
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.table import read_table
from trainyard.readers.rows import BadRow
from trainyard.spec.data_schema import ImageSchema, TableSchema
from trainyard.values.text import UTC


def check_source(schema: TableSchema | ImageSchema, source: SourceFiles, zone: datetime.tzinfo = UTC) -> list[Anomaly]:
    """Return in which ways the rows or images of `source` do not fit `schema`, or [].

    zone: in which the days of times with an offset are counted.
    Raises `ConfigurationError` if one is of tables and the other of images, `DataError` if a file cannot be read.
    """
    block_pandas_import()
    if isinstance(schema, ImageSchema) != (source.kind == "image_folder"):
        kind = "a table" if source.is_table else "images"
        expected_kind = "images" if isinstance(schema, ImageSchema) else "a table"
        raise ConfigurationError(
            f"{source.path} is {kind}, and the schema that of {expected_kind}. Name another schema."
        )
    conformity = Conformity()
    if isinstance(schema, ImageSchema):
        measured = [(file.name, measure(source, file)) for file in source.files]
        conformity.merge(check_rows(schema, _rows([entry for _, entry in measured if isinstance(entry, SizedImage)])))
        broken = [f"{name} ({entry})" for name, entry in measured if isinstance(entry, str)]
        return [*([_unreadable(broken)] if broken else []), *anomalies(schema, conformity)]
    ragged: list[BadRow] = []
    for item in read_table(source):
        if isinstance(item, BadRow):
            ragged.append(item)
            continue
        names = item.columns.schema.names
        columns = dict(zip(names, item.columns.columns, strict=True))
        conformity.merge(check_rows(schema, Rows(item.columns.num_rows, columns, item.name, zone)))
    return [*([_ragged(ragged)] if ragged else []), *anomalies(schema, conformity)]


def _ragged(rows: list[BadRow]) -> Anomaly:
    return Anomaly(
        column="row",
        reason=rows[0].reason,
        expected="a row that can be read",
        received=rows[0].detail,
        rows=len(rows),
        such_as=[item.key for item in rows[:SUCH_AS]],
    )


def _unreadable(broken: list[str]) -> Anomaly:
    shown = broken[:SUCH_AS]
    return Anomaly(
        column="file", reason="unreadable", expected="an image", received="none", rows=len(broken), such_as=shown
    )


def _rows(measured: list[SizedImage]) -> Rows:
    columns = {
        "label": pa.array([entry.label for entry in measured], pa.string()),
        "measure/height": pa.array([float(entry.height) for entry in measured]),
        "measure/width": pa.array([float(entry.width) for entry in measured]),
    }
    return Rows(len(measured), columns, lambda index: measured[index].name)
