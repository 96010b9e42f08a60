"""The training process of one worker, as its supervisor starts it."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trainyard import events
from trainyard.heartbeat import Heartbeat
from trainyard.steps.train.loop.watchdog import call_seconds

_HEARTBEAT_SECONDS = 5.0  # chosen


@dataclass(frozen=True)
class WorkerStart:
    """What the supervisors have agreed upon: all TensorFlow addresses, the worker's number, the restarts so far."""

    worker: int
    addresses: list[str]
    options: dict[str, str]
    past: str


def main(start: WorkerStart) -> None:
    """Train as worker `start.worker`; ends the process.

    The chief leaves the committed output and exits with 0. The others exit with the table's code if they fail, and
    otherwise wait to be stopped: TensorFlow takes a worker that leaves early for a lost one.
    """
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Heartbeat("alive", min(_HEARTBEAT_SECONDS, call_seconds() / 4), events.emit_alive).start()
    cluster = {"cluster": {"worker": start.addresses}, "task": {"type": "worker", "index": start.worker}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)

    from trainyard.runtime import step
    from trainyard.spec import recipe
    from trainyard.steps.train.process import train_in_process

    options = {**start.options, "past": start.past}
    if start.worker == 0:
        step.main(train_in_process, [f"--{name}={value}" for name, value in options.items()], unfetched={"examples"})
    code = 0
    try:
        with step.recorded("train", lambda: options["output"]), tempfile.TemporaryDirectory() as discarded:
            loaded = recipe.load(options["recipe"])
            train_in_process(
                loaded, options["examples"], options["checkpoints"], Path(discarded), start=options["start"]
            )
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                signal.pause()
    except SystemExit as end:
        code = int(end.code or 0)
    sys.stderr.flush()
    os._exit(code)
