"""Passes the log of one worker on, line by line, while it is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from kubernetes import client
from urllib3.exceptions import HTTPError

from trainyard import events
from trainyard.kubernetes.client import Cluster
from trainyard.kubernetes.diagnosis import CONTAINER

_AGAIN_SECONDS = 1.0  # chosen: pause before a log that broke off is opened again
_LAST_LINES_SECONDS = 5.0  # chosen: how long the end of a run waits for the last lines


class WorkerLog:
    """Writes to stderr what the followed pod logs: each line once, however often the stream breaks off."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pod = ""
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def follow(self, pod: str) -> None:
        """Go on with `pod`, from its first line, unless it is the one that is followed."""
        if pod != self._pod:
            self.close()
            self._pod, self._ended = pod, threading.Event()
            self._thread = threading.Thread(target=self._copy, args=(pod, self._ended), daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Let the last lines of a pod that has ended come, for a few seconds."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_LAST_LINES_SECONDS)

    def _copy(self, pod: str, ended: threading.Event) -> None:
        last, opened = "", time.monotonic()
        while True:
            since = round(time.monotonic() - opened) + 2 if last else None
            opened = time.monotonic()
            try:
                for stamp, line in _lines(self._cluster.follow_log(pod, CONTAINER, since)):
                    if stamp > last:
                        last, opened = stamp, time.monotonic()
                        events.write(line)
            except client.ApiException as error:
                if error.status == 404:
                    return
            except (HTTPError, OSError):
                pass
            except Exception as error:  # noqa: BLE001 - whatever it is: the log goes on
                with suppress(Exception):
                    events.emit("warning", message=f"{pod}: its log broke off ({error}); it is opened again.")
            if ended.wait(_AGAIN_SECONDS):
                return


def _lines(pieces: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Yield (time, text) of every complete line. The kubelet writes times of equal width, so they compare as text."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            stamp, _, text = line.decode(errors="replace").partition(" ")
            yield stamp, text
