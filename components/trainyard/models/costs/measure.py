"""Prints the cost of a network: `python -m trainyard.models.costs.measure RECIPE FEATURES CLASSES`, or only VERSION.

The network is that of the recipe, or of a pushed version. The planner runs this as a process because it must not load
TensorFlow. FEATURES is a JSON list; the last line of stdout is [parameters, operations, activations, kept, head], where
head is the number of parameters of the last layer.

A sweep calls `time_recipe` and `time_outputs` in a forked process; each writes an event for each model.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import astuple
from pathlib import Path

import keras
import tensorflow as tf

from trainyard import events
from trainyard.contract.artifacts.preprocess import Feature
from trainyard.data import trained
from trainyard.errors import ConfigurationError
from trainyard.models.build import build
from trainyard.models.costs.cost import cost
from trainyard.models.costs.speed import fastest, model_latency
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import code, documents, packages
from trainyard.spec.recipe import Recipe


def main() -> None:
    """Build the network and print its cost."""
    built = network(*sys.argv[1:])
    head = sum(math.prod(weight.shape) for weight in built.layers[-1].weights)
    print(json.dumps([*astuple(cost(built)), head]))


def network(file: str, features: str = "", classes: str = "") -> keras.Model:
    """Return the untrained network of the recipe in `file`, or that of the pushed version `file`."""
    if not features:
        return trained.load_pushed(file)
    recipe = documents.load(Path(file), Recipe)
    inputs = [Feature.model_validate(feature) for feature in json.loads(features)]
    if recipe.model.name is not None:
        return build(recipe.model, inputs, int(classes), recipe.seed)
    network: keras.Model = load_module(str(recipe.module), code.files(recipe), packages.wheels(recipe)).build_model(
        inputs, int(classes)
    )
    return network


def time_recipe(file: str, features: str, classes: str) -> None:
    """Write the shortest latency of the recipe's untrained network in milliseconds.

    features, classes: as in `network`. Raises `ConfigurationError` if it cannot be built.
    """
    tf.config.set_visible_devices([], "GPU")
    events.emit("latency", milliseconds=round(fastest(network(file, features, classes)), 4))


def time_outputs(*outputs: str) -> None:
    """Write the latency in milliseconds of each model that train saved, null for one with its own code."""
    tf.config.set_visible_devices([], "GPU")
    for output in outputs:
        try:
            events.emit("latency", milliseconds=model_latency(trained.load(output)).p50)
        except ConfigurationError:  # such code is not run here
            events.emit("latency", milliseconds=None)


if __name__ == "__main__":
    main()
