"""The framework that trains: TensorFlow, or JAX on the chips for which TensorFlow has no build.

A process has one of them, chosen before it imports Keras, whose layers then compute in it. Everything around the
steps is the same for both: input, checkpoints, schedule, gang, evidence, and a model.keras that evaluation and export
open with TensorFlow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

import numpy as np

from trainyard.contract.artifacts.train import Device
from trainyard.errors import ConfigurationError
from trainyard.spec.hardware.pools import ENGINE_VARIABLE, EngineName
from trainyard.spec.recipe import Recipe
from trainyard.spec.training.train import Train

if TYPE_CHECKING:
    import keras

    from trainyard.steps.train.engines.objective import Objective
    from trainyard.steps.train.engines.teacher import TeacherModel


class Steps(Protocol):
    """Model, optimizer and the loop's own variables on the devices of the gang.

    Variables change only inside `train`, so between two calls they are the state after a whole number of steps. All
    workers of a gang make the same calls in the same order.

    loss_sum: grows by each batch's weighted mean loss. scale: what the schedule's learning rate is multiplied by.
    """

    model: keras.Model
    teacher: TeacherModel | None
    loss_sum: float
    scale: float

    @property
    def step(self) -> int:
        """The steps taken since the beginning of the training."""

    def phase(self, step: int) -> int:
        """Return the number of the phase that the step number `step` is in; its first call of `train` compiles."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes that each replica sends and receives the sum of, each step."""

    def distributed(self, dataset: Any) -> Iterable[Any]:
        """Return the elements of a data set of `Input`, one a local replica, as `train` and `evaluate` take them."""

    def train(self, batches: Any, count: int, worker_values: Sequence[float]) -> list[float]:
        """Take `count` steps on the next of `batches`, and return the mean of all workers' `worker_values`.

        They are all in one phase. Every worker must ask for the same count. Raises `MemoryError` if a device has too
        little.
        """

    def evaluate(self, batches: Any, count: int, totals: np.ndarray) -> np.ndarray:
        """Return `totals`, float32 (4,), plus loss, metric, top-5 hits and weight over the next `count` batches."""

    def mean(self, worker_values: Sequence[float]) -> list[float]:
        """Return the mean over the workers of their `worker_values`."""

    def all_reduce(self, count: int) -> None:
        """Do nothing but sum a vector of the gradients' size over the replicas, `count` times."""

    def not_finite(self) -> str | None:
        """Return the name of the first variable that holds NaN or infinity, or None."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every variable's value by a name that is stable over processes, and the same in both engines.

        Later steps do not change it.
        """

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set every variable, those of `model` too, to its value in `arrays`."""


class Engine(Protocol):
    """The devices of the gang, as one framework drives them."""

    replicas: int

    def check(self) -> None:
        """Raise `InfrastructureError` if the expected devices are not listed. It starts no device."""

    def join(self) -> None:
        """Start the devices and meet the gang's other workers, without a deadline.

        Raises `InfrastructureError` if the expected devices cannot be started.
        """

    def leave(self) -> None:
        """Let the others of the gang end: call it after the last step, on every worker."""

    def devices(self) -> list[str]:
        """Return the names of this process's devices that train, such as CPU:0."""

    def hardware(self) -> str:
        """Return what one of the devices that train is, such as NVIDIA L4, or CPU."""

    def precision(self, train: Train) -> str:
        """Return float32, bfloat16 or float16: the recipe's, or the fastest that the device does well."""

    def probe(self) -> list[Device]:
        """Return, and emit, what each device of this process computes and copies in a second."""

    def versions(self) -> dict[str, str]:
        """Return the versions of what drives the devices."""

    def steps(
        self,
        build: Callable[[], keras.Model],
        recipe: Recipe,
        steps_per_epoch: int,
        objective: Objective,
        precision: str,
        load_teacher: Callable[[], TeacherModel | None],
    ) -> Steps:
        """Return the steps of the model that `build` returns, with its first weights, nothing traced yet."""

    def is_peer_loss(self, error: Exception) -> bool:
        """Whether `error`, raised in training, is what the loss of another worker raises."""


def engine_name() -> EngineName:
    """Return the engine that TRAINYARD_ENGINE names, by default tensorflow.

    Raises `ConfigurationError` if there is no such engine, or JAX is not installed.
    """
    name = os.environ.get(ENGINE_VARIABLE) or "tensorflow"
    if name == "jax" and find_spec("jax") is None:
        raise ConfigurationError(f"{ENGINE_VARIABLE}: JAX is not installed here. Name the image jax, or leave it out.")
    if name not in get_args(EngineName):
        raise ConfigurationError(f"{ENGINE_VARIABLE}: no engine '{name}'. Known: {', '.join(get_args(EngineName))}.")
    return cast(EngineName, name)


def prepare() -> list[str]:
    """Have Keras compute in the chosen engine if it is not imported yet; return the modules to import for that."""
    common = ["trainyard.data", "tensorflow", "keras", "trainyard.steps.train.session"]
    if engine_name() == "tensorflow":
        return [*common, "trainyard.steps.train.engines.tensorflow.tensorflow_engine"]
    os.environ["KERAS_BACKEND"] = "jax"
    return [*common, "trainyard.steps.train.engines.jax.jax_engine"]


def create_engine() -> Engine:
    """Return the chosen engine, nothing of it started."""
    if engine_name() == "jax":
        from trainyard.steps.train.engines.jax.jax_engine import JaxEngine

        return JaxEngine()
    from trainyard.steps.train.engines.tensorflow.tensorflow_engine import TensorFlowEngine

    return TensorFlowEngine()
