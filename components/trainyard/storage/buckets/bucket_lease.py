"""A lease in a bucket: the right of one process to write an output.

The holder renews the lease by replacing its object. A process that wants the lease watches the object's version: while
it changes, the holder lives; if it has not changed for `TAKEOVER_SECONDS` by the watcher's own clock, the holder is
dead and the watcher replaces the object. No other machine's clock is read. Every replacement is conditional on the
version seen, so one of several watchers wins. A paused holder that was replaced stops as soon as it notices.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from trainyard import events
from trainyard.errors import TrainyardError
from trainyard.heartbeat import Heartbeat
from trainyard.process.child_process import start_time
from trainyard.storage import damage
from trainyard.storage.buckets import objects, stores
from trainyard.storage.buckets.objects import ABSENT, Changed, ObjectStore

RENEW_SECONDS = 5.0  # chosen
TAKEOVER_SECONDS = 30.0  # chosen: six missed renewals
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class _Holder:
    """The content of a lease's object: its holder and the number of renewals."""

    id: str
    host: str = field(default_factory=lambda: f"{socket.gethostname()} {_machine()}")
    process: int = field(default_factory=os.getpid)
    started: str = field(default_factory=lambda: start_time(os.getpid()))
    renewed: int = 0

    @property
    def content(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def dead(self) -> bool:
        """True if the holder is known to be dead: it ended on this machine, or another lease of it expired."""
        here = self.host == _Holder("").host
        return self.owner in _dead_owners or (here and bool(self.started) and start_time(self.process) != self.started)

    @property
    def owner(self) -> tuple[str, int, str]:
        """The process that holds the lease; it may hold others too."""
        return self.host, self.process, self.started


_dead_owners: set[tuple[str, int, str]] = set()  # whose leases have expired while this process watched


@contextmanager
def lease(uri: str, wait: bool = False) -> Iterator[None]:
    """See `storage.lease`: free at once after a kill on this machine, otherwise after `TAKEOVER_SECONDS`."""
    store, name = stores.locate(uri)
    folder, _, leaf = name.rpartition("/")
    name = f"{folder}/.{leaf}.lease".lstrip("/")
    holder = _Holder(secrets.token_hex(8))
    renewal = _Renewal(store, name, uri, holder, _acquire(store, name, uri, holder, wait))
    renewal.start()
    try:
        yield
    finally:
        renewal.release()


class _Renewal:
    """Renews a lease while its process lives."""

    def __init__(self, store: ObjectStore, name: str, uri: str, holder: _Holder, version: str) -> None:
        self._store, self._name, self._uri = store, name, uri
        self._holder, self._version = holder, version
        self._lost = False
        self._heartbeat = Heartbeat(f"{uri}: its lease was not renewed", RENEW_SECONDS, self._renew)

    def start(self) -> None:
        """Renew until released."""
        self._heartbeat.start()

    def _renew(self) -> None:
        """Renew once. If another process has taken the lease, stop this one (SIGTERM)."""
        try:
            self._replace(replace(self._holder, renewed=self._holder.renewed + 1))
        except Changed:
            self._lost = True
            self._heartbeat.stop()
            with suppress(Exception):  # its reader may be gone
                events.emit("lease_lost", uri=self._uri, reason="this process was paused, and another one took over")
            os.kill(os.getpid(), signal.SIGTERM)

    def release(self) -> None:
        """Free the lease: delete its object.

        It is renewed first, so that no other process may take it for `TAKEOVER_SECONDS`: MinIO 2026-02 and moto 5.2
        overlook the condition (measured) and delete the object whoever holds it.
        """
        self._heartbeat.stop()
        self._heartbeat.join()
        if not self._lost:
            try:
                self._replace(replace(self._holder, renewed=self._holder.renewed + 1))
                with objects.deadline(TAKEOVER_SECONDS / 3):
                    self._store.delete_version(self._name, self._version)
            except (Changed, TrainyardError):
                events.warn(f"{self._uri}: its lease was not released; it ends by itself.")

    def _replace(self, holder: _Holder) -> None:
        self._version = self._store.write(self._name, holder.content, match=self._version)
        self._holder = holder


def _acquire(store: ObjectStore, name: str, uri: str, holder: _Holder, wait: bool) -> str:
    """Acquire the lease and return its object's version. Raises as `storage.lease` if another process holds it."""
    try:
        return store.write(name, holder.content, match=ABSENT)
    except Changed:
        pass
    seen, since, told = "", time.monotonic(), False
    while True:
        content, version = store.read(name) or (b"", ABSENT)
        other = _parse(content)
        expired = version == seen and time.monotonic() - since > TAKEOVER_SECONDS
        if other is None or other.dead or expired:
            if other is not None and other.started and expired:
                _dead_owners.add(other.owner)
            try:
                return store.write(name, holder.content, match=version)
            except Changed:
                seen, other = "moved", _parse((store.read(name) or (b"", ""))[0])
        if seen not in ("", version):
            who = f"process {other.process} on {other.host.split()[0]}" if other else "another process"
            if not told:
                damage.held(uri, who, wait)
            seen, since, told = version, time.monotonic(), True
        if not seen:
            seen, since = version, time.monotonic()
            events.emit("waiting", uri=uri, reason="to see whether the process that holds it still lives")
        time.sleep(_POLL_SECONDS)


def _parse(content: bytes) -> _Holder | None:
    try:
        return _Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _machine() -> str:
    """Return an id of this machine's boot and process namespace, '' if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
