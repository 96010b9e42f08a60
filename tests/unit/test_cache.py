"""Copies of buckets' folders on this machine, opened by processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainyard.errors import ConfigurationError
from trainyard.storage import cache
from trainyard.storage.manifest import Manifest, measure_folder

PROGRAM = """
import sys
from test_cache import opened
sys.path.pop(0)
for key in sys.argv[1:]:
    print("fetched" if opened(key) else "there", key, flush=True)
sys.stdin.read()
"""


def opened(key: str) -> bool:
    """Open a copy of 1,000 bytes and return whether it had to be fetched."""
    fetched = []

    def fetch(folder: Path) -> None:
        (folder / "a").write_bytes(bytes(1000))
        fetched.append(folder)

    path = cache.entry(key, CONTENT, fetch)
    assert (path / "a").stat().st_size == 1000
    return bool(fetched)


def manifest() -> Manifest:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").write_bytes(bytes(1000))
        return measure_folder(Path(folder), "test")


CONTENT = manifest()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with room for two copies and their manifests."""
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_CACHE_SIZE", "2900")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return tmp_path


def process(*keys: str) -> subprocess.Popen[str]:
    """A process that has opened `keys` and lives until its input is closed."""
    pipe = subprocess.PIPE
    started = subprocess.Popen([sys.executable, "-c", PROGRAM, *keys], stdin=pipe, stdout=pipe, text=True)
    assert started.stdout
    started.printed = [started.stdout.readline().split() for _ in keys]  # type: ignore[attr-defined]
    return started


def open_all(*keys: str) -> list[str]:
    started = process(*keys)
    started.communicate()
    return [how for how, _ in started.printed]  # type: ignore[attr-defined]


def test_the_copy_used_longest_ago_goes_first(cache_folder: Path) -> None:
    assert open_all("a", "b") == ["fetched", "fetched"]
    assert open_all("a") == ["there"]
    assert open_all("c") == ["fetched"]
    assert sorted(path.name for path in cache_folder.iterdir()) == ["a", "c"]


def test_a_copy_stays_while_a_process_that_opened_it_lives_and_goes_when_that_was_killed(cache_folder: Path) -> None:
    reader = process("a")
    assert open_all("b", "c") == ["fetched", "fetched"]
    assert (cache_folder / "a").is_dir()
    reader.kill()
    reader.communicate()
    assert open_all("d") == ["fetched"] and not (cache_folder / "a").is_dir()


def test_what_a_killed_fetch_left_is_removed_and_one_under_way_is_not(cache_folder: Path) -> None:
    (cache_folder / ".partial-dead").mkdir()
    (cache_folder / ".partial-dead" / "a").write_bytes(bytes(1000))

    def fetch(folder: Path) -> None:
        (folder / "a").write_bytes(bytes(1000))
        assert open_all("b") == ["fetched"]

    cache.entry("a", CONTENT, fetch)
    assert sorted(path.name for path in cache_folder.iterdir()) == ["a", "b"]


def test_a_copy_that_another_process_was_faster_to_fetch_is_not_replaced(cache_folder: Path) -> None:
    faster: list[os.stat_result] = []

    def fetch(folder: Path) -> None:
        assert open_all("a") == ["fetched"]
        faster.append((cache_folder / "a").stat())
        (folder / "a").write_bytes(bytes(1000))

    assert os.path.samestat(cache.entry("a", CONTENT, fetch).stat(), faster[0])
    assert [path.name for path in cache_folder.iterdir()] == ["a"]


def test_a_damaged_copy_is_fetched_again(cache_folder: Path) -> None:
    assert opened("a") and not opened("a")
    (cache_folder / "a" / "a").write_bytes(b"")
    assert opened("a") and not opened("a")


def test_a_size_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE_SIZE", "much")
    with pytest.raises(ConfigurationError, match="TRAINYARD_CACHE_SIZE: 'much' is not a size"):
        opened("a")


def test_a_file_begun_again_between_the_look_and_the_lock_stays(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache_folder / f"key{cache.FILES}" / "a"
    path.parent.mkdir()
    path.write_bytes(bytes(1000))
    lock_of = cache.lock_of

    def lock_of_the_old(path: Path, how: int) -> int:
        descriptor = lock_of(path, how)
        path.unlink()
        path.write_bytes(bytes(2000))  # the owner fetches it again
        return descriptor

    monkeypatch.setattr(cache, "lock_of", lock_of_the_old)
    assert not cache.make_room(cache_folder, 2900)
    assert path.stat().st_size == 2000


def test_threads_that_open_a_copy_at_once_hold_it_once(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened("a")
    monkeypatch.setattr(cache, "_locks", {})
    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(lambda _: cache.hold(cache_folder / "a"), range(400)))
    finally:
        sys.setswitchinterval(switches)
    held = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert held.count(str(cache_folder / "a")) == 2  # one of this test's threads, one from before
