"""Sweeps and learning curves over real trainings of the bundled table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit import report_folders
from typer.testing import CliRunner

from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.storage import storage
from trainyard_control.api.progress import TrialScreen
from trainyard_control.cli.main import app
from trainyard_control.search import sweep as sweeps
from trainyard_control.search.bench_report import BenchmarkReport
from trainyard_control.search.search_space import parse
from trainyard_control.search.study import Sweep
from trainyard_control.search.trials import Trial

pytestmark = pytest.mark.usefixtures("warm_processes")

SHORT = ["train.epochs=3", "train.batch_size=64", "evaluate.boosted=false", "evaluate.bootstrap=20"]


class Listener(TrialScreen):
    """Notes the trials; interrupts the second one in its first epoch if it is to."""

    def __init__(self, interrupt: bool = False) -> None:
        super().__init__()
        self.interrupt = interrupt
        self.trained: list[int] = []
        self.ended: list[Trial] = []

    def for_trial(self, trial: Trial) -> Listener:
        self.trained.append(trial.number)
        return self

    def trial_ended(self, trial: Trial, best: Trial | None) -> None:
        self.ended.append(trial)

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        if self.interrupt and event["event"] == "epoch" and 1 in self.trained:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("search")
    (folder / "here.yaml").write_text(f"target: local\nstorage: {folder}/storage\n")
    return str(folder / "here.yaml")


OVER = "train.optimizer.learning_rate=0.03,0.02,0.01,0.005,1e-9"


@pytest.fixture(scope="module")
def options(environment: str) -> list[str]:
    """The command's arguments, with a seed by which the hopeless rate comes last."""
    here = environments.load(environment)
    for seed in range(1000):
        changes = [*SHORT, f"seed={seed}"]
        if (Sweep("tabular", changes, parse("tabular", changes, [OVER]), here).combinations or [])[4] == (1e-9,):
            return ["-e", environment, *(word for change in changes for word in ("--set", change))]
    raise AssertionError("no seed")


def test_a_sweep_goes_on_where_it_was_ended_and_leaves_a_hopeless_trial(environment: str, options: list[str]) -> None:
    changes = options[3::2]
    sweep = Sweep("tabular", changes, parse("tabular", changes, [OVER]), environments.load(environment))
    first = Listener(interrupt=True)
    with pytest.raises(KeyboardInterrupt):
        sweeps.run(sweep, first)
    assert first.trained == [0, 1] and [trial.number for trial in first.ended] == [0]
    begun = json.loads(storage.read_text(storage.join(sweep.folder, "trials.json")) or "")
    assert [trial["state"] for trial in begun] == ["complete", "begun"]

    again = Listener()
    result = sweeps.run(sweep, again)
    assert again.trained == [1, 2, 3, 4]
    timed = [trial.milliseconds for trial in result.trials]
    assert all(0 < (took or 0) < 60_000 for took in timed[:4]) and timed[4] is None
    assert result.trials[0].model_copy(update={"milliseconds": None}) == first.ended[0]
    assert result.trials[1].values == begun[1]["values"]
    # One epoch is the warm-up of three, and four trials come before any is left.
    assert [trial.state for trial in result.trials] == ["complete"] * 4 + ["pruned"]
    assert all(len(trial.epochs) == 3 for trial in result.trials[:4])
    left = result.trials[4]
    assert left.metric is None and 1 <= len(left.epochs) < 3 and "median" in left.why
    recipe_folder = result.folder.rpartition("/sweeps")[0]
    beside = storage.children(storage.join(recipe_folder, "train"))
    assert not [name for name in beside if name.endswith((".checkpoints", ".failure.json"))]

    assert result.best.metric == max(trial.metric or 0 for trial in result.trials) and result.best in result.front
    written = recipes.load(storage.join(sweep.folder, "best.yaml"))
    assert written == result.recipe
    assert written.train.optimizer.learning_rate == result.best.values["train.optimizer.learning_rate"]
    assert result.test and 0.5 < result.test.metrics["accuracy"] <= 1
    assert not storage.children(storage.join(recipe_folder, "models"))


def test_the_command_shows_a_sweep_that_is_complete(options: list[str], tmp_path: Path) -> None:
    command = ["sweep", "tabular", "--over", OVER, *options, "--html", str(tmp_path / "a.html")]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.stderr
    assert "1 pruned, 0 failed" in shown.stdout and "best.yaml" in shown.stdout
    assert (tmp_path / "a.html").read_text().count("data-figure=") == 4
    document = json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).stdout)
    assert len(document["trials"]) == 5 and document["best"]["number"] in document["front"]


