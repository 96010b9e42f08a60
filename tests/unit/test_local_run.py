"""What a run on this machine does again, and what it finds done."""

from __future__ import annotations

import errno
import json
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import small_documents

from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.version import Champion, set_champion
from trainyard.errors import ConfigurationError, DataError, InfrastructureError
from trainyard.process import memory
from trainyard.process.signals import Terminated, handle_sigterm
from trainyard.report import local_runs, report
from trainyard.spec import environment
from trainyard.spec import recipe as recipes
from trainyard.storage import storage
from trainyard_control.api.progress import Screen
from trainyard_control.api.run import _executed
from trainyard_control.cli.verbs.run import run as run_command
from trainyard_control.local import local_run, retention
from trainyard_control.local.local_run import LocalRun, explain_folder
from trainyard_control.search import bench, learning_curve, sweep
from trainyard_control.search.search_space import parse
from trainyard_control.search.study import Sweep

REFUSED = small_documents.evaluation(gate=Verdict(verdict="refused", thresholds=[]))


class Quiet:
    """Listens to nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class Run(LocalRun):
    """A run whose steps leave what the next ones ask for, at once."""

    def _process(self, step: str, output: str, arguments: dict[str, str]) -> None:
        with storage.stage(output, producer=f"trainyard.{step}") as folder:
            if step == "evaluate":
                REFUSED.write(folder)


def test_input_workers_of_the_environment_reach_the_training_unless_a_program_of_its_own_trains(
    tmp_path: Path,
) -> None:
    workers = environment.InputWorkers(count=3)
    local_environment = environment.load("local").model_copy(
        update={"storage": str(tmp_path), "input_workers": workers}
    )
    options: dict[str, dict[str, str]] = {}

    class Noted(Run):
        def _process(self, step: str, output: str, arguments: dict[str, str]) -> None:
            options[step] = arguments
            super()._process(step, output, arguments)

    Noted(recipes.load("digits"), local_environment, "run", None, Quiet()).execute()
    assert options["train"]["input_workers"] == "3" and "input_workers" not in options["evaluate"]
    digits = recipes.load("digits")
    own = digits.model_copy(update={"train": digits.train.model_copy(update={"command": ["python", "own.py"]})})
    with pytest.raises(ConfigurationError, match="reads the examples itself, and the environment has 3 input workers"):
        Run(own, local_environment, "own", None, Quiet()).execute()


def test_a_step_that_prints_much_is_read_at_the_speed_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    child = SimpleNamespace(lines=["x" * 99 + "\n"] * 20_000, pid=1)
    running = SimpleNamespace(child=child, wait=lambda: 0, require_undisturbed=lambda step: None)
    monkeypatch.setattr(local_run, "step_process", lambda *_: nullcontext(running))
    monkeypatch.setattr(memory, "peak_mib", lambda pid: looks.append(pid) or 1)
    with storage.stage(f"{tmp_path}/output", producer="trainyard.push"):
        pass
    local = environment.load("local").model_copy(update={"storage": str(tmp_path)})
    run = LocalRun(recipes.load("digits"), local, "r1", None, Quiet(), folder=str(tmp_path))
    run._process("push", f"{tmp_path}/output", {})
    assert (tmp_path / "push.log").stat().st_size == 2_000_000
    assert 1 <= len(looks) < 1_000


def judged(root: Path, destination: Path) -> str:
    """Return the evaluation's folder of a run that pushes to `destination`."""
    recipe = recipes.load("digits", [f"push.path={destination}"])
    local_environment = environment.load("local").model_copy(update={"storage": str(root)})
    run = Run(recipe, local_environment, "run", None, Quiet())
    run.execute()
    return run.folders["evaluate"]


def push(destination: Path, digest: str) -> None:
    (destination / "1").mkdir(parents=True, exist_ok=True)
    (destination / "1" / "saved_model.pb").touch()
    set_champion(str(destination), Champion(version=1, path="1", digest=digest, metrics={}))


def test_a_model_is_judged_again_when_another_champion_lies_at_the_same_place(tmp_path: Path) -> None:
    push(tmp_path / "models", "a")
    before = judged(tmp_path, tmp_path / "models")
    assert judged(tmp_path, tmp_path / "models") == before
    push(tmp_path / "models", "b")
    assert judged(tmp_path, tmp_path / "models") != before


