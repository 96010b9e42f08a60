"""Gates: the conditions for pushing a model, and their metrics."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainyard.spec.documents import Strict

Task = Literal["classification", "multi_label", "regression"]
METRICS: dict[Task, tuple[str, ...]] = {
    "classification": ("accuracy", "top5_accuracy", "macro_f1", "roc_auc", "log_loss", "calibration_error"),
    "multi_label": ("f1", "macro_f1", "exact_match", "roc_auc", "log_loss"),
    "regression": ("mae", "rmse", "r2"),
}
ALL_METRICS = tuple(dict.fromkeys(name for names in METRICS.values() for name in names))
MAIN_METRIC: dict[Task, str] = {task: names[0] for task, names in METRICS.items()}
"""The metric of epochs, sweeps and export checks, a mean over the examples."""

METRIC_TITLES = {"accuracy": "accuracy", "f1": "F1", "mae": "mean absolute error"}
"""The names of the main metrics in prose."""

SMALLER_IS_BETTER = frozenset({"log_loss", "calibration_error", "mae", "rmse"})
LARGER_MAIN_IS_BETTER: dict[Task, bool] = {task: name not in SMALLER_IS_BETTER for task, name in MAIN_METRIC.items()}
"""Whether a larger main metric of the task is better."""

_RANGES = {"log_loss": (0.0, math.inf), "mae": (0.0, math.inf), "rmse": (0.0, math.inf), "r2": (-math.inf, 1.0)}
_SHARE = (0.0, 1.0)  # the range of all others

Bound = Annotated[float, Field(ge=-1e30, le=1e30)]


class TimeTo(Strict):
    """How long the training took until the eval split was good enough, from the first byte of the examples on."""

    metric: Literal["accuracy", "top5_accuracy"] = Field(
        "top5_accuracy", description="Of the eval split after each epoch; top5_accuracy needs more than five classes."
    )
    reach: Annotated[float, Field(gt=0, le=1)] = Field(description="The first epoch with so much ends the clock.")


Against = Literal["champion", "boosted"]


class Gate(Strict):
    """One condition that the model must meet on the test split; give one bound.

    A difference is the model's value minus that of a rival on the same examples; without a champion it holds.
    """

    metric: Annotated[str, Field(max_length=64)] = Field(
        description=". ".join(f"{task}: {', '.join(names)}" for task, names in METRICS.items())
        + ". With train.result: folder, one of its metrics.json."
    )
    min: Bound | None = Field(None, description="Least value.")
    max: Bound | None = Field(None, description="Greatest value.")
    min_difference: Bound | None = Field(None, description="Least difference; -0.01 lets it be a point worse.")
    max_difference: Bound | None = Field(None, description="Greatest difference, for metrics of which less is better.")
    confident: bool = Field(
        False,
        description="The whole 95 % interval must meet the bound, not the value alone.",
    )
    against: Against = Field(
        "champion",
        description="The rival of a difference. champion: the model pushed last. boosted: gradient-boosted trees that "
        "evaluate grows on the same table.",
    )
    slice: Annotated[str, Field(min_length=3, max_length=600)] | None = Field(
        None, description="Judge this slice alone, written feature=value, of a feature of evaluate.slices."
    )
    target: Annotated[str, Field(max_length=256)] | None = Field(
        None,
        description="Judge this one of data.targets alone.",
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if [self.min, self.max, self.min_difference, self.max_difference].count(None) != 3:
            raise ValueError("give exactly one of min, max, min_difference, max_difference")
        if self.against != "champion" and self.min_difference is None and self.max_difference is None:
            raise ValueError(f"against: {self.against} is for a difference. Give min_difference or max_difference")
        low, high = _RANGES.get(self.metric, _SHARE if self.metric in ALL_METRICS else (-math.inf, math.inf))
        hopeless = {
            "min": self.min is not None and self.min > high,
            "max": self.max is not None and self.max < low,
            "min_difference": self.min_difference is not None and self.min_difference > high - low,
            "max_difference": self.max_difference is not None and self.max_difference < low - high,
        }
        if bound := next((name for name, is_hopeless in hopeless.items() if is_hopeless), None):
            raise ValueError(f"{bound}: no model can meet it: {self.metric} lies between {low:g} and {high:g}")
        return self
