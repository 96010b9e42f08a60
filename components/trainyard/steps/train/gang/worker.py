"""The training process of one worker, as its supervisor starts it."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from trainyard.pulse import Pulse
from trainyard.steps.train.loop.watchdog import call_seconds

ALIVE = '{"event": "alive"'
"""How the lines begin by which the supervisor knows that this process is not frozen."""
_ALIVE_SECONDS = 5.0  # chosen


@dataclass(frozen=True)
class Start:
    """What the supervisors have agreed upon: every worker's TensorFlow address, which one this is, and the past."""

    worker: int
    addresses: list[str]
    options: dict[str, str]
    past: str


def main(start: Start, output: connection.Connection) -> None:
    """Train as worker `start.worker`, all that is written going into the pipe `output`; ends the process.

    The chief leaves the committed output and exits with 0. The others exit with the table's code where they fail, and
    otherwise wait to be stopped: TensorFlow takes a worker that leaves early for a lost one.
    """
    os.dup2(output.fileno(), sys.stdout.fileno())
    os.dup2(output.fileno(), sys.stderr.fileno())
    output.close()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_supervisor, daemon=True).start()
    Pulse("alive", min(_ALIVE_SECONDS, call_seconds() / 4), _say_alive).start()
    cluster = {"cluster": {"worker": start.addresses}, "task": {"type": "worker", "index": start.worker}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)

    from trainyard.runtime import step
    from trainyard.steps.train.run import join

    options = {**start.options, "past": start.past}
    if start.worker == 0:
        step.main(join, [f"--{name}={value}" for name, value in options.items()], unfetched={"examples"})
    _follow(options)


def _follow(options: dict[str, str]) -> None:
    from trainyard.runtime import step
    from trainyard.spec import recipe
    from trainyard.steps.train.run import join

    code = 0
    try:
        with step.recorded("train", lambda: options["output"]), tempfile.TemporaryDirectory() as nowhere:
            examples, start = options["examples"], options.get("start", "")
            join(recipe.load(options["recipe"]), examples, options["checkpoints"], Path(nowhere), start=start)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                signal.pause()
    except SystemExit as end:
        code = int(end.code or 0)
    sys.stderr.flush()
    os._exit(code)


def _say_alive() -> None:
    # In one piece, so that it never cuts a line of another thread in two.
    os.write(sys.stderr.fileno(), f"{ALIVE}}}\n".encode())


def _die_with_supervisor() -> None:
    """Kill this process where its supervisor is dead: nobody would restart it, and its peers must not wait for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)
