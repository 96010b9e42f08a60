"""What is left of a run of a pipeline that ended before its first output."""

import json
from pathlib import Path

import pytest

from trainyard.contract import keys
from trainyard.contract.keys import failure_record
from trainyard.spec import recipe as recipes
from trainyard.steps.summary.run import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = Path(keys.run_folder(str(tmp_path), recipes.load("digits"), "r1"))
    path.mkdir(parents=True)
    return path


def record(root: Path, folder: Path, state: str) -> dict[str, object]:
    page = run(recipes.load("digits"), str(root), "r1", state, "KFP says little")
    assert page == (folder / "report.html").read_text()
    return dict(json.loads((folder / "run.json").read_text()))


def test_a_check_that_failed_is_what_the_run_failed_for(tmp_path: Path, folder: Path) -> None:
    failed = {"step": "check", "exit_code": 10, "class": "DataError", "message": "data.path: no files found."}
    Path(failure_record(str(folder / "check"))).write_text(json.dumps(failed))
    document = record(tmp_path, folder, "FAILED")
    assert (document["failure"], document["failed_step"], document["exit_code"]) == (
        "data.path: no files found.",
        "check",
        10,
    )
    assert "data.path: no files found." in (folder / "report.html").read_text()


@pytest.mark.parametrize("due", [True, False])
def test_only_a_check_that_found_nothing_to_train_is_told_as_such(tmp_path: Path, folder: Path, due: bool) -> None:
    (folder / "check.json").write_text(json.dumps({"due": due, "why": "version 1 stands"}))
    document = record(tmp_path, folder, "SUCCEEDED")
    assert (document["failure"], document["exit_code"]) == (None, 0)
    assert document.get("not_due") == (None if due else "version 1 stands")
