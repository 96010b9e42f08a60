"""The optimizer of a recipe, its learning rate schedule, and the phases of a training.

Each phase trains a set of weights with its own optimizer and learning rate. The phase follows from the step, so a
checkpoint does not store it. Its optimizer does not know frozen weights, so no weight decay or momentum reaches them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.models.weights import HEAD
from trainyard.spec.model import UNTIL
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Train

TRUST = 0.001
"""Maximum change of a layer's norm in one step at learning rate 1. Source: You et al. 2017, section 5."""


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


@dataclass(frozen=True)
class Phase:
    """The steps from `first_step` to the next phase. variables: trained; frozen: names of the other layers.

    schedule: learning rate by the phase's own steps.
    """

    first_step: int
    frozen: frozenset[str]
    schedule: RateSchedule
    optimizer: keras.optimizers.Optimizer
    variables: list[keras.Variable]


class Phases:
    """The phases of a training; `current` is the active one. scale: factor of all learning rates."""

    def __init__(self, phases: Sequence[Phase], scale: keras.Variable) -> None:
        self.scale = scale
        self.optimizers = [phase.optimizer for phase in phases]
        self.variables = max((phase.variables for phase in phases), key=len)
        self.current = phases[0]
        self._phases = phases

    def enter(self, step: int) -> None:
        """Make the phase of step `step` current; the model's layers read it while they are traced."""
        self.current = self.at(step)

    def at(self, step: int) -> Phase:
        """Return the phase of step `step`."""
        return self._phases[self.number(step)]

    def number(self, step: int) -> int:
        """Return the number of the phase of step `step`, from 0."""
        return sum(step >= phase.first_step for phase in self._phases) - 1


def phases(
    model: keras.Model, recipe: Recipe, steps_per_epoch: int, make: Callable[[RateSchedule], keras.optimizers.Optimizer]
) -> Phases:
    """Return the phases of `recipe`, with optimizers from `make`, built for the variables that they train.

    Call it when the layers are final and before anything is traced: with pretrained weights, batch normalization uses
    its stored statistics, and a frozen layer draws no random numbers. Source:
    https://keras.io/guides/transfer_learning, on BatchNormalization. Raises `ConfigurationError` if the network has no
    block that model.freeze names.
    """
    train, fine_tune = recipe.train, recipe.train.fine_tune
    head = fine_tune.head_epochs if fine_tune else 0
    factor = fine_tune.learning_rate_factor if fine_tune else 1.0
    last = RateSchedule(train, steps_per_epoch, train.epochs - head, factor)
    parts = [(head * steps_per_epoch, _frozen_layers(model, recipe.model.freeze), last)]
    if head:
        parts.insert(
            0, (0, _frozen_layers(model, "backbone"), RateSchedule(train, steps_per_epoch, head, scale=last.scale))
        )
    made = []
    for first_step, frozen, schedule in parts:
        optimizer = make(schedule)
        frozen_paths = {variable.path for layer in model.layers if layer.name in frozen for variable in layer.weights}
        variables = [variable for variable in model.trainable_variables if variable.path not in frozen_paths]
        optimizer.build(variables)
        made.append(Phase(first_step, frozen, schedule, optimizer, variables))
    result = Phases(made, last.scale)
    if recipe.model.weights is not None:
        _fix_statistics(model, result)
    return result


def _frozen_layers(model: keras.Model, freeze: str) -> frozenset[str]:
    """Return the names of the frozen layers."""
    names = [layer.name for layer in model.layers]
    if freeze == "none":
        return frozenset()
    if freeze == "backbone":
        return frozenset(names) - {HEAD}
    block = freeze.removeprefix(UNTIL)
    exact = [index for index, name in enumerate(names) if name == block != HEAD]
    # expanded_conv_1 must not match expanded_conv_10, but block4 must match block4a.
    parts = [index for index, name in enumerate(names) if name.startswith(f"{block}_")]
    begun = [index for index, name in enumerate(names) if name.startswith(block) and name != HEAD]
    indices = exact or parts or begun
    if not indices:
        known = [layer.name for layer in model.layers if layer.weights and layer.name != HEAD]
        some = ", ".join(known[:: max(1, len(known) // 8)])
        raise ConfigurationError(
            f"model.freeze: {freeze}: no layer of '{model.name}' has a name that starts so."
            f"{did_you_mean(block, known)} Some of its layers are {some}."
        )
    return frozenset(names[: indices[-1] + 1])


def _fix_statistics(model: keras.Model, phases: Phases) -> None:
    for layer in model.layers:
        if layer.name != HEAD and "training" in inspect.signature(layer.call).parameters:
            always = isinstance(layer, keras.layers.BatchNormalization)
            layer.call = partial(_call_layer, layer.call, layer.name, phases, always)


def _call_layer(
    call: Callable[..., Any],
    name: str,
    phases: Phases,
    always: bool,
    *inputs: Any,
    training: bool | None = None,
    **more: Any,
) -> Any:
    """Call the layer `name` in inference mode if `always` or while it is frozen."""
    return call(*inputs, training=False if always or name in phases.current.frozen else training, **more)
