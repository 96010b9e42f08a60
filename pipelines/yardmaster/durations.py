"""Durations as a person reads them."""

from __future__ import annotations


def lasting(seconds: float | None) -> str:
    """Return a duration as a person reads it."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
