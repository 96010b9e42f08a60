"""The commit protocol: all or nothing, under kills, races, full disks and missing permissions."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.exceptions import EndpointConnectionError

from trainyard import events
from trainyard.errors import ConfigurationError, DataError, InfrastructureError, TransientError
from trainyard.graph import remedy
from trainyard.storage import storage
from trainyard.storage.buckets import objects

KILLED_WRITER = """
import os, sys
from trainyard.storage import storage

final, fatal = sys.argv[1], int(sys.argv[2])
seen = 0

def hook(event, arguments):
    global seen
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"):
        seen += 1
        if seen == fatal:
            os._exit(9)

sys.addaudithook(hook)
with storage.stage(final, "test") as folder:
    (folder / "a").write_text("new a")
    (folder / "deep").mkdir()
    (folder / "deep" / "b").write_text("new b")
os._exit(0)
"""
KILLED_REMOVER = KILLED_WRITER.partition("with storage.stage")[0] + "storage.remove(final)\nos._exit(0)\n"


def write(final: Path, content: str) -> None:
    with storage.stage(str(final), "test") as folder:
        (folder / "a").write_text(content)


def test_a_published_folder_holds_its_files_and_their_checksums(tmp_path: Path) -> None:
    write(tmp_path / "out", "hello")
    manifest = storage.require(str(tmp_path / "out"))
    # CRC32C of b"hello" by the Castagnoli polynomial, base of RFC 3720's check.
    assert manifest.files == {"a": storage.File(bytes=5, crc32c="9a71bb4c")}
    assert not list((tmp_path / ".staging").iterdir())


def test_an_error_in_the_block_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), storage.stage(str(tmp_path / "out"), "test") as folder:
        (folder / "a").write_text("half")
        raise ZeroDivisionError
    assert storage.committed(str(tmp_path / "out")) is None
    assert not list((tmp_path / ".staging").iterdir())


def test_a_writer_killed_at_any_of_its_writes_leaves_all_or_nothing(tmp_path: Path) -> None:
    outcomes = []
    for fatal in range(1, 100):
        final = tmp_path / str(fatal)
        code = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(final), str(fatal)]).returncode
        manifest = storage.committed(str(final))
        outcomes.append(manifest is not None)
        if manifest:
            storage.require(str(final))
            assert (final / "deep" / "b").read_text() == "new b"
        else:
            assert not final.exists()
        if code == 0:
            break
    assert code == 0, "the writer was never left alone"
    assert outcomes[0] is False and outcomes[-1] is True
    assert outcomes == sorted(outcomes)


def test_an_output_whose_removal_was_killed_at_any_point_is_whole_or_can_be_written_again(tmp_path: Path) -> None:
    for fatal in range(1, 100):
        final = tmp_path / str(fatal) / "out"
        write(final, "old")
        code = subprocess.run([sys.executable, "-c", KILLED_REMOVER, str(final), str(fatal)]).returncode
        storage.remove_abandoned(str(final))
        if storage.committed(str(final)) is None:
            write(final, "new")
        storage.require(str(final))
        assert not list((final.parent / ".staging").iterdir())
        if code == 0:
            break
    assert code == 0 and fatal > 3 and (final / "a").read_text() == "new"


def test_a_writer_that_lost_the_race_with_equal_content_succeeds(tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "out"), "test") as folder:
        (folder / "a").write_text("same")
        write(tmp_path / "out", "same")
    storage.require(str(tmp_path / "out"))


def test_a_writer_that_lost_the_race_with_other_content_is_told(tmp_path: Path) -> None:
    lost = pytest.raises(InfrastructureError, match="something else is there")
    with lost, storage.stage(str(tmp_path / "out"), "test") as folder:
        (folder / "a").write_text("mine")
        write(tmp_path / "out", "theirs")
    assert (tmp_path / "out" / "a").read_text() == "theirs"


def test_a_file_cut_after_publishing_is_found(tmp_path: Path) -> None:
    write(tmp_path / "out", "hello")
    (tmp_path / "out" / "a").write_text("hell")
    with pytest.raises(DataError, match="4 bytes, its manifest says 5 bytes"):
        storage.require(str(tmp_path / "out"))


def test_a_byte_that_changed_after_publishing_is_found_by_every_reader(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with storage.stage(out, "trainyard.evaluate") as folder:
        (folder / "evaluation.json").write_text("hello")
        (folder / "examples.tfrecord").write_text("hello")
    (tmp_path / "out" / "examples.tfrecord").write_text("hellO")  # its records have checksums of their own
    assert storage.local(out) == tmp_path / "out"
    (tmp_path / "out" / "evaluation.json").write_text("hellO")
    advice = "Restore it."
    changed = r"out/evaluation\.json: its content differs .* after trainyard\.evaluate had written it\. Restore it\."
    for reader in (lambda: storage.local(out, advice), lambda: storage.read(out, "evaluation.json", advice)):
        with pytest.raises(DataError, match=changed):
            reader()
    assert storage.read(out, "not listed") is None


NO_MANIFESTS = [
    "",
    "{",
    "[]",
    '{"producer": "x"}',
    '{"producer": 1, "files": {"a": 3}}',
    "[" * 100_000,
    '{"schema_version": Infinity}',
    '{"schema_version": NaN}',
    '{"schema_version": 1, "producer": "x", "files": {"a": {"bytes": "1", "crc32c": "00000000"}}}',
    '{"schema_version": 1, "producer": "x", "files": {"a": {"bytes": 1, "crc32c": "no"}}}',
    '{"schema_version": 1, "producer": "x", "files": {"../a": {"bytes": 1, "crc32c": "00000000"}}}',
    '{"schema_version": 1, "producer": "x", "files": {}, "origin": 1}',
]


@pytest.mark.parametrize("content", NO_MANIFESTS)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match="not a manifest"):
        storage.committed(str(tmp_path))


def test_a_file_that_is_no_document_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A pipe would be waited for, and a file with a hole of terabytes would fill the memory."""
    out = str(tmp_path / "out")
    with storage.stage(out, "trainyard.export") as folder:
        (folder / "small.txt").write_text("hello")
    os.mkfifo(tmp_path / "out" / "preprocessing.json")
    with pytest.raises(DataError, match=r"preprocessing\.json: is a pipe or a device\. A file is expected"):
        storage.read(out, "preprocessing.json")
    for reader, name in (
        (lambda: storage.read(out, "large.json"), "large.json"),
        (lambda: storage.read_text(f"{out}/large.log"), "large.log"),
        (lambda: storage.committed(out), "manifest.json"),
    ):
        with (tmp_path / "out" / name).open("ab") as stream:
            stream.truncate(1 << 42)
        with pytest.raises(DataError, match=rf"{name}: has more than [\d,]+ bytes, the most that is read"):
            reader()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    full = pytest.raises(InfrastructureError, match="the disk is full")
    with full as caught, storage.stage(str(tmp_path / "out"), "test"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.exit_code == 40
    assert not list((tmp_path / ".staging").iterdir())


def test_the_lease_is_refused_while_another_process_holds_it_and_free_after_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = str(tmp_path / "out")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from trainyard.storage import storage\nwith storage.lease({final!r}):\n"
            "  print('held', flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout and holder.stdout.readline() == "held\n"
    with pytest.raises(TransientError, match=f"process {holder.pid} is writing it"), storage.lease(final):
        pass
    warnings: list[str] = []
    monkeypatch.setattr(events, "warn", lambda message: (warnings.append(message), holder.kill()))
    with storage.lease(final, wait=True):
        pass
    holder.wait()
    assert warnings == [f"{final}: process {holder.pid} is writing it. Waiting until it ends."]
    with storage.lease(final):
        pass


def test_a_pointer_is_replaced_whole(tmp_path: Path) -> None:
    pointer = str(tmp_path / "pointer")
    storage.write_text(pointer, "old")
    storage.write_text(pointer, "new")
    assert storage.read_text(pointer) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["pointer"]


def test_the_children_of_a_folder_are_named_without_what_is_still_being_written(tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "2"), "test"):
        write(tmp_path / "1", "hello")
        storage.write_text(str(tmp_path / "pointer"), "x")
        assert storage.children(str(tmp_path)) == ["1", "pointer"]
    assert storage.children(str(tmp_path)) == ["1", "2", "pointer"]
    assert storage.children(str(tmp_path / "missing")) == []


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "out", "hello")
    (tmp_path / ".staging" / "out-dead").mkdir(parents=True)
    (tmp_path / ".pointer.dead.partial").write_text("half")
    storage.remove_unfinished(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    storage.remove_unfinished(str(tmp_path / "missing"))


WRITER = """
import sys
from trainyard.storage import storage
with storage.stage(sys.argv[1], "test") as folder:
    (folder / "a").write_text("half")
    print("writing", flush=True)
    sys.stdin.readline()
"""


def test_the_next_attempt_removes_what_killed_writers_left_and_nothing_that_a_living_one_writes(tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    writers = {
        name: subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / name)], text=True, **pipes)
        for name in ("key", "other", "alive")
    }
    assert all(writer.stdout.readline() == "writing\n" for writer in writers.values())
    for name in ("key", "other"):
        writers[name].kill()
        writers[name].wait()
    staging = tmp_path / ".staging"
    assert len(list(staging.iterdir())) == 3
    with storage.lease(str(tmp_path / "key")):
        storage.remove_abandoned(str(tmp_path / "key"))
    assert [path.name.partition("-")[0] for path in staging.iterdir()] == ["alive"]
    writers["alive"].communicate("\n")
    assert (tmp_path / "alive" / "a").read_text() == "half" and writers["alive"].returncode == 0
    assert not list(staging.iterdir())
    storage.remove_abandoned(str(tmp_path / "missing" / "key"))


