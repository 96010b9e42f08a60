"""Starts and watches the process of an input worker: its output, its exit, and whether it is frozen.

The training notices a frozen worker and waits for it; only its starter can replace it. In a pod, this module is the
program, which exits as the process does; the Job then starts another pod.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from trainyard import events
from trainyard.errors import ExitCode, TransientError, failure_fields
from trainyard.process.child_process import LAST_LINES_SECONDS, describe_exit, end_with_parent, start_program
from trainyard.steps.train.peers import liveness, settings
from trainyard.steps.train.peers.channel import SILENCE_SECONDS

_LOOK_SECONDS = 0.2  # chosen: how often a pod calls `poll`
_LONGEST_LOOK = 1.0  # chosen: a longer gap between two checks means that the checker itself was paused


class InputProcess:
    """A running input worker that reports repeatedly that it serves; `poll` ends a silent one.

    options: of the program `server`. on_line: called in a thread with each other output line.
    """

    def __init__(self, options: dict[str, str], environment: dict[str, str], on_line: Callable[[str], None]) -> None:
        command = [sys.executable, "-m", "trainyard.steps.train.input.service.server"]
        command += [f"--{name}={options[name]}" for name in ("examples", "output")]
        self.frozen = False
        self._on_line = on_line
        # The first heartbeat comes after TensorFlow's import, within the start deadline.
        self._allowed_seconds = settings.start_deadline_seconds()
        self._silent_seconds, self._looked_at = 0.0, time.monotonic()
        self.program = start_program(command, environment, first=end_with_parent())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        """Return the exit code, None while it runs. Kills a process that is silent for too long and sets `frozen`."""
        now = time.monotonic()
        self._silent_seconds += min(now - self._looked_at, _LONGEST_LOOK)
        self._looked_at = now
        if self.program.poll() is None and self._silent_seconds > self._allowed_seconds:
            self.frozen = True
            self.program.kill()
        return self.program.poll()

    def describe_end(self) -> str:
        """Return its end as the rest of a sentence."""
        if self.frozen:
            return f"sent no heartbeat for {self._allowed_seconds:g} s, and was killed"
        return describe_exit(self.program.returncode)

    def join(self) -> None:
        """Wait for the last lines of a process that has ended."""
        self._reader.join(LAST_LINES_SECONDS)

    def _read(self) -> None:
        for line in self.program.stdout or ():
            if events.is_alive(events.parse(line)):
                self._silent_seconds, self._allowed_seconds = 0.0, SILENCE_SECONDS
            else:
                self._on_line(line)


def main() -> None:
    """Prepare batches until the training has ended; exits with the step's exit code."""
    liveness.answer()
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps.train.input.service.worker", description=__doc__)
    for name in ("examples", "output"):
        parser.add_argument(f"--{name}", required=True)
    options = vars(parser.parse_args())
    # Process 1 of a pod has no default handler. Its children end with it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.PREEMPTED))
    process = InputProcess(options, {**os.environ}, lambda line: events.write(line.rstrip("\n")))
    while (code := process.poll()) is None:
        time.sleep(_LOOK_SECONDS)
    process.join()
    if process.frozen:
        code = ExitCode.TRANSIENT
        number = os.environ.get(settings.WORKER_INDEX, "")
        frozen = TransientError(f"train: input worker {number} {process.describe_end()}.")
        events.emit("failed", step="train", **failure_fields(frozen))
    sys.stderr.flush()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
