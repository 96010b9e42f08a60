"""Writes a profile as one HTML file without external requests."""

from __future__ import annotations

from pathlib import Path

from trainyard.quality.figures import bars, format_value
from trainyard.quality.profile import ColumnProfile, Profile
from trainyard.report import pages

_BARS = 32


def page(profile: Profile) -> str:
    """Return the page as HTML. It has no script; what comes from the data is escaped, and nothing is requested."""
    template = pages.template(Path(__file__).parent / "page.html.j2", format_value=format_value)
    return template.render(profile=profile, bars={column.name: _heights(column) for column in profile.columns})


def _heights(column: ColumnProfile) -> list[tuple[float, int]]:
    """Return the height of each bar, 0 to 100, and its count."""
    if column.statistics.histogram is None:
        return []
    counts = bars(column.statistics.histogram, _BARS)
    largest = max(counts, default=0) or 1
    return [(max(1.5, 100 * count / largest) if count else 0, count) for count in counts]
