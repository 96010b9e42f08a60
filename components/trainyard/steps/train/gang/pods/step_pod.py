"""The program of the one pod of a step on a list of pools: executes the step as its own pod on Kubeflow would."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from trainyard.errors import InfrastructureError
from trainyard.graph import entry_point
from trainyard.runtime import step, task
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.peers import liveness, settings
from trainyard.steps.train.peers.launcher_heartbeat import LauncherMonitor


def main() -> None:
    """Execute the step; exits with its exit code."""
    liveness.answer()
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps.train.gang.pods.step_pod", description=__doc__)
    for name in ("step", "code", "arguments", "output"):
        parser.add_argument(f"--{name}", required=True)
    options: dict[str, str] = vars(parser.parse_args())
    name, output = options["step"], options["output"]

    def execute() -> None:
        threading.Thread(target=_end_without_launcher, args=(name,), daemon=True).start()
        text = os.environ.get(settings.RECIPE)
        arguments: dict[str, Any] = json.loads(options["arguments"])
        recipe = documents.parse(text, Recipe, name=settings.RECIPE) if text else None
        task.check_code(name, options["code"], recipe)
        run: Callable[..., None] = importlib.import_module(entry_point(name)).run
        if recipe:
            step.execute(run, output, recipe=recipe, **arguments)
        else:
            run(output=output, **arguments)

    step.run_as_program(name, output, execute)


def _end_without_launcher(name: str) -> None:
    launcher = LauncherMonitor()
    launcher.start()
    while not launcher.is_lost:
        time.sleep(1)
    step.end_with(InfrastructureError(f"{name}: its launcher is gone: it has sent no heartbeat. Submit the run again."))


if __name__ == "__main__":
    main()
