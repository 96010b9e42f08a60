"""Time and cost to an accuracy on the eval split, as DAWNBench counts them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Training
from trainyard.contract.document import FrozenModel
from trainyard.spec import documents
from trainyard.spec.documents import Strict
from trainyard.spec.gates import TimeTo

_CLASSES = 1000
_IMAGES = (1_281_167, 1_331_167)
"""Without and with the 50,000 that judge. Source: O. Russakovsky et al., arXiv:1409.0575, table 2."""


class _Source(Strict):
    about: str
    address: Annotated[str, Field(pattern="^https://")]
    metric: Literal["accuracy", "top5_accuracy"]
    reach: float


class _Row(Strict):
    source: str
    hardware: str
    software: str
    day: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    epochs: int | None = None
    hours: float
    dollars: float | None = None


class PublishedTime(_Row):
    """A result of others. source: its name and where it can be read. epochs, dollars: None if nobody said."""

    address: str


class _Table(Strict):
    sources: dict[str, _Source]
    rows: list[_Row]


def published_times(wanted: TimeTo, examples: Examples | None) -> list[PublishedTime]:
    """Return published times to the accuracy `wanted`, fastest first; [] if `examples` are not ImageNet.

    They are ImageNet's if they have as many classes and images, with those that were set aside.
    """
    if examples is None or len(examples.labels or ()) != _CLASSES:
        return []
    images = sum(split.examples for split in examples.splits.values()) + examples.quarantined
    return times(wanted) if images in _IMAGES else []


def times(wanted: TimeTo) -> list[PublishedTime]:
    """Return published times to the accuracy `wanted` on ImageNet, fastest first."""
    table = _table()
    rows = []
    for row in table.rows:
        source = table.sources[row.source]
        if (source.metric, source.reach) == (wanted.metric, wanted.reach):
            about = {"source": f"{row.source}, {source.about}", "address": source.address}
            rows.append(PublishedTime(**about | row.model_dump(exclude={"source"})))
    return sorted(rows, key=lambda row: row.hours)


@cache
def _table() -> _Table:
    return documents.load(Path(__file__).with_name("published.yaml"), _Table)


class TimeToAccuracy(FrozenModel):
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


def time_to_accuracy(
    training: Training, goal: TimeTo | None, usd_per_hour: float | None = None, examples: Examples | None = None
) -> TimeToAccuracy | None:
    """Return the time to `goal` in the history of `training`, None without a goal. examples: the data of the training.

    usd_per_hour: of all workers together. Source: DAWNBench, README.md, "ImageNet Training": the first entry of the
    epochs that reaches the accuracy, and its hours times the price.
    """
    if goal is None:
        return None
    by_top5 = goal.metric == "top5_accuracy"
    values = [(epoch, epoch.top5_accuracy if by_top5 else epoch.metric) for epoch in training.history]
    known = [(epoch, value) for epoch, value in values if value is not None]
    first = next((epoch for epoch, value in known if value >= goal.reach), None)
    seconds = first.elapsed_seconds if first else None
    return TimeToAccuracy(
        metric=goal.metric,
        reach=goal.reach,
        best=max((value for _, value in known), default=None),
        epoch=first.epoch if first else None,
        seconds=seconds,
        dollars=None if seconds is None or usd_per_hour is None else round(seconds / 3600 * usd_per_hour, 4),
        examples_per_second=training.speed.examples_per_second,
        published=published_times(goal, examples),
    )
