"""The cost of an example in the recipe's network, without TensorFlow for named networks."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trainyard.models
from trainyard.contract.artifacts.preprocess import Feature
from trainyard.contract.epochs import TRAINING_PASSES, backbone_share, operations, pixel_share
from trainyard.errors import ConfigurationError
from trainyard.graph import remedy
from trainyard.process.child_process import ProgramFailed, program_output
from trainyard.spec import code, plain_yaml
from trainyard.spec.networks import TREES
from trainyard.spec.recipe import Recipe
from trainyard.storage import cache, storage
from trainyard_control.planning import python_packages
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.hardware import ExampleCost

_COUNTS = "parameters, operations, activations, kept, head"  # fields of a cached cost
_CACHE = Path("~/.cache/trainyard/costs").expanduser()


def from_recipe(recipe: Recipe, data: DataSummary) -> ExampleCost:
    """Return the cost of an example, averaged over the epochs, with the teacher's forward pass.

    A custom network and the teacher are built once in another process, and cached. Raises as `require_network`.
    """
    require_network(recipe)
    network, share = _network(recipe, data), backbone_share(recipe)
    side = min(data.image[:2]) if data.image else 1
    operated = operations(network.flops_per_example, share) * pixel_share(recipe, side)
    network = replace(network, flops_per_example=operated, backbone_share=share)
    if recipe.train.teacher is None:
        return network
    teacher = _teacher(recipe.train.teacher.model)
    return replace(
        network,
        flops_per_example=network.flops_per_example + operations(teacher.flops_per_example, 0),
        activations_per_example=network.activations_per_example + teacher.activations_per_example / TRAINING_PASSES,
    )


def require_network(recipe: Recipe) -> None:
    """Raise `ConfigurationError` for a custom training program and for trees: no operations can be counted."""
    if recipe.model.name == TREES:
        raise ConfigurationError(
            f"{recipe.name}: model.name: boosted_trees has no operations to count, so neither speed nor time nor cost "
            "is predicted. It trains on one core of a cpu pool. Run it, and read its seconds in the report."
        )
    if recipe.train.command is not None:
        raise ConfigurationError(
            f"{recipe.name}: train.command: the operations of a custom training program are unknown, so no "
            "speed is predicted. Run it, and read its examples a second in the report."
        )


def _network(recipe: Recipe, data: DataSummary) -> ExampleCost:
    if recipe.model.name is None:
        return _own(recipe, data)
    if data.image is None:
        return _table(recipe, data)
    if recipe.model.width == recipe.model.depth == 1 and recipe.model.blocks is None:
        return named(recipe.model.name, data.image, data.classes)
    return _scaled(recipe, data.image, data.classes)


def named(name: str, image: tuple[int, int, int], classes: int) -> ExampleCost:
    """Return the cost of a named image network, interpolated as a power of the pixels between measured sizes."""
    profile = _profiles()[name]
    channels = profile["channels"].get(str(image[2])) or profile["channels"]["3"]
    rows = sorted((int(side) ** 2, row) for side, row in channels.items())
    pixels = image[0] * image[1]
    # The pair of measured sizes around it, or the two nearest.
    above = next((i for i, (size, _) in enumerate(rows) if size >= pixels), len(rows) - 1)
    (small, low), (large, high) = rows[max(0, above - 1)], rows[max(1, above)]
    share = math.log(pixels / small) / math.log(large / small)
    if not 0 <= share <= 1:  # outside: operations per pixel and weights of the nearest size
        nearest, row = (large, high) if share > 1 else (small, low)
        low = [row[0], *(value * pixels / nearest for value in row[1:])]
        share, high = 0.0, low
    parameters, flops, activations, saved = (a ** (1 - share) * b**share for a, b in zip(low, high, strict=True))
    more = profile["head"] * (classes - profile["classes"])
    outputs = activations + classes - profile["classes"]
    head = (profile["head"] + 1) * classes
    return ExampleCost(round(parameters + more), flops + 2 * TRAINING_PASSES * more, outputs, saved, head)


@functools.cache
def _profiles() -> Any:
    text = (Path(trainyard.models.__path__[0]) / "costs" / "profiles.json").read_text(encoding="utf-8")
    return json.loads(text)


def _table(recipe: Recipe, data: DataSummary) -> ExampleCost:
    """Estimate the cost of mlp and wide_deep: their matrices, embeddings, and one number per input and output."""
    sizes = [feature.vocabulary_size or 0 for feature in data.features]
    # The widths of trainyard.models.mlp.
    widths = [
        min(32, max(1, round(1.6 * size**0.56))) if size else math.prod(feature.shape)
        for size, feature in zip(sizes, data.features, strict=True)
    ]
    layers = [sum(widths), *recipe.model.hidden_units, data.classes]
    matrices = sum(a * b for a, b in itertools.pairwise(layers))
    tables = sum(size * width for size, width in zip(sizes, widths, strict=True))
    wide = sum(sizes) * data.classes if recipe.model.name == "wide_deep" else 0
    numbers = float(sum(layers))
    parameters = matrices + sum(layers[1:]) + tables + wide
    return ExampleCost(parameters, 2.0 * TRAINING_PASSES * matrices, 2 * numbers, numbers)


def _own(recipe: Recipe, data: DataSummary) -> ExampleCost:
    """Return the cost of build_model's network, from the cache or by building it with TensorFlow."""
    files = f"{code.digest(code.module_files(recipe))}\0{recipe.packages}"
    features = json.dumps([feature.model_dump() for feature in data.features])
    key = hashlib.sha256(f"{_COUNTS}\0{features}\0{data.classes}\0{files}".encode()).hexdigest()[:24]

    def built() -> str:
        if not data.features:
            raise ConfigurationError(
                f"{recipe.name}: the network of {recipe.module} takes features that only preprocessed data tell. "
                "Run the preprocess step once, then plan."
            )
        here = python_packages.chosen(recipe)
        return _built(here, features, data.classes, f"{recipe.module}: build_model failed")

    return _remembered(key, "the recipe's own network", built)


