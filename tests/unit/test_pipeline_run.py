"""The record and report of a pipeline's run, written by the step that ends it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit import report_folders

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.gang import Attempt
from trainyard.errors import DataError, TransientError
from trainyard.graph import OUTPUTS, STEPS
from trainyard.runtime import task
from trainyard.storage import storage

RECIPE = report_folders.recipe()
TEXT = yaml.safe_dump(RECIPE.model_dump(mode="json"))


class PipelineRun:
    """A run of the pipeline whose steps leave the documents of `report_folders` where the real ones do."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root / "storage", report_folders.whole_run(root / "documents")
        self.folder = Path(keys.run_folder(str(self.root), RECIPE.name, "r1"))
        self.outputs: dict[str, str] = {}
        self.attempts: list[dict[str, Any]] = []

    def judge(self, verdict: str) -> None:
        """Let evaluate find `verdict`."""
        document = Evaluation.read(self.made["evaluate"])
        gate = document.gate.model_copy(update={"verdict": verdict})
        document.model_copy(update={"gate": gate}).write(Path(self.made["evaluate"]))

    def step(self, name: str, error: Exception | None = None) -> str:
        """Run a step, as its component does, and return its report; one that fails ends with SystemExit."""
        known = "" if name in ("train", "export") else "r1"
        with task.opened(name, TEXT, str(self.root), "", known) as this:
            if name == "train":
                self.outputs[name] = this.output_at(self.outputs["plan"])
            else:
                read = {STEPS[read].argument: self.outputs[read] for read in STEPS[name].reads}
                self.outputs[name] = this.place(**read)
            if this.unfinished():
                if name in ("train", "export"):
                    this.assign("r1")
                if name in ("train", "export") and self.attempts:
                    this.note_attempts([{"step": name} | attempt for attempt in self.attempts])
                if error:
                    raise error
                with storage.stage(self.outputs[name], producer=f"trainyard.{name}") as staging:
                    shutil.copytree(self.made[name], staging, dirs_exist_ok=True)
                this._note(report_folders.SECONDS[name])
            if name == "preprocess":
                self.outputs["plan"] = this.plan_training(self.outputs[name], "").model
            return this.report() if name in ("evaluate", "export", "push") else ""
        raise AssertionError

    def record(self) -> dict[str, Any]:
        """Return run.json."""
        return dict(json.loads((self.folder / "run.json").read_text()))

    @property
    def over(self) -> bool:
        """Whether there is a record."""
        return (self.folder / "run.json").exists()


@pytest.fixture
def run(tmp_path: Path) -> PipelineRun:
    return PipelineRun(tmp_path)


def test_a_run_that_pushes_is_recorded_as_a_success_with_the_seconds_of_every_step(run: PipelineRun) -> None:
    for name in OUTPUTS:
        assert not run.over
        page = run.step(name)
    record = run.record()
    assert (record["failure"], record["failed_step"], record["exit_code"]) == (None, None, 0)
    assert record["seconds"] == report_folders.SECONDS and record["folders"].keys() == set(OUTPUTS)
    assert page == (run.folder / "report.html").read_text()
    assert "✓ Blessed" in page and "✗ Failed" not in page and "5 steps" in page


def test_steps_on_lists_of_pools_are_recorded_with_their_attempts(run: PipelineRun) -> None:
    why = "waiting for worker 0 of 1 (pod pending: no node) for 600 s"
    spot = Attempt(pool="l4-spot", spot=True, usd_per_hour=1.0, why=why, waited_seconds=600.2)
    last = Attempt(pool="l4", usd_per_hour=3.0, worker_seconds=7200.0, preempted=["a"])
    run.attempts = [attempt.as_dict() for attempt in (spot, last)]
    pages = [run.step(name) for name in OUTPUTS]
    steps = [{"step": step} | attempt for step in ("train", "export") for attempt in run.attempts]
    assert run.record()["attempts"] == steps and run.record()["seconds"] == report_folders.SECONDS
    for page in (pages[OUTPUTS.index("evaluate")], pages[-1]):
        assert "l4-spot (Spot)" in page and why in page and '<td class="n">6</td>' in page and "7200 s" in page


