"""The training steps of an engine: what they do, and the parts that both engines share.

Either engine can resume a checkpoint of the other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from trainyard.spec.train import Train
from trainyard.steps.train.engines.objective import Objective
from trainyard.steps.train.engines.optimizer import Phases
from trainyard.steps.train.engines.pushed_models import TeacherModel
from trainyard.steps.train.engines.resizing import Resizing

STEP = "loop/step"
LOSS_SUM = "loop/loss_sum"
SCALE = "loop/learning_rate_scale"


@dataclass(eq=False)
class Steps(ABC):
    """Model, optimizer and the loop's variables on the devices of the gang; an engine adds the compiled work.

    Variables change only inside `train`, so between calls they hold the state after a whole number of steps. All
    workers of a gang make the same calls in the same order.
    """

    model: keras.Model
    phases: Phases
    resizing: Resizing
    objective: Objective
    teacher: TeacherModel | None
    settings: Train

    @property
    @abstractmethod
    def step(self) -> int:
        """The number of steps taken since the start of the training."""

    @property
    @abstractmethod
    def loss_sum(self) -> float:
        """The accumulated weighted mean loss of each batch."""

    @loss_sum.setter
    @abstractmethod
    def loss_sum(self, value: float) -> None: ...

    @property
    @abstractmethod
    def scale(self) -> float:
        """The factor of the scheduled learning rate."""

    @scale.setter
    @abstractmethod
    def scale(self, value: float) -> None: ...

    @property
    @abstractmethod
    def learning_rate(self) -> float:
        """The learning rate of the next step."""

    @property
    def all_reduced_seconds(self) -> float | None:
        """The seconds that this process has spent in all-reduces, None if the engine does not tell."""
        return None

    @abstractmethod
    def distributed(self, dataset: Any) -> Iterable[Any]:
        """Return the elements of a data set of `Input`, one a local replica, as `train` and `evaluate` take them."""

    @abstractmethod
    def train(self, batches: Any, count: int, worker_values: Sequence[float]) -> list[float]:
        """Take `count` steps on the next of `batches` and return the means of all workers' `worker_values`.

        All steps are in one phase, and every worker passes the same count. Raises `MemoryError` if a device is too
        small.
        """

    @abstractmethod
    def evaluate(self, batches: Any, count: int, totals: np.ndarray) -> np.ndarray:
        """Return `totals`, float32 (n,), plus `objective.eval_sums` over the next `count` batches."""

    @abstractmethod
    def mean(self, worker_values: Sequence[float]) -> list[float]:
        """Return the means of `worker_values` over the workers."""

    @abstractmethod
    def all_reduce(self, count: int) -> None:
        """All-reduce a vector of the gradients' size `count` times."""

    @abstractmethod
    def not_finite(self) -> str | None:
        """Return the name of the first variable with NaN or infinity, or None."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return every variable's value by a name that is stable across processes and engines.

        Later steps do not change the arrays.
        """

    @abstractmethod
    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set every variable, including those of `model`, to its value in `arrays`."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that each replica all-reduces in a step."""
        return sum(4 * math.prod(map(int, variable.shape)) for variable in self.phases.at(self.step).variables)

    def phase(self, step: int) -> int:
        """Return the number of the phase of step `step`, whose first call of `train` compiles.

        Each image size counts as one.
        """
        return self.phases.number(step) + self.resizing.number(step)

    def enter_phase(self) -> int:
        """Make the phase of the next step current for what is traced now; return its number."""
        step = self.step
        self.phases.enter(step)
        self.resizing.enter(step)
        return self.phase(step)

    def named_variables(self) -> dict[str, Any]:
        """Return the variables of the model and of the phases' optimizers by their names in a checkpoint."""
        names = {f"model/{i:04d}/{v.path}": v for i, v in enumerate(self.model.variables)}
        variables = [variable for optimizer in self.phases.optimizers for variable in optimizer.variables]
        return names | {f"optimizer/{i:04d}/{v.path}": v for i, v in enumerate(variables)} | {SCALE: self.phases.scale}
