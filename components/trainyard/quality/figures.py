"""Draws a profile: histograms as bars of characters, and all of it as one HTML file without external requests."""

from __future__ import annotations

import datetime
from pathlib import Path

from trainyard.contract.statistics.drift import Histogram
from trainyard.quality.profile import ColumnProfile, Profile

_BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
"""Bars of a histogram. Chosen: they fit into a line of a table."""

_FAR = 0.005  # chosen: the share at either end that would press all other bars together
_PAGE_BARS = 32


def bars(histogram: Histogram, width: int = WIDTH) -> list[int]:
    """Return the counts of `width` bars of equal breadth between the 0.5 % and the 99.5 % quantile.

    What lies beyond is counted in the first and the last bar.
    """
    unit = 2.0**histogram.exponent
    if len(histogram.starts) <= 1:
        return [sum(histogram.counts)]
    low, high = histogram.quantile(_FAR), histogram.quantile(1 - _FAR)
    if high - low <= 2 * unit:  # all but a few are equal
        low, high = histogram.starts[0], histogram.starts[-1] + unit
    counts = [0.0] * width
    for bin_start, count in zip(histogram.starts, histogram.counts, strict=True):
        start, end = ((edge - low) / (high - low) * width for edge in (bin_start, bin_start + unit))
        first, last = (min(width - 1, max(0, int(edge))) for edge in (start, end))
        if first == last:
            counts[first] += count
            continue
        spread = max(1e-300, end - start)
        for bar in range(first, last + 1):
            start_of_bar = start if bar == first else float(bar)
            right = end if bar == last else float(bar + 1)
            counts[bar] += count * max(0.0, right - start_of_bar) / spread
    return [round(count) for count in counts]


def spark(histogram: Histogram) -> str:
    """Return the histogram as a line of bars; an empty bar is a blank."""
    counts = bars(histogram)
    largest = max(counts, default=0) or 1
    return "".join(_BARS[max(0, -(-8 * count // largest) - 1)] if count else " " for count in counts)


def format_value(value: float | None, kind: str) -> str:
    """Format a number or a day for people."""
    if value is None:
        return "–"
    if kind == "date":
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=round(value))).isoformat()
    return f"{value:,.0f}" if kind == "integer" or 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def page(profile: Profile) -> str:
    """Return the page as HTML. It has no script; what comes from the data is escaped, and nothing is requested."""
    from trainyard.report import pages  # with jinja2

    template = pages.template(Path(__file__).parent / "page.html.j2", format_value=format_value)
    return template.render(profile=profile, bars={column.name: _heights(column) for column in profile.columns})


def _heights(column: ColumnProfile) -> list[tuple[float, int]]:
    """Return the height of each bar, 0 to 100, and its count."""
    if column.statistics.histogram is None:
        return []
    counts = bars(column.statistics.histogram, _PAGE_BARS)
    largest = max(counts, default=0) or 1
    return [(max(1.5, 100 * count / largest) if count else 0, count) for count in counts]
