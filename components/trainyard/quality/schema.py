"""Compares a source with a schema, and drafts a schema from a profile, for a person to read and to correct."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow as pa

from trainyard.contract.artifacts.preprocess import Anomaly
from trainyard.contract.statistics.drift import FeatureStatistics
from trainyard.errors import ConfigurationError
from trainyard.quality.conformity import SUCH_AS, Conformity, Rows, anomalies, check_rows
from trainyard.quality.images import SizedImage, measure
from trainyard.quality.profile import ColumnProfile, Profile
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.columns import TOP
from trainyard.quality.tables.tables import read_table
from trainyard.readers.rows import BadRow
from trainyard.spec import plain_yaml
from trainyard.spec.columns import name_fault
from trainyard.spec.data_schema import ImageSchema, TableSchema
from trainyard.values.columns import block_pandas_import
from trainyard.values.text import UTC

_ROOM = 0.1  # chosen: a range is drafted wider than what was seen by this share of it at either end
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_MISSING_ROOM = 1.5  # chosen: factor on the observed share of missing cells
_HEAD = """\
#   trainyard data schema NEW --check THIS      compares other data with it (exit code 10 if they do not fit)
#   data: {schema: THIS} in a recipe            has preprocess do so
"""


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


def draft(profile: Profile, day: datetime.date) -> str:
    """Return the schema that the profiled data fit, as YAML.

    Ranges are extended by a tenth at each end. Columns with few values list them, except for the label.
    """
    first = plain_yaml.comment(
        f"What {profile.source.rpartition('/')[2]} looked like on {day.isoformat()}. Keep it beside the recipe, in "
        "git, and correct it by what you know."
    )
    return f"{first}\n{_HEAD}{plain_yaml.dump(_content(profile), allow_unicode=True)}"


def _content(profile: Profile) -> dict[str, Any]:
    if profile.kind == "image_folder":
        if profile.labels_file and not profile.classes:
            raise ConfigurationError(f"{profile.source}: a schema of images lists classes, and these have numbers.")
        if not profile.classes:
            raise ConfigurationError(f"{profile.source}: the images lie in no class folders, so there are no classes.")
        if profile.labels_file and profile.label_separator:
            raise ConfigurationError(f"{profile.source}: a schema of images has one class an image, and these several.")
        sizes = {column.name: column.statistics for column in profile.columns}
        sides = [sizes["height"], sizes["width"]]
        return {
            "schema_of": "images",
            "classes": sorted(profile.classes),
            "min_side": int(min(side.min or 1 for side in sides)),
            "max_side": int(max(side.max or 1 for side in sides)),
        }
    for column in profile.columns:
        if fault := name_fault(column.name):
            raise ConfigurationError(f"{profile.source}: column '{column.name[:80]}': {fault}.")
    columns = {column.name: _column(column, profile) for column in profile.columns}
    return {"schema_of": "table", "columns": columns, "other_columns": "allowed"}


def _column(column: ColumnProfile, profile: Profile) -> dict[str, Any]:
    statistics = column.statistics
    rule: dict[str, Any] = {"type": "text" if column.type == "empty" else column.type}
    missing = profile.rows - statistics.count - column.mistyped
    is_class = column.name == profile.label and bool(profile.classes)
    if (column.type == "category" or is_class) and column.distinct <= TOP:
        values = [entry.value for entry in column.top if entry.value] + [*column.missing_texts]
        rule = {"type": "category", "values": sorted(values)}
        missing -= sum(column.missing_texts.values())
    elif column.type in ("integer", "number") and statistics.min is not None and statistics.max is not None:
        room, (smallest, largest) = _ROOM * (statistics.max - statistics.min), _ends(statistics)
        low = _rounded(min(smallest, statistics.min - room), down=True)
        high = _rounded(max(largest, statistics.max + room), down=False)
        low, high = max(0.0, low) if statistics.min >= 0 else low, min(0.0, high) if statistics.max <= 0 else high
        whole = column.type == "integer"
        rule |= {"min": math.floor(low) if whole else low, "max": math.ceil(high) if whole else high}
    elif column.type == "date" and statistics.min is not None:
        first = math.floor(min(_ends(statistics)[0], statistics.min)) + _EPOCH
        rule["min"] = datetime.date.fromordinal(max(1, first)).isoformat()
    elif column.type == "category":
        rule["type"] = "text"
    rule["max_missing"] = min(1.0, math.ceil(missing / max(1, profile.rows) * _MISSING_ROOM * 100) / 100)
    return rule


def _ends(statistics: FeatureStatistics) -> tuple[float, float]:
    """Return the exact minimum and maximum: `min` and `max` have six digits."""
    bins = statistics.histogram
    return (bins.starts[0], bins.starts[-1] + 2.0**bins.exponent) if bins else (math.inf, -math.inf)


def _rounded(value: float, *, down: bool) -> float:
    """Return `value` with two significant digits, away from what it bounds."""
    if not value:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{(math.floor if down else math.ceil)(value / unit) * unit:.6g}")
