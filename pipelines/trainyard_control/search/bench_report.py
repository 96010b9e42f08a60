"""The benchmark report: measured training speeds, the devices and versions, and the tables and charts of its page."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.contract.artifacts.export import Answer
from trainyard.contract.artifacts.train import Device, InputSpeed
from trainyard.contract.document import FrozenModel
from trainyard.report.pages import in_iframe
from trainyard.report.plots import Figure, Mark, chart, page

MAX_ROUNDS = 10
_WAITS = 0.1  # chosen: less is noise of a busy machine
_GOOD = 0.8  # chosen: a lower efficiency is worth a remark

_NO_PEAK = (
    "No published peak for this CPU: it follows from the clock under vector instructions and the multiply-add units, "
    "which no list here has. The share is of the measured peak."
)


class Speed(FrozenModel):
    """The speed of one setting.

    examples_per_second, low, high: mean and 95 % interval over the rounds; of one round the mean, the slowest and the
    fastest epoch after the first. rounds: mean of each round. times: ratio to the first setting, with its interval;
    None of one round. input_examples_per_second: speed of the model if its input cost nothing. tflops: operations per
    second. peak_share: their share of the measured peak, None if it was not measured. published_share: their share of
    the published peak, None if the catalog has no figure. first_step_seconds: from the start of the process to the
    first step, with compilation; of a Keras model, tracing and compilation alone. step_split_ms: as in `Training`.
    pool, hardware: where it trained, '' for this machine. dollars_per_hour: of all its nodes, None without a price.
    """

    setting: str
    values: dict[str, float | int | str | bool] = {}
    batch_size: int
    examples_per_second: float
    low: float
    high: float
    input_examples_per_second: float
    tflops: float
    peak_share: float | None = None
    first_step_seconds: float
    workers: int = 1
    step_split_ms: dict[str, float] = {}
    pool: str = ""
    hardware: str = ""
    dollars_per_hour: float | None = None
    published_share: float | None = None
    rounds: list[float] = []
    times: float | None = None
    times_low: float | None = None
    times_high: float | None = None

    @property
    def examples_per_dollar(self) -> float | None:
        """The examples trained per dollar, None without a price."""
        return 3600 * self.examples_per_second / self.dollars_per_hour if self.dollars_per_hour else None


class BenchmarkReport(FrozenModel):
    """The measured speeds of a recipe, with devices and versions.

    inputs: speed of the input alone from each source; empty for tables. seconds: of the trainings, of the input, and of
    all. answers: of a Keras model, the latency on each device, which `plan --serve` reads.
    """

    recipe: str
    model: str
    parameters: int
    flops_per_example: float
    machine: str
    cores: int
    devices: list[Device]
    versions: dict[str, str]
    measured: str = ""
    speeds: list[Speed]
    skipped: dict[str, str] = {}
    inputs: list[InputSpeed] = []
    answers: list[Answer] = []
    seconds: dict[str, float] = {}

    def _repr_html_(self) -> str:
        return in_iframe(self.page())

    def page(self) -> str:
        """Render the report as a page of HTML."""
        speeds = self.speeds
        marks = [
            Mark(
                index, speed.examples_per_second, f"{speed.examples_per_second:,.0f}", index == 0, speed.low, speed.high
            )
            for index, speed in enumerate(speeds)
        ]
        names = tuple(speed.setting for speed in speeds)
        whisker = "the 95 % interval of the rounds" if speeds[0].rounds else "the range of the epochs"
        devices = ", ".join(f"{device.name} ({device.product})" for device in self.devices)
        notes = [
            f"{self.model}, {self.parameters:,} parameters, on {devices}, {self.cores} cores, {self.machine}",
            *self.sentences,
            *(f"{setting}: skipped. {why}" for setting, why in self.skipped.items()),
            f"measured {self.measured}",
        ]
        head = ["setting", "examples/s", "from", "to", "×", "GFLOP/s", *self.peaks, "first step, s"]
        charts = {f"Speed, with {whisker}": chart(("setting", "examples/s"), marks, categories=names, bars=True)}
        tables = [(head, self.rows)]
        if speeds[0].pool:
            tables.append(_pool_table(speeds))
        elif points := scaling_points(speeds):
            charts["Speed and workers"] = scaling_chart(points)
            tables.append(scaling_table(points))
        if self.inputs:
            charts["Input alone"] = input_chart(self.inputs, speeds[0].input_examples_per_second)
            tables.append(input_table(self.inputs))
        return page(f"{self.recipe}: how fast it trains", notes, charts, tables)

    @property
    def rows(self) -> list[list[str]]:
        """The speeds: setting, examples/s with both ends, ratio, GFLOP/s, shares of `peaks`, first step's seconds."""
        return [
            [
                speed.setting,
                *(f"{value:,.0f}" for value in (speed.examples_per_second, speed.low, speed.high)),
                self.compared(speed),
                f"{1000 * speed.tflops:,.3g}",
                *self.shares(speed),
                f"{speed.first_step_seconds:.1f}",
            ]
            for speed in self.speeds
        ]

    @property
    def peaks(self) -> list[str]:
        """The names of the peaks that speeds are compared with: the measured one, and the published one if known."""
        published = any(speed.published_share is not None for speed in self.speeds)
        return ["of measured peak", *(["of published peak"] if published else [])]

    def shares(self, speed: Speed) -> list[str]:
        """Format the share of each of `peaks`."""
        values = (speed.peak_share, speed.published_share)[: len(self.peaks)]
        return ["–" if value is None else f"{value:.1%}" for value in values]

    def compared(self, speed: Speed) -> str:
        """Format the ratio to the first setting, with its interval over the rounds."""
        if speed.times is None:
            return f"{speed.examples_per_second / self.speeds[0].examples_per_second:.2f}"
        if speed is self.speeds[0]:
            return f"{speed.times:.2f}"
        return f"{speed.times:.2f} ({speed.times_low:.2f} – {speed.times_high:.2f})"

    @property
    def sentences(self) -> list[str]:
        """The conclusions: the accelerator in use, settings faster than the recipe's own, and the input."""
        base = self.speeds[0]
        if base.pool:
            return _pool_sentences(self.speeds)
        kinds = sorted({device.name.partition(":")[0] for device in self.devices})
        cpu = kinds == ["CPU"]
        lines = [
            "It trains on the CPU: TensorFlow sees no accelerator." if cpu else f"It trains on {', '.join(kinds)}."
        ]
        if points := scaling_points(self.speeds):
            return [*lines, *scaling_sentences(points)]
        if base.published_share is None and base.peak_share is not None:
            lines.append(_NO_PEAK if cpu else "The catalog has no published peak for it.")
        lines.append(self._fastest())
        lines += [
            f"One answer takes {answer.p50:g} ms (p95 {answer.p95:g}) on {answer.accelerator}."
            for answer in self.answers
        ]
        if self.inputs:
            lines.append(input_sentence(self.inputs, base.input_examples_per_second, cpu))
        waits = 1 - base.examples_per_second / base.input_examples_per_second
        if waits > _WAITS:
            lines.append(f"In training it waits for its input in {waits:.0%} of the time. See data.store, and cores.")
        return lines

    def _fastest(self) -> str:
        """Name the setting that is faster than the first beyond the noise."""
        base = self.speeds[0]
        best = max(self.speeds, key=lambda speed: speed.times or speed.examples_per_second)
        surely = best.low > base.high if best.times_low is None else best.times_low > 1
        if not surely:
            return f"No setting is faster by more than what the {'rounds' if base.rounds else 'epochs'} differ by."
        sets = ", ".join(f"{key}: {json.dumps(value)}" for key, value in best.values.items())
        times = best.times or best.examples_per_second / base.examples_per_second
        faster = f"{best.setting} is {times:.2f} times as fast"
        return f"{faster} ({sets})." if sets else f"{faster} as {base.setting}."


