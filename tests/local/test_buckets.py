"""Outputs in buckets, against real servers of both protocols: the same promises as for folders."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from object_stores import FAULTS, Request, Store

from trainyard.contract import version
from trainyard.contract.pushed_versions import serving_version, version_numbers
from trainyard.contract.version import Champion, champion, set_champion
from trainyard.errors import ConfigurationError, DataError, InfrastructureError, TransientError
from trainyard.runtime import step
from trainyard.steps.push import versions
from trainyard.storage import manifest, storage
from trainyard.storage.buckets import bucket_folders, gcs, objects, s3, stores

KILLED = """
import sys
from trainyard.storage import storage
with storage.stage(sys.argv[1], "test") as folder:
    (folder / "a").write_text(sys.argv[2])
    (folder / "deep").mkdir()
    (folder / "deep" / "b").write_text(sys.argv[2])
"""


def write(uri: str, content: str, **options: str) -> None:
    with storage.stage(uri, "test", **options) as folder:
        (folder / "a").write_text(content)
        (folder / "deep").mkdir()
        (folder / "deep" / "b").write_text(content)


def names(store: Store, uri: str) -> list[str]:
    prefix = uri.removeprefix(f"{store.uri}/")
    return [item.name.removeprefix(prefix) for item in stores.open_store(store.uri).list(prefix).objects]


def test_a_published_folder_is_read_back_whole_and_cached_for_the_machine(store: Store, uri: str) -> None:
    write(uri, "hello")
    manifest = storage.require(uri)
    assert manifest.files["a"] == storage.File(bytes=5, crc32c="9a71bb4c")
    assert storage.committed(uri) == manifest
    copy = storage.local(uri)
    assert (copy / "deep" / "b").read_text() == "hello"
    assert storage.require(str(copy)) == manifest
    assert storage.read(uri, "a") == b"hello" and storage.read(uri, "nothing") is None
    store.calm()
    assert storage.local(uri) == copy
    assert len(store.requests) == 1  # the marker: the copy is that of its digest


def test_a_browser_is_told_what_an_object_holds(store: Store, uri: str) -> None:
    types = {"a.html": "text/html", "a.json": "application/json", "a.csv.gz": "application/octet-stream"}
    with storage.stage(uri, "test") as folder:
        for name in types:
            (folder / name).write_text("x")
    for name in names(store, uri):
        key = f"{uri.removeprefix(store.uri)[1:]}{name}"
        if store.scheme == "s3":
            told = s3._client().head_object(Bucket=store.bucket, Key=key)["ContentType"]
        else:
            told = gcs._client().bucket(store.bucket).get_blob(key).content_type
        assert told.partition(";")[0] == types.get(name.rpartition("/")[2], told)


def test_a_file_is_published_as_one_object(store: Store, uri: str, tmp_path: Path) -> None:
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    storage.require_place(f"{uri}/a.parquet")
    storage.publish_file(tmp_path / "log.parquet", f"{uri}/a.parquet")
    assert storage.read_bytes(f"{uri}/a.parquet", 10) == b"PAR1" and storage.children(uri) == ["a.parquet"]


def test_a_copy_of_chosen_files_is_verified_and_never_taken_for_the_whole(store: Store, uri: str) -> None:
    write(uri, "hello")
    part = storage.local(uri, only=lambda name: name == "a")
    assert (part / "a").read_text() == "hello" and not (part / "deep").exists()
    assert list(storage.require(str(part)).files) == ["a"]
    (part / "a").write_text("hell")
    assert storage.local(uri, only=lambda name: name == "a") == part
    assert (part / "a").read_text() == "hello"
    whole = storage.local(uri)
    assert whole != part and (whole / "deep" / "b").read_text() == "hello"


def test_a_large_file_an_empty_one_and_names_of_any_letters_come_back(store: Store, uri: str) -> None:
    content = random.Random(1).randbytes((17 << 20) + 3)
    with storage.stage(uri, "test") as folder:
        (folder / "large").write_bytes(content)
        (folder / "empty").touch()
        (folder / "Zürich + %2F ?#").write_text("x")
    copy = storage.local(uri)
    assert (copy / "large").read_bytes() == content
    assert (copy / "empty").read_bytes() == b"" and (copy / "Zürich + %2F ?#").read_text() == "x"


def test_an_error_in_the_block_publishes_nothing_in_a_bucket(store: Store, uri: str) -> None:
    with pytest.raises(ZeroDivisionError), storage.stage(uri, "test") as folder:
        (folder / "a").write_text("half")
        raise ZeroDivisionError
    assert names(store, uri) == [] and not folder.exists()


def test_a_copy_that_was_damaged_on_this_machine_is_fetched_again(store: Store, uri: str) -> None:
    write(uri, "hello")
    for damaged in ("hell", "hellO"):
        (storage.local(uri) / "a").write_text(damaged)
        assert (storage.local(uri) / "a").read_text() == "hello"


def test_an_object_that_is_gone_or_changed_is_an_error_of_the_data(store: Store, uri: str) -> None:
    write(uri, "hello")
    (name,) = [entry for entry in names(store, uri) if entry.endswith("/a")]
    bucket, prefix = stores.locate(uri)
    bucket.write(prefix + name, b"hellO")
    with pytest.raises(DataError, match="differs from its manifest"):
        storage.local(uri)
    with pytest.raises(DataError, match=r"out/a: its content differs from its manifest.* Remove the folder"):
        storage.read(uri, "a")
    bucket.delete(prefix + name)
    with pytest.raises(DataError, match="missing, its manifest says 5"):
        storage.require(uri)
    with pytest.raises(DataError, match=r"is gone .* Remove the folder"):
        storage.local(uri)
    with pytest.raises(DataError, match="no committed folder is there"):
        storage.local(f"{uri}-other")


def test_a_manifest_that_leads_out_of_its_folder_is_refused(store: Store, uri: str) -> None:
    text = '{"producer": "x", "schema_version": 1, "files": {"../../x": {"bytes": 1, "crc32c": "00000000"}}}'
    storage.write_text(f"{uri}/manifest.json", text)
    with pytest.raises(DataError, match="leads out of the folder"):
        storage.local(uri)


def test_an_object_that_is_no_document_is_refused_before_it_is_read(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(uri, "x" * 2000)
    monkeypatch.setattr(manifest, "_MAX_DOCUMENT_BYTES", 1000)
    assert storage.read(uri, "a") == b"x" * 2000  # as many as the manifest says
    monkeypatch.setattr(manifest, "MAX_BYTES", 100)
    with pytest.raises(DataError, match=rf"{uri}/manifest\.json: has more than 100 bytes, the most that is read"):
        storage.committed(uri)


def test_a_writer_killed_at_any_request_leaves_all_or_nothing(store: Store, uri: str) -> None:
    """Killed before and after each of them, the store is as if it had never begun, or holds the whole."""
    outcomes = []
    for moment in ("before", "after"):
        for fatal in range(1, 100):
            final = f"{uri}/{moment}-{fatal}"
            assert bucket_folders.committed(final) is None
            store.calm()
            process = subprocess.Popen([sys.executable, "-c", KILLED, final, "new"], stderr=subprocess.DEVNULL)

            def kill(request: Request, process: subprocess.Popen[bytes] = process, fatal: int = fatal) -> bool:
                if request.number >= fatal:
                    process.kill()
                    process.wait()
                return request.number >= fatal

            setattr(store, moment, kill)
            code = process.wait(120)
            store.calm()
            manifest = storage.committed(final)
            outcomes.append(manifest is not None)
            if manifest:
                copy = storage.local(final)
                assert (copy / "a").read_text() == (copy / "deep" / "b").read_text() == "new"
            if code == 0:
                break
            write(final, "newer" if manifest is None else "new")  # whoever comes next publishes, and clears up
            assert len(names(store, f"{final}/.attempts/")) == 2 if manifest is None else True
        assert code == 0, "the writer was never left alone"
    assert True in outcomes and False in outcomes


def test_a_reader_sees_the_old_folder_or_the_new_one_while_it_is_written_anew(store: Store, uri: str) -> None:
    write(uri, "old")
    seen, ended = set(), threading.Event()

    def replace_it() -> None:
        for _ in range(5):
            for content in ("new", "old"):
                storage.remove(uri)
                write(uri, content)
        ended.set()

    thread = threading.Thread(target=replace_it)
    thread.start()
    while not ended.is_set():
        try:
            copy = storage.local(uri)
        except DataError:
            continue  # removed, and not written yet
        contents = {(copy / "a").read_text(), (copy / "deep" / "b").read_text()}
        assert len(contents) == 1
        seen |= contents
    thread.join()
    assert seen <= {"old", "new"} and seen


@pytest.mark.parametrize("contents", [("same", "same"), ("mine", "theirs")])
def test_of_two_publishers_one_wins_and_the_other_is_told_unless_they_agree(
    store: Store, uri: str, contents: tuple[str, str]
) -> None:
    barrier, ends = threading.Barrier(2), []

    def publish(content: str) -> None:
        try:
            with storage.stage(uri, "test") as folder:
                (folder / "a").write_text(content)
                barrier.wait()
            ends.append("done")
        except InfrastructureError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=publish, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends)[0] == "done"
    assert (sorted(ends)[1] == "done") == (contents[0] == contents[1])
    assert contents[0] == contents[1] or "something else is there" in sorted(ends, key=len)[1]
    assert (storage.local(uri) / "a").read_text() in contents


def unlucky(seed: int, share: float) -> Callable[[Request], str | None]:
    draw = random.Random(seed)
    return lambda request: draw.choice(FAULTS) if draw.random() < share else None


def test_a_store_that_fails_a_fifth_of_all_requests_is_outlived(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "FIRST_PAUSE", 0.01)
    store.fault = unlucky(seed=7, share=0.2)
    for number in range(6):
        write(f"{uri}/{number}", f"content {number}")
        assert (storage.local(f"{uri}/{number}") / "a").read_text() == f"content {number}"
        with storage.lease(f"{uri}/{number}"):
            storage.write_text(f"{uri}/pointer", str(number))
            assert storage.read_text(f"{uri}/pointer") == str(number)
    assert storage.children(uri) == [*map(str, range(6)), "pointer"]
    store.calm()
    assert len([name for name in names(store, f"{uri}/") if name.endswith("/a")]) == 6  # no object is there twice


def test_a_publish_whose_answer_was_lost_is_known_as_ones_own(store: Store, uri: str) -> None:
    lost: list[int] = []

    def fault(request: Request) -> str | None:
        if request.method in ("PUT", "POST") and not lost and "manifest" in request.path:
            lost.append(request.number)
            return "lost answer"
        return None

    def fault_gs(request: Request) -> str | None:
        if "ifGenerationMatch=0" in request.path and not lost:
            lost.append(request.number)
            return "lost answer"
        return None

    store.fault = fault if store.scheme == "s3" else fault_gs
    write(uri, "hello")
    assert lost and storage.committed(uri) is not None


@pytest.mark.parametrize("fault", ["hang", "503"])
def test_a_store_that_does_not_answer_is_given_up_at_the_deadline(
    store: Store, uri: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "DEADLINE_SECONDS", 1.0)
    monkeypatch.setattr(objects, "TIMEOUT_SECONDS", (0.4, 0.4))
    from trainyard.storage.buckets import gcs, s3

    for cached in (stores.open_store, gcs._client, s3._made_client):
        cached.cache_clear()
    store.fault = lambda request: fault
    start = time.monotonic()
    with pytest.raises(TransientError, match=rf"^{store.uri}/.*: cannot be reached .*same command again\.$"):
        write(uri, "hello")
    assert time.monotonic() - start < 120  # 300 is the default


def test_of_a_long_listing_only_the_page_that_failed_is_asked_for_again(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PAGE_OBJECTS", 2)
    monkeypatch.setattr(objects, "FIRST_PAUSE", 0.01)
    bucket, name = stores.locate(uri)
    for number in range(5):
        bucket.write(f"{name}/{number}", b"x")
        bucket.write(f"{name}/deep-{number}/x", b"x")
    store.calm()
    asked: list[str] = []

    def fault(request: Request) -> str | None:
        if "prefix=" not in request.path:  # Google's client looks at the bucket itself too
            return None
        asked.append(request.path)
        return "503" if asked.count(request.path) <= 2 else None  # each page comes at the third time of asking

    store.fault = fault
    listing = bucket.list(f"{name}/", deep=False)
    assert [item.name for item in listing.objects] == [f"{name}/{number}" for number in range(5)]
    assert listing.folders == [f"{name}/deep-{number}/" for number in range(5)]
    assert len(set(asked)) == 5 and len(asked) == 15


def test_a_missing_bucket_is_one_sentence(store: Store) -> None:
    uri = f"{store.scheme}://no-such-bucket/out"
    for action in (lambda: storage.write_text(uri, "x"), lambda: write(uri, "x"), lambda: storage.children(uri)):
        with pytest.raises(InfrastructureError, match=r"there is no such bucket .* Create it, or name another storage"):
            action()


def test_a_server_that_overlooks_conditions_is_refused(store: Store, uri: str) -> None:
    if store.scheme == "gs":
        pytest.skip("Cloud Storage knows conditions")
    store.overlooks_conditions = True
    with pytest.raises(InfrastructureError, match="ignores If-None-Match"):
        write(uri, "hello")


def test_names_that_lead_elsewhere_and_whole_buckets_are_refused(store: Store) -> None:
    for wrong in ("", "/", "/../x", "/a//b", "/a/./b", "/a/"):
        with pytest.raises(ConfigurationError, match="is no place for outputs"):
            storage.write_text(f"{store.uri}{wrong}", "x")
    with pytest.raises(ConfigurationError, match="names no bucket"):
        storage.write_text(f"{store.scheme}:///x", "x")
    with pytest.raises(ConfigurationError, match="neither a folder nor a bucket"):
        storage.write_text("ftp://host/x", "x")


def test_folders_for_servers_lie_open_with_their_last_file_last(store: Store, uri: str) -> None:
    uploads: list[str] = []
    store.after = lambda request: uploads.append(str(names(store, f"{uri}/"))) if request.method != "GET" else None
    write(uri, "hello", last="a")
    assert {"/a", "/deep/b", "/manifest.json"} == set(names(store, uri))
    assert (storage.local(uri) / "a").read_text() == "hello"
    assert all("deep/b" in seen for seen in uploads if "'a'" in seen)


def write_open(uri: str, content: str) -> None:
    with storage.stage(uri, "test", last="done.json") as folder:
        for number in range(2):
            (folder / f"part-{number}-{content}").write_text(content)
        (folder / "done.json").write_text(content)


def names_of_open(content: str) -> set[str]:
    return {"/manifest.json", "/done.json", f"/part-0-{content}", f"/part-1-{content}"}


def test_an_open_folder_whose_writer_was_killed_at_any_request_holds_nothing_of_it_once_another_published(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "DEADLINE_SECONDS", 0.1)  # as if killed: from then on nothing reaches the store
    outcomes = []
    for fatal in range(1, 40):
        final = f"{uri}/{fatal}"
        storage.write_text(f"{final}/theirs", "not ours to remove")
        store.calm()
        store.before = lambda request, fatal=fatal: request.number >= fatal  # type: ignore[misc]
        try:
            write_open(final, "old")
        except (TransientError, InfrastructureError):
            pass
        else:
            break
        store.calm()
        outcomes.append(storage.committed(final) is not None)
        if outcomes[-1]:
            storage.remove_abandoned(final)
            assert set(names(store, final)) == {*names_of_open("old"), "/theirs"}
        else:
            write_open(final, "new")
            assert set(names(store, final)) == {*names_of_open("new"), "/theirs"}
            assert (storage.local(final) / "done.json").read_text() == "new"
    assert set(outcomes) == {True, False} and fatal > 10


def test_of_two_writers_of_an_open_folder_only_the_winners_files_stay(store: Store, uri: str) -> None:
    """The loser stood still for longer than its lease lasts, and another began and ended meanwhile."""
    writes: list[Request] = []

    def overtake(request: Request) -> None:
        if request.method != "GET":
            writes.append(request)
            if len(writes) == 2:  # the list of its files is written, and the first part is on its way
                write_open(uri, "winner")

    store.before = overtake
    with pytest.raises(InfrastructureError, match=r"something else is there \(test\)"):
        write_open(uri, "loser")
    assert set(names(store, uri)) == names_of_open("winner")
    assert (storage.local(uri) / "part-1-winner").read_text() == "winner"
    with pytest.raises(InfrastructureError, match=r"something else is there \(test\)"):
        write_open(uri, "late")
    assert set(names(store, uri)) == names_of_open("winner")


def test_an_open_folder_never_replaces_files_of_others(store: Store, uri: str) -> None:
    storage.write_text(f"{uri}/done.json", "theirs")
    with pytest.raises(InfrastructureError, match=r"done\.json: already exists, and Trainyard did not write it"):
        write_open(uri, "new")
    assert names(store, uri) == ["/done.json"] and storage.read_text(f"{uri}/done.json") == "theirs"


def test_what_killed_writers_left_in_a_bucket_is_removed_and_nothing_else(store: Store, uri: str) -> None:
    write(f"{uri}/1", "whole")
    storage.write_text(f"{uri}/pointer", "1")
    storage.write_text(f"{uri}/7/saved_model.pb", "somebody else's version")
    storage.write_text(f"{uri}/2/.attempts/dead/a", "half")
    storage.write_text(f"{uri}/3/.attempts/dead", "")
    storage.write_text(f"{uri}/3/variables", "half")
    storage.remove_unfinished(uri)
    assert storage.children(uri) == ["1", "7", "pointer"]
    storage.remove(f"{uri}/1")
    assert storage.children(uri) == ["7", "pointer"]


def test_what_killed_writers_of_a_published_output_left_goes_with_the_next_attempt(store: Store, uri: str) -> None:
    storage.write_text(f"{uri}/.attempts/dead/a", "half")
    storage.remove_abandoned(uri)  # its writer may only have been overtaken, and publish it still
    assert "/.attempts/dead/a" in names(store, uri)
    write(uri, "hello")
    storage.write_text(f"{uri}/.attempts/late/a", "half")
    storage.remove_abandoned(uri)
    assert len(names(store, f"{uri}/.attempts/")) == 2 and (storage.local(uri) / "a").read_text() == "hello"


STAGING = """
import sys
from trainyard.storage import storage
with storage.stage(sys.argv[1], "test") as folder:
    (folder / "a").write_text("half")
    print(folder, flush=True)
    sys.stdin.readline()
