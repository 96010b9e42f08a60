"""Counts what a network costs: `python -m trainyard.models.costs.measure RECIPE FEATURES CLASSES`, or VERSION alone.

It is that of the recipe's own module, or of a pushed version. The planner runs it as a process, because it may not load
TensorFlow itself. FEATURES is a JSON list; the last line of stdout is [parameters, operations, activations, kept].
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple
from pathlib import Path

import keras

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.data import trained
from trainyard.data.module import load_module
from trainyard.models.costs.cost import cost
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe


def main() -> None:
    """Build the network and print what it costs."""
    print(json.dumps(astuple(cost(_network(*sys.argv[1:])))))


def _network(file: str, features: str = "", classes: str = "") -> keras.Model:
    if not features:
        return trained.load_pushed(file)
    recipe = documents.load(Path(file), Recipe)
    taken = [Feature.model_validate(feature) for feature in json.loads(features)]
    network: keras.Model = load_module(str(recipe.module)).build_model(taken, int(classes))
    return network


if __name__ == "__main__":
    main()
