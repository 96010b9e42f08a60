"""Counts what the network of a recipe's own module costs: `python -m trainyard.models.measure RECIPE FEATURES CLASSES`.

The planner runs it as a process, because it may not load TensorFlow itself. FEATURES is a JSON list; the last line of
stdout is [parameters, operations, activations, kept].
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple
from pathlib import Path

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.data.module import load_module
from trainyard.models.cost import cost
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe


def main() -> None:
    """Build the network and print what it costs."""
    recipe = documents.load(Path(sys.argv[1]), Recipe)
    features = [Feature.model_validate(feature) for feature in json.loads(sys.argv[2])]
    print(json.dumps(astuple(cost(load_module(str(recipe.module)).build_model(features, int(sys.argv[3]))))))


if __name__ == "__main__":
    main()
