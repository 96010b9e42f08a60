"""`python own_statistics.py RECIPE EXAMPLES`: moving averages of two logical CPUs after a step, and NumPy's."""

import json
import sys

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import numpy as np
import tensorflow as tf

from trainyard.data.examples import open_examples
from trainyard.spec import recipe as recipes
from trainyard.steps.train import session
from trainyard.steps.train.engines import engine
from trainyard.storage import storage

if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    path, examples = sys.argv[1:]
    trains = engine.create_engine()
    trains.join()
    folder = open_examples(str(storage.local(examples)))
    data, steps = session.prepare(recipes.load(path), folder, trains, (0.0, 1.0), "float32")
    images = next(iter(steps.distributed(data.train(0))))[0]["image"].values
    moments = [(np.mean(part, axis=(0, 1, 2)), np.var(part, axis=(0, 1, 2))) for part in images]
    (layer,) = (layer for layer in steps.model.layers if layer.name == "normal")
    steps.train(iter(steps.distributed(data.train(0))), 1, (0.0, 0.0, 0.0))
    averages = [
        [np.ravel(copy).tolist() for copy in average.value.values]
        for average in (layer.moving_mean, layer.moving_variance)
    ]
    expected = [
        0.7 * start + 0.3 * np.mean(values, axis=0)
        for start, values in zip((0, 1), np.swapaxes(moments, 0, 1), strict=True)
    ]
    print(json.dumps([averages, [[np.ravel(value).tolist()] * 2 for value in expected]]))