def test_writers_that_begin_while_what_is_abandoned_is_removed_are_left_alone(tmp_path: Path) -> None:
    ended = threading.Event()

    def remove() -> None:
        while not ended.is_set():
            storage.remove_abandoned(str(tmp_path / "key"))

    thread = threading.Thread(target=remove)
    thread.start()
    for number in range(100):
        write(tmp_path / f"out-{number}", "hello")
    ended.set()
    thread.join()
    assert len(storage.children(str(tmp_path))) == 100


def test_a_committed_folder_is_had_locally_only_when_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path / "out", "hello")
    assert (storage.local(str(tmp_path / "out")) / "a").read_text() == "hello"
    with pytest.raises(DataError, match=r"missing: no committed folder is there\. Run with --from train to write"):
        storage.local(str(tmp_path / "missing"), remedy("train"))
    with pytest.raises(DataError, match=r"no committed folder is there\. Remove the folder"):  # no step writes it
        storage.local(str(tmp_path / "missing"))


def test_a_file_where_a_folder_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("")
    with pytest.raises(InfrastructureError, match="storage: is a file where a folder is needed"):
        write(tmp_path / "storage" / "out", "hello")


def test_a_uri_of_another_kind_is_refused_and_not_made_a_folder_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither a folder nor a bucket"):
        storage.write_text("hdfs://cluster/pointer", "x")


def test_the_manifest_of_a_newer_trainyard_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with storage.stage(str(tmp_path / "out"), "test"):
        pass
    path = tmp_path / "out" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2, "files": "elsewhere"}))
    with pytest.raises(ConfigurationError, match=r"schema version 2; this one reads up to 1.*Install that Trainyard"):
        storage.committed(str(tmp_path / "out"))


def test_the_reason_of_an_unreachable_store_is_a_whole_one_without_a_query() -> None:
    with requests.Session() as session:
        session.trust_env = False  # no proxy
        with pytest.raises(requests.ConnectionError) as refused:
            session.get("http://127.0.0.1:9/b/o?prefix=a%2F&token=b", timeout=1)
    assert re.fullmatch(r"HTTPConnection\(.*port=9\): Failed .* refused", objects.one_line(refused.value))
    error = EndpointConnectionError(endpoint_url="http://127.0.0.1:9/b?list-type=2&prefix=a%2F")
    assert objects.one_line(error) == 'Could not connect to the endpoint URL: "http://127.0.0.1:9/b"'