def test_a_sweep_over_a_drafted_recipe_keeps_the_better_of_a_network_and_trees(
    environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(1).normal(size=(500, 2)).round(3)
    lines = [f"{a},{b},{'yes' if a * b > 0 else 'no'}" for a, b in rows]
    Path("signs.csv").write_text("\n".join(["a,b,same", *lines]) + "\n")
    drafted = CliRunner().invoke(app, ["recipe", "new", "signs.yaml", "--from", "signs.csv", "--label", "same"])
    over = "model.name=mlp,boosted_trees"
    assert "_trees: cross-validated log loss on " in drafted.stderr
    few = ["--set", "evaluate.bootstrap=40"]
    swept = CliRunner().invoke(app, ["sweep", "signs.yaml", "--over", over, *few, "-e", environment, "-o", "json"])
    assert swept.exit_code == 0, (swept.stderr, swept.exception)
    document = json.loads(swept.stdout)
    metrics = {trial["values"]["model.name"]: trial["metric"] for trial in document["trials"]}
    better = max(metrics, key=lambda name: metrics[name])
    assert metrics["boosted_trees"] > 0.8 and document["test"]["accuracy"] > 0.8
    best = recipes.load(f"{document['folder']}/best.yaml")
    assert best == recipes.load("signs.yaml", [f"model.name={better}", "evaluate.bootstrap=40"])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two trials need a core each")
def test_trials_side_by_side_go_on_after_an_interrupt_and_give_what_they_give_alone(
    environment: str, options: list[str]
) -> None:
    changes, here = options[3::2], environments.load(environment)
    alone = sweeps.run(Sweep("tabular", changes, parse("tabular", changes, [OVER]), here), Listener())
    over = "train.optimizer.learning_rate=0.03,0.02,0.01"
    together = Sweep("tabular", changes, parse("tabular", changes, [over]), here, max_parallel=2)
    for trial in alone.trials[:4]:  # the last was pruned
        storage.remove(trial.model)
    first = Listener(interrupt=True)
    with pytest.raises(KeyboardInterrupt):
        sweeps.run(together, first)
    assert sorted(first.trained) == [0, 1] and not first.ended
    result = sweeps.run(together, Listener())
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    same = [next(trial for trial in alone.trials if trial.values == other.values) for other in result.trials]
    assert [trial.epochs for trial in same] == [trial.epochs for trial in result.trials]
    assert max(same, key=lambda trial: (trial.metric or 0, -(trial.eval_loss or 0))).values == result.best.values


def test_the_smallest_networks_of_given_blocks_are_timed_before_anything_starts(environment: str) -> None:
    command = [
        "sweep",
        "digits",
        "-e",
        environment,
        "--blocks",
        "1:2 separable|residual:4|8",
        "--latency-budget",
        "1us",
    ]
    ended = CliRunner().invoke(app, command)
    assert "no network of these blocks meets it; the smallest takes" in str(ended.exception)
    assert not storage.children(storage.join(environments.load(environment).storage, "digits"))


def test_a_learning_curve_is_measured_on_nested_parts(options: list[str], tmp_path: Path) -> None:
    shares = ["--fractions", "0.4,0.7,1", "--set", "train.epochs=1", "--html", str(tmp_path / "a.html")]
    ended = CliRunner().invoke(app, ["learn-curve", "tabular", *options, *shares])
    assert ended.exit_code == 0, ended.stderr
    assert "twice the data: " in ended.stdout and ended.stderr.count("of the training split") == 3
    (chart,) = report_folders.figures((tmp_path / "a.html").read_text()).values()
    assert len(chart["data"][-1]["x"]) == 3


def test_a_report_is_of_what_was_measured_and_of_nothing_else(environment: str, tmp_path: Path) -> None:
    command = ["bench", "tabular", "--quick", "--rounds", "2", "-e", environment, "--set", "train.batch_size=64"]
    ended = CliRunner().invoke(app, [*command, "-o", "json", "--html", str(tmp_path / "a.html")])
    assert ended.exit_code == 0, ended.stderr
    report = BenchmarkReport.model_validate_json(ended.stdout)
    assert [speed.setting for speed in report.speeds] == ["as it is", "batch 128", "XLA"]
    assert [speed.batch_size for speed in report.speeds] == [64, 128, 64]
    for speed in report.speeds:
        assert 0 < speed.low <= speed.high and speed.input_examples_per_second >= speed.examples_per_second > 0
        assert speed.tflops == pytest.approx(speed.examples_per_second * report.flops_per_example / 1e12, rel=1e-3)
        assert len(speed.rounds) in (0, 2)  # XLA may be so slow here that it is trained once
        assert (speed.times_low or 0) <= (speed.times or 0) <= (speed.times_high or 0)
    assert len(report.speeds[0].rounds) == 2
    assert report.inputs == [] and "no images" in report.skipped["input"]
    assert 0 < report.seconds["trainings"] < report.seconds["all"]
    assert "It trains on the CPU" in report.sentences[0] and report.devices[0].tflops > 0
    (chart,) = report_folders.figures((tmp_path / "a.html").read_text()).values()
    assert len(chart["data"][-1]["x"]) == 3


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need a core each")
def test_a_scaling_curve_is_measured_with_a_core_for_each_worker(environment: str, tmp_path: Path) -> None:
    command = ["bench", "tabular", "--quick", "--workers", "2", "--rounds", "1", "-e", environment]
    ended = CliRunner().invoke(
        app, [*command, "--set", "train.batch_size=64", "-o", "json", "--html", str(tmp_path / "a.html")]
    )
    assert ended.exit_code == 0, ended.stderr
    report = BenchmarkReport.model_validate_json(ended.stdout)
    assert [(speed.workers, speed.batch_size) for speed in report.speeds] == [(1, 64), (2, 128)]
    assert report.cores == 2 * (len(os.sched_getaffinity(0)) // 2)
    assert report.speeds[1].step_split_ms["all_reduce"] > 0
    assert "2 workers train" in report.sentences[1]
    assert "Speed and workers" in (tmp_path / "a.html").read_text()
