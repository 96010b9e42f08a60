"""What was measured of a recipe's speed, on which devices, with a digest by which a changed copy is known."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime

from trainyard.contract.artifacts.export import Answer
from trainyard.contract.artifacts.train import Device, InputSpeed
from trainyard.contract.document import FrozenModel
from trainyard.quality.page import framed
from trainyard_control.search.chart import Mark, chart, page
from trainyard_control.search.speed import input_ceiling, scaling_curve
from trainyard_control.search.speed.speed import Speed

_WAITS = 0.1  # chosen: less is the noise of a machine that does other things

_NO_PEAK = (
    "No published peak for this CPU: it follows from the clock under vector instructions and the multiply-add units, "
    "which no list here has. The share is of the measured peak."
)


class Certificate(FrozenModel):
    """What was measured on which devices with which versions. digest: SHA-256 of all else as JSON with sorted keys.

    inputs: the input alone, from each source; none of tables. seconds: of the trainings, of the input, and of all.
    answers: of a Keras model, the time of one on each device, which `plan --serve` reads.
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
    skipped: dict[str, str]
    inputs: list[InputSpeed] = []
    answers: list[Answer] = []
    seconds: dict[str, float] = {}
    digest: str = ""

    def _repr_html_(self) -> str:
        return framed(self.page())

    def page(self) -> str:
        """Return the certificate as a page of HTML."""
        speeds = self.speeds
        marks = [
            Mark(
                index, speed.examples_per_second, f"{speed.examples_per_second:,.0f}", index == 0, speed.low, speed.high
            )
            for index, speed in enumerate(speeds)
        ]
        names = tuple(speed.setting for speed in speeds)
        whisker = "the 95 % interval of the rounds" if speeds[0].rounds else "the range of the epochs"
        drawn = chart(f"Speed, with {whisker}", ("setting", "examples/s"), marks, categories=names, from_zero=True)
        devices = ", ".join(f"{device.name} ({device.product})" for device in self.devices)
        notes = [
            f"{self.model}, {self.parameters:,} parameters, on {devices}, {self.cores} cores, {self.machine}",
            *self.sentences,
            *(f"{setting}: left out. {why}" for setting, why in self.skipped.items()),
            f"measured {self.measured}; digest {self.digest}",
        ]
        head = ["setting", "examples/s", "from", "to", "×", "GFLOP/s", *self.peaks, "first step, s"]
        rows = [
            [
                speed.setting,
                *(f"{value:,.0f}" for value in (speed.examples_per_second, speed.low, speed.high)),
                self.compared(speed),
                f"{1000 * speed.tflops:,.3g}",
                *self.shares(speed),
                f"{speed.first_step_seconds:.1f}",
            ]
            for speed in speeds
        ]
        charts, tables = [drawn], [(head, rows)]
        if speeds[0].pool:
            tables.append(_pool_table(speeds))
        elif points := scaling_curve.points(speeds):
            charts.append(scaling_curve.drawn(points))
            tables.append(scaling_curve.table(points))
        if self.inputs:
            charts.append(input_ceiling.drawn(self.inputs, speeds[0].input_examples_per_second))
            tables.append(input_ceiling.table(self.inputs))
        return page(f"{self.recipe}: how fast it trains", notes, charts, tables)

    @property
    def peaks(self) -> list[str]:
        """The peaks that a speed is compared with: the measured one, and the published one where there is one."""
        published = any(speed.published_share is not None for speed in self.speeds)
        return ["of measured peak", *(["of published peak"] if published else [])]

    def shares(self, speed: Speed) -> list[str]:
        """Return the share of each of `peaks`."""
        values = (speed.peak_share, speed.published_share)[: len(self.peaks)]
        return ["–" if value is None else f"{value:.1%}" for value in values]

    def compared(self, speed: Speed) -> str:
        """Return how many times as fast as the first setting it is, with the interval over the rounds."""
        if speed.times is None:
            return f"{speed.examples_per_second / self.speeds[0].examples_per_second:.2f}"
        if speed is self.speeds[0]:
            return f"{speed.times:.2f}"
        return f"{speed.times:.2f} ({speed.times_low:.2f} – {speed.times_high:.2f})"

    @property
    def sentences(self) -> list[str]:
        """What to do about it: which accelerator trains, what is faster than the recipe as it is, and its input."""
        base = self.speeds[0]
        if base.pool:
            return _pool_sentences(self.speeds)
        kinds = sorted({device.name.partition(":")[0] for device in self.devices})
        cpu = kinds == ["CPU"]
        lines = [
            "It trains on the CPU: TensorFlow sees no accelerator." if cpu else f"It trains on {', '.join(kinds)}."
        ]
        if points := scaling_curve.points(self.speeds):
            return [*lines, *scaling_curve.sentences(points)]
        if base.published_share is None and base.peak_share is not None:
            lines.append(_NO_PEAK if cpu else "The catalog has no published peak of it.")
        lines.append(self._fastest())
        lines += [
            f"One answer takes {answer.p50:g} ms (p95 {answer.p95:g}) on {answer.accelerator}."
            for answer in self.answers
        ]
        if self.inputs:
            lines.append(input_ceiling.sentence(self.inputs, base.input_examples_per_second, cpu))
        waits = 1 - base.examples_per_second / base.input_examples_per_second
        if waits > _WAITS:
            lines.append(f"In training it waits for its input in {waits:.0%} of the time. See data.store, and cores.")
        return lines

    def _fastest(self) -> str:
        """Return which setting is faster than the first by more than what differs anyway."""
        base = self.speeds[0]
        best = max(self.speeds, key=lambda speed: speed.times or speed.examples_per_second)
        surely = best.low > base.high if best.times_low is None else best.times_low > 1
        if not surely:
            return f"No setting is faster by more than what the {'rounds' if base.rounds else 'epochs'} differ by."
        sets = ", ".join(f"{key}: {json.dumps(value)}" for key, value in best.values.items())
        times = best.times or best.examples_per_second / base.examples_per_second
        faster = f"{best.setting} is {times:.2f} times as fast"
        return f"{faster} ({sets})." if sets else f"{faster} as {base.setting}."


def signed(certificate: Certificate) -> Certificate:
    """Return the certificate of what has just been measured, with the time and its digest."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    versions = {"python": platform.python_version(), **certificate.versions}
    timed = certificate.model_copy(update={"measured": now, "versions": versions})
    return timed.model_copy(update={"digest": digest(timed)})


def digest(certificate: Certificate) -> str:
    """Return the SHA-256 of what the certificate says, by which a changed one is known."""
    content = json.dumps(certificate.model_dump(exclude={"digest"}), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _pool_table(speeds: Sequence[Speed]) -> tuple[list[str], list[list[str]]]:
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


def _pool_sentences(speeds: Sequence[Speed]) -> list[str]:
    """Return how the other pools compare with the first, by speed and by money."""
    base, lines = speeds[0], []
    for speed in speeds[1:]:
        times = speed.examples_per_second / base.examples_per_second
        money = ""
        if speed.examples_per_dollar and base.examples_per_dollar:
            money = f", and {speed.examples_per_dollar / base.examples_per_dollar:.2f} times as many examples a dollar"
        lines.append(f"{speed.pool} ({speed.hardware}) trains {times:.2f} times as fast as {base.pool}{money}.")
    return lines
