"""How long a training took until its eval split was good enough, as DAWNBench counts it, and what that cost."""

from __future__ import annotations

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.contract.document import FrozenModel
from trainyard.contract.training.published import PublishedTime, published
from trainyard.spec.gates import TimeTo


class Reached(FrozenModel):
    """The first epoch whose eval split reached the bound, and seconds from the first byte of the examples until then.

    best: the most that any epoch reached; None if `metric` was not measured. epoch, seconds: None if none reached it.
    dollars: of all workers, None without a price. published: times of others to the same accuracy on the same data.
    """

    metric: str
    reach: float
    split: str = "eval"
    best: float | None
    epoch: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    examples_per_second: float
    published: list[PublishedTime] = []


def time_to(
    training: Training, goal: TimeTo | None, usd_per_hour: float | None = None, examples: Examples | None = None
) -> Reached | None:
    """Return the time to `goal` from the history of `training`, None if there is none. examples: its data.

    usd_per_hour: of all workers together. Source: DAWNBench, README.md, "ImageNet Training": the first entry of the
    epochs that reaches the accuracy, and its hours times the price.
    """
    if goal is None:
        return None
    values = [(epoch, _value(epoch, goal)) for epoch in training.history]
    known = [value for _, value in values if value is not None]
    first = next((epoch for epoch, value in values if value is not None and value >= goal.reach), None)
    seconds = first.elapsed_seconds if first else None
    return Reached(
        metric=goal.metric,
        reach=goal.reach,
        best=max(known, default=None),
        epoch=first.epoch if first else None,
        seconds=seconds,
        dollars=None if seconds is None or usd_per_hour is None else round(seconds / 3600 * usd_per_hour, 4),
        examples_per_second=training.examples_per_second,
        published=published(goal, examples),
    )


def _value(epoch: Epoch, goal: TimeTo) -> float | None:
    return epoch.metric if goal.metric == "accuracy" else epoch.top5_accuracy
