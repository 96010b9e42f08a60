"""Counts what a network costs: `python -m trainyard.models.costs.measure RECIPE FEATURES CLASSES`, or VERSION alone.

It is that of the recipe, or of a pushed version. The planner runs it as a process, because it may not load
TensorFlow itself. FEATURES is a JSON list; the last line of stdout is [parameters, operations, activations, kept,
head], the last the parameters of the last layer.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import astuple
from pathlib import Path

import keras

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.data import trained
from trainyard.data.module import load_module
from trainyard.models.build import build
from trainyard.models.costs.cost import cost
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe


def main() -> None:
    """Build the network and print what it costs."""
    built = network(*sys.argv[1:])
    head = sum(math.prod(weight.shape) for weight in built.layers[-1].weights)
    print(json.dumps([*astuple(cost(built)), head]))


def network(file: str, features: str = "", classes: str = "") -> keras.Model:
    """Return the network of the recipe in `file`, untrained, or that of the pushed version `file`."""
    if not features:
        return trained.load_pushed(file)
    recipe = documents.load(Path(file), Recipe)
    inputs = [Feature.model_validate(feature) for feature in json.loads(features)]
    if recipe.model.name is not None:
        return build(recipe.model, inputs, int(classes), recipe.seed)
    own: keras.Model = load_module(str(recipe.module)).build_model(inputs, int(classes))
    return own


if __name__ == "__main__":
    main()
