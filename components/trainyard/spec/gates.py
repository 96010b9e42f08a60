"""Gates and decision thresholds of a recipe: conditions for pushing a model, their metrics, and the aim of a class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from trainyard.errors import ConfigurationError, did_you_mean, listed
from trainyard.spec.documents import Strict
from trainyard.values.text import canonical

Task = Literal["classification", "multi_label", "regression"]
MetricName = Literal[
    "accuracy",
    "f1",
    "mae",
    "top5_accuracy",
    "macro_f1",
    "exact_match",
    "roc_auc",
    "pr_auc",
    "precision",
    "recall",
    "log_loss",
    "calibration_error",
    "rmse",
    "r2",
    "mean_ratio",
]


@dataclass(frozen=True)
class MetricSpec:
    """A metric in recipes; `steps.evaluate.metrics.registry` computes it.

    tasks: those whose models it judges over all examples. per_class: of a classification or multi_label, it judges one
    class, too, which a gate names. low, high: its range. best: the best value, if neither more nor less is better.
    judges_probabilities: it does not depend on the predicted classes. average: how the values of classes become one.
    title: as prose names it. best_of_useless: the useless model for which it is best; instead: what to select by then.
    """

    tasks: tuple[Task, ...] = ()
    per_class: bool = False
    low: float = 0.0
    high: float = 1.0
    smaller_is_better: bool = False
    best: float | None = None
    judges_probabilities: bool = False
    average: str = ""
    title: str = ""
    best_of_useless: str = ""
    instead: str = "f1 or pr_auc of the class"


_CLASSES = "mean over the classes"
METRIC_SPECS: dict[MetricName, MetricSpec] = {
    "accuracy": MetricSpec(("classification",), title="accuracy"),
    "f1": MetricSpec(("multi_label",), per_class=True, title="F1"),
    "mae": MetricSpec(("regression",), high=math.inf, smaller_is_better=True, title="mean absolute error"),
    "top5_accuracy": MetricSpec(("classification",), judges_probabilities=True),
    "macro_f1": MetricSpec(("classification", "multi_label")),
    "exact_match": MetricSpec(("multi_label",)),
    "roc_auc": MetricSpec(
        ("classification", "multi_label"), per_class=True, judges_probabilities=True, average=_CLASSES
    ),
    "pr_auc": MetricSpec(
        ("classification", "multi_label"), per_class=True, judges_probabilities=True, average=_CLASSES
    ),
    "precision": MetricSpec(per_class=True, best_of_useless="finds the class once, and is right"),
    "recall": MetricSpec(per_class=True, best_of_useless="gives every example the class"),
    "log_loss": MetricSpec(
        ("classification", "multi_label"), high=math.inf, smaller_is_better=True, judges_probabilities=True
    ),
    "calibration_error": MetricSpec(
        ("classification",),
        smaller_is_better=True,
        judges_probabilities=True,
        best_of_useless="gives every example the frequencies of the classes",
        instead="log_loss",
    ),
    "rmse": MetricSpec(("regression",), high=math.inf, smaller_is_better=True),
    "r2": MetricSpec(("regression",), low=-math.inf),
    "mean_ratio": MetricSpec(
        ("regression",),
        low=-math.inf,
        high=math.inf,
        best=1.0,
        best_of_useless="gives every example the mean",
        instead="rmse",
    ),
}
METRICS: dict[Task, tuple[MetricName, ...]] = {
    task: tuple(name for name, spec in METRIC_SPECS.items() if task in spec.tasks) for task in get_args(Task)
}
"""The metrics of each task over all examples; the first is the main one."""
CLASS_METRICS = tuple(name for name, spec in METRIC_SPECS.items() if spec.per_class)
ALL_METRICS = tuple(dict.fromkeys(name for names in METRICS.values() for name in names))
MAIN_METRIC: dict[Task, str] = {task: names[0] for task, names in METRICS.items()}
"""The metric of epochs, sweeps and export checks, a mean over the examples."""

METRIC_TITLES: dict[str, str] = {name: spec.title for name, spec in METRIC_SPECS.items() if spec.title}
"""The main metrics as prose names them."""

METRIC_LABELS: dict[str, str] = {
    name: f"{name} ({spec.average})" if spec.average else name for name, spec in METRIC_SPECS.items()
}
"""The metrics over all examples as tables name them."""

SMALLER_IS_BETTER = frozenset(name for name, spec in METRIC_SPECS.items() if spec.smaller_is_better)
LARGER_MAIN_IS_BETTER: dict[Task, bool] = {task: name not in SMALLER_IS_BETTER for task, name in MAIN_METRIC.items()}
"""True if a larger main metric of the task is better."""

MODULE_RESAMPLES = 100
"""Maximum number of calls of a module's `metrics` for an interval: it cannot take many weights at once.
Chosen."""

ROUNDING = 1e-9
"""A value this little beyond its bound still holds: 0.96 - 0.97 is -0.010000000000000009. Chosen."""

Bound = Annotated[float, Field(ge=-1e30, le=1e30)]


class TimeTo(Strict):
    """Time from the first byte of the examples until the eval split reaches a metric."""

    metric: Literal["accuracy", "top5_accuracy"] = Field(
        "top5_accuracy",
        description="Metric of the eval split after each epoch; top5_accuracy needs more than five classes.",
    )
    reach: Annotated[float, Field(gt=0, le=1)] = Field(
        description="Value to reach; the first epoch with it stops the clock."
    )


_LISTED = 20  # classes in a message; chosen

Against = Literal["champion", "boosted", "baseline"]
BASELINE_METRICS: dict[Task, tuple[MetricName, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "multi_label": ("f1",),
    "regression": ("mae", "rmse"),
}
"""The metrics of the constant baseline."""

BASELINE_CLASS_METRICS: tuple[MetricName, ...] = ("roc_auc", "pr_auc")
"""The metrics of one class that a constant has: 0.5, and the share of the class."""

AREA_EXAMPLES = 5
"""Examples of a class, and of the others, that the interval of an area of the class needs.
Measured: of models without a signal, the 95 % interval of roc_auc lies above 0.5 in 37 % with one example of the class,
23 % with two, 10 % with three and 5 % with five."""


def class_text(value: object) -> object:
    """Return the class as labels name it; YAML reads some as numbers and booleans."""
    return canonical(str(value)) if isinstance(value, str | int | float) else value


class Gate(Strict):
    """One condition on the test split, with one bound.

    A difference is the model's value minus the baseline's on the same examples; without a champion it passes.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    metric: Annotated[str, Field(max_length=64)] = Field(
        description=". ".join(f"{task}: {', '.join(names)}" for task, names in METRICS.items())
        + f". With class: {', '.join(CLASS_METRICS)}. Without it, roc_auc and pr_auc are means over the classes. Or a "
        "metric of the module; with train.result: folder, one of its metrics.json."
    )
    min: Bound | None = Field(None, description="Minimum value.")
    max: Bound | None = Field(None, description="Maximum value.")
    min_difference: Bound | None = Field(None, description="Minimum difference; -0.01 allows one point worse.")
    max_difference: Bound | None = Field(None, description="Maximum difference, for metrics where less is better.")
    confidence: Annotated[float, Field(ge=0.5, le=0.999)] | None = Field(
        None,
        description="The whole interval of this confidence, such as 0.95, must meet the bound, not only the value.",
    )
    against: Against = Field(
        "champion",
        description="What a difference compares with. champion: the latest pushed model. boosted: gradient-boosted "
        "trees, trained on the same table. baseline: the same answer for every example, the most frequent class or the "
        "mean.",
    )
    slice: Annotated[str, Field(min_length=3, max_length=600)] | None = Field(
        None, description="Check only this slice, as feature=value, of a feature of evaluate.slices."
    )
    largest_gap_between: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="Judge the largest difference of the metric between two slices of this feature of evaluate.slices; "
        "give max.",
    )
    target: Annotated[str, Field(max_length=256)] | None = Field(
        None,
        description="Check only this one of data.targets.",
    )
    class_name: Annotated[str, BeforeValidator(class_text), Field(max_length=512)] | None = Field(
        None,
        alias="class",
        description=f"Judge this class against the rest: {', '.join(CLASS_METRICS)}.",
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if [self.min, self.max, self.min_difference, self.max_difference].count(None) != 3:
            raise ValueError("give exactly one of min, max, min_difference, max_difference")
        if self.against != "champion" and self.min_difference is None and self.max_difference is None:
            raise ValueError(f"against: {self.against} is for a difference. Give min_difference or max_difference")
        if self.largest_gap_between is not None and (self.max is None or self.max < 0):
            raise ValueError("largest_gap_between is judged by max, of at least 0")
        if self.largest_gap_between is not None and self.slice is not None:
            raise ValueError("largest_gap_between compares all slices of a feature. Leave slice out")
        spec = next((spec for name, spec in METRIC_SPECS.items() if name == self.metric), None)
        low, high = (spec.low, spec.high) if spec else (-math.inf, math.inf)
        hopeless = {
            "min": self.min is not None and self.min > high,
            "max": self.max is not None and self.max < low and self.largest_gap_between is None,
            "min_difference": self.min_difference is not None and self.min_difference > high - low,
            "max_difference": self.max_difference is not None and self.max_difference < low - high,
        }
        if bound := next((name for name, is_hopeless in hopeless.items() if is_hopeless), None):
            raise ValueError(f"{bound}: no model can meet it: {self.metric} lies between {low:g} and {high:g}")
        return self


def require_classes(named: Mapping[str, str | None], labels: Sequence[str]) -> None:
    """Raise `ConfigurationError` if a key of the recipe in `named`, such as evaluate.gates.0.class, names no label."""
    for key, name in named.items():
        if name is not None and name not in labels:
            raise ConfigurationError(unknown_class(key, name, labels))


def unknown_class(key: str, name: str, labels: Sequence[str]) -> str:
    """Return the sentence about a `key` of the recipe that names none of the `labels`."""
    return f"{key}: no class '{name}'.{did_you_mean(name, labels)} Known: {listed(labels, _LISTED)}."


_Share = Annotated[float, Field(gt=0, le=1)]


class ThresholdAim(Strict):
    """The aim that a class meets on the eval split, from which its decision threshold follows."""

    model_config = ConfigDict(serialize_by_alias=True)

    maximize: Literal["f1"] | None = Field(None, description="Choose the threshold with the highest F1 of the class.")
    recall: _Share | None = Field(
        None, description="Minimum recall of the class; of the thresholds that reach it, the one of highest precision."
    )
    precision: _Share | None = Field(
        None, description="Minimum precision of the class; of the thresholds that reach it, the one of highest recall."
    )
    class_name: Annotated[str, BeforeValidator(class_text), Field(max_length=512)] | None = Field(
        None,
        alias="class",
        description="Class that is predicted if its probability is above the threshold. Required for a "
        "classification, whose other classes are predicted otherwise; multi_label: default each class.",
    )

    @model_validator(mode="after")
    def _one_aim(self) -> Self:
        if [self.maximize, self.recall, self.precision].count(None) != 2:
            raise ValueError("give exactly one of maximize, recall, precision")
        return self

    @property
    def name(self) -> str:
        """The metric of the aim."""
        return self.maximize or ("recall" if self.recall is not None else "precision")
