"""The parts of the training steps that both engines share, including the names of variables in a checkpoint.

Either engine can resume a checkpoint of the other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from trainyard.spec.training.train import Train
from trainyard.steps.train.engines.objective import Objective, Tensor, top5
from trainyard.steps.train.engines.phases import Phases
from trainyard.steps.train.engines.resizing import Resizing
from trainyard.steps.train.engines.teacher import TeacherModel

STEP = "loop/step"
LOSS_SUM = "loop/loss_sum"
SCALE = "loop/learning_rate_scale"


@dataclass(eq=False)
class SharedSteps(ABC):
    """Base of an engine's steps; the subclass adds the compiled work and the members of `engine.Steps`."""

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
    def gradient_bytes(self) -> int:
        """Bytes of gradients that each replica all-reduces in a step."""
        return sum(4 * math.prod(map(int, variable.shape)) for variable in self.phases.at(self.step).variables)

    def phase(self, step: int) -> int:
        """Return the number of the phase of step `step`; each image size counts as one."""
        return self.phases.number(step) + self.resizing.number(step)

    def enter_phase(self) -> int:
        """Make the phase of the next step current for what is traced now; return its number."""
        self.phases.enter(self.step)
        self.resizing.enter(self.step)
        return self.phase(self.step)

    def named_variables(self) -> dict[str, Any]:
        """Return the variables of the model and of the phases' optimizers by their names in a checkpoint."""
        names = {f"model/{i:04d}/{v.path}": v for i, v in enumerate(self.model.variables)}
        variables = [variable for optimizer in self.phases.optimizers for variable in optimizer.variables]
        return names | {f"optimizer/{i:04d}/{v.path}": v for i, v in enumerate(variables)} | {SCALE: self.phases.scale}

    def eval_sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return float32 (4,): loss, metric, top-5 hits and weight, each summed over the examples by `weights`."""
        losses = self.objective.eval_loss(outputs, labels)
        metrics = self.objective.metric(outputs, labels)
        hits = top5(self.objective, outputs, labels)
        return ops.stack([ops.sum(weights * values) for values in (losses, metrics, hits)] + [ops.sum(weights)])
