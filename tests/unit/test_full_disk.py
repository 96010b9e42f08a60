"""Whatever a disk refuses is one sentence and exit code 40, and every record that is left agrees with it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import report_folders

from trainyard.contract.keys import failure_record
from trainyard.errors import InfrastructureError, TransientError
from trainyard.report import local_runs, summary
from trainyard.runtime import step
from trainyard.storage import cache, disk, storage
from trainyard_control.local.local_run import _Log, explain_folder


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; where none may be mounted, a test that needs one is skipped."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True).returncode:
        pytest.skip("may not mount a small file system here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder: Path, free: int = 0) -> None:
    """Leave `free` bytes on the disk of `folder`, or none at all."""
    with (folder / "ballast").open("ab", buffering=0) as stream:
        while (room := os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize - free) > 0:
            stream.write(bytes(min(room, 1 << 16)))


def in_a_fork(work: Callable[[], None]) -> int:
    process = os.fork()
    if process == 0:
        signal.alarm(30)
        try:
            work()
        except SystemExit as end:
            os._exit(int(end.code or 0))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_what_room_was_kept_for_is_written_on_a_full_disk_and_nothing_else(small: Path) -> None:
    record = str(small / "run.json")
    storage.reserve(record, 8192)
    fill(small)
    with pytest.raises(InfrastructureError, match=r"run\.json: the disk is full"):
        storage.write_text(record, "x" * 8193)
    storage.write_text(record, "y" * 8192)
    assert storage.read_text(record) == "y" * 8192
    with pytest.raises(InfrastructureError, match=r"another: the disk is full"):
        storage.write_text(str(small / "another"), "x")
    assert sorted(path.name for path in small.iterdir()) == ["ballast", "run.json"]


def test_a_step_that_finds_the_disk_full_is_recorded_so_and_not_as_killed_for_memory(small: Path) -> None:
    output = str(small / "train" / "key")

    def run() -> None:
        def write(output: Path) -> None:
            fill(small)
            (output / "model").write_bytes(bytes(100_000))

        write.__module__ = "trainyard.steps.train.run"
        with step.recorded("train", lambda: output):
            step.execute(write, output)

    assert in_a_fork(run) == 40
    record = json.loads(Path(failure_record(output)).read_text())
    assert (record["exit_code"], record["class"]) == (40, "InfrastructureError")
    assert "the disk is full" in record["message"] and "memory" not in record["message"]


def test_a_record_that_cannot_be_written_leaves_no_older_one_in_its_place(small: Path) -> None:
    output = str(small / "key")
    storage.write_text(failure_record(output), json.dumps({"message": "of another attempt"}))
    fill(small)
    step._write_record("train", output, InfrastructureError.exit_code, "InfrastructureError", "x" * 300_000)
    assert not Path(failure_record(output)).exists()


def test_a_success_leaves_no_reserved_room(tmp_path: Path) -> None:
    def write(output: Path) -> None:
        (output / "model").touch()

    write.__module__ = "trainyard.steps.train.run"
    step.execute(write, str(tmp_path / "key"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".key.lock", ".staging", "key"]


@pytest.mark.parametrize("free", [0, 12 << 10, 64 << 10])
@pytest.mark.parametrize("failure", [None, "train: the loss is not finite."])
def test_a_run_whose_report_has_no_room_is_recorded_as_it_ended(small: Path, failure: str | None, free: int) -> None:
    recipe, root = report_folders.recipe(), small / "storage"
    folders = report_folders.whole_run(small.parent / "outputs")
    summary.reserve(str(root), recipe, "20260101-1")
    fill(small, free)
    ended: dict[str, Any] = {"failure": failure, "exit_code": 10 if failure else 0}
    if failure:
        summary.write(str(root), recipe, "20260101-1", folders, {}, ended)
    else:
        with pytest.raises(InfrastructureError, match=r"report\.html: the disk is full"):
            summary.write(str(root), recipe, "20260101-1", folders, {}, ended)
    record = json.loads((root / "digits" / "runs" / "20260101-1" / "run.json").read_text())
    assert record["exit_code"] == (10 if failure else 40)
    assert (failure or "the disk is full") in record["failure"]
    assert record["report"] is None and record["metrics"]
    sentence, code = explain_folder(str(root), "")
    assert code == record["exit_code"] and "has succeeded" not in sentence


def test_a_log_that_the_disk_takes_no_more_of_does_not_end_the_step(small: Path) -> None:
    with _Log(small / "train.log") as log:
        log.write("first\n")
        fill(small)
        for _ in range(3):
            log.write("x" * 5000)
    assert log.fault and "the disk is full" in str(log.fault)
    assert (small / "train.log").read_text().startswith("first\n")


def test_a_log_that_the_disk_cut_within_a_character_is_read_all_the_same(small: Path) -> None:
    folder = small / "digits" / "runs" / "20260101-1"
    folder.mkdir(parents=True)
    with _Log(folder / "train.log") as log:
        log.write("x")
        log.write("é" * 300_000)
    assert log.fault and (folder / "train.log").read_bytes().endswith("é".encode()[:1])
    assert explain_folder(str(small), "")[0].startswith("20260101-1 is in train")
    assert local_runs.log(local_runs.find(str(small), "20260101-1"), "train", None).startswith("xé")
    log.upload(str(small.parent / "copy"))
    assert (small.parent / "copy").read_text().startswith("xé")


def test_a_limit_on_the_size_of_files_is_no_bug(tmp_path: Path) -> None:
    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        with step.recorded("train", lambda: str(tmp_path / "out")), storage.stage(str(tmp_path / "out"), "x") as folder:
            (folder / "model").write_bytes(bytes(5000))

    assert in_a_fork(write) == 40
    assert "takes no larger file" in json.loads((tmp_path / "out.failure.json").read_text())["message"]


def test_a_full_disk_is_known_however_a_library_words_it_and_the_right_disk_is_named(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        try:
            raise ValueError("worker 3: [Errno 28] No space left on device")
        except ValueError as error:
            raise RuntimeError("the pipeline failed") from error
    except RuntimeError as error:
        cause = disk.disk_full_cause(error)
    assert isinstance(cause, ValueError)
    monkeypatch.setattr(disk.tempfile, "gettempdir", lambda: str(small))
    assert str(disk.disk_full(cause, small.parent)).startswith(f"{small.parent}: the disk is full")
    fill(small)
    assert str(disk.disk_full(cause, small.parent)).startswith(f"{small}: the disk is full")
    assert disk.disk_full_cause(OSError(errno.ENOENT, "No such file or directory")) is None


@pytest.mark.parametrize("action", ["stage", "write_text", "lease"])
def test_a_place_where_nothing_can_be_made_is_named(action: str) -> None:
    uri = "/proc/nowhere/out"
    with pytest.raises(InfrastructureError, match=r"^/proc/nowhere.* cannot be written \(No such file"):
        if action == "write_text":
            storage.write_text(uri, "x")
        else:
            with storage.stage(uri, "x") if action == "stage" else storage.lease(uri):
                pass


def test_links_are_named_for_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InfrastructureError, match="dangling: is a link to nothing where a folder is needed"):
        storage.write_text(str(tmp_path / "dangling" / "run.json"), "x")
    with pytest.raises(InfrastructureError, match=r"loop.*(symbolic links|a link to nothing)"):
        storage.write_text(str(tmp_path / "loop" / "run.json"), "x")
    with pytest.raises(InfrastructureError, match="cannot be read"):
        storage.committed(str(tmp_path / "loop"))


def test_of_an_output_that_is_a_link_the_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "elsewhere"), "x") as folder:
        (folder / "model").touch()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    storage.remove(str(tmp_path / "out"))
    assert storage.committed(str(tmp_path / "out")) is None
    storage.require(str(tmp_path / "elsewhere"))


def test_an_output_that_vanishes_while_it_is_written_is_told_so(tmp_path: Path) -> None:
    vanished = pytest.raises(InfrastructureError, match="was removed while the output was written there")
    with vanished, storage.stage(str(tmp_path / "storage" / "out"), "x") as folder:
        shutil.rmtree(tmp_path / "storage")
        (folder / "model").write_text("x")
    vanished = pytest.raises(InfrastructureError, match="was removed while the output was written there")
    with vanished, storage.stage(str(tmp_path / "storage" / "out"), "x"):
        shutil.rmtree(tmp_path / "storage")
    assert storage.committed(str(tmp_path / "storage" / "out")) is None


def test_a_steps_own_error_is_not_taken_for_the_disks(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage.stage(str(tmp_path / "out"), "x"):
        (tmp_path / "a file of the recipe's module").read_text()
    with pytest.raises(ConnectionError), storage.stage(str(tmp_path / "out"), "x"):
        raise ConnectionError


def test_a_folder_where_a_file_is_expected_is_named(tmp_path: Path) -> None:
    (tmp_path / "out" / "manifest.json").mkdir(parents=True)
    with pytest.raises(InfrastructureError, match=r"manifest\.json: cannot be read \(Is a directory"):
        storage.committed(str(tmp_path / "out"))


def fail(number: int) -> Callable[..., None]:
    def call(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO, errno.ESTALE])
def test_a_file_system_that_locks_no_file_refuses_the_lease_in_a_sentence_and_may_be_read(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", fail(number))
    kind = TransientError if number == errno.ESTALE else InfrastructureError
    refused = pytest.raises(kind, match=rf"out: cannot be locked \({os.strerror(number)}\)")
    with refused, storage.lease(str(tmp_path / "out")):
        pass
    with storage.reading(str(tmp_path / "out")), storage.stage(str(tmp_path / "out"), "x") as folder:
        (folder / "model").touch()
    storage.require(str(tmp_path / "out"))


def test_a_cache_on_a_file_system_without_locks_names_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", fail(errno.ENOLCK))
    refused = pytest.raises(InfrastructureError, match="Name a folder of a local disk in TRAINYARD_CACHE")
    with refused, cache.temporary_folder():
        pass


def test_a_stale_file_handle_in_a_step_is_not_a_bug(tmp_path: Path) -> None:
    lost = pytest.raises(TransientError, match=r"out: cannot be read or written \(Stale file handle\)")
    with lost, storage.stage(str(tmp_path / "out"), "x"):
        fail(errno.ESTALE)()


def test_a_file_system_that_flushes_no_folders_takes_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = os.fsync

    def flush_file(descriptor: int) -> None:
        (fail(errno.EINVAL) if stat.S_ISDIR(os.fstat(descriptor).st_mode) else flush)(descriptor)

    monkeypatch.setattr(os, "fsync", flush_file)
    with storage.stage(str(tmp_path / "out"), "x") as folder:
        (folder / "model").touch()
    storage.require(str(tmp_path / "out"))