def _pool_table(speeds: Sequence[Speed]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of the table of pools."""
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


def _pool_sentences(speeds: Sequence[Speed]) -> list[str]:
    """Compare the other pools with the first, by speed and money."""
    base, lines = speeds[0], []
    for speed in speeds[1:]:
        times = speed.examples_per_second / base.examples_per_second
        money = ""
        if speed.examples_per_dollar and base.examples_per_dollar:
            money = f", and {speed.examples_per_dollar / base.examples_per_dollar:.2f} times as many examples a dollar"
        lines.append(f"{speed.pool} ({speed.hardware}) trains {times:.2f} times as fast as {base.pool}{money}.")
    return lines


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of two or more `values` above 0, with its 95 % interval (Student's t).

    The values are one per round. A machine that does other things, or gets hot, is slow for minutes: the epochs of one
    training do not show that, and rounds do.

    >>> [round(end, 3) for end in interval([1.0, 1.0])]
    [1.0, 1.0, 1.0]
    """
    from scipy.special import stdtrit  # takes a third of a second

    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    half = stdtrit(len(logs) - 1, 0.975) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def quotient(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of `values` to `base`, with its 95 % interval.

    The ratio is taken round by round, because whatever slows the machine slows all settings of a round alike.
    """
    return interval([value / other for value, other in zip(values, base, strict=True)])


@dataclass(frozen=True)
class ScalingPoint:
    """A number of workers, each with the batch of the single worker.

    times: speed relative to one worker. doubled: speed relative to half as many, None if that was not measured.
    lost_ms: how much longer a step takes than one worker's, by cause: summing gradients, input, and the rest (waiting
    for the slowest worker, exchanging batch statistics, sharing memory and caches).
    """

    speed: Speed
    times: float
    doubled: float | None
    step_ms: float
    lost_ms: dict[str, float]

    @property
    def efficiency(self) -> float:
        """The share of perfect scaling."""
        return self.times / self.speed.workers


def scaling_points(speeds: Sequence[Speed]) -> list[ScalingPoint]:
    """Return the points of the scaling curve; empty if all speeds have one worker."""
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


def scaling_chart(points: Sequence[ScalingPoint]) -> Figure:
    """Draw the scaling curve, compared with perfect scaling."""
    one = points[0].speed.examples_per_second
    marks = [
        Mark(point.speed.workers, rate, f"{rate:,.0f}, {point.efficiency:.0%}", True, point.speed.low, point.speed.high)
        for point in points
        for rate in [point.speed.examples_per_second]
    ]
    measured = [(mark.x, mark.y) for mark in marks]
    ideal = [(float(point.speed.workers), one * point.speed.workers) for point in points]
    lines = {"measured": measured, "perfect": ideal}
    return chart(("workers", "examples/s"), marks, lines, log_x=True, log_y=True)


def scaling_table(points: Sequence[ScalingPoint]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of the table of workers."""
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


def scaling_sentences(points: Sequence[ScalingPoint]) -> list[str]:
    """Describe the speed of the largest number of workers."""
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


def input_sentence(inputs: Sequence[InputSpeed], model: float, cpu: bool) -> str:
    """Say if input or model bounds the training. model: examples/s of the model on a batch in memory.

    cpu: both compute on the same cores, so that the training is slower than either.
    """
    used = next(speed for speed in inputs if speed.used)
    rates = f"its input alone gives {used.examples_per_second:,.0f} examples/s from {used.source}, its model takes"
    text = f"{rates} {model:,.0f} of a batch at hand"
    if used.low > model:
        verdict = "The model bounds it"
    elif used.high < model:
        verdict = "The input bounds it"
        best = max(inputs, key=lambda speed: speed.examples_per_second)
        if best.low > used.high:
            text += f"; from {best.source} come {best.examples_per_second:,.0f}"
    else:
        verdict = "Neither the model nor the input clearly bounds it"
    return f"{verdict}: {text}{'. On a CPU they share the cores' if cpu else ''}."


def input_chart(inputs: Sequence[InputSpeed], model: float) -> Figure:
    """Draw a bar for each source, and the model's speed as a line."""
    marks = [
        Mark(index, speed.examples_per_second, f"{speed.examples_per_second:,.0f}", speed.used, speed.low, speed.high)
        for index, speed in enumerate(inputs)
    ]
    across = {"what the model takes": [(-0.5, model), (len(inputs) - 0.5, model)]}
    names = tuple(speed.source for speed in inputs)
    return chart(("source", "examples/s"), marks, across, categories=names, bars=True)


def input_table(inputs: Sequence[InputSpeed]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of the table of sources."""
    rows = [
        [
            speed.source,
            *(f"{rate:,.0f}" for rate in (speed.examples_per_second, speed.low, speed.high)),
            "as this recipe does" if speed.used else "",
        ]
        for speed in inputs
    ]
    return ["input alone, from", "examples/s", "from", "to", ""], rows
