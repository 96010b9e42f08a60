"""The optimizer of a recipe and its learning rate schedule."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from trainyard.spec.train import Train


class RateSchedule(LearningRateSchedule):
    """Linear warm-up to the peak, then half a cosine to zero or a constant peak, times `scale`.

    Source of the cosine: I. Loshchilov, F. Hutter, SGDR, 2017, arXiv:1608.03983, equation 5 with one period; of the
    warm-up: P. Goyal et al., 2017, arXiv:1706.02677, section 2.2.
    """

    def __init__(
        self,
        train: Train,
        steps_per_epoch: int,
        epochs: int | None = None,
        factor: float = 1.0,
        scale: keras.Variable | None = None,
    ) -> None:
        """Schedule `epochs` (by default all) with `factor` times the peak learning rate."""
        self.peak_learning_rate = factor * peak_learning_rate(train)
        self.total = (epochs or train.epochs) * steps_per_epoch
        self.warmup = min(round(train.warmup_epochs * steps_per_epoch), self.total - 1)
        self.cosine = train.schedule == "cosine"
        # A variable, so that lowering the rate after a divergence needs no new graph.
        self.scale = scale if scale is not None else keras.Variable(1.0, trainable=False, name="learning_rate_scale")

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        """Return the float32 learning rate of update `step`, counted from 0."""
        step = ops.cast(step, "float32")
        warming = (step + 1) / max(1, self.warmup)
        done = (step - self.warmup) / max(1, self.total - self.warmup)
        decayed = 0.5 * (1 + ops.cos(math.pi * done)) if self.cosine else ops.ones_like(step)
        return self.peak_learning_rate * self.scale * ops.where(step < self.warmup, warming, decayed)

    def get_config(self) -> dict[str, Any]:
        """Return an empty configuration: the optimizer is never saved with the model."""
        return {}


def peak_learning_rate(train: Train) -> float:
    """Return the learning rate after the warm-up, scaled with the batch if the recipe names a reference batch.

    Source: P. Goyal et al., Accurate, Large Minibatch SGD, 2017, arXiv:1706.02677, section 2.1 (linear scaling rule).
    """
    settings = train.optimizer
    return settings.learning_rate * train.batch_size / (settings.learning_rate_batch or train.batch_size)


def optimizer(
    train: Train, schedule: RateSchedule, float16: bool, gradients_summed: bool = False
) -> keras.optimizers.Optimizer:
    """Return the recipe's optimizer, not built; with `float16` it scales the loss and skips overflowing steps.

    gradients_summed: the gradients are already summed over the replicas. Otherwise the optimizer would sum them after
    it clipped each replica's own (keras 3.15, optimizer.py), unlike a single worker.

    Biases and normalization weights do not decay (source: T. He et al., Bag of Tricks, arXiv:1812.01187, section 3.1).
    """
    settings = train.optimizer
    options: dict[str, Any] = {"weight_decay": settings.weight_decay or None, "global_clipnorm": settings.clip_norm}
    if settings.name == "sgd":
        result: keras.optimizers.Optimizer = keras.optimizers.SGD(schedule, momentum=settings.momentum, **options)
    elif settings.name == "lars":
        result = LARS(schedule, momentum=settings.momentum, decay=settings.weight_decay, clip_norm=settings.clip_norm)
    elif settings.name == "lamb":
        result = keras.optimizers.Lamb(schedule, **options)
    else:
        result = keras.optimizers.AdamW(schedule, **{**options, "weight_decay": settings.weight_decay})
    if gradients_summed:
        result._all_reduce_sum_gradients = list
    result.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return keras.optimizers.LossScaleOptimizer(result) if float16 else result


TRUST = 0.001
"""Maximum change of a layer's norm in one step at learning rate 1. Source: You et al. 2017, section 5."""


class LARS(keras.optimizers.Optimizer):
    """Momentum SGD whose rate is scaled for each weight by trust * |w| / (|gradient| + decay * |w|).

    Weights named by `exclude_from_weight_decay` neither decay nor are scaled. Source: Y. You, I. Gitman, B. Ginsburg,
    Large Batch Training of Convolutional Networks, 2017, arXiv:1708.03888, algorithm 1.
    """

    def __init__(
        self, learning_rate: LearningRateSchedule, momentum: float, decay: float, clip_norm: float | None
    ) -> None:
        super().__init__(learning_rate=learning_rate, name="lars", global_clipnorm=clip_norm)
        self.momentum = momentum
        self.decay = decay

    def build(self, variables: list[keras.Variable]) -> None:
        """Create a momentum for each variable."""
        if not self.built:
            super().build(variables)
            self.momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(
        self, gradient: keras.KerasTensor, variable: keras.Variable, learning_rate: keras.KerasTensor
    ) -> None:
        """Update `variable` and its momentum by one step along `gradient`."""
        rate = ops.cast(learning_rate, variable.dtype)
        step = ops.cast(gradient, variable.dtype)
        if self._use_weight_decay(variable):
            weight, slope = _norm(variable), _norm(step)
            divisor = slope + self.decay * weight
            # The rate stays unscaled if the weight or the gradient is zero.
            scale = ops.where((weight > 0) & (slope > 0), TRUST * weight / ops.where(divisor > 0, divisor, 1.0), 1.0)
            step = scale * (step + self.decay * variable)
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, self.momentum * momentum + rate * step)
        self.assign_sub(variable, momentum)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration that Keras requires of every optimizer."""
        return {**super().get_config(), "momentum": self.momentum, "decay": self.decay}


def _norm(values: keras.KerasTensor | keras.Variable) -> keras.KerasTensor:
    return ops.sqrt(ops.sum(ops.square(values)))
