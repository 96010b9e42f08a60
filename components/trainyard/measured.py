"""Writes measured values and durations for people."""

from __future__ import annotations

from datetime import datetime

_NOTHING = 1e-12  # chosen: rounding leaves differences below it


def metric_text(value: float, sign: str = "") -> str:
    """Return a metric or loss with four decimals, or with four digits where those would hide it.

    sign: "+" writes that of a positive value, too.
    """
    return f"{value:{sign}.4g}" if _NOTHING < abs(value) < 0.001 else f"{value:{sign}.4f}"


def interval_text(low: float, high: float) -> str:
    """Return an interval of a metric."""
    return f"{metric_text(low)} – {metric_text(high)}"


def duration_text(seconds: float | None) -> str:
    """Format a duration."""
    if seconds is None:
        return "–"
    total = round(seconds)
    hours, minutes = total // 3600, total % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {total % 60} s" if minutes else f"{total} s"


def seconds_between(start: str, end: str) -> float | None:
    """Return the seconds between two times of the Kubernetes API, None if one is missing."""
    if not start or not end:
        return None
    return round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds(), 1)
