"""Durations."""

from __future__ import annotations

from datetime import datetime


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
