"""Knowledge distillation: a pushed model teaches, and its outputs are learned beside the labels.

Both models get the same augmented batch. Sources: G. Hinton et al., Distilling the Knowledge in a Neural Network,
arXiv:1503.02531; L. Beyer et al., Knowledge distillation: A good teacher is patient and consistent, arXiv:2106.05237.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.weights import TEACHER
from trainyard.data import trained
from trainyard.errors import ConfigurationError
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import Teacher
from trainyard.steps.train import warm_start
from trainyard.steps.train.engines.objective import Objective, Tensor

_ADVICE = "Name a version that was pushed from the same data, or leave train.teacher out."


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


def load(recipe: Recipe, examples: str, document: Examples) -> TeacherModel | None:
    """Return the recipe's teacher, or None.

    examples: the folder of `document`. Raises `ConfigurationError` if features, classes or vocabularies differ from
    those of the examples, and as `trained.load_pushed`.
    """
    settings = recipe.train.teacher
    if settings is None:
        return None
    model = trained.in_float32(trained.load_pushed(settings.model))
    model.trainable = False
    warm_start.require_same_ids(settings.model, examples, document.labels, TEACHER, _ADVICE)
    inputs: Any = model.input
    expected = {name: tuple(tensor.shape[1:]) for name, tensor in inputs.items()}
    own = {feature.name: feature.shape for feature in document.features}
    if expected != own:
        raise ConfigurationError(
            f"{TEACHER}: {settings.model} takes {shapes_text(expected)}, and these examples are "
            f"{shapes_text(own)}. {_ADVICE}"
        )
    return TeacherModel(model, settings)


def shapes_text(shapes: Mapping[str, tuple[int | None, ...]]) -> str:
    """Return feature names with their shapes for a message."""
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items()))
