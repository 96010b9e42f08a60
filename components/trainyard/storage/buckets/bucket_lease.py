"""The right to write one output in a bucket, for one process at a time.

The holder replaces the lease's object again and again. Who wants it watches the object: while its version moves, somebody
holds it; when it has not moved for `TAKE_SECONDS` by the watcher's own clock, its holder is dead and it is replaced. No
clock of another machine is asked. Every replacement is made for the version that was seen, so that of several takers one
succeeds; a holder that was overtaken, because it stood still, is stopped as soon as it notices.
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
from trainyard.errors import TrainyardError, TransientError
from trainyard.processes import started
from trainyard.pulse import Pulse
from trainyard.storage.buckets import stores
from trainyard.storage.buckets.objects import ABSENT, Changed, ObjectStore

RENEW_SECONDS = 5.0  # chosen
TAKE_SECONDS = 30.0  # chosen: six renewals that did not come
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class _Holder:
    """The content of a lease's object: who holds it, and how often it was renewed. Nobody where `id` is empty."""

    id: str
    host: str = field(default_factory=lambda: f"{socket.gethostname()} {_boot()}")
    process: int = field(default_factory=os.getpid)
    started: str = field(default_factory=lambda: started(os.getpid()))
    renewed: int = 0

    @property
    def content(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def dead(self) -> bool:
        """Whether it was a process of this very machine that is no more, or one whose other lease did not move; else unknown."""
        here = self.host == _Holder("").host
        return self.owner in _dead or (here and bool(self.started) and started(self.process) != self.started)

    @property
    def owner(self) -> tuple[str, int, str]:
        """The process that holds it, which may hold others too."""
        return self.host, self.process, self.started


_dead: set[tuple[str, int, str]] = set()  # holders whom this process has watched for long enough


@contextmanager
def lease(uri: str) -> Iterator[None]:
    """See `storage.lease`: one that a killed process held is free after `TAKE_SECONDS`, on its own machine at once."""
    store, name = stores.place(uri)
    folder, _, leaf = name.rpartition("/")
    name = f"{folder}/.{leaf}.lease".lstrip("/")
    holder = _Holder(secrets.token_hex(8))
    held = _Renewal(store, name, uri, holder, _take(store, name, uri, holder))
    held.start()
    try:
        yield
    finally:
        held.release()


class _Renewal:
    """Keeps a lease while its process lives."""

    def __init__(self, store: ObjectStore, name: str, uri: str, holder: _Holder, version: str) -> None:
        self._store, self._name, self._uri = store, name, uri
        self._holder, self._version = holder, version
        self._lost = False
        self._pulse = Pulse(f"{uri}: its lease was not renewed", RENEW_SECONDS, self._renew)

    def start(self) -> None:
        """Renew from now on until released."""
        self._pulse.start()

    def _renew(self) -> None:
        """Renew once. Where another process has taken the lease, this one is told to stop (SIGTERM)."""
        try:
            self._replace(replace(self._holder, renewed=self._holder.renewed + 1))
        except Changed:
            self._lost = True
            self._pulse.stop()
            with suppress(Exception):  # who reads it may be gone
                events.emit("lease_lost", uri=self._uri, reason="this process stood still, and another one took over")
            os.kill(os.getpid(), signal.SIGTERM)

    def release(self) -> None:
        """Leave the lease to whoever wants it. Its object stays, empty of a holder: to delete it could hit another's."""
        self._pulse.stop()
        self._pulse.join()
        if not self._lost:
            try:
                self._replace(replace(self._holder, id=""))
            except (Changed, TrainyardError):
                events.emit("warning", message=f"{self._uri}: its lease was not released; it ends by itself.")

    def _replace(self, holder: _Holder) -> None:
        self._version = self._store.write(self._name, holder.content, match=self._version)
        self._holder = holder


def _take(store: ObjectStore, name: str, uri: str, holder: _Holder) -> str:
    """Return the version of the lease's object that is ours now. Raises `TransientError` where another holds it."""
    try:
        return store.write(name, holder.content, match=ABSENT)
    except Changed:
        pass
    seen, since = "", time.monotonic()
    while True:
        found = store.read(name)
        content, version = found if found else (b"", ABSENT)
        other = _parse(content)
        stands_still = version == seen and time.monotonic() - since > TAKE_SECONDS
        if other is None or not other.id or other.dead or stands_still:
            if other is not None and other.started and stands_still:
                _dead.add(other.owner)
            try:
                return store.write(name, holder.content, match=version)
            except Changed:
                seen, other = "moved", _parse((store.read(name) or (b"", ""))[0])
        if seen not in ("", version):
            who = f"process {other.process} on {other.host.split()[0]}" if other else "another process"
            raise TransientError(
                f"{uri}: {who} is writing it. Wait until it ends and run the same command again, or name another storage."
            )
        if not seen:
            seen, since = version, time.monotonic()
            events.emit("waiting", uri=uri, reason="to see whether the process that holds it still lives")
        time.sleep(_POLL_SECONDS)


def _parse(content: bytes) -> _Holder | None:
    try:
        return _Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _boot() -> str:
    """Return what tells this start of this machine, and this container's numbers of processes, from all others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
