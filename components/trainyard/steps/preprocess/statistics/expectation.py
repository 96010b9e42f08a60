"""Compares the rows that preprocess reads with the recipe's schema."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract.artifacts.preprocess import Anomaly
from trainyard.errors import DataError
from trainyard.quality.conformity import Conformity, Rows, anomalies, check_rows
from trainyard.spec.data_schema import ImageSchema, TableSchema
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.readers.records import LABELS_APART

_SHOWN = 20


def conformity(rows: pa.RecordBatch, data: Data) -> Conformity:
    """Compare `rows` with the schema of `data`; without a schema nothing is compared."""
    schema = _schema(data, rows.schema.names) if data.schema_ else None
    if schema is None or not rows.num_rows:
        return Conformity()
    columns = {name.removeprefix("raw/"): rows[name] for name in rows.schema.names if name.startswith("raw/")}
    if isinstance(schema, ImageSchema):
        columns = {name: rows[name] for name in ("measure/height", "measure/width")} | {"label": rows["label"]}
    elif not data.label_separator:
        labels = pc.split_pattern(rows["label"], LABELS_APART)
        columns |= {name: pc.list_element(labels, index) for index, name in enumerate(data.labels)}
    sources = rows["source"]
    return check_rows(schema, Rows(rows.num_rows, columns, lambda index: sources[index].as_py()))


def require_fitting(conformity: Conformity, data: Data) -> None:
    """Raise `DataError` with every anomaly if what was found does not fit the recipe's schema."""
    schema = data.expected
    if schema is None:
        return
    listed: list[Anomaly] = anomalies(schema, conformity)
    if listed:
        count = f"{len(listed)} {'anomaly' if len(listed) == 1 else 'anomalies'}"
        sentences = (f"{entry.sentence}." for entry in listed[:_SHOWN])
        raise DataError(f"data.schema: the data do not fit, {count}:", *sentences)


def _schema(data: Data, names: list[str]) -> TableSchema | ImageSchema | None:
    """Return the schema of what is read: the columns that the recipe leaves out are not."""
    schema = data.expected
    if schema is None or isinstance(schema, ImageSchema):
        return schema
    labels = [] if data.label_separator else data.labels  # a cell of several classes is no value that a schema lists
    read = {name: column for name, column in schema.columns.items() if f"raw/{name}" in names or name in labels}
    return schema.model_copy(update={"columns": read, "other_columns": "allowed"})
