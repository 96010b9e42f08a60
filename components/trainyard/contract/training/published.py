"""Published times to an accuracy on ImageNet, for a run that trained on the same images until the same accuracy."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.artifacts.preprocess import Examples
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


def published(wanted: TimeTo, examples: Examples | None) -> list[PublishedTime]:
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
