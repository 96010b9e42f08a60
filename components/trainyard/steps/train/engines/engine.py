"""The framework that trains: TensorFlow, or JAX on chips for which TensorFlow has no build.

A process has one engine, chosen before it imports Keras, whose layers then use it. All else is shared: input,
checkpoints, schedule, gang, records, and a model.keras that evaluation and export open with TensorFlow.
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
    """Model, optimizer and the loop's variables on the devices of the gang.

    Variables change only inside `train`, so between calls they hold the state after a whole number of steps. All
    workers of a gang make the same calls in the same order.

    loss_sum: accumulates each batch's weighted mean loss. scale: factor of the scheduled learning rate.
    """

    model: keras.Model
    teacher: TeacherModel | None
    loss_sum: float
    scale: float

    @property
    def step(self) -> int:
        """The number of steps taken since the start of the training."""

    def phase(self, step: int) -> int:
        """Return the number of the phase that step `step` is in; its first call of `train` compiles."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that each replica all-reduces in a step."""

    def distributed(self, dataset: Any) -> Iterable[Any]:
        """Return the elements of a data set of `Input`, one a local replica, as `train` and `evaluate` take them."""

    def train(self, batches: Any, count: int, worker_values: Sequence[float]) -> list[float]:
        """Take `count` steps on the next of `batches` and return the means of all workers' `worker_values`.

        All steps are in one phase, and every worker passes the same count. Raises `MemoryError` if a device is too
        small.
        """

    def evaluate(self, batches: Any, count: int, totals: np.ndarray) -> np.ndarray:
        """Return `totals`, float32 (4,), plus loss, metric, top-5 hits and weight over the next `count` batches."""

    def mean(self, worker_values: Sequence[float]) -> list[float]:
        """Return the means of `worker_values` over the workers."""

    def all_reduce(self, count: int) -> None:
        """All-reduce a vector of the gradients' size `count` times."""

    def not_finite(self) -> str | None:
        """Return the name of the first variable with NaN or infinity, or None."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every variable's value by a name that is stable across processes and engines.

        Later steps do not change the arrays.
        """

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set every variable, including those of `model`, to its value in `arrays`."""


class Engine(Protocol):
    """The devices of the gang, as one framework drives them."""

    replicas: int

    def check(self) -> None:
        """Raise `InfrastructureError` if expected devices are not listed. Starts no device."""

    def join(self) -> None:
        """Start the devices and join the gang's other workers, without a deadline.

        Raises `InfrastructureError` if the expected devices cannot be started.
        """

    def leave(self) -> None:
        """Let the other workers end. Call it after the last step, on every worker."""

    def devices(self) -> list[str]:
        """Return the names of this process's training devices, such as CPU:0."""

    def hardware(self) -> str:
        """Return the product name of a training device, such as NVIDIA L4, or CPU."""

    def precision(self, train: Train) -> str:
        """Return float32, bfloat16 or float16: the recipe's precision, or the device's fastest suitable one."""

    def probe(self) -> list[Device]:
        """Return and emit the measured compute and memory speed of each device of this process."""

    def versions(self) -> dict[str, str]:
        """Return the versions of framework, libraries and driver."""

    def steps(
        self,
        build: Callable[[], keras.Model],
        recipe: Recipe,
        steps_per_epoch: int,
        objective: Objective,
        precision: str,
        load_teacher: Callable[[], TeacherModel | None],
    ) -> Steps:
        """Return the steps of the model that `build` returns, with initial weights, before anything is traced."""

    def is_peer_loss(self, error: Exception) -> bool:
        """Return True if `error`, raised in training, means that another worker is lost."""


def engine_name() -> EngineName:
    """Return the engine that TRAINYARD_ENGINE names, by default tensorflow.

    Raises `ConfigurationError` if the engine is unknown, or JAX is not installed.
    """
    name = os.environ.get(ENGINE_VARIABLE) or "tensorflow"
    if name == "jax" and find_spec("jax") is None:
        raise ConfigurationError(f"{ENGINE_VARIABLE}: JAX is not installed here. Name the image jax, or leave it out.")
    if name not in get_args(EngineName):
        raise ConfigurationError(f"{ENGINE_VARIABLE}: no engine '{name}'. Known: {', '.join(get_args(EngineName))}.")
    return cast(EngineName, name)


def prepare() -> list[str]:
    """Select the engine as Keras' backend unless Keras is imported; return the modules to import for it."""
    common = ["trainyard.data", "tensorflow", "keras", "trainyard.steps.train.session"]
    if engine_name() == "tensorflow":
        return [*common, "trainyard.steps.train.engines.tensorflow.tensorflow_engine"]
    os.environ["KERAS_BACKEND"] = "jax"
    return [*common, "trainyard.steps.train.engines.jax.jax_engine"]


def create_engine() -> Engine:
    """Return the chosen engine, not started."""
    if engine_name() == "jax":
        from trainyard.steps.train.engines.jax.jax_engine import JaxEngine

        return JaxEngine()
    from trainyard.steps.train.engines.tensorflow.tensorflow_engine import TensorFlowEngine

    return TensorFlowEngine()
