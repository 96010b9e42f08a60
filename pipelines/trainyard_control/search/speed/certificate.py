"""What was measured of a recipe's speed, on which devices, with a digest by which a changed copy is known."""

from __future__ import annotations

import hashlib
import json
import platform
from datetime import UTC, datetime

from trainyard.contract.artifacts.train import Device
from trainyard.contract.document import Part
from trainyard.quality.page import framed
from trainyard_control.search.chart import Mark, chart
from trainyard_control.search.page import page
from trainyard_control.search.speed import pool_table, scaling_curve
from trainyard_control.search.speed.speed import Speed

_WAITS = 0.1  # chosen: less is the noise of a machine that does other things


class Certificate(Part):
    """What was measured on which devices with which versions. digest: SHA-256 of all else as JSON with sorted keys."""

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
    left_out: dict[str, str]
    digest: str = ""

    def _repr_html_(self) -> str:
        return framed(self.page())

    def page(self) -> str:
        """Return the certificate as a page of HTML."""
        speeds = self.speeds
        marks = [
            Mark(
                place, speed.examples_per_second, f"{speed.examples_per_second:,.0f}", place == 0, speed.low, speed.high
            )
            for place, speed in enumerate(speeds)
        ]
        names = tuple(speed.setting for speed in speeds)
        drawn = chart(
            "Speed, with the range of the epochs", ("setting", "examples/s"), marks, categories=names, from_zero=True
        )
        devices = ", ".join(f"{device.name} ({device.product})" for device in self.devices)
        notes = [
            f"{self.model}, {self.parameters:,} parameters, on {devices}, {self.cores} cores, {self.machine}",
            *self.sentences,
            *(f"{setting}: left out. {why}" for setting, why in self.left_out.items()),
            f"measured {self.measured}; digest {self.digest}",
        ]
        head = ["setting", "examples/s", "from", "to", "GFLOP/s", "of the measured peak", "first step, s"]
        rows = [
            [
                speed.setting,
                *(f"{value:,.0f}" for value in (speed.examples_per_second, speed.low, speed.high)),
                f"{1000 * speed.tflops:,.3g}",
                "–" if speed.peak_share is None else f"{speed.peak_share:.1%}",
                f"{speed.first_step_seconds:.1f}",
            ]
            for speed in speeds
        ]
        charts, tables = [drawn], [(head, rows)]
        if speeds[0].pool:
            tables.append(pool_table.table(speeds))
        elif points := scaling_curve.points(speeds):
            charts.append(scaling_curve.drawn(points))
            tables.append(scaling_curve.table(points))
        return page(f"{self.recipe}: how fast it trains", notes, charts, tables)

    @property
    def sentences(self) -> list[str]:
        """What to do about it: which accelerator trains, what is faster than the recipe as it is, and its input."""
        base = self.speeds[0]
        if base.pool:
            return pool_table.sentences(self.speeds)
        kinds = sorted({device.name.partition(":")[0] for device in self.devices})
        said = [
            "It trains on the CPU: TensorFlow sees no accelerator."
            if kinds == ["CPU"]
            else f"It trains on {', '.join(kinds)}."
        ]
        if points := scaling_curve.points(self.speeds):
            return [*said, *scaling_curve.sentences(points)]
        best = max(self.speeds, key=lambda speed: speed.examples_per_second)
        if best.low > base.high:
            sets = ", ".join(f"{key}: {json.dumps(value)}" for key, value in best.values.items())
            faster = f"{best.setting} is {best.examples_per_second / base.examples_per_second:.2f} times as fast"
            said.append(f"{faster} ({sets})." if sets else f"{faster} as {base.setting}.")
        else:
            said.append("No setting is faster by more than what the epochs differ by.")
        waits = 1 - base.examples_per_second / base.input_examples_per_second
        if waits > _WAITS:
            said.append(
                f"It waits for its input in {waits:.0%} of the time. See data.store, and the cores of the pool."
            )
        return said


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
