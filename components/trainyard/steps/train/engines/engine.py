"""The framework that trains: TensorFlow, or JAX on chips for which TensorFlow has no build and where a pool says so.

A process has one engine, chosen before it imports Keras, whose layers then use it. All else is shared: input,
checkpoints, schedule, gang, records, and a model.keras that evaluation and export open with TensorFlow.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias, assert_never, cast, get_args

from trainyard.errors import ConfigurationError
from trainyard.spec.hardware.pools import ENGINE_VARIABLE, EngineName

if TYPE_CHECKING:
    from trainyard.steps.train.engines.jax_engine import JaxEngine
    from trainyard.steps.train.engines.tensorflow_engine import TensorFlowEngine

Engine: TypeAlias = "TensorFlowEngine | JaxEngine"
"""The devices of the gang, as one framework drives them."""


def engine_name() -> EngineName:
    """Return the engine that TRAINYARD_ENGINE names, by default tensorflow.

    Raises `ConfigurationError` if the engine is unknown, or JAX is not installed.
    """
    name = os.environ.get(ENGINE_VARIABLE) or "tensorflow"
    if name == "jax" and find_spec("jax") is None:
        raise ConfigurationError(
            f"{ENGINE_VARIABLE}: JAX is not installed here. Name the image jax or jax-gpu, or leave it out."
        )
    if name not in get_args(EngineName):
        raise ConfigurationError(f"{ENGINE_VARIABLE}: no engine '{name}'. Known: {', '.join(get_args(EngineName))}.")
    return cast(EngineName, name)


def prepare() -> list[str]:
    """Select the engine as Keras' backend unless Keras is imported; return the modules to import for it."""
    common = ["trainyard.data", "tensorflow", "keras", "trainyard.steps.train.session"]
    match engine_name():
        case "tensorflow":
            return [*common, "trainyard.steps.train.engines.tensorflow_engine"]
        case "jax":
            os.environ["KERAS_BACKEND"] = "jax"
            return [*common, "trainyard.steps.train.engines.jax_engine"]
        case name:
            assert_never(name)


def create_engine() -> Engine:
    """Return the chosen engine, not started."""
    match engine_name():
        case "jax":
            from trainyard.steps.train.engines.jax_engine import JaxEngine

            return JaxEngine()
        case "tensorflow":
            from trainyard.steps.train.engines.tensorflow_engine import TensorFlowEngine

            return TensorFlowEngine()
        case name:
            assert_never(name)
