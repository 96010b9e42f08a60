"""The metric of the eval split that chooses the epoch to keep: `train.select`, or the metric of the first gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from trainyard.errors import did_you_mean, listed
from trainyard.spec.gates import CLASS_METRICS, MAIN_METRIC, METRIC_SPECS, METRICS, SMALLER_IS_BETTER
from trainyard.spec.train import LOSS

if TYPE_CHECKING:
    from trainyard.spec.recipe import Recipe

_ONE_SIDED = {name for name, spec in METRIC_SPECS.items() if spec.best_of_useless}


class Selection(BaseModel):
    """The loss that is trained, or a metric of all examples, of one class or of one target."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str = LOSS
    class_name: str | None = None
    target: str | None = None

    @property
    def sign(self) -> int:
        """1 if the smallest value is the best, otherwise -1."""
        return 1 if self.metric == LOSS or self.metric in SMALLER_IS_BETTER else -1

    @property
    def is_loss(self) -> bool:
        """True if the loss chooses."""
        return self.metric == LOSS

    def __str__(self) -> str:
        """Return it as prose names it, such as `pr_auc of rare`."""
        part = self.target if self.class_name is None else self.class_name
        return self.metric if part is None else f"{self.metric} of {part}"


BY_LOSS = Selection()
"""The choice by the loss."""


def selection(recipe: Recipe) -> Selection:
    """Return the selection of `recipe`: `train.select`, or the metric of the first gate.

    A gate's metric counts if it judges all examples of a split and orders models as a whole; otherwise the loss does.
    """
    if (chosen := recipe.train.selected) is not None:
        return Selection(metric=chosen.metric, class_name=chosen.class_name, target=chosen.target)
    gate = next(iter(recipe.evaluate.gates), None)
    if gate is None or gate.slice is not None or gate.largest_gap_between is not None or recipe.train.command:
        return BY_LOSS
    named = Selection(metric=gate.metric, class_name=gate.class_name, target=gate.target)
    return BY_LOSS if next(_faults(recipe, named), None) else named


def compared(recipe: Recipe) -> Selection:
    """Return the metric by which a search compares trainings of `recipe`: the main one if the loss chooses epochs."""
    chosen = selection(recipe)
    return Selection(metric=MAIN_METRIC[recipe.task]) if chosen.is_loss else chosen


def faults(recipe: Recipe) -> Iterator[str]:
    """Yield the reason why `train.select` of `recipe` has no meaning, if it has none."""
    if (chosen := recipe.train.selected) is not None and recipe.train.command is None:
        yield from _faults(recipe, Selection(metric=chosen.metric, class_name=chosen.class_name, target=chosen.target))


def digest(recipe: Recipe) -> str:
    """Return the part of the key of the trained model that `train` does not name: the selection by a gate."""
    chosen = selection(recipe)
    return "" if recipe.train.select is not None or chosen.is_loss else f"select {chosen}"


def _faults(recipe: Recipe, chosen: Selection) -> Iterator[str]:
    metric, task, targets = chosen.metric, recipe.task, recipe.data.targets
    known = [LOSS, *(name for name in METRICS[task] if name not in _ONE_SIDED)]
    if metric == LOSS:
        if chosen.class_name is not None or chosen.target is not None:
            yield "loss is that of all classes and targets. Leave class and target out"
    elif metric not in METRIC_SPECS:
        whose = " A metric of the module is computed after the training." if recipe.module else ""
        yield f"no such metric '{metric}'.{did_you_mean(metric, known)}{whose} Known: {listed(known, len(known))}"
    elif chosen.class_name is not None and task == "regression":
        yield "class: a regression has no classes. Leave it out"
    elif chosen.class_name is None and metric not in METRICS[task] and metric in CLASS_METRICS and task != "regression":
        named = "pr_auc" if metric in _ONE_SIDED else metric
        yield f"'{metric}' is of one class. Write {{metric: {named}, class: NAME}}, or {MAIN_METRIC[task]}"
    elif metric in _ONE_SIDED and (chosen.class_name is not None or metric in METRICS[task]):
        spec = METRIC_SPECS[metric]
        yield f"'{metric}' is best for a model that {spec.best_of_useless}. Write {spec.instead}"
    elif chosen.class_name is not None and metric not in CLASS_METRICS:
        classes = [name for name in CLASS_METRICS if name not in _ONE_SIDED]
        yield f"'{metric}' is over all classes. One class has {', '.join(classes)}"
    elif chosen.class_name is None and metric not in METRICS[task]:
        yield f"'{metric}' is no metric of a {task}. Known: {', '.join(known)}"
    elif chosen.target is not None and chosen.target not in targets:
        near = did_you_mean(chosen.target, targets)
        yield f"'{chosen.target}' is not in data.targets.{near} Name one, or leave it out"
    elif recipe.threshold is not None and not METRIC_SPECS[metric].judges_probabilities:
        scope = "" if chosen.class_name is None else " of the class"
        yield f"'{metric}' depends on the threshold, which is chosen after the training. Write pr_auc{scope}"
