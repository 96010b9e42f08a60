"""What a sweep has measured of its trials' answers, in a process that it forks: it does not load TensorFlow itself.

Each function writes an event for each model.
"""

from __future__ import annotations

import tensorflow as tf

from trainyard import events
from trainyard.data import trained
from trainyard.errors import ConfigurationError
from trainyard.models.costs import measure
from trainyard.models.costs.latency import fastest, of_model


def of_recipe(file: str, features: str, classes: str) -> None:
    """Write the milliseconds that the network of the recipe in `file` takes at its fastest, untrained.

    features, classes: as `measure.network` has them. Raises `ConfigurationError` if it cannot be built.
    """
    tf.config.set_visible_devices([], "GPU")
    events.emit("latency", milliseconds=round(fastest(measure.network(file, features, classes)), 4))


def of_outputs(*outputs: str) -> None:
    """Write the milliseconds of each model that train left, null for one with code of its own."""
    tf.config.set_visible_devices([], "GPU")
    for output in outputs:
        try:
            events.emit("latency", milliseconds=of_model(trained.load(output)).p50)
        except ConfigurationError:  # such code is not run here
            events.emit("latency", milliseconds=None)
