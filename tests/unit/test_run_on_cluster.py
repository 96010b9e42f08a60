"""`trainyard run -e`: submits, follows with the screen of a local run, and ends with its last screen and exit code."""

from __future__ import annotations

import _thread
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubeflow_server import Kubeflow, execute, serve

from trainyard.graph import OUTPUTS
from trainyard.kubernetes import client
from trainyard.kubernetes.diagnosis import PodTask
from trainyard_control.api.progress import ClusterScreen
from trainyard_control.cli.main import main
from trainyard_control.kubeflow import runs as kubeflow_runs
from trainyard_control.kubeflow.run_view import StepView

POLL_SECONDS = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kubeflow_runs, "_POLL_SECONDS", POLL_SECONDS)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def kubeflow() -> Iterator[Kubeflow]:
    with serve(Kubeflow()) as server:
        yield server


@pytest.fixture
def environment(kubeflow: Kubeflow, tmp_path: Path) -> str:
    """An environment of the server whose volume is mounted here."""
    amounts = {"cpu": "1", "memory": "2Gi"}
    document = {
        "target": "kubeflow",
        "kubeflow": {"endpoint": kubeflow.address},
        "volume": {"claim": "runs", "path": str(tmp_path)},
        "storage": str(tmp_path / "storage"),
        "images": {"cpu": "trainyard/cpu:0.1.0"},
        "pools": {"cpu": {"kind": "cpu", "resources": {kind: amounts for kind in ("requests", "limits")}}},
        "placement": {"default": "cpu"},
    }
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(document))
    return str(file)


