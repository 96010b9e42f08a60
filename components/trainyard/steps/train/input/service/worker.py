"""An input worker as a program, as a pod runs it: its process, which is ended if it is frozen.

It ends as that process does, and then who started it starts another one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

from trainyard import events
from trainyard.errors import ExitCode, TransientError
from trainyard.steps.train.input.service.input_process import LOOK_SECONDS, InputProcess
from trainyard.steps.train.peers import settings


def main() -> None:
    """Prepare batches until the training has ended; ends the process with the table's exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps.train.input.service.worker", description=__doc__)
    for name in ("examples", "output"):
        parser.add_argument(f"--{name}", required=True)
    options = vars(parser.parse_args())
    # Process 1 of a pod has no default for it. What it started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.PREEMPTED))
    process = InputProcess(options, {**os.environ}, lambda line: events.write(line.rstrip("\n")))
    while (code := process.poll()) is None:
        time.sleep(LOOK_SECONDS)
    process.join()
    if process.frozen:
        code = ExitCode.TRANSIENT
        number = os.environ.get(settings.WORKER_INDEX, "")
        message = f"train: input worker {number} {process.describe_end()}."
        events.emit("failed", step="train", code=int(code), error=TransientError.__name__, message=message)
    sys.stderr.flush()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
