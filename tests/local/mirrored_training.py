"""`python mirrored_training.py DEVICES RECIPE EXAMPLES FOLDER`: trains on so many logical CPUs of one process."""

import sys

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import tensorflow as tf

from trainyard.spec import recipe
from trainyard.steps.train import session
from trainyard.storage import storage

if __name__ == "__main__":
    devices, path, examples, folder = sys.argv[1:]
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * int(devices)
    )
    with storage.stage(f"{folder}/output", producer="trainyard.train") as output:
        session.train(recipe.load(path), examples, f"{folder}/checkpoints", "test", output).write(output)
