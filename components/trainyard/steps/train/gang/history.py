"""The gang's past beside its launcher's heartbeat, so that it survives the loss of worker 0's node."""

from __future__ import annotations

import json
import os
import threading
import time

from trainyard import events
from trainyard.steps.train.loop.goodput import Past
from trainyard.steps.train.peers import settings
from trainyard.storage import storage

_LOST = "worker 0 was lost, and its pod was started again"


def read(token: str) -> Past:
    """Return the past of the gang with `token`, with the loss of worker 0 as its last break; a new one without any.

    Machines' clocks are compared for the time in between: it is evidence, and nothing is decided by it.
    """
    uri = _uri()
    try:
        kept = storage.read_json(uri) if uri else None
        if not kept or kept["token"] != token:
            return Past()
        past = Past.model_validate(kept["past"])
        away = max(0.0, time.time() - kept["time"])
        past.started = time.monotonic() - kept["elapsed"] - away
        if past.began_at is not None:
            past.last_break = (_LOST, kept["step"], time.monotonic())
        return past
    except Exception as error:  # noqa: BLE001 - evidence alone: the gang trains without it
        events.emit("warning", message=f"{uri}: the restarts before this pod are not known ({error}).")
        return Past()


def keep(token: str, past: Past, step: int) -> None:
    """Write `past` and the newest `step` in a new thread, because the caller answers the workers meanwhile."""
    if uri := _uri():
        elapsed = time.monotonic() - past.started
        kept = {"token": token, "past": past.model_dump(), "step": step, "elapsed": elapsed, "time": time.time()}
        threading.Thread(target=_write, args=(uri, json.dumps(kept)), daemon=True).start()


def _write(uri: str, text: str) -> None:
    try:
        storage.write_text(uri, text)
    except Exception as error:  # noqa: BLE001 - as above
        events.emit("warning", message=f"{uri}: the gang's restarts were not noted ({error}).")


def _uri() -> str:
    heartbeat = os.environ.get(settings.LAUNCHER_HEARTBEAT, "")
    return f"{heartbeat}.past" if heartbeat else ""