def test_a_run_of_this_machine_says_once_that_the_programs_image_is_for_clusters(tmp_path: Path) -> None:
    warnings: list[str] = []

    class Listening(Quiet):
        def step_event(self, step: str, event: dict[str, Any]) -> None:
            warnings.append(event["message"])

    recipe = recipes.load("digits", [f"push.path={tmp_path}/models"])
    train = recipe.train.model_copy(update={"command": ["python"], "image": "example/trainer:1"})
    local_environment = environment.load("local").model_copy(update={"storage": str(tmp_path)})
    Run(recipe.model_copy(update={"train": train}), local_environment, "run", None, Listening()).execute()
    assert warnings == ["train.image is for clusters; the recipe's code runs in this machine's Python"]


@pytest.mark.parametrize(
    ("error", "raised", "code", "phrase"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InfrastructureError, 40, "the disk is full"),
        (ZeroDivisionError("division by zero"), ZeroDivisionError, 50, "a fault of Trainyard"),
    ],
)
def test_a_run_that_ended_by_whatever_error_is_recorded_as_failed(
    error: Exception, raised: type[Exception], code: int, phrase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LocalRun) -> None:
        raise error

    monkeypatch.setattr(LocalRun, "execute", fail)
    (tmp_path / "here.yaml").write_text(f"{{target: local, storage: {tmp_path}/storage}}")
    with pytest.raises(raised):
        run_command("digits", environment=str(tmp_path / "here.yaml"))
    (path,) = tmp_path.glob("storage/digits/runs/*/run.json")
    record = json.loads(path.read_text())
    assert record["exit_code"] == code and phrase in record["failure"]
    sentence, explained = explain_folder(f"{tmp_path}/storage", "")
    assert explained == code and phrase in sentence


