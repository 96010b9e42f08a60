"""Files that come ahead of their readers, within the cache's bound, for several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from trainyard.errors import DataError, TransientError
from trainyard.storage import cache, file_stream
from trainyard.storage.file_stream import CachedFiles, FileStream
from trainyard.storage.manifest import Manifest, measure

NAMES = [f"shards/{number}" for number in range(8)]
SIZE = 1000
PROGRAM = """
import sys
from test_file_stream import stream
sys.path.pop(0)

def download(name, path):
    print(name, flush=True)
    sys.stdin.readline()
    path.open("r+b").write(bytes(1000))

with stream(download) as files:
    for name in sys.argv[1:]:
        files.open(name, name, 1)
    print("there", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return tmp_path


def manifest() -> Manifest:
    path = cache.folder() / "measured"
    path.write_bytes(bytes(SIZE))
    file = measure(path)
    path.unlink()
    return Manifest("test", dict.fromkeys(NAMES, file))


def stream(download: Callable[[str, Path], None]) -> FileStream:
    return FileStream("bucket", CachedFiles("key", manifest(), download))


def write(name: str, path: Path) -> None:
    with path.open("r+b") as file:  # it keeps its size
        file.write(bytes(SIZE))


def on_disk() -> list[str]:
    root = cache.folder() / "key.files"
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def bytes_on_disk() -> int:
    with cache.locked(cache.folder()):  # so that nothing goes or is renamed meanwhile
        return sum((cache.folder() / "key.files" / name).stat().st_size for name in on_disk())


def process(*names: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *names], stdin=pipe, stdout=pipe, text=True)


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout
    return started.stdout.readline().strip()


def test_files_come_in_the_order_in_which_they_are_wanted_and_a_reader_waits_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_stream, "_THREADS", 1)
    order = []

    def download(name: str, path: Path) -> None:
        order.append(name)
        write(name, path)

    wanted = NAMES[::-1]
    with stream(download) as files:
        files.follow(iter([wanted]), 1)
        for name in wanted:
            assert files.open(name, "reader", 1).read_bytes() == bytes(SIZE)
    assert order == wanted


@pytest.mark.parametrize("threads", [1, 4])
def test_what_is_wanted_latest_goes_and_the_bound_holds(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_stream, "_THREADS", threads)
    monkeypatch.setenv("TRAINYARD_CACHE_SIZE", str(4 * SIZE))
    limits, fetched = [], []

    def download(name: str, path: Path) -> None:
        with suppress(FileNotFoundError):  # an empty one went, which had found no room
            limits.append(bytes_on_disk())
        fetched.append(name)
        write(name, path)

    epochs = [NAMES, NAMES[::-1]]
    with stream(download) as files:
        files.follow(iter(epochs), 1)
        for epoch in epochs:
            for name in epoch:
                assert files.open(name, "reader", 1).stat().st_size == SIZE
    assert max(limits) == 4 * SIZE
    if threads == 1:  # several give up what they fetched ahead when the reader overtakes them
        assert len(fetched) == 8 + 4, "the first epoch's last four are still there when the second wants them"


def test_readers_that_need_more_than_the_bound_are_served_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE_SIZE", str(2 * SIZE))
    with stream(write) as files:
        for name in NAMES[:4]:
            files.open(name, name, 1)
        assert on_disk() == NAMES[:4]
    assert capsys.readouterr().err.count("TRAINYARD_CACHE_SIZE") == 1


def test_a_failure_ahead_of_its_time_is_tried_again_and_one_that_is_waited_for_reaches_the_reader() -> None:
    tries = []

    def download(name: str, path: Path) -> None:
        tries.append(name)
        if name == NAMES[1] and len(tries) < 4:
            raise TransientError("no answer")
        if name == NAMES[2]:
            raise DataError("damaged")
        write(name, path)

    with stream(download) as files:
        files.follow(iter([NAMES[:1]]), 1)
        files.open(NAMES[0], "reader", 1)
        with pytest.raises(DataError, match="damaged"):
            files.open(NAMES[2], "reader", 1)
        assert isinstance(files.error, DataError)
    assert on_disk() == NAMES[:1], "nothing half-written"


def test_a_process_waits_for_what_another_one_fetches() -> None:
    first = process(NAMES[0])
    assert line(first) == NAMES[0]
    second = process(NAMES[0], NAMES[1])
    assert first.communicate("\n\n")[0].split() == ["there"]
    assert second.communicate("\n\n")[0].split() == [NAMES[1], "there"]
    assert on_disk() == NAMES[:2]


def test_a_killed_process_leaves_nothing_half_written_and_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = process(NAMES[0])
    assert line(killed) == NAMES[0]
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert on_disk() == [f"{NAMES[0]}.partial"]
    monkeypatch.setenv("TRAINYARD_CACHE_SIZE", str(SIZE))
    with stream(write) as files:
        files.open(NAMES[1], "reader", 1)
        assert on_disk() == [NAMES[1]], "what it left made room"
        assert files.open(NAMES[0], "other", 1).stat().st_size == SIZE


def test_no_process_removes_what_another_one_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE_SIZE", str(2 * SIZE))
    other = process(NAMES[0])
    assert line(other) == NAMES[0]
    assert other.stdin
    other.stdin.write("\n")
    other.stdin.flush()
    assert line(other) == "there"
    with stream(write) as files:
        for name in NAMES[1:4]:
            files.open(name, "reader", 1)
        assert NAMES[0] in on_disk()
    other.communicate("\n")


def test_a_copy_of_the_whole_takes_what_is_there(tmp_path: Path) -> None:
    with stream(write) as files:
        files.open(NAMES[0], "reader", 1)
    rest = file_stream.link("key", manifest(), tmp_path)
    assert list(rest.files) == NAMES[1:] and (tmp_path / NAMES[0]).read_bytes() == bytes(SIZE)
