"""The program of each pod of a gang: checks the node, then becomes the worker's supervisor.

Checks what the launcher cannot see: that the node has the pool's devices, and the image the pipeline's code.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from trainyard.runtime import step, task
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.devices import check_devices
from trainyard.steps.train.gang import supervisor
from trainyard.steps.train.peers import liveness, settings


def main() -> None:
    """Run this pod's worker; exits with the gang's exit code."""
    liveness.answer()
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps.train.gang.pods.pod", description=__doc__)
    for name in ("code", "examples", "checkpoints", "start", "output"):
        parser.add_argument(f"--{name}", required=name not in ("code", "start"), default="")
    options = vars(parser.parse_args())
    code = options.pop("code")
    with step.recorded("train", lambda: options["output"]):
        check_devices()
        text = os.environ.get(settings.RECIPE, "")
        task.check_code("train", code, documents.parse(text, Recipe, name=settings.RECIPE))
    path = Path(tempfile.mkdtemp()) / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    supervisor.supervise({"recipe": str(path), **options})


if __name__ == "__main__":
    main()