@pytest.mark.parametrize("damage", ["deleted", "without its document", "damaged"])
def test_a_run_whose_output_vanished_while_a_later_step_ran_is_recorded_with_what_to_do(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(run: LocalRun) -> None:
        with storage.stage(str(tmp_path / "output"), producer="trainyard.train") as folder:
            (folder / "training.json").write_text("{}")
        run.folders["train"], run.startup_seconds["train"] = str(tmp_path / "output"), 1.0
        if damage == "damaged":
            (tmp_path / "output" / "training.json").write_text("{ }")
        else:
            storage.remove(str(tmp_path / "output" / ("" if damage == "deleted" else "training.json")))

    monkeypatch.setattr(LocalRun, "execute", execute)
    (tmp_path / "here.yaml").write_text(f"{{target: local, storage: {tmp_path}/storage}}")
    with pytest.raises(DataError, match="Run with --from train"):
        run_command("digits", environment=str(tmp_path / "here.yaml"))
    (path,) = tmp_path.glob("storage/digits/runs/*/run.json")
    record = json.loads(path.read_text())
    assert record["exit_code"] == 10 and "training.json" in record["failure"]
    sentence, code = explain_folder(f"{tmp_path}/storage", "")
    assert code == 10 and "failed" in sentence and "Run with --from train" in sentence
    assert (path.parent / "report.html").exists()


def test_a_fault_of_the_report_leaves_the_record_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(LocalRun, "execute", lambda _: None)
    monkeypatch.setattr(report, "render", fail)
    (tmp_path / "here.yaml").write_text(f"{{target: local, storage: {tmp_path}/storage}}")
    with pytest.raises(ZeroDivisionError):
        run_command("digits", environment=str(tmp_path / "here.yaml"))
    (path,) = tmp_path.glob("storage/digits/runs/*/run.json")
    record = json.loads(path.read_text())
    assert record["exit_code"] == 50 and "a fault of Trainyard" in record["failure"] and record["report"] is None


def test_an_overridden_run_goes_on_to_push_with_the_reason_after_a_gate_refused(tmp_path: Path) -> None:
    options: dict[str, dict[str, str]] = {}
    warnings: list[str] = []

    class Exporting(Run):
        def _process(self, step: str, output: str, arguments: dict[str, str]) -> None:
            options[step] = arguments
            if step == "export":
                with storage.stage(output, producer="trainyard.export") as folder:
                    Exports(exports=[], gate=REFUSED.gate).write(folder)
                return
            super()._process(step, output, arguments)

    class Listening(Quiet):
        def step_event(self, step: str, event: dict[str, Any]) -> None:
            warnings.append(event["message"])

    local_environment = environment.load("local").model_copy(update={"storage": str(tmp_path)})
    Exporting(recipes.load("digits"), local_environment, "run", None, Listening(), override="known labels").execute()
    assert options["push"]["override"] == "known labels" and "override" not in options["export"]
    assert [text.partition(";")[0] for text in warnings] == [
        "the gate refused the model",
        "the gate refused an exported file",
    ]
    for reason, no_push, fault in ((" ", False, "a reason is missing"), ("why", True, "nothing is pushed with --no-p")):
        with pytest.raises(ConfigurationError, match=fault):
            run_command("digits", override=reason, no_push=no_push)


def test_a_champion_that_was_moved_is_the_same_champion(tmp_path: Path) -> None:
    push(tmp_path / "here", "a")
    push(tmp_path / "there", "a")
    assert judged(tmp_path, tmp_path / "here") == judged(tmp_path, tmp_path / "there")


def test_no_output_is_pruned_while_a_run_goes_on_that_began_since_the_plan(tmp_path: Path) -> None:
    root, local_environment = str(tmp_path), environment.load("local").model_copy(update={"storage": str(tmp_path)})

    class Reused(Quiet):
        reasons: list[str] = []

        def step_started(self, step: str) -> None:
            if step == "evaluate":
                self.reasons += [retention.remove(root, removal, ()) for removal in plan.removals]

    def run(listener: Quiet, *changes: str) -> None:
        Run(recipes.load("digits", list(changes)), local_environment, "run", None, listener).execute()

    run(Quiet())
    storage.write_text(f"{root}/digits/runs/run/run.json", json.dumps({"folders": {}}))
    plan = retention.plan(root, keep=1)
    assert {removal.name.partition("/")[0] for removal in plan.removals} == {"preprocess", "train", "evaluate"}
    run(Reused(), "evaluate.gates=[{metric: accuracy, min: 0.5}]")
    assert len(Reused.reasons) == 3 and all("a run or a search of digits is active" in why for why in Reused.reasons)
    assert [retention.remove(root, removal, ()) for removal in plan.removals] == ["", "", ""]


@pytest.mark.parametrize("search", ["sweep", "learning curve", "benchmark"])
def test_no_output_is_pruned_while_a_search_goes_on(
    search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_environment = environment.load("local").model_copy(update={"storage": str(tmp_path)})
    output = retention.Removal("output", "digits", "preprocess/aaaa", 1)

    def preprocess(_: LocalRun) -> str:
        raise LookupError(retention.remove(str(tmp_path), output, ()))

    monkeypatch.setattr(LocalRun, "preprocess", preprocess)
    with pytest.raises(LookupError, match="a run or a search of digits is active"):
        if search == "sweep":
            over = parse("digits", [], ["train.batch_size=32,64"])
            sweep.run(Sweep("digits", [], over, local_environment), Quiet())
        elif search == "learning curve":
            list(learning_curve.measure("digits", [], [1.0], local_environment, Quiet()))
        else:
            bench.measure("digits", [], local_environment, True, None, 1, Quiet())


def test_a_storage_that_was_pruned_is_run_on(tmp_path: Path) -> None:
    push(tmp_path / "models", "a")
    before = judged(tmp_path / "runs", tmp_path / "models")
    push(tmp_path / "models", "b")
    after = judged(tmp_path / "runs", tmp_path / "models")
    storage.write_text(f"{tmp_path}/runs/digits/runs/run/run.json", json.dumps({"folders": {"evaluate": after}}))
    for removal in retention.plan(str(tmp_path / "runs"), keep=1).removals:
        assert retention.remove(str(tmp_path / "runs"), removal, ()) == ""
    assert storage.committed(before) is None and storage.committed(after) is not None
    assert judged(tmp_path / "runs", tmp_path / "models") == after
    push(tmp_path / "models", "a")
    assert judged(tmp_path / "runs", tmp_path / "models") == before and storage.committed(before)


def test_sigterm_between_two_steps_is_recorded_with_the_exit_code_of_the_process(tmp_path: Path) -> None:
    class Ended(Run):
        def execute(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    local_environment = environment.load("local").model_copy(update={"storage": str(tmp_path)})
    before = signal.signal(signal.SIGTERM, handle_sigterm)
    try:
        with pytest.raises(Terminated) as end:
            _executed(Ended(recipes.load("digits"), local_environment, "run", None, Quiet()), Screen())
    finally:
        signal.signal(signal.SIGTERM, before)
    record = local_runs.view(str(tmp_path), "digits", "run").record
    assert record["exit_code"] == end.value.code == 143
    assert record["failure"] == "stopped by SIGTERM. Run the same command again to resume."
