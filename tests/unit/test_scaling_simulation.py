"""`trainyard plan --scale`: the simulation against what two workers were measured at, and against published curves."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from page_block import DOCS, require_block
from report_folders import training_with
from typer.testing import CliRunner

from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.errors import ConfigurationError
from trainyard_control.api import forecast
from trainyard_control.cli.main import app
from trainyard_control.planning import cost
from trainyard_control.planning.hardware import (
    ExampleCost,
    Hardware,
    accelerator_hardware,
    communication_seconds,
    cpu_hardware,
)
from trainyard_control.planning.scaling import (
    NETWORK_LATENCY,
    Parts,
    all_reduce_seconds,
    curve,
    measured_parts,
    simulated,
)

RESNET = cost.named("resnet50", (224, 224, 3), 1000)
STEADY = Parts(examples=100, compute=1.0, jitter=0.0)


def test_one_worker_is_ideal_and_without_jitter_only_the_ring_costs() -> None:
    assert simulated(STEADY, 0.0, 1).efficiency == pytest.approx(1)
    point = simulated(STEADY, 0.25, 8)
    assert point.efficiency == pytest.approx(0.8) and point.examples_per_second == pytest.approx(640)
    assert (point.all_reduce, point.stragglers) == (0.25, 0.0)


@pytest.mark.parametrize(("workers", "deviations"), [(2, 0.564), (10, 1.539), (100, 2.508)])
def test_the_slowest_of_n_is_as_late_as_the_largest_of_n_normal_draws(workers: int, deviations: float) -> None:
    # Source: the expected largest order statistic of a normal sample, H. L. Harter, Biometrika 48, 1961.
    jittered = replace(STEADY, jitter=0.1)
    assert simulated(jittered, 0.0, workers).stragglers == pytest.approx(0.1 * deviations, rel=0.15)


def test_a_sum_beside_the_computing_shows_only_what_is_longer() -> None:
    beside = replace(STEADY, overlap=0.5)
    assert (simulated(beside, 0.4, 4).all_reduce, simulated(beside, 0.7, 4).all_reduce) == (0, pytest.approx(0.2))


def test_the_ring_is_the_plans_own_and_its_messages() -> None:
    work = ExampleCost(
        parameters=1_000_000, flops_per_example=1, activations_per_example=1, saved_activations_per_example=1
    )
    one = cpu_hardware(1, 1, network=1e9)
    assert all_reduce_seconds(work, one, 4) == pytest.approx(
        communication_seconds(work, replace(one, workers=4)) + 6 * NETWORK_LATENCY
    )
    assert all_reduce_seconds(work, one, 1) == 0


def test_a_curve_doubles_up_to_the_most_and_shares_sum_to_one() -> None:
    points = curve(replace(STEADY, jitter=0.05, input=0.1), RESNET, cpu_hardware(8, 2, network=1e9), 12)
    assert [point.workers for point in points] == [1, 2, 4, 8, 12]
    assert all(a.efficiency > b.efficiency for a, b in itertools.pairwise(points))
    for point in points:
        entry = point.as_dict()
        shares = sum(entry[name] for name in ("efficiency", "all_reduce", "stragglers", "input"))
        assert shares == pytest.approx(1, abs=1e-3)


class Measured(NamedTuple):
    """One row of the benchmark of two workers, in milliseconds a part of a step."""

    network: str
    parts: int
    both: float
    gang: float
    all_reduce: float


def measured() -> list[Measured]:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    section = text.partition("<!-- benchmark: scaling -->")[2].partition("<!-- end of benchmark")[0]
    lines = [line for line in section.splitlines() if line.startswith("|") and "---" not in line]
    head, *rows = ([cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines)
    named = [dict(zip(head, row, strict=True)) for row in rows]
    return [
        Measured(
            row["network"], int(row["parts"]), *(float(row[key]) for key in ("both", "gang of two", "all-reduce alone"))
        )
        for row in named
    ]


def gang_of_two(row: Measured) -> float:
    """Return the milliseconds a part that the simulation gives, from what both workers take apart and the sum alone."""
    parts = Parts(examples=1, compute=row.both * row.parts, jitter=0.0)
    return simulated(parts, row.all_reduce, 2).seconds / row.parts


def test_two_workers_take_what_was_measured_within_an_eighth() -> None:
    rows = measured()
    assert len(rows) >= 4
    for row in rows:
        assert gang_of_two(row) == pytest.approx(row.gang, rel=0.125), row


def recorded(**values: object) -> Training:
    epochs = [
        Epoch(
            epoch=number,
            step=number,
            learning_rate=1,
            train_loss=1,
            eval_loss=1,
            metric=1,
            examples_per_second=speed,
            seconds=1,
        )
        for number, speed in enumerate((10.0, 100.0, 110.0, 90.0), 1)
    ]
    content = {
        "parameters": 94_314, "epochs": 4, "examples_per_second": 3200.0, "step_ms": 20.0, "cached_step_ms": 20.0,
        "history": epochs, "step_split_ms": {"compute": 18.0, "all_reduce": 0.0, "input": 2.0},
        "cores": len(os.sched_getaffinity(0)), "flops_per_example": 5_823_936.0, "activations_per_example": 7818,
        "finished": "2026-11-21T00:00:00+00:00",
    } | values  # fmt: skip
    return training_with(**content)


def test_the_parts_of_a_recorded_run_are_its_own() -> None:
    parts = measured_parts(recorded())
    assert (parts.examples, parts.compute, parts.input) == (64, 0.018, 0.002)
    assert parts.jitter == pytest.approx(0.1, rel=0.05), "of the epochs after the first"
    assert parts.origin == "measured, run of 2026-11-21"


def test_the_command_simulates_from_the_recorded_run_and_without_one_from_the_roofline(tmp_path: Path) -> None:
    file = tmp_path / "here.yaml"
    file.write_text(f"target: local\nstorage: {tmp_path}/runs\n")
    command = ["plan", "digits", "-e", str(file), "--scale", "16"]
    predicted = json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).stdout)
    assert predicted["parts"]["origin"].startswith("predicted")
    folder = tmp_path / "runs" / "digits" / "train" / "key"
    folder.mkdir(parents=True)
    recorded().write(folder)
    simulation = json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).stdout)
    assert simulation["parts"]["origin"].startswith("measured") and simulation["parts"]["compute"] == 0.018
    assert [point["workers"] for point in simulation["points"]] == [1, 2, 4, 8, 16]
    shown = CliRunner().invoke(app, command).stdout
    assert re.search(r"16 +[\d,]+ +56,889 +\d+%", shown) and "measured, run of 2026-11-21" in shown
    for other in ({"model": "mlp"}, {"workers": 2, "replicas": 2}, {"examples_per_second": 1600.0}, {"cores": 999}):
        recorded(**other).write(folder)
        again = json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).stdout)
        assert again["parts"]["origin"].startswith("predicted"), other
    refused = CliRunner().invoke(app, [*command, "--deadline", "4h"])
    assert isinstance(refused.exception, ConfigurationError) and "Leave --deadline" in str(refused.exception)


SLICE = """
target: kubeflow
platform: gke
storage: gs://bucket/runs
images: {cpu: "example/cpu:1", jax: "example/jax:1"}
pools:
  cpu: {kind: cpu, resources: {requests: {cpu: 2, memory: 4Gi}, limits: {memory: 4Gi}}}
  v5e: {kind: tpu, accelerator: tpu-v5-lite-podslice, topology: 4x4, count: 4, workers: 4,
    resources: {requests: {cpu: 90, memory: 4Gi}, limits: {memory: 4Gi}}}
