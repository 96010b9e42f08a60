"""Writes measured values for people."""

from __future__ import annotations

_NOTHING = 1e-12  # chosen: rounding leaves differences below it


def metric_text(value: float, sign: str = "") -> str:
    """Return a metric or loss with four decimals, or with four digits where those would hide it.

    sign: "+" writes that of a positive value, too.
    """
    return f"{value:{sign}.4g}" if _NOTHING < abs(value) < 0.001 else f"{value:{sign}.4f}"


def interval_text(low: float, high: float) -> str:
    """Return an interval of a metric."""
    return f"{metric_text(low)} – {metric_text(high)}"
