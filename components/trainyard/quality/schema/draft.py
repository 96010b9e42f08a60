"""Drafts a schema from a profile, for a person to read and to correct."""

from __future__ import annotations

import datetime
import math
from typing import Any

from trainyard.contract.statistics.drift import FeatureStatistics
from trainyard.errors import ConfigurationError
from trainyard.quality.profile import ColumnProfile, Profile
from trainyard.quality.tables.columns import TOP
from trainyard.spec import plain_yaml
from trainyard.spec.columns import name_fault

_ROOM = 0.1  # chosen: a range is drafted wider than what was seen by this share of it at either end
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_MISSING_ROOM = 1.5  # chosen: factor on the observed share of missing cells

_HEAD = """\
#   trainyard data schema NEW --check THIS      compares other data with it (exit code 10 if they do not fit)
#   data: {schema: THIS} in a recipe            has preprocess do so
"""


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
        if not profile.classes:
            raise ConfigurationError(f"{profile.source}: the images lie in no class folders, so there are no classes.")
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
