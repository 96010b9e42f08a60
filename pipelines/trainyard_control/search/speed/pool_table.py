"""The pools of a cluster beside each other: how fast and for how much a recipe trains on each."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard_control.search.speed.speed import Speed


def table(speeds: Sequence[Speed]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the page's table."""
    base = speeds[0].examples_per_second
    rows = [
        [
            speed.pool,
            speed.hardware,
            f"{speed.workers}",
            f"{speed.examples_per_second:,.0f}",
            f"{speed.examples_per_second / base:.2f}",
            "–" if speed.dollars_per_hour is None else f"{speed.dollars_per_hour:,.2f}",
            "–" if speed.examples_per_dollar is None else f"{speed.examples_per_dollar:,.0f}",
            *(f"{speed.step_split_ms.get(part, 0.0):.1f}" for part in ("compute", "all_reduce", "input")),
        ]
        for speed in speeds
    ]
    head = ["pool", "devices", "workers", "examples/s", "×", "$/h", "examples/$"]
    return [*head, "of a step: computation, ms", "sum of gradients, ms", "input, ms"], rows


def sentences(speeds: Sequence[Speed]) -> list[str]:
    """Return how the other pools compare with the first, by speed and by money."""
    base, lines = speeds[0], []
    for speed in speeds[1:]:
        times = speed.examples_per_second / base.examples_per_second
        money = ""
        if speed.examples_per_dollar and base.examples_per_dollar:
            money = f", and {speed.examples_per_dollar / base.examples_per_dollar:.2f} times as many examples a dollar"
        lines.append(f"{speed.pool} ({speed.hardware}) trains {times:.2f} times as fast as {base.pool}{money}.")
    return lines