def trainyard(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of the program."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr("sys.argv", ["trainyard", *arguments])
        main()
    output = capsys.readouterr()
    return int(end.value.code or 0), output.out, output.err


def test_a_run_ends_with_the_last_screen_of_a_local_run_and_a_copy_of_its_report(
    kubeflow: Kubeflow, environment: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kubeflow.start = lambda *run: execute(kubeflow, *run)
    code, screen, story = trainyard(capsys, "run", "digits", "-e", environment, "--name", "digits-1")
    assert code == 0, story
    lines = [line.split()[:2] for line in story.splitlines()]
    for name in OUTPUTS:
        assert lines.index(["·", name]) < lines.index(["✓", name])
    assert "✓ blessed" in screen and "metric (test split)" in screen and "exported" in screen
    assert "digits-1.html" in screen and (tmp_path / "digits-1.html").read_text().startswith("<!doctype html>")
    assert "tensorboard" not in screen


def test_a_refused_model_ends_as_on_this_machine(
    kubeflow: Kubeflow, environment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeflow.start = lambda *run: execute(kubeflow, *run, verdict="refused")
    options = ("--require-blessed", "-o", "json")
    code, screen, story = trainyard(capsys, "run", "digits", "-e", environment, *options)
    assert code == 60 and json.loads(screen)["gate"]["verdict"] == "refused"
    assert "– export      skipped: the gate refused the model" in story
    assert story.splitlines()[-1].startswith("✗ digits: the gate refused the model")


def test_a_step_shows_the_warnings_and_the_reuse_that_its_log_has(capsys: pytest.CaptureFixture[str]) -> None:
    screen = ClusterScreen()
    step = StepView(PodTask("preprocess"), "pod", "done", "done", "is done", seconds=20.0)
    screen.step_changed(step, [{"event": "warning", "message": "3 rows are [odd]"}, {"event": "reused"}])
    assert capsys.readouterr().err.splitlines() == ["! preprocess: 3 rows are [odd]", "✓ preprocess  reused"]


def following(kubeflow: Kubeflow, states: Callable[[Kubeflow, str], None]) -> str:
    """Return the id of a run of digits that goes through `states` while it is followed."""
    run_id = "0b9f4c1e-0000-4000-8000-000000000009"
    metadata = {"about": json.dumps({"recipe": "digits", "environment": "mine"})}
    created = {"run_id": run_id, "display_name": "digits-9", "created_at": "2026-01-01T00:00:00+00:00"}
    kubeflow.runs[run_id] = created | {"state": "RUNNING", "tasks": [], "runtime_config": {"parameters": metadata}}
    kubeflow.tell(run_id, "RUNNING", preprocess="RUNNING")

    def go() -> None:
        while kubeflow.asked < 2:
            time.sleep(POLL_SECONDS)
        states(kubeflow, run_id)

    threading.Thread(target=go, daemon=True).start()
    return run_id


def test_a_data_error_ends_with_its_sentence_and_exit_code(
    kubeflow: Kubeflow, environment: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(server: Kubeflow, run_id: str) -> None:
        folder = tmp_path / "storage/digits/runs" / run_id
        folder.mkdir(parents=True)
        record = {"failure": "houses.csv: row 7 has no price.", "exit_code": 10, "report": None}
        (folder / "run.json").write_text(json.dumps(record))
        server.tell(run_id, "FAILED", preprocess="FAILED")

    run_id = following(kubeflow, fail)
    code, screen, story = trainyard(capsys, "runs", "watch", run_id, "-e", environment)
    assert (code, screen) == (10, "")
    assert story.splitlines()[-1] == "✗ digits-9: houses.csv: row 7 has no price."


def test_a_run_that_another_person_cancels_is_said_so(
    kubeflow: Kubeflow, environment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = following(kubeflow, lambda server, run_id: server.tell(run_id, "CANCELED"))
    code, _, story = trainyard(capsys, "runs", "watch", run_id, "-e", environment)
    assert (code, story.splitlines()[-1]) == (130, "✗ digits-9 was cancelled.")


@pytest.mark.parametrize(("status", "count"), [(401, 3), (502, 40)])
def test_an_expired_session_and_a_broken_gateway_are_outlived(
    status: int,
    count: int,
    kubeflow: Kubeflow,
    environment: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "PATIENCE_SECONDS", 0.1)

    def refuse(server: Kubeflow, run_id: str) -> None:
        server.refuse += [status] * count
        while server.refuse:
            time.sleep(POLL_SECONDS)
        server.tell(run_id, "SUCCEEDED", preprocess="SUCCEEDED")

    run_id = following(kubeflow, refuse)
    code, _, story = trainyard(capsys, "runs", "watch", run_id, "-e", environment)
    (lost,) = [line for line in story.splitlines() if line.startswith("! kubeflow")]
    assert code == 0 and str(status) in lost and lost.endswith("The run continues, and is asked for again.")


def test_a_server_that_refuses_for_long_leaves_the_run_and_says_how_to_follow_it_again(
    kubeflow: Kubeflow, environment: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeflow_runs, "_SILENT_SECONDS", 0.2)
    run_id = following(kubeflow, lambda server, run_id: server.refuse.extend([401] * 1000))
    code, _, story = trainyard(capsys, "runs", "watch", run_id, "-e", environment)
    last = story.splitlines()[-1]
    assert code == 40 and last.startswith("✗ kubeflow: ") and "(401: the session has expired)" in last
    assert last.endswith(f"The run continues; follow it again: trainyard runs watch {run_id} -e {environment}")
    assert not any(run["state"] == "CANCELED" for run in kubeflow.runs.values())


def test_ctrl_c_says_that_the_run_continues(
    kubeflow: Kubeflow, environment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = following(kubeflow, lambda *_: _thread.interrupt_main())
    code, _, story = trainyard(capsys, "runs", "watch", run_id, "-e", environment)
    assert code == 130 and kubeflow.runs[run_id]["state"] == "RUNNING"
    again = f"trainyard runs watch {run_id} -e {environment}"
    assert story.splitlines()[-1] == f"! The run continues without this command. Follow it again: {again}"


def test_a_storage_that_is_not_here_keeps_no_exit_code_from_a_person(
    kubeflow: Kubeflow, environment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(Path(environment).read_text())
    volume = {"volume": {"claim": "runs", "path": "/mnt/runs"}, "storage": "/mnt/runs/x"}
    Path(environment).write_text(json.dumps(document | volume))
    run_id = following(kubeflow, lambda server, run_id: server.tell(run_id, "SUCCEEDED", preprocess="SUCCEEDED"))
    code, screen, story = trainyard(capsys, "runs", "watch", run_id, "-e", environment)
    assert (code, screen) == (0, "") and "✓ digits-9 has succeeded. (" in story
    assert "! kubernetes: no cluster is known here" in story


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-e", "vertex"], "its target is vertex, whose runs cannot be followed. Use `trainyard submit`"),
        (
            ["-e", "kind", "--no-push"],
            "--no-push: is of a run on this machine, and the target of kind.yaml is kubeflow",
        ),
        (["-e", "kind", "--override", "x"], "--override: is of a run on this machine"),
        (["--name", "x"], "--name x: is of a run on a cluster. Name its environment, or leave --name out"),
    ],
)
def test_options_without_a_meaning_there_are_refused(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, story = trainyard(capsys, "run", "digits", *options)
    assert code == 20 and sentence in story


def test_prune_keeps_the_uploads_that_a_schedule_names(
    kubeflow: Kubeflow, environment: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    upload = tmp_path / "storage/uploads" / ("0" * 32)
    upload.mkdir(parents=True)
    (upload / ".used").write_text("2020-01-01T00:00:00+00:00")
    described: dict[str, Any] = {"name": "monthly", "recipe": "digits", "environment": environment, "cron": "0 3 1 * *"}
    described |= {"set": ["data.bundled=null", f"data.path={upload}/digits"]}
    (tmp_path / "monthly.yaml").write_text(json.dumps(described))

    def pruned() -> tuple[list[str], list[str]]:
        answer = json.loads(trainyard(capsys, "prune", "-e", environment, "--dry-run", "-o", "json")[1])
        return [removal["name"] for removal in answer["removed"]], answer["notes"]

    assert pruned() == ([upload.name], [])
    assert trainyard(capsys, "schedule", "apply", str(tmp_path / "monthly.yaml"))[0] == 0
    assert pruned() == ([], [])
    kubeflow.schedules.clear()
    kubeflow.refuse = [403]
    names, (note,) = pruned()
    assert names == [] and "refused (403" in note
    assert pruned() == ([upload.name], [])
