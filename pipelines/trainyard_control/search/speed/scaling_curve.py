"""How the speed of a training grows with its workers, beside the line of a perfect growth, and where the rest goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard_control.search.chart import Chart, Mark, chart
from trainyard_control.search.speed.speed import Speed

_GOOD = 0.8  # chosen: a lower share of perfect is worth a remark


@dataclass(frozen=True)
class ScalingPoint:
    """Some workers, each with the batch of the one worker.

    times: their speed over that of one. doubled: over that of half as many, None if that was not measured. A step
    takes step_ms, and lost_ms longer than that of one worker: for the sum of gradients, for the input, and for all
    else, which is waiting for the slowest, exchanging batch statistics, and sharing memory and caches.
    """

    speed: Speed
    times: float
    doubled: float | None
    step_ms: float
    lost_ms: dict[str, float]

    @property
    def efficiency(self) -> float:
        """Return the share that is reached of a perfect growth."""
        return self.times / self.speed.workers


def points(speeds: Sequence[Speed]) -> list[ScalingPoint]:
    """Return the points of the curve, which begins at the first speed; none if all have one worker."""
    if not any(speed.workers > 1 for speed in speeds):
        return []
    one, rates = speeds[0], {speed.workers: speed.examples_per_second for speed in speeds}
    curve = []
    for speed in speeds:
        half = rates.get(speed.workers // 2) if speed.workers % 2 == 0 else None
        step, first = _step_ms(speed), _step_ms(one)
        lost = {part: _part(speed, part) - _part(one, part) for part in ("all_reduce", "input")}
        lost["rest"] = step - first - sum(lost.values())
        times = speed.examples_per_second / one.examples_per_second
        curve.append(ScalingPoint(speed, times, half and speed.examples_per_second / half, step, lost))
    return curve


def drawn(points: Sequence[ScalingPoint]) -> Chart:
    """Return the curve beside the perfect one."""
    one = points[0].speed.examples_per_second
    marks = [
        Mark(point.speed.workers, rate, f"{rate:,.0f}, {point.efficiency:.0%}", True, point.speed.low, point.speed.high)
        for point in points
        for rate in [point.speed.examples_per_second]
    ]
    measured = [(mark.x, mark.y) for mark in marks]
    ideal = [(float(point.speed.workers), one * point.speed.workers) for point in points]
    lines = {"measured": measured, "perfect": ideal}
    return chart("Speed and workers", ("workers", "examples/s"), marks, lines, log_x=True, log_y=True)


def table(points: Sequence[ScalingPoint]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the page's table."""
    head = ["workers", "examples/s", "×", "of perfect", "by the last doubling", "step, ms"]
    head += ["longer for: sum of gradients, ms", "input, ms", "the rest, ms"]
    rows = [
        [
            f"{point.speed.workers}",
            f"{point.speed.examples_per_second:,.0f}",
            f"{point.times:.2f}",
            f"{point.efficiency:.0%}",
            f"{point.doubled:.2f}" if point.doubled else "–",
            f"{point.step_ms:.2f}",
            *(f"{point.lost_ms[part]:+.2f}" for part in ("all_reduce", "input", "rest")),
        ]
        for point in points
    ]
    return head, rows


def sentences(points: Sequence[ScalingPoint]) -> list[str]:
    """Return what the curve says of the most workers."""
    last, one = points[-1], points[0]
    lost = last.lost_ms
    low, high = last.speed.times_low, last.speed.times_high
    ends = f" ({low:.2f} – {high:.2f})" if low is not None and high is not None else ""
    lines = [
        f"{last.speed.workers} workers train {last.times:.2f}{ends} times as fast as one, {last.efficiency:.0%} of "
        "perfect."
    ]
    if last.efficiency > 1:
        lines.append("More than perfect: on a machine that does other things, more processes get more of it.")
    if last.step_ms > one.step_ms:
        lines.append(
            f"Their step takes {last.step_ms:.1f} ms, one worker's {one.step_ms:.1f}: {lost['all_reduce']:+.1f} for "
            f"the sum of gradients, {lost['input']:+.1f} for the input, {lost['rest']:+.1f} for the rest (waiting for "
            "the slowest, batch statistics, shared memory)."
        )
    if last.efficiency < _GOOD:
        lines.append("A larger batch, or train.accumulation_steps, exchanges less often.")
    return lines


def _step_ms(speed: Speed) -> float:
    return 1000 * speed.batch_size / speed.examples_per_second


def _part(speed: Speed, part: str) -> float:
    return speed.step_split_ms.get(part, 0.0)
