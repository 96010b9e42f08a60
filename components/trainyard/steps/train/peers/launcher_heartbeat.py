"""The launcher's heartbeat, so that a gang whose run was cancelled does not train on for nobody.

Who cancels a run of Kubeflow ends its pods' processes without a word, and the gang is no pod of the run. So the
launcher renews a small file beside the checkpoints, and worker 0 ends the gang if it stays the same for longer than any
launcher takes to come back. Only the file's change counts: no two clocks are compared. Beside it lies what the launcher
alone knows of the gang, as it may ask the API server: how long it was queued.

It is no lease of the storage: it keeps nobody out. A retried launcher attaches to the gang while its predecessor may
still beat, workers on other machines read it, which a lock on a file does not allow, and who reads it never takes it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainyard import events
from trainyard.heartbeat import Heartbeat
from trainyard.steps.train.peers import settings
from trainyard.storage import storage

_BEAT_SECONDS = 60.0  # chosen: a small write a minute
_PATIENCE_SECONDS = 900.0  # chosen: longer than Kubeflow waits before its last retry of a launcher (600 s)


def heartbeat_uri(checkpoints: str) -> str:
    """Return where the heartbeat of the gang that writes `checkpoints` is."""
    return storage.join(checkpoints, "gang", "launcher")


def write_queue_seconds(uri: str, seconds: float) -> None:
    """Leave beside the heartbeat how long the gang waited for worker 0: for admission, for nodes and for its image."""
    try:
        storage.write_text(f"{uri}.queue", f"{seconds:.1f}")
    except Exception as error:  # noqa: BLE001 - evidence alone: the gang trains on without it
        events.emit("warning", message=f"{uri}.queue: the time in the queue was not noted ({error}).")


def read_queue_seconds() -> float | None:
    """Return what `write_queue_seconds` left for this gang, or None if there is no launcher, or none that knew."""
    uri = os.environ.get(settings.LAUNCHER_HEARTBEAT, "")
    try:
        text = storage.read_text(f"{uri}.queue") if uri else None
        return float(text) if text else None
    except Exception as error:  # noqa: BLE001 - evidence alone: the model that was trained is worth more
        events.emit("warning", message=f"{uri}.queue: the time in the queue is not known ({error}).")
        return None


def remove(uri: str) -> None:
    """Remove the heartbeat and what lies beside it, once the gang has trained. A later gang writes its own."""
    try:
        storage.remove(uri.rpartition("/")[0])
    except Exception as error:  # noqa: BLE001 - the model is trained and committed
        events.emit("warning", message=f"{uri}: the launcher's sign of life was not removed ({error}).")


@contextmanager
def beating(uri: str) -> Iterator[None]:
    """Renew the file at `uri` while the block runs, for the first time before it begins."""

    def renew() -> None:
        storage.write_text(uri, secrets.token_hex(8))

    renew()
    heartbeat = Heartbeat(f"{uri}: the launcher's sign of life was not renewed", _BEAT_SECONDS, renew)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


class LauncherMonitor:
    """Watches the heartbeat that TRAINYARD_LAUNCHER_SIGN names; nothing if it is not set."""

    def __init__(self) -> None:
        self._uri = os.environ.get(settings.LAUNCHER_HEARTBEAT, "")
        self._patience = float(os.environ.get("TRAINYARD_LAUNCHER_PATIENCE_SECONDS", _PATIENCE_SECONDS))
        self._content: str | None = None
        self._changed_at = self._read_at = time.monotonic()

    def is_lost(self) -> bool:
        """Whether the heartbeat has stopped for too long. Call it often: it reads a few times a minute at most."""
        now = time.monotonic()
        if not self._uri or now - self._read_at < min(_BEAT_SECONDS / 3, self._patience / 3):
            return False
        since, self._read_at = now - self._read_at, now
        try:
            content = storage.read_text(self._uri)
        except Exception as error:  # noqa: BLE001 - a storage that cannot be reached says nothing of the launcher,
            events.emit("warning", message=f"{self._uri}: the launcher's sign of life was not read ({error}).")
            self._changed_at += since  # which it kept from renewing the file as well
            return False
        if content != self._content:
            self._content, self._changed_at = content, now
        return now - self._changed_at > self._patience
