"""The phases of a training: each trains a set of weights with its own optimizer and learning rate.

The phase follows from the step, so a checkpoint does not store it. The phase's optimizer does not know frozen weights,
so no weight decay or momentum reaches them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.models.weights import HEAD
from trainyard.spec.model import UNTIL
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.engines.optimizer import RateSchedule


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