def test_the_pools_of_a_training_that_failed_are_reported_too(run: PipelineRun) -> None:
    run.attempts = [Attempt(pool="l4-spot", spot=True, why="preempted 4 times, and 3 are allowed").as_dict()]
    run.step("preprocess")
    with pytest.raises(SystemExit):
        run.step("train", TransientError("no node."))
    assert run.record()["attempts"] == [{"step": "train"} | run.attempts[0]]
    page = (run.folder / "report.html").read_text()
    assert "preempted 4 times, and 3 are allowed" in page and "no price" in page


def test_the_report_of_a_step_in_the_middle_shows_what_is_known_and_ends_nothing(run: PipelineRun) -> None:
    for name in ("preprocess", "train", "evaluate"):
        page = run.step(name)
    assert "✓ Blessed" in page and "3 steps" in page and not run.over


def test_a_refused_model_ends_the_run_without_a_failure(run: PipelineRun) -> None:
    run.judge("refused")
    for name in ("preprocess", "train", "evaluate"):
        page = run.step(name)
    record = run.record()
    assert (record["failure"], record["exit_code"], record["gate"]["verdict"]) == (None, 0, "refused")
    assert "✗ Refused" in page and record["seconds"].keys() == {"preprocess", "train", "evaluate"}


def test_the_step_that_fails_is_what_the_run_failed_for_though_kfp_does_not_tell_it_the_run(run: PipelineRun) -> None:
    run.step("preprocess")
    with pytest.raises(SystemExit):
        run.step("train", DataError("train: the loss is not a number."))
    record = run.record()
    assert (record["failure"], record["failed_step"], record["exit_code"]) == (
        "train: the loss is not a number.", "train", 10,
    )  # fmt: skip
    assert "train: the loss is not a number." in (run.folder / "report.html").read_text()
    assert record["data"] is not None and record["train"] is None


def test_a_step_that_is_tried_again_takes_back_what_its_failed_attempt_said_of_the_run(run: PipelineRun) -> None:
    for name in ("preprocess", "train"):
        run.step(name)
    with pytest.raises(SystemExit):
        run.step("evaluate", TransientError("evaluate: the storage does not answer."))
    assert run.record()["exit_code"] == 30
    run.step("evaluate")
    assert not run.over
    for name in ("export", "push"):
        run.step(name)
    assert run.record()["failure"] is None


def test_outputs_of_earlier_runs_count_as_steps_that_took_no_time(run: PipelineRun) -> None:
    """Kubeflow's cache answers train and export without starting them."""
    for name in OUTPUTS:
        run.step(name)
    shutil.rmtree(run.folder)
    for name in ("preprocess", "evaluate", "push"):
        run.step(name)
    assert run.record()["seconds"] == {**dict.fromkeys(OUTPUTS, 0.0), "push": report_folders.SECONDS["push"]}


def check(root: Path, due: bool) -> str:
    with task.opened("check", TEXT, str(root), "", "r1") as this:
        this.decided(due, "version 1 stands")
        return this.report()
    raise AssertionError


def test_only_a_check_that_found_nothing_to_train_ends_the_run(tmp_path: Path) -> None:
    folder = Path(keys.run_folder(str(tmp_path), RECIPE.name, "r1"))
    assert "Not judged" in check(tmp_path, due=True) and not (folder / "run.json").exists()
    assert "Nothing to train" in check(tmp_path, due=False)
    record = json.loads((folder / "run.json").read_text())
    assert (record["failure"], record["exit_code"], record["not_due"]) == (None, 0, "version 1 stands")


def test_a_check_that_failed_is_what_the_run_failed_for(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), task.opened("check", TEXT, str(tmp_path), "", "r1"):
        raise DataError("data.path: no files found.")
    folder = Path(keys.run_folder(str(tmp_path), RECIPE.name, "r1"))
    record = json.loads((folder / "run.json").read_text())
    assert (record["failure"], record["failed_step"], record["exit_code"]) == (
        "data.path: no files found.",
        "check",
        10,
    )
    assert "data.path: no files found." in (folder / "report.html").read_text()


def test_an_image_that_holds_other_code_is_what_the_run_failed_for(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), task.opened("preprocess", TEXT, str(tmp_path), "f" * 64, "r1"):
        raise AssertionError
    folder = Path(keys.run_folder(str(tmp_path), RECIPE.name, "r1"))
    assert json.loads((folder / "run.json").read_text())["exit_code"] == 20
