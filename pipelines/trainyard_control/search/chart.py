"""Places the points, lines and ticks of small charts, which a template draws as SVG on an offline page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.report import pages

Table = tuple[Sequence[str], Sequence[Sequence[str]]]

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 40
_TITLE = 24  # pixels that the title of the vertical axis takes, with a gap to its ticks
_GAP = 6  # pixels between a tick and its axis
_LETTER = 6.5  # approximate width of a letter of a tick in pixels
_BAR = 0.5  # chosen: as wide as the gap to the next
_ROOM = 0.06  # chosen: share of the range left free at both ends


@dataclass(frozen=True)
class Mark:
    """A point with a title. strong: highlighted. low, high: its whisker."""

    x: float
    y: float
    title: str = ""
    strong: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high` over pixels from `start` to `end`. names: of whole numbers, for categories."""

    title: str
    low: float
    high: float
    start: float
    end: float
    log: bool = False
    names: tuple[str, ...] = ()

    def at(self, value: float) -> float:
        """Return the pixel of `value`."""
        low, high, value = (math.log(number) if self.log else number for number in (self.low, self.high, value))
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Round values, each with its pixel."""
        if self.names:
            length = int((self.end - self.start) / len(self.names) / _LETTER)
            return [(self.at(number), _shortened(name, length)) for number, name in enumerate(self.names)]
        values = _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)
        return [
            (self.at(value), f"{value:.6g}" if 1e-3 <= abs(value) < 1e6 or not value else f"{value:.3g}")
            for value in values
        ]


@dataclass(frozen=True)
class Chart:
    """A chart. lines: named paths in pixels. band: a closed path. bar: width of bars, 0 without bars."""

    title: str
    x: Axis
    y: Axis
    marks: list[Mark]
    lines: list[tuple[str, list[tuple[float, float]]]] = field(default_factory=list)
    band: list[tuple[float, float]] = field(default_factory=list)
    bar: float = 0.0


def chart(
    title: str,
    names: tuple[str, str],
    marks: Sequence[Mark],
    lines: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    band: Sequence[tuple[float, float]] = (),
    *,
    log_x: bool = False,
    log_y: bool = False,
    categories: tuple[str, ...] = (),
    from_zero: bool = False,
) -> Chart:
    """Place `marks`, `lines` by name and `band` on a chart. names: of the axes. from_zero: of the y axis."""
    points = [point for line in (lines or {}).values() for point in line]
    xs = [mark.x for mark in marks] + [x for x, _ in (*points, *band)]
    ys = [y for mark in marks for y in (mark.y, mark.low, mark.high) if y is not None]
    ys += [y for _, y in (*points, *band)]
    ys += [0.0] if from_zero else []
    x_ends = (-0.5, len(categories) - 0.5) if categories else _ends(xs, log_x)
    y = Axis(names[1], *_ends(ys, log_y), _HEIGHT - _BOTTOM, _TOP, log_y)
    longest = max((len(name) for _, name in y.ticks), default=0)
    x = Axis(names[0], *x_ends, max(_LEFT, _TITLE + longest * _LETTER + _GAP), _WIDTH - _RIGHT, log_x, categories)
    placed = [(name, [(x.at(a), y.at(b)) for a, b in line]) for name, line in (lines or {}).items()]
    bar = _BAR * (x.at(1) - x.at(0)) if categories and from_zero else 0.0
    return Chart(title, x, y, list(marks), placed, [(x.at(a), y.at(b)) for a, b in band], bar)


def page(title: str, notes: list[str], charts: list[Chart], tables: Sequence[Table]) -> str:
    """Render a page of notes, charts and tables as HTML without external requests."""
    template = pages.template(Path(__file__).parent / "page.html.j2")
    return template.render(title=title, notes=notes, charts=charts, tables=tables, width=_WIDTH, height=_HEIGHT)


def _shortened(name: str, length: int) -> str:
    """Shorten `name` to `length` characters by cutting its middle, because names of a family differ at their ends."""
    half = max(1, (length - 1) // 2)
    return name if len(name) <= length else f"{name[:half]}…{name[-half:]}"


def _ends(values: list[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** _ROOM if high > low else 2.0
        return low / room, high * room
    room = _ROOM * (high - low) or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    unit = 10.0 ** math.floor(math.log10((high - low) / 2))
    step = next(times * unit for times in (1, 2, 5, 10) if (high - low) / (times * unit) <= 6)
    first = math.ceil(low / step)
    return [round(number * step, 12) for number in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each decade, only 1 if there are many decades, or linear ticks within a decade."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    times = (1,) if math.log10(high / low) > 3 else (1, 2, 5)
    ticks = [factor * 10.0**decade for decade in decades for factor in times if low <= factor * 10.0**decade <= high]
    return ticks if len(ticks) > 1 else [tick for tick in _ticks(low, high) if tick > 0]