placement: {default: cpu, train: v5e}
"""


def test_more_hosts_than_a_slice_can_have_are_told(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(SLICE.replace("gs://bucket/runs", f"{tmp_path}/runs") + VOLUME.format(tmp_path))
    command = ["plan", "digits", "-e", str(tmp_path / "own.yaml"), "--scale", "128"]
    assert "! the largest slice of tpu-v5-lite-podslice has 64 hosts." in CliRunner().invoke(app, command).stdout
    assert "largest slice" not in CliRunner().invoke(app, [*command[:-1], "64"]).stdout


def test_vertex_has_no_workers_to_add_and_says_so_before_a_bucket_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "read_history", None)
    result = CliRunner().invoke(app, ["plan", "digits", "-e", "vertex", "--scale", "8"])
    assert "--scale: a step of Vertex AI Pipelines is one machine" in str(result.exception)


VOLUME = "volume: {{claim: runs, path: {}}}\n"


class Published(NamedTuple):
    """A published efficiency, and what is known of the machines. speed: examples a second of one worker."""

    title: str
    source: str
    workers: int
    batch: int
    speed: float
    parameters: float
    hardware: Hardware
    efficiency: float


def servers(network_gbit: float) -> Hardware:
    """Return servers whose devices count as one worker, with a network between them."""
    return replace(cpu_hardware(1, 2, network_gbit * 1e9 / 8), name="nvidia-tesla-p100")


_HOROVOD = "[Horovod](https://github.com/horovod/horovod/blob/master/docs/benchmarks.rst)"
_TENSORFLOW = "[TensorFlow 2017](https://www.tensorflow.org/performance/benchmarks)"
_MLPERF = "[MLPerf 0.6](https://github.com/mlcommons/training_results_v0.6)"
# Horovod names no speeds and no Pascal GPU: four times those of a P100 in TensorFlow's benchmarks (142, 132 images/s).
PUBLISHED = [
    Published("Inception V3, 128 servers of 4 GPUs, 25 Gbit/s", _HOROVOD, 128, 256, 568, 23.9e6, servers(25), 0.90),
    Published("VGG-16, the same", _HOROVOD, 128, 256, 528, 138.4e6, servers(25), 0.68),
    Published("ResNet-50, 8 servers of 8 K80, 10 Gbit/s", _TENSORFLOW, 8, 512, 410, 25.6e6, servers(10), 3051 / 3280),
    Published("Inception V3, the same", _TENSORFLOW, 8, 512, 229, 23.9e6, servers(10), 1783 / 1832),
    Published(
        "ResNet-50, TPU v3, 4 times 16 chips",
        _MLPERF,
        16,
        1024,
        31_329 / 4,
        25.6e6,
        accelerator_hardware("auto", "tpu-v3-slice", 4, 4, 96, None),
        125_490 / (4 * 31_329),
    ),
]
OVERLAP = 2 / 3  # of a step is the backward pass, beside which Horovod, TensorFlow and XLA sum


def efficiency(run: Published, overlap: float) -> float:
    parts = Parts(run.batch, run.batch / run.speed, jitter=0.02, overlap=overlap)
    work = ExampleCost(round(run.parameters), 1, 1, 1)
    return simulated(parts, all_reduce_seconds(work, run.hardware, run.workers), run.workers).efficiency


def test_published_efficiencies_are_met_within_15_points() -> None:
    assert [run.title for run in PUBLISHED if abs(efficiency(run, OVERLAP) - run.efficiency) > 0.15] == []


def test_the_page_says_what_the_simulation_gives_today() -> None:
    ours = [
        f"| `{row.network}` | {row.parts} | {gang_of_two(row):.1f} | {100 * (gang_of_two(row) / row.gang - 1):+.0f} % |"
        for row in measured()
    ]
    head = "| network | parts | simulated | error |\n| --- | ---: | ---: | ---: |"
    require_block("explanation/planning.md", "simulated", "\n".join([head, *ours, ""]))
    theirs = [
        f"| {run.title} | {run.source} | {run.workers} | {run.efficiency:.0%} | {efficiency(run, OVERLAP):.0%} | "
        f"{efficiency(run, 0.0):.0%} |"
        for run in PUBLISHED
    ]
    head = (
        "| run | source | workers | published | simulated, overlapped | simulated, after |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |"
    )
    require_block("explanation/planning.md", "scaling", "\n".join([head, *theirs, ""]))
