"""A run on this machine is explained from what it left, without anything being started."""

import json
from pathlib import Path

import pytest

from trainyard.errors import ConfigurationError, ExitCode
from trainyard_control.local.local_run import explain_folder


def folder(root: Path, run: str) -> Path:
    path = root / "digits" / "runs" / run
    path.mkdir(parents=True)
    return path


def test_a_step_that_failed_is_named_with_its_words_and_what_to_do(tmp_path: Path) -> None:
    event = {"event": "failed", "step": "preprocess", "code": 10, "error": "DataError", "message": "row 7: no label."}
    (folder(tmp_path, "20260101-1") / "preprocess.log").write_text(f"line\n{json.dumps(event)}\n")
    sentence, code = explain_folder(str(tmp_path), "")
    assert sentence == (
        "20260101-1 failed in preprocess: row 7: no label. "
        "Fix the data or its description in the recipe, and run again."
    )
    assert code == ExitCode.DATA


def test_a_training_that_goes_on_says_how_fast(tmp_path: Path) -> None:
    pace = {"event": "pace", "step": 3, "steps": 9, "examples_per_second": 5, "step_ms": 9.0, "prefetched_step_ms": 3.0}
    pace |= {"all_reduce_ms": 0.0, "eval_seconds": 0.0, "save_seconds": 0.0, "step_seconds": 1.0}
    log = folder(tmp_path, "20260101-1") / "train.log"
    full, why = {"event": "started_together", "workers": 4, "generation": 1}, "worker 3 is not there"
    team = full | {"workers": 3, "of": 4, "why": why}
    log.write_text(f"{json.dumps(full)}\n{json.dumps(team)}\n")
    assert f"in train (its training starts; it runs with 3 of 4 workers: {why})" in explain_folder(str(tmp_path), "")[0]
    log.write_text("\n".join(map(json.dumps, (team, full, pace))))
    sentence, _ = explain_folder(str(tmp_path), "")
    assert "workers" not in sentence
    slow = {"worker": 1, "node": "b", "step": 2, "until": None, "own_ms": 7.0, "others_ms": 3.0}
    log.write_text(json.dumps(pace | {"straggler": slow}))
    assert (
        "worker 1 on b takes 7.0 ms a step, the others 3.0 ms, and they wait for it. See what else"
        in (explain_folder(str(tmp_path), "")[0])
    )
    assert (
        sentence.startswith("20260101-1 is in train (step 3 of 9, 5 examples/s")
        and "waits for its input 67%" in sentence
        and "15 examples/s: give it 3.0 times the cores, or lower" in sentence  # no other machine
    )


def test_a_run_that_failed_before_its_first_step_is_told_by_its_record(tmp_path: Path) -> None:
    record = {"failure": "data.path: data: no files found.", "exit_code": 10}
    (folder(tmp_path, "20260101-1") / "run.json").write_text(json.dumps(record))
    sentence, code = explain_folder(str(tmp_path), "")
    assert sentence.startswith("20260101-1 failed: data.path: data: no files found. Fix the data")
    assert code == ExitCode.DATA
    (folder(tmp_path, "20260101-2") / "run.json").write_text(json.dumps(record | {"report": "report.html"}))
    assert explain_folder(str(tmp_path), "")[0].endswith(". Report: report.html")


def test_the_newest_run_is_meant_where_none_is_named(tmp_path: Path) -> None:
    folder(tmp_path, "20260101-1")
    record = {"failure": None, "gate": {"verdict": "blessed", "thresholds": []}, "report": "report.html"}
    (folder(tmp_path, "20260102-1") / "run.json").write_text(json.dumps(record))
    assert explain_folder(str(tmp_path), "") == ("20260102-1 has succeeded. Report: report.html", ExitCode.DONE)


def test_a_run_whose_model_the_gate_refused_says_why(tmp_path: Path) -> None:
    failed = {"name": "accuracy >= 0.9", "value": 0.5, "bound": 0.9, "interval": None, "passed": False}
    record = {"failure": None, "gate": {"verdict": "refused", "thresholds": [failed]}, "report": "report.html"}
    (folder(tmp_path, "20260101-1") / "run.json").write_text(json.dumps(record))
    assert explain_folder(str(tmp_path), "")[0] == (
        "20260101-1 has ended: the gate refused the model, so it is not pushed (accuracy >= 0.9, was 0.5). "
        "Report: report.html"
    )


def test_a_run_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    folder(tmp_path, "20260101-1")
    with pytest.raises(ConfigurationError, match=r"There: 20260101-1\. Did you mean '20260101-1'\?"):
        explain_folder(str(tmp_path), "20260101-2")
