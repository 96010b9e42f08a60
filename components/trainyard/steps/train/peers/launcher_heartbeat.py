"""The launcher's heartbeat: a gang whose run was cancelled must not continue to train.

Cancelling a Kubeflow run kills the processes of its pods, and the gang's pods do not belong to the run. So the launcher
renews a small file beside the checkpoints, and worker 0 ends the gang if the file stays unchanged longer than a
launcher takes to come back. Only changes count; no clocks are compared. Beside it lies the gang's queueing time, which
only the launcher can ask the API server for.

It is not a lease: a retried launcher attaches to the gang while its predecessor may still beat, workers on other
machines read it, which a file lock does not allow, and readers never take it over.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainyard import events
from trainyard.contract.gang import ATTEMPTS, Attempt
from trainyard.heartbeat import Heartbeat
from trainyard.steps.train.peers import settings
from trainyard.storage import storage

_BEAT_SECONDS = 60.0  # chosen: a small write a minute
_PATIENCE_SECONDS = 900.0  # chosen: longer than Kubeflow waits before its last retry of a launcher (600 s)


def heartbeat_uri(checkpoints: str) -> str:
    """Return the URI of the heartbeat for the gang that writes `checkpoints`."""
    return storage.join(checkpoints, "gang", "launcher")


def write_queue_seconds(uri: str, seconds: float) -> None:
    """Write the time that the gang waited for worker 0: for admission, nodes and image."""
    with events.warned(f"{uri}.queue: the time in the queue was not noted"):  # the gang trains on without it
        storage.write_text(f"{uri}.queue", f"{seconds:.1f}")


def read_queue_seconds() -> float | None:
    """Return the seconds that `write_queue_seconds` wrote for this gang, None if unknown."""
    uri = os.environ.get(settings.LAUNCHER_HEARTBEAT, "")
    with events.warned(f"{uri}.queue: the time in the queue is not known"):  # the trained model is worth more
        text = storage.read_text(f"{uri}.queue") if uri else None
        return float(text) if text else None
    return None


def write_attempts(uri: str, attempts: dict[str, list[Attempt]]) -> None:
    """Write the attempts by gang name, for a launcher that replaces this one."""
    storage.write_text(f"{uri}.attempts", ATTEMPTS.dump_json(attempts).decode())


def read_attempts(uri: str) -> dict[str, list[Attempt]]:
    """Return the attempts that `write_attempts` wrote; none if they are missing or another version wrote them."""
    with events.warned(f"{uri}.attempts: the attempts on the pools are not known"):  # a pool is tried once more
        text = storage.read_text(f"{uri}.attempts")
        return ATTEMPTS.validate_json(text) if text else {}
    return {}


def remove(uri: str) -> None:
    """Remove the heartbeat and its companions after the training. A later gang writes its own."""
    with events.warned(f"{uri}: the launcher's heartbeat was not removed"):  # the model is committed
        storage.remove(uri.rpartition("/")[0])


@contextmanager
def beating(uri: str) -> Iterator[None]:
    """Renew the file at `uri` before the block and while it runs."""

    def renew() -> None:
        storage.write_text(uri, secrets.token_hex(8))

    renew()
    heartbeat = Heartbeat(f"{uri}: the launcher's heartbeat was not renewed", _BEAT_SECONDS, renew)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


class LauncherMonitor:
    """Watches the heartbeat that TRAINYARD_LAUNCHER_SIGN names, if it is set.

    It reads in a thread: a storage may take minutes to answer, and nobody waits for it. is_lost: True if the heartbeat
    has stopped for too long.
    """

    is_lost = False

    def __init__(self) -> None:
        self._uri = os.environ.get(settings.LAUNCHER_HEARTBEAT, "")
        self._patience = float(os.environ.get("TRAINYARD_LAUNCHER_PATIENCE_SECONDS", _PATIENCE_SECONDS))
        self._content: str | None = None
        self._changed_at = self._read_at = time.monotonic()

    def start(self) -> None:
        """Start to watch, a few times a minute."""
        if self._uri:
            warning = f"{self._uri}: the launcher's heartbeat was not read"
            Heartbeat(warning, min(_BEAT_SECONDS / 3, self._patience / 3), self.read).start()

    def read(self) -> None:
        """Read the heartbeat, and decide whether the launcher is lost."""
        now = time.monotonic()
        since, self._read_at = now - self._read_at, now
        try:
            content = storage.read_text(self._uri)
        except Exception as error:  # noqa: BLE001 - a storage that cannot be reached says nothing of the launcher,
            events.warn(f"{self._uri}: the launcher's heartbeat was not read ({error}).")
            self._changed_at += since  # the outage may have kept the launcher from renewing the file
            return
        if content != self._content:
            self._content, self._changed_at = content, now
        self.is_lost = now - self._changed_at > self._patience