"""


def test_what_a_killed_writer_left_on_this_machine_goes_with_the_next_one(store: Store, uri: str) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-c", STAGING]
    writers = [subprocess.Popen([*command, f"{uri}/{n}"], text=True, **pipes) for n in (0, 1)]
    killed, alive = (Path(writer.stdout.readline().strip()) for writer in writers)
    writers[0].kill()
    writers[0].wait()
    assert (killed / "a").is_file()
    write(f"{uri}/2", "hello")
    assert not killed.exists() and (alive / "a").is_file()
    writers[1].communicate("\n")
    assert storage.committed(f"{uri}/1") and not alive.exists()


def test_checkpoints_in_a_bucket_go_when_their_model_is_committed(store: Store, uri: str) -> None:
    write(f"{uri}.checkpoints/ckpt-5", "state")
    storage.write_text(f"{uri}.checkpoints/gang/launcher", "sign")
    step.drop_checkpoints(uri)
    assert storage.committed(f"{uri}.checkpoints/ckpt-5")
    write(uri, "model")
    step.drop_checkpoints(uri)
    assert names(store, f"{uri}.checkpoints") == [] and storage.committed(uri)


def test_a_cache_that_belongs_to_somebody_else_is_not_used(
    store: Store, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(uri, "hello")
    (tmp_path / "theirs").mkdir()
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "theirs"))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(InfrastructureError, match="belongs to another user"):
        storage.local(uri)


def test_an_approval_in_a_bucket_publishes_what_waited_and_removes_it(uri: str) -> None:
    waiting = f"{uri}/candidate"
    for number in (2, 3):
        with storage.stage(f"{waiting}/{number}", "trainyard.push", last="saved_model.pb") as folder:
            (folder / "saved_model.pb").write_text(f"model {number}")
        manifest = storage.require(f"{waiting}/{number}")
        set_champion(waiting, Champion(version=number, path="", digest=version.digest(manifest), metrics={"mae": 1}))
    assert serving_version(uri, "candidate") == f"{waiting}/3" and version_numbers(uri) == []
    assert versions.approve(uri, "Ada", "good") == versions.Approved(3, f"{uri}/3", None)
    best = champion(uri)
    assert best is not None and best.approval is not None and best.approval.name == "Ada"
    assert (
        storage.read(best.path, "saved_model.pb") == b"model 3" and version.record(best.path).approval == best.approval
    )
    assert storage.children(waiting) == []
    with pytest.raises(ConfigurationError, match="Ada approved version 3"):
        versions.approve(uri, "Eve")
