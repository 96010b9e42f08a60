"""Layer-wise adaptive rate scaling: momentum SGD with a learning rate a layer, for batches of thousands of examples."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

TRUST = 0.001
"""The share of a layer's norm that one step may change at a learning rate of 1. Source: You et al. 2017, section 5."""


class LARS(keras.optimizers.Optimizer):
    """Momentum SGD whose rate is scaled in each weight by trust * |w| / (|gradient| + decay * |w|).

    What `exclude_from_weight_decay` names neither decays nor is scaled.
    Source: Y. You, I. Gitman, B. Ginsburg, Large Batch Training of Convolutional Networks, 2017, arXiv:1708.03888,
    algorithm 1.
    """

    def __init__(
        self, learning_rate: LearningRateSchedule, momentum: float, decay: float, clip_norm: float | None
    ) -> None:
        super().__init__(learning_rate=learning_rate, name="lars", global_clipnorm=clip_norm)
        self.momentum = momentum
        self.decay = decay

    def build(self, variables: list[keras.Variable]) -> None:
        """Make one momentum a variable."""
        if not self.built:
            super().build(variables)
            self.momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(
        self, gradient: keras.KerasTensor, variable: keras.Variable, learning_rate: keras.KerasTensor
    ) -> None:
        """Change `variable` and its momentum by one step along `gradient`."""
        rate = ops.cast(learning_rate, variable.dtype)
        step = ops.cast(gradient, variable.dtype)
        if self._use_weight_decay(variable):
            weight, slope = _norm(variable), _norm(step)
            divisor = slope + self.decay * weight
            # A weight or a gradient of zero has no direction to scale by: the rate stays as it is.
            scale = ops.where((weight > 0) & (slope > 0), TRUST * weight / ops.where(divisor > 0, divisor, 1.0), 1.0)
            step = scale * (step + self.decay * variable)
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, self.momentum * momentum + rate * step)
        self.assign_sub(variable, momentum)

    def get_config(self) -> dict[str, Any]:
        """Return what Keras asks of every optimizer."""
        return {**super().get_config(), "momentum": self.momentum, "decay": self.decay}


def _norm(values: keras.KerasTensor | keras.Variable) -> keras.KerasTensor:
    return ops.sqrt(ops.sum(ops.square(values)))
