"""Export: the trained model as files for servers and devices, each compared with the model it came from."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from trainyard import events
from trainyard.contract import version
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.artifacts.train import Training
from trainyard.errors import ConfigurationError
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage


def run(recipe: Recipe, examples: str, model: str, output: Path, thresholds: str = "") -> None:
    """Write every format of the recipe into `output`, with exports.json: parity, latency, size and verdict of each.

    `examples` and `model` are the committed outputs of preprocess and train, `thresholds` the `Evaluation.decisions` of
    the model, '' if the recipe has no aim for them. A file that differs too much is listed, and makes
    the verdict `refused`. Raises `DataError`, `ConfigurationError`.
    """
    if recipe.train.result == "folder":
        _copy(model, output)
        return
    if recipe.threshold is not None and not thresholds:
        raise ConfigurationError(
            "export: thresholds is missing, and the recipe has a threshold. Give the thresholds of evaluation.json as "
            "{class: value}."
        )
    has_computed = "tensorflow" in sys.modules  # maybe
    from trainyard.data.examples import reading  # TensorFlow: seconds
    from trainyard.steps.export import served
    from trainyard.steps.export.trained_model import export_trained

    if not has_computed:
        served.fork_server()
    with reading(examples):
        export_trained(recipe, examples, model, output, json.loads(thresholds or "{}"))


def _copy(model: str, output: Path) -> None:
    """Export the folder that a program of the recipe's own left as it is, beside what the program says of it."""
    shutil.copytree(storage.join(model, version.FOLDER), output / version.FOLDER)
    (output / version.METRICS).write_text(json.dumps(Training.read(model).metrics), encoding="utf-8")
    Exports(exports=[], gate=Verdict(verdict="blessed", thresholds=[])).write(output)
    events.emit("exported", formats=version.FOLDER)
