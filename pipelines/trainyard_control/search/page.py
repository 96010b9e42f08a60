"""What was found, as one HTML page that opens offline and asks nobody for anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.quality.page import template_of
from trainyard_control.search.chart import HEIGHT, WIDTH, Chart

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def page(title: str, notes: list[str], charts: list[Chart], tables: Sequence[Table]) -> str:
    """Return a page of notes, charts and tables, each with its head and its rows, as HTML."""
    template = template_of(Path(__file__).parent / "page.html.j2")
    return template.render(title=title, notes=notes, charts=charts, tables=tables, width=WIDTH, height=HEIGHT)
