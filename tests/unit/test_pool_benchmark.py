"""Pools beside each other: which runs measure them, and what is made of what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from gke_pools import CLUSTER, ROOM
from report_folders import figures, training_with
from typer.testing import CliRunner

from trainyard.contract.artifacts.train import Device, Epoch, Training
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.storage import storage
from trainyard_control.api.packages import prepare_benchmarks
from trainyard_control.cli.main import app
from trainyard_control.search import bench

ENVIRONMENT = f"""{CLUSTER}pools:
  cpu: {{kind: cpu, price_per_hour: 0.5, resources: {ROOM}}}
  l4: {{kind: gpu, accelerator: nvidia-l4, count: 2, workers: 2, price_per_hour: 2, resources: {ROOM}}}
  edge: {{kind: cpu, trains: false, resources: {ROOM}}}
placement: {{default: cpu}}
"""


@pytest.fixture
def environment(tmp_path: Path) -> str:
    path = tmp_path / "yard.yaml"
    path.write_text(ENVIRONMENT)
    return str(path)


def trained(rate: float, workers: int, hardware: str) -> Training:
    epochs = [
        Epoch(
            epoch=number, step=number, learning_rate=0.1, train_loss=1, eval_loss=1, metric=0.5,
            examples_per_second=rate * part, seconds=1,
        )
        for number, part in ((1, 0.5), (2, 1.0), (3, 1.0))  # the first warms up
    ]  # fmt: skip
    return training_with(
        steps=3, epochs=3, workers=workers, examples_per_second=0.8 * rate, step_ms=64_000 / rate,
        cached_step_ms=60_000 / rate, history=epochs, seconds={"import": 2.0, "build": 1.0},
        replicas=2 * workers if hardware != "CPU" else 1, hardware=hardware, flops_per_example=1e6,
        step_split_ms={"compute": 5.0, "all_reduce": 1.0},
        measured=[Device(name="D:0", product=hardware, memory_bytes=0, tflops=0.01, gb_per_second=1)],
    )  # fmt: skip


def leave(root: Path, name: str, training: Training, run: str) -> None:
    with storage.stage(f"{root}/{name}/train/0123456789abcdef.{run}", producer="trainyard.train") as output:
        training.write(output)


def test_each_pool_has_a_run_that_trains_there_under_its_own_label(environment: str) -> None:
    benchmarks = prepare_benchmarks("digits", environment, [], ["cpu", "l4"], "speed")
    recipe, runs = benchmarks.recipe, benchmarks.runs
    assert {pool: run.run for pool, run in runs.items()} == {"cpu": "speed-cpu", "l4": "speed-l4"}
    assert (recipe.train.epochs, recipe.train.early_stopping) == (6, None)
    for pool, run in runs.items():
        pipeline, platform = yaml.safe_load_all(run.package)
        defaults = {
            key: value.get("defaultValue") for key, value in pipeline["root"]["inputDefinitions"]["parameters"].items()
        }
        assert defaults["label"] == f"speed-{pool}"
        assert ('"workers":2' in (defaults["gang"] or "")) == (pool == "l4")
        assert set(pipeline["deploymentSpec"]["executors"]) == {"exec-preprocess", "exec-train"}
        assert platform


def test_what_pools_have_measured_is_held_against_the_first_of_them(environment: str, tmp_path: Path) -> None:
    target = environments.load(environment).model_copy(update={"storage": str(tmp_path)})
    recipe = recipes.load("digits", ["train.batch_size=64"])
    leave(tmp_path, "digits", trained(100, 1, "CPU"), "speed-cpu")
    leave(tmp_path, "digits", trained(999, 1, "CPU"), "other-speed-cpu")
    runs = {"cpu": "speed-cpu", "l4": "speed-l4"}
    first, missing = bench.collect(recipe, target, runs)
    assert missing == ["l4"] and first and len(first.speeds) == 1
    assert first.skipped == {"l4": "It has not been measured yet."}
    leave(tmp_path, "digits", trained(2400, 2, "NVIDIA L4"), "speed-l4")
    report, missing = bench.collect(recipe, target, runs)
    assert report and not missing
    cpu, l4 = report.speeds
    assert (cpu.pool, cpu.hardware, cpu.examples_per_second, cpu.dollars_per_hour) == ("cpu", "CPU", 100, 0.5)
    assert (l4.pool, l4.hardware, l4.workers, l4.dollars_per_hour) == ("l4", "4 x NVIDIA L4", 2, 4)  # two nodes
    # 100 a second for half a dollar an hour: 720,000 a dollar; 2,400 for four: 2,160,000.
    assert (cpu.examples_per_dollar, l4.examples_per_dollar) == (720_000, 2_160_000)
    assert report.sentences == [
        "l4 (4 x NVIDIA L4) trains 24.00 times as fast as cpu, and 3.00 times as many examples a dollar."
    ]
    fed = target.model_copy(update={"input_workers": environments.InputWorkers(count=2, pool="cpu")})
    with_input, _ = bench.collect(recipe, fed, runs)
    assert with_input and [speed.dollars_per_hour for speed in with_input.speeds] == [
        1.5,
        5,
    ]  # two more of half a dollar
    page = report.page()
    (bars,) = (chart["data"][0] for chart in figures(page).values())
    assert bars["type"] == "bar" and len(bars["x"]) == 2 and "2,160,000" in page


def test_nothing_is_shown_before_anything_is_measured(environment: str, tmp_path: Path) -> None:
    target = environments.load(environment).model_copy(update={"storage": str(tmp_path)})
    assert bench.collect(recipes.load("digits"), target, {"cpu": "speed-cpu"}) == (None, ["cpu"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--pools", "edge"], "cannot train: its pool says trains: false. The nearest that trains is 'l4'"),
        (["--pools", "cpu,cpus"], "no pool 'cpus'. Defined: cpu, l4, edge. Did you mean 'cpu'?"),
        (["--pools", "cpu,cpu"], "'cpu' is named twice"),
        (["--pools", "l4", "--set", "train.batch_size=30"], "make no 4 equal parts"),
        (["--pools", "cpu", "--quick"], "--quick, --workers and --rounds are of this machine"),
        (["--pools", "cpu", "--rounds", "2"], "--quick, --workers and --rounds are of this machine"),
        (["--pools", "l4", "--set", "train.batch_size=10000000"], "GiB of memory, and pool 'l4' has 24.0 GiB"),
        (["--wait"], "Add --pools, or leave it out"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_sent(
    environment: str, options: list[str], sentence: str
) -> None:
    ended = CliRunner().invoke(app, ["bench", "digits", "-e", environment, *options], env={"COLUMNS": "400"})
    assert ended.exit_code != 0
    assert sentence in (ended.stderr + str(ended.exception))


def test_this_machine_has_no_pools() -> None:
    ended = CliRunner().invoke(app, ["bench", "digits", "--pools", "cpu"])
    assert "its target is local. Leave --pools out" in (ended.stderr + str(ended.exception))
