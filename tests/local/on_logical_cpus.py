"""`python on_logical_cpus.py COUNT evaluate OPTIONS`: the step on so many logical CPUs.

`COUNT parity EXAMPLES MODEL EXPORTED` prints, by format, how far the exported files are from the trained model.
"""

import json
import sys
from pathlib import Path

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import tensorflow as tf

from trainyard.data import trained
from trainyard.data.examples import open_examples
from trainyard.data.trained import Replicas
from trainyard.runtime import step
from trainyard.steps.evaluate.run import run
from trainyard.steps.export import parity
from trainyard.steps.export.formats import FORMATS, keras_predictor


def figures(examples: str, model: str, exported: str) -> dict[str, list[float]]:
    """Return the accuracy, its difference, and the largest difference of an output, by format."""
    folder = open_examples(examples)

    def load() -> parity.Compared:
        files = [FORMATS[name].open(name, Path(exported, FORMATS[name].path), folder.document) for name in FORMATS]
        reference = keras_predictor(trained.load(model), folder.document)
        return parity.Compared(files, reference, reference)

    measured = [file.export for file in parity.measure(Replicas(load(), load), folder)]
    return {each.format: [each.accuracy, each.accuracy_difference, each.max_abs_difference] for each in measured}


if __name__ == "__main__":
    count, command, *arguments = sys.argv[1:]
    cpus = [tf.config.LogicalDeviceConfiguration()] * int(count)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    assert len(tf.config.list_logical_devices("CPU")) == int(count)
    if command == "evaluate":
        step.main(run, arguments)
    print(json.dumps(figures(*arguments)))
