"""The model of a run: a named network or the recipe's build_model, with an output for its task."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import keras

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import TARGET_INVERSE, TARGET_UNIT
from trainyard.data import probabilities
from trainyard.data.examples import ExampleFolder
from trainyard.errors import ConfigurationError
from trainyard.models.build import build
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import code, packages
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.engines.objective import Moments
from trainyard.steps.train.engines.target_mean import predicting_means

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def network(recipe: Recipe, document: Examples, targets: Moments, precision: str) -> keras.Model:
    """Return the recipe's model with initial weights, equal for equal arguments.

    targets: mean and standard deviation of the training targets; a regression's last layer scales by them, so that the
    network learns numbers near 1. They are on the scale of train.target, which `deployable` inverts. Raises
    `ConfigurationError` if build_model breaks the convention.
    """
    with precision_policy(precision):
        model = _build_model(recipe, document)
        if document.task == "regression":
            model = in_target_units(model, targets)
    return model


def in_target_units(model: keras.Model, targets: Moments) -> keras.Model:
    """Return `model`, which gives standardized targets, with a last layer that gives them in their units."""
    mean, deviation = targets
    scaled = keras.layers.Rescaling(deviation, offset=mean, dtype="float32", name=TARGET_UNIT)(model.output)
    return keras.Model(model.input, scaled, name=model.name)


@contextmanager
def precision_policy(name: str) -> Iterator[None]:
    """Build the layers of the block with precision `name`; their weights stay float32."""
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[name])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)


def deployable(model: keras.Model, recipe: Recipe, folder: ExampleFolder, targets: Moments) -> keras.Model:
    """Return `model` with the same weights, computing in float32 and answering in the units of the targets.

    folder: the examples that it learned from.
    """
    if any(layer.dtype_policy.name != "float32" for layer in model.layers):
        weights = model.get_weights()
        keras.utils.clear_session(free_memory=False)
        model = network(recipe, folder.document, targets, "float32")
        model.set_weights(weights)
    if recipe.train.target.mean:
        model = predicting_means(model, recipe.train.target.scale, folder)
    return in_original_units(model, recipe.train.target.scale)


def in_original_units(model: keras.Model, scale: str) -> keras.Model:
    """Return `model`, which gives targets on `scale`, with last layers that give them in their original units."""
    if scale == "none":
        return model
    exponential, offset = TARGET_INVERSE
    answers = keras.layers.Activation("exponential", dtype="float32", name=exponential)(model.output)
    if scale == "log1p":
        answers = keras.layers.Rescaling(1.0, offset=-1.0, dtype="float32", name=offset)(answers)
    return keras.Model(model.input, answers, name=model.name)


def limit_batch_norm_momentum(model: keras.Model, steps: int) -> None:
    """Limit the momentum of every BatchNormalization for a training that calls it `steps` times.

    A moving average with momentum m covers 1 / (1 - m) calls. Networks made for ImageNet have 0.99 or 0.999: after a
    few hundred steps their statistics would still be the initial ones, and evaluation no better than chance. The
    average is limited to a tenth of the training (chosen).
    """
    limit = 1 - 10 / max(steps, 20)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = min(layer.momentum, limit)


def _build_model(recipe: Recipe, document: Examples) -> keras.Model:
    if recipe.model.name is not None or recipe.module is None:
        model = build(recipe.model, document.features, document.outputs, recipe.seed)
        train = recipe.train
        steps = train.epochs * math.ceil(document.splits["train"].examples / train.batch_size)
        limit_batch_norm_momentum(model, steps * train.accumulation_steps)
        return model
    build_model = getattr(load_module(recipe.module, code.files(recipe), packages.wheels(recipe)), "build_model", None)
    if build_model is None:
        raise ConfigurationError(
            f"{recipe.module}: no build_model, and the recipe names no model. "
            "Write build_model(features, outputs) -> keras.Model, or set model.name."
        )
    keras.utils.set_random_seed(recipe.seed)
    custom: keras.Model = build_model(list(document.features), document.outputs)
    _check(recipe.module, custom, document)
    if custom.output.dtype in ("float32", keras.config.dtype_policy().compute_dtype):
        return custom
    # The last layer may compute in float16, which is too coarse for losses and predictions.
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(custom.output)
    return keras.Model(custom.input, logits, name=custom.name)


def _check(module: str, model: keras.Model, document: Examples) -> None:
    names = sorted(feature.name for feature in document.features)
    if not isinstance(model, keras.Model) or not isinstance(model.input, dict):
        raise ConfigurationError(
            f"{module}: build_model returned {type(model).__name__}. "
            f"Return a functional keras.Model whose inputs are a dict of {', '.join(names)}."
        )
    outputs = keras.tree.flatten(model.output)
    if sorted(model.input) != names or [list(output.shape) for output in outputs] != [[None, document.outputs]]:
        shapes = ", ".join(str(tuple(output.shape)) for output in outputs)
        count = f" with {len(outputs)} outputs" if len(outputs) != 1 else ""
        raise ConfigurationError(
            f"{module}: build_model's model{count} maps {', '.join(sorted(model.input))} to {shapes}. "
            f"It must map {', '.join(names)} to one output, (None, {document.outputs})."
        )
    if not hasattr(model.output, "shape"):
        raise ConfigurationError(
            f"{module}: build_model's model gives its output in a {type(model.output).__name__}. "
            "Return keras.Model(inputs, output) with the output itself."
        )
    if fault := probabilities.fault(model, document):
        raise ConfigurationError(f"{module}: build_model's model {fault}.")