def _scaled(recipe: Recipe, image: tuple[int, int, int], classes: int) -> ExampleCost:
    """Return the cost of a named network with other blocks, width or depth, by building it once."""
    features = json.dumps([Feature(name="image", dtype="float32", shape=image).model_dump()])
    source = Path(trainyard.models.__path__[0]) / f"{recipe.model.network_module.rpartition('.')[2]}.py"
    model = recipe.model.model_copy(update={"weights": None, "freeze": "none"})  # they do not change the cost
    described = f"{_COUNTS}\0{model.model_dump_json()}\0{features}\0{classes}\0".encode() + source.read_bytes()
    key = hashlib.sha256(described).hexdigest()[:24]
    blocks = f"blocks {' '.join(model.blocks)}, " if model.blocks else ""
    description = f"{model.name} of {blocks}width {model.width:g} and depth {model.depth:g}"
    failure = f"model: {description} cannot be built"
    return _remembered(key, description, lambda: _built(recipe, features, classes, failure))


def _built(recipe: Recipe, features: str, classes: int, failure: str) -> str:
    with cache.temporary_folder() as folder:
        file = folder / "recipe.yaml"
        file.write_text(plain_yaml.dump(recipe.model_dump(mode="json")), encoding="utf-8")
        return _measured([str(file), features, str(classes)], failure)


def _teacher(version: str) -> ExampleCost:
    digest = storage.require(version, remedy("push")).digest
    key = hashlib.sha256(f"{_COUNTS}\0{digest}".encode()).hexdigest()[:24]
    return _remembered(key, "the teacher", lambda: _measured([version], f"train.teacher: {version}: cannot be loaded"))


def _remembered(key: str, description: str, measure: Callable[[], str]) -> ExampleCost:
    counts = storage.read_text(str(_CACHE / f"{key}.json"))
    if counts is None:
        print(f"· building {description} once, to count what it costs", file=sys.stderr)
        counts = measure()
        storage.write_text(str(_CACHE / f"{key}.json"), counts)
    return ExampleCost(*json.loads(counts))


def _measured(arguments: list[str], failure: str) -> str:
    command = [sys.executable, "-m", "trainyard.models.costs.measure", *arguments]
    try:
        return program_output(command).strip().splitlines()[-1]
    except ProgramFailed as error:
        raise ConfigurationError(f"{failure} ({error}). Correct it, then plan.") from error
