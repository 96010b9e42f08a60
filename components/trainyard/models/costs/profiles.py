"""Writes models/costs/profiles.json, the cost of every named image network at its sizes: `make profiles`.

The planner reads the file because it must not load TensorFlow. Table networks need none: their cost follows from the
recipe.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import keras

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.models.build import build
from trainyard.models.costs.cost import cost
from trainyard.spec.model import ModelConfig
from trainyard.spec.networks import MINIMUM_SIDE

FILE = Path(__file__).with_name("profiles.json")
CLASSES = 10
SIDES = (8, 12, 16, 24, 28, 32, 48, 64, 96, 128, 160, 224, 299, 384)
LARGEST = {"cnn_small": 128}
MORE_SIDES = {"vit_small": (31, 63, 127)}
"""The last sides before a jump in cost, where the patch size increases."""


def main() -> None:
    """Measure every network and write the file."""
    profiles = {name: profile(name, (1, 3) if name == "cnn_small" else (3,)) for name in MINIMUM_SIDE}
    FILE.write_text(json.dumps(profiles, indent=1) + "\n", encoding="utf-8")


def profile(name: str, channels: tuple[int, ...]) -> dict[str, Any]:
    """Return classes and inputs of the last layer and, by channels and side, the result of `measure`."""
    sides = sorted((*SIDES, *MORE_SIDES.get(name, ())))
    sides = [side for side in sides if MINIMUM_SIDE[name] <= side <= LARGEST.get(name, 384)]
    built = {count: {side: measure(name, side, count) for side in sides} for count in channels}
    keras.utils.clear_session()
    head = _build(name, sides[0], channels[-1]).layers[-1].weights[0]
    return {
        "classes": CLASSES,
        "head": head.shape[0],
        "channels": {str(count): {str(side): row for side, row in rows.items()} for count, rows in built.items()},
    }


def measure(name: str, side: int, channels: int) -> list[float]:
    """Return [parameters, operations, activations, kept] of one network for square images and CLASSES classes."""
    return list(astuple(cost(_build(name, side, channels))))


def _build(name: str, side: int, channels: int) -> keras.Model:
    image = Feature(name="image", dtype="float32", shape=(side, side, channels))
    return build(ModelConfig.model_validate({"name": name}), [image], CLASSES, seed=1)


if __name__ == "__main__":
    main()
