"""Leases in buckets: one writer at a time, and none waits for the dead longer than it must."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from object_stores import Store

from trainyard import events
from trainyard.errors import TransientError
from trainyard.storage import storage
from trainyard.storage.buckets import bucket_lease, stores

pytestmark = pytest.mark.usefixtures("warm_processes")


def test_the_lease_is_held_by_one_and_free_after_its_release(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(bucket_lease, "_POLL_SECONDS", 0.1)
    refused = pytest.raises(TransientError, match=f"process {os.getpid()} on .* is writing it")
    with storage.lease(uri), refused, storage.lease(uri):
        pass
    first = ExitStack()
    first.enter_context(storage.lease(uri))
    monkeypatch.setattr(events, "warn", lambda message: first.close())
    with storage.lease(uri, wait=True):
        pass
    with storage.lease(uri):
        pass
    bucket = stores.open_store(store.uri)
    lease = "{}/.{}.lease".format(*stores.locate(uri)[1].rsplit("/", 1))
    assert bucket.read(lease) is None
    monkeypatch.setattr(bucket_lease, "RENEW_SECONDS", 60)
    with storage.lease(uri):
        bucket.write(lease, b"another process holds it")
    assert bucket.read(lease)


HOLDER = """
import sys
from trainyard.storage.buckets import bucket_lease; from trainyard.storage import storage
bucket_lease.RENEW_SECONDS = 0.5
with storage.lease(sys.argv[1]), storage.lease(sys.argv[1] + ".checkpoints"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(uri: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, uri], **pipes)  # type: ignore[call-overload]
    assert holder.stdout and holder.stdout.readline() == "held\n"
    return holder


def test_the_lease_of_a_process_killed_on_this_machine_is_free_at_once(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "TAKEOVER_SECONDS", 120.0)
    holder = hold(uri)
    holder.kill()
    start = time.monotonic()
    # Nobody has waited for it yet: in a container often nobody ever does.
    with storage.lease(uri), storage.lease(f"{uri}.checkpoints"):
        assert time.monotonic() - start < bucket_lease.TAKEOVER_SECONDS
    holder.wait()


def test_the_second_lease_of_a_dead_process_elsewhere_is_not_waited_for_again(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "TAKEOVER_SECONDS", 1.0)
    monkeypatch.setattr(bucket_lease, "_POLL_SECONDS", 0.1)
    holder = hold(uri)
    holder.kill()
    monkeypatch.setattr(bucket_lease.socket, "gethostname", lambda: "another-machine")
    start = time.monotonic()
    with storage.lease(uri):
        first, seconds = time.monotonic() - start, 120.0
        monkeypatch.setattr(bucket_lease, "TAKEOVER_SECONDS", seconds)
        with storage.lease(f"{uri}.checkpoints"):
            assert first > 1.0 and time.monotonic() - start - first < seconds
    holder.wait()


def test_a_lease_is_renewed_on_after_a_fault_that_nobody_thought_of(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bucket_lease, "RENEW_SECONDS", 0.05)
    write, faults = bucket_lease._Renewal._replace, iter([RuntimeError("no more threads"), KeyError("x")])
    renewed: list[int] = []

    def replace(self: bucket_lease._Renewal, holder: bucket_lease._Holder) -> None:
        if fault := next(faults, None):
            raise fault
        write(self, holder)
        renewed.append(holder.renewed)

    monkeypatch.setattr(bucket_lease._Renewal, "_replace", replace)
    with storage.lease(uri):
        end = time.monotonic() + 60
        while len(renewed) < 2 and time.monotonic() < end:
            time.sleep(0.02)
    assert len(renewed) >= 2
    assert "was not renewed: no more threads" in capfd.readouterr().err


def test_a_lease_that_does_not_move_is_taken_over_and_its_holder_stopped(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the watcher's own clock: what the holder's machine takes for the time is never read."""
    monkeypatch.setattr(bucket_lease, "TAKEOVER_SECONDS", 1.0)
    monkeypatch.setattr(bucket_lease, "_POLL_SECONDS", 0.1)
    holder = hold(uri)
    holder.send_signal(signal.SIGSTOP)
    with storage.lease(uri):
        holder.send_signal(signal.SIGCONT)
        assert holder.wait(60) == -signal.SIGTERM
    assert holder.stderr and "lease_lost" in holder.stderr.read()
