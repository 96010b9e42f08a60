"""The checkpoint folder of a training program: what is kept of it, and what a start finds."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from trainyard import events
from trainyard.errors import InfrastructureError
from trainyard.process.signals import on_sigterm
from trainyard.steps.train.custom_program import checkpoints
from trainyard.steps.train.custom_program.checkpoints import ProgramCheckpoints
from trainyard.storage import storage


def started(root: Path, name: str) -> tuple[ProgramCheckpoints, Path]:
    """Return the checkpoints of a start, and its folder with what it finds."""
    folder = root / name
    folder.mkdir()
    start = ProgramCheckpoints(str(root / "kept"), folder)
    start.restore()
    return start, folder


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_start_finds_the_files_and_links_of_the_one_before(tmp_path: Path) -> None:
    start, folder = started(tmp_path, "first")
    with start.kept():
        (folder / "step-1" / "deep").mkdir(parents=True)
        (folder / "step-1" / "deep" / "state").write_text("one")
        (folder / "manifest.json").write_text("the program's own")
        (folder / "last").symlink_to(folder / "step-1")
        os.mkfifo(folder / "pipe")
    shutil.rmtree(folder)
    _, again = started(tmp_path, "second")
    assert contents(again) == {"step-1/deep/state": "one", "manifest.json": "the program's own"}
    assert (again / "last").readlink() == Path("step-1") and (again / "last" / "deep" / "state").read_text() == "one"


def test_two_states_are_kept_and_a_damaged_one_gives_way_to_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in range(1, 5):
        start, folder = started(tmp_path, str(count))
        with start.kept():
            (folder / "state").write_text(str(count))
    with start.kept():
        pass  # nothing changed
    assert storage.children(str(tmp_path / "kept")) == ["save-3", "save-4"]
    (tmp_path / "kept" / "save-4" / "files" / "state").write_text("?")
    capsys.readouterr()
    _, again = started(tmp_path, "again")
    assert contents(again) == {"state": "3"}
    warning, restored = map(events.parse, capsys.readouterr().err.splitlines())
    assert "save-4: skipped, the one before" in warning["message"] and restored["number"] == 3


def test_a_state_is_kept_while_the_program_runs_once_it_has_settled(tmp_path: Path) -> None:
    start, folder = started(tmp_path, "first")
    with start.kept():
        (folder / "state").write_text("one")
        end = time.monotonic() + 30
        while not storage.children(str(tmp_path / "kept")):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert contents(started(tmp_path, "other")[1]) == {"state": "one"}


def test_what_a_killed_program_was_writing_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_LOOK_SECONDS", 600)  # what has settled would be kept
    start, folder = started(tmp_path, "first")
    with start.kept():
        (folder / "state").write_text("half")
        start.killed = True
    assert storage.children(str(tmp_path / "kept")) == []


def test_a_copy_during_which_the_folder_changed_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, folder = started(tmp_path, "first")
    copyfile, copied = shutil.copyfile, []

    def copy_late(source: Path, target: Path) -> None:
        copyfile(source, target)
        copied.append(source)
        if len(copied) == 1:
            (folder / "b").write_text("two")

    (folder / "a").write_text("one")
    (folder / "b").write_text("one")
    monkeypatch.setattr(checkpoints.shutil, "copyfile", copy_late)
    with start.kept():
        pass
    assert len(copied) == 4 and storage.children(str(tmp_path / "kept")) == ["save-1"]
    assert contents(started(tmp_path, "second")[1]) == {"a": "one", "b": "two"}


def test_a_storage_that_takes_nothing_ends_the_program_with_its_sentence(tmp_path: Path) -> None:
    start, folder = started(tmp_path, "first")
    stopped: list[bool] = []
    refused = pytest.raises(InfrastructureError, match="is a file where a folder")
    with on_sigterm(lambda: stopped.append(True)), refused, start.kept():
        (tmp_path / "kept").write_text("in the way")
        (folder / "state").write_text("one")
        end = time.monotonic() + 30
        while not stopped and time.monotonic() < end:
            time.sleep(0.01)
    assert stopped
