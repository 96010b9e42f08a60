"""What the report says of each column of a table: how much is missing, and which values it has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.contract.statistics.drift import FeatureStatistics, Statistics
from trainyard.contract.statistics.histogram import Histogram
from trainyard.storage import storage

BARS = 32
"""Of a histogram as it is drawn. Chosen: three pixels each fit a narrow cell."""

_TOP = 4  # most frequent texts that are shown; chosen


@dataclass(frozen=True)
class ColumnSummary:
    """One column of the training split. missing: a share. top: the most frequent texts and their shares of all rows,
    or words and their shares of all words.

    bars: of a number's histogram, from its least to its greatest value, each as a share of the highest.
    """

    name: str
    missing: float
    statistics: FeatureStatistics
    top: list[tuple[str, float]]
    bars: list[float]


def summaries(folder: str | None) -> list[ColumnSummary]:
    """Return the columns that preprocess counted in its output `folder`; none if there is none, or of an old one."""
    if folder is None or storage.read(folder, Statistics.file) is None:
        return []
    features = Statistics.read(folder).features
    return [_summary(name, splits["train"]) for name, splits in features.items() if "train" in splits]


def _summary(name: str, column: FeatureStatistics) -> ColumnSummary:
    rows = column.count + column.missing
    total = rows if column.words is None else column.words
    return ColumnSummary(
        name=name,
        missing=column.missing / max(rows, 1),
        statistics=column,
        top=[(value.value, value.count / max(total, 1)) for value in (column.top or [])[:_TOP]],
        bars=_bars(column.histogram) if column.histogram else [],
    )


def _bars(histogram: Histogram) -> list[float]:
    """Return a bar a bin; of few values far apart, each at its place among so many bars."""
    drawn = histogram.limited(BARS)
    if not drawn.starts:
        return []
    low, span = drawn.starts[0], drawn.starts[-1] - drawn.starts[0]
    last = min(round(math.ldexp(span, -drawn.exponent)), BARS - 1)
    counts = [0] * (last + 1)
    for start, count in zip(drawn.starts, drawn.counts, strict=True):
        counts[round((start - low) / span * last) if span else 0] += count
    return [count / max(counts) for count in counts]
