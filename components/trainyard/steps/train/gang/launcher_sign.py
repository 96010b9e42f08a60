"""The launcher's sign of life, so that a gang whose run was cancelled does not train on for nobody.

Who cancels a run of Kubeflow ends its pods' processes without a word, and the gang is no pod of the run. So the launcher
renews a small file beside the checkpoints, and worker 0 ends the gang where it stays the same for longer than any
launcher takes to come back. Only the file's change counts: no two clocks are compared. Beside it lies what the
launcher alone knows of the gang's past, as it may ask the API server: how long it was queued.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainyard import events
from trainyard.pulse import Pulse
from trainyard.storage import storage

_RENEW_SECONDS = 60.0  # chosen: a small write a minute
_PATIENCE_SECONDS = 900.0  # chosen: longer than Kubeflow waits before its last retry of a launcher (600 s)


def sign(checkpoints: str) -> str:
    """Return where the sign of the gang that writes `checkpoints` is."""
    return storage.join(checkpoints, "gang", "launcher")


def note_queue(sign: str, seconds: float) -> None:
    """Leave beside `sign` how long the gang waited for worker 0: for admission, for nodes and for its image."""
    try:
        storage.write_text(f"{sign}.queue", f"{seconds:.1f}")
    except Exception as error:  # noqa: BLE001 - evidence alone: the gang trains on without it
        events.emit("warning", message=f"{sign}.queue: the time in the queue was not noted ({error}).")


def queued() -> float | None:
    """Return the seconds that `note_queue` left for this gang; None where there is no launcher, or none that knew."""
    sign = os.environ.get("TRAINYARD_LAUNCHER_SIGN", "")
    try:
        text = storage.read_text(f"{sign}.queue") if sign else None
        return float(text) if text else None
    except Exception as error:  # noqa: BLE001 - evidence alone: the model that was trained is worth more
        events.emit("warning", message=f"{sign}.queue: the time in the queue is not known ({error}).")
        return None


def forget(sign: str) -> None:
    """Nothing of `sign` and of what lies beside it is left: its gang has trained. A later gang writes its own."""
    try:
        storage.remove(sign.rpartition("/")[0])
    except Exception as error:  # noqa: BLE001 - the model is trained and committed
        events.emit("warning", message=f"{sign}: the launcher's sign of life was not removed ({error}).")


@contextmanager
def given(uri: str) -> Iterator[None]:
    """Renew the sign at `uri` while the block runs, from before its first statement on."""

    def renew() -> None:
        storage.write_text(uri, secrets.token_hex(8))

    renew()
    pulse = Pulse(f"{uri}: the launcher's sign of life was not renewed", _RENEW_SECONDS, renew)
    pulse.start()
    try:
        yield
    finally:
        pulse.stop()


class Lookout:
    """Watches the sign that TRAINYARD_LAUNCHER_SIGN names; nothing where it names none."""

    def __init__(self) -> None:
        self._uri = os.environ.get("TRAINYARD_LAUNCHER_SIGN", "")
        self._patience = float(os.environ.get("TRAINYARD_LAUNCHER_PATIENCE_SECONDS", _PATIENCE_SECONDS))
        self._sign: str | None = None
        self._changed = self._looked = time.monotonic()

    def gone(self) -> bool:
        """Whether the launcher has given no sign for too long. Call it often: it looks a few times a minute at most."""
        now = time.monotonic()
        if not self._uri or now - self._looked < min(_RENEW_SECONDS / 3, self._patience / 3):
            return False
        since, self._looked = now - self._looked, now
        try:
            found = storage.read_text(self._uri)
        except Exception as error:  # noqa: BLE001 - a storage that cannot be reached says nothing of the launcher,
            events.emit("warning", message=f"{self._uri}: the launcher's sign of life was not read ({error}).")
            self._changed += since  # whom it kept from renewing it as well
            return False
        if found != self._sign:
            self._sign, self._changed = found, now
        return now - self._changed > self._patience
