"""Writes a profile as one HTML file that opens offline and asks nobody for anything."""

from __future__ import annotations

import html
from pathlib import Path

import jinja2

from trainyard.escape import shown
from trainyard.quality.figures import bars, written
from trainyard.quality.profile import ColumnProfile, Profile

_BARS = 32
_HEIGHT = 640  # pixels of a page in a notebook; chosen: a screen shows it and the cell


def page(profile: Profile) -> str:
    """Return the page as HTML. It has no script; what comes from the data is escaped, and nothing is requested."""
    template = template_of(Path(__file__).parent / "page.html.j2")
    return template.render(profile=profile, bars={column.name: _heights(column) for column in profile.columns})


def template_of(file: Path) -> jinja2.Template:
    """Return the template in `file`, which escapes its values and knows the filter `written`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(file.parent),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["written"] = written
    return environment.get_template(file.name)


def framed(page: str) -> str:
    """Return HTML that shows the `page`, a document of its own, inside another: its styles and scripts stay within."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-popups" '
        f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
    )


def _heights(column: ColumnProfile) -> list[tuple[float, int]]:
    """Return the height of each bar, 0 to 100, and its count."""
    if column.statistics.histogram is None:
        return []
    counts = bars(column.statistics.histogram, _BARS)
    most = max(counts, default=0) or 1
    return [(max(1.5, 100 * count / most) if count else 0, count) for count in counts]
