"""Training from pushed models: warm start from the champion's weights, and knowledge distillation from a teacher.

A teacher's outputs are learned beside the labels, and both models get the same augmented batch. Sources: G. Hinton et
al., Distilling the Knowledge in a Neural Network, arXiv:1503.02531; L. Beyer et al., Knowledge distillation: A good
teacher is patient and consistent, arXiv:2106.05237.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from trainyard import events
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import TARGET_INVERSE
from trainyard.contract.version import EXTRA, LABELS, TARGETS, VOCABULARIES, names
from trainyard.contract.weights import TEACHER
from trainyard.data import trained
from trainyard.errors import ConfigurationError
from trainyard.graph import remedy
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Teacher
from trainyard.steps.train.engines.objective import Objective, Tensor
from trainyard.storage import storage

_VOCABULARIES = "transform/transform_fn/assets/"
_PUSHED_VOCABULARIES = f"{EXTRA}/{VOCABULARIES}/"
_START = "train.warm_start"
_DROP_START = "Leave train.warm_start out of the recipe to train from first weights."
_TEACHER_ADVICE = "Name a version that was pushed from the same data, or leave train.teacher out."


def load_champion(champion: str, model: keras.Model, examples: str, document: Examples, scale: str) -> None:
    """Load the weights of the pushed version in the folder `champion` into `model`; dropout seeds stay.

    examples: the folder of `document`. Raises `ConfigurationError` if inputs, classes, targets, vocabularies or model
    variables differ, because the weights would mean something else, or if it learned its targets on another scale than
    `scale`. Raises as `trained.load_pushed`.
    """
    require_same_ids(champion, examples, document, _START, _DROP_START)
    pushed_model = trained.load_pushed(champion)
    if changed := sorted(pushed_model.input.keys() ^ model.input.keys()):
        raise ConfigurationError(
            f"{_START}: {champion} takes other features ('{changed[0]}' is only in one of them), so its weights mean "
            f"something else. {_DROP_START}"
        )
    inverse = [layer.name for layer in pushed_model.layers if layer.name in TARGET_INVERSE]
    if len(inverse) != ("none", "log", "log1p").index(scale):
        raise ConfigurationError(
            f"{_START}: {champion} learned its targets on another scale than train.target.scale: {scale}. {_DROP_START}"
        )
    pushed = {variable.path: variable for variable in pushed_model.weights}
    variables = {variable.path: variable for variable in model.weights}
    for name in sorted(variables.keys() | pushed.keys()):
        shape, pushed_shape = (
            tuple(weights[name].shape) if name in weights else "missing" for weights in (variables, pushed)
        )
        if shape != pushed_shape:
            raise ConfigurationError(
                f"{_START}: {champion} is another model: its variable '{name}' is {pushed_shape}, and "
                f"{shape} in this one. {_DROP_START}"
            )
    for name, variable in variables.items():
        variable.assign(pushed[name].numpy())
    events.emit("warm_start", champion=champion, variables=len(variables))


def require_same_ids(version: str, examples: str, document: Examples, field: str, advice: str) -> None:
    """Raise `ConfigurationError` if the pushed `version` has other classes, targets or vocabularies than `examples`.

    document: of `examples`. field: the recipe field that names the version. advice: the last sentence of the error.
    """
    for file, kind, known in (
        (LABELS, "tells apart {} classes", document.labels),
        (TARGETS, "predicts {} targets", document.targets),
    ):
        before, now = names(version, f"{EXTRA}/{file}") or [], known or []
        if before != now:
            changed = sorted({*before} ^ {*now})
            difference = f"'{changed[0]}' is only in one of them" if changed else "their order changed"
            raise ConfigurationError(
                f"{field}: {version} {kind.format(len(before))}, the data have {len(now)} ({difference}). {advice}"
            )
    pushed = _files(version, remedy("push"), _PUSHED_VOCABULARIES)
    current = _files(examples, remedy("preprocess"), _VOCABULARIES)
    changed = sorted(name for name in pushed.keys() | current.keys() if pushed.get(name) != current.get(name))
    if changed:
        raise ConfigurationError(
            f"{field}: the vocabulary '{changed[0]}' is another one than that of {version} ({len(changed)} "
            f"changed), so its ids mean something else. {advice}"
        )


def _files(folder: str, advice: str, prefix: str) -> dict[str, storage.File]:
    """Return size and checksum of each file below `prefix`."""
    files = storage.require(folder, advice).files
    return {name.removeprefix(prefix): file for name, file in files.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class TeacherModel:
    """The frozen teacher model and its settings."""

    model: keras.Model
    settings: Teacher

    def loss(self, objective: Objective, outputs: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        """Return float32 (batch,): the weighted sum of the distance to the teacher's `answers` and the training loss.

        outputs, answers: (batch, classes) logits, or (batch, targets) predictions.
        """
        share, temperature = self.settings.share, self.settings.temperature
        distance = objective.distance(outputs, answers, temperature)
        return share * distance + (1 - share) * objective.train_loss(outputs, labels)


def load_teacher(recipe: Recipe, examples: str, document: Examples) -> TeacherModel | None:
    """Return the recipe's teacher, or None.

    examples: the folder of `document`. Raises `ConfigurationError` if features, classes or vocabularies differ from
    those of the examples, and as `trained.load_pushed`.
    """
    settings = recipe.train.teacher
    if settings is None:
        return None
    model = trained.in_float32(trained.load_pushed(settings.model))
    model.trainable = False
    require_same_ids(settings.model, examples, document, TEACHER, _TEACHER_ADVICE)
    inputs: Any = model.input
    expected = {name: tuple(tensor.shape[1:]) for name, tensor in inputs.items()}
    own = {feature.name: feature.shape for feature in document.features}
    if expected != own:
        raise ConfigurationError(
            f"{TEACHER}: {settings.model} takes {shapes_text(expected)}, and these examples are "
            f"{shapes_text(own)}. {_TEACHER_ADVICE}"
        )
    return TeacherModel(model, settings)


def shapes_text(shapes: Mapping[str, tuple[int | None, ...]]) -> str:
    """Return feature names with their shapes for a message."""
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items()))
