"""The journal of a local run beside its logs, so that other terminals can watch it."""

from __future__ import annotations

import fcntl
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from trainyard.errors import ConfigurationError, TransientError
from trainyard.report import local_runs
from trainyard.report.local_runs import JOURNAL, LocalRunView
from trainyard.storage import storage
from trainyard_control.local.local_run import Listener

_HAPPENINGS = ("step_started", "step_event", "step_ended", "step_skipped")
_PASSING = ("progress", "epoch")  # events of which only the newest is of interest
_POLL_SECONDS = 0.3  # chosen: a person does not see it, a processor hardly


class Journal:
    """Passes on to `listener` what happens, and writes it down in the run's `folder`, a JSON list a line.

    The file is locked as long as the journal is open, so that readers know if the run is active: the system frees it
    when the process is killed. It is not written into a bucket, which takes no line more in a file, nor on a full disk.
    """

    def __init__(self, folder: str, listener: Listener) -> None:
        self._folder, self._listener = folder, listener
        self._stream: IO[str] | None = None

    def __enter__(self) -> Self:
        if not storage.is_bucket(self._folder):
            folder = Path(self._folder)
            new = folder / f".{JOURNAL}"
            with suppress(OSError):  # the run tells of it when it writes something that matters
                folder.mkdir(parents=True, exist_ok=True)
                self._stream = new.open("w", encoding="utf-8")
                fcntl.flock(self._stream, fcntl.LOCK_EX)
                new.rename(folder / JOURNAL)  # nobody sees it without its lock
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            if self._stream:
                self._stream.close()

    def step_started(self, step: str) -> None:
        """A step begins."""
        self._note("step_started", step)
        self._listener.step_started(step)

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        """The step wrote an event."""
        self._note("step_event", step, event)
        self._listener.step_event(step, event)

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """The step's output is there."""
        self._note("step_ended", step, seconds, reused)
        self._listener.step_ended(step, seconds, reused)

    def step_skipped(self, step: str, why: str) -> None:
        """The step is left out."""
        self._note("step_skipped", step, why)
        self._listener.step_skipped(step, why)

    def _note(self, *happening: Any) -> None:
        with suppress(OSError):
            if self._stream:
                self._stream.write(json.dumps(happening) + "\n")
                self._stream.flush()


def watch(root: str, run: LocalRunView, listener: Listener) -> LocalRunView:
    """Tell `listener` what has happened in `run`, and what happens until it ends, and return it as it is then.

    Raises `TransientError` if it was killed, `ConfigurationError` if it wrote nothing down.
    """
    path = Path(run.folder) / JOURNAL
    if not path.is_file():
        raise ConfigurationError(
            f"{run.name}: there is nothing to watch it by: its storage is a bucket, or it is of an older version. "
            f"See `trainyard runs show {run.name}`."
        )
    with path.open(encoding="utf-8") as stream:
        rest, over, first = "", False, True
        while not over:
            over = not local_runs.is_written(stream)  # asked before reading, so that the last lines are not missed
            *lines, rest = (rest + stream.read()).split("\n")
            happenings = [json.loads(line) for line in lines]
            for number, (method, *arguments) in enumerate(happenings, 1):
                passed = first and number < len(happenings) and method == "step_event"
                if method in _HAPPENINGS and not (passed and arguments[1].get("event") in _PASSING):
                    getattr(listener, method)(*arguments)
            first = False
            if not over:
                time.sleep(_POLL_SECONDS)
    ended = local_runs.view(root, run.recipe, run.name)
    if not ended.record:
        raise TransientError(f"{run.name}: was killed. Run the same command again: it resumes.")
    return ended
