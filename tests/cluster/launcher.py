"""Launches one gang as a train step would: a process of its own, ended by signals, with the table's exit codes.

python launcher.py '{"run": …, "command": […], "workers": …, "pool": {…}, …}' [own pod]
"""

import json
import os
import signal
import sys

from trainyard import events
from trainyard.errors import TrainyardError
from trainyard.process.signals import Terminated, handle_sigterm
from trainyard.spec.environment import Volume
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.train.gang.pods.job import Gang
from trainyard.steps.train.gang.pods.launch import launch
from trainyard.steps.train.gang.pods.pods import launchers_cluster


def gang(plan: dict) -> Gang:
    plan = dict(plan)
    volume = plan.pop("volume", None)
    pool = Pool.model_validate(plan.pop("pool"))
    return Gang(
        **plan | {"command": tuple(plan["command"]), "volume": Volume(**volume) if volume else None},
        pool=pool,
        platform="gke",
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, handle_sigterm)
    code = 0
    try:
        plan, own = json.loads(sys.argv[1]), "".join(sys.argv[2:])
        launch(gang(plan), launchers_cluster(), own, on_start=lambda seconds: events.emit("queued", seconds=seconds))
    except TrainyardError as error:
        events.emit("failed", code=int(error.exit_code), error=type(error).__name__, message=error)
        code = int(error.exit_code)
    except Terminated as stopped:
        code = stopped.code
    sys.stderr.flush()
    os._exit(code)
