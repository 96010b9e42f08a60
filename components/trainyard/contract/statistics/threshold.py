"""Decision thresholds of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.contract.document import FrozenModel

# Documents hold these, which every command reads: no NumPy here.


class ClassThreshold(FrozenModel):
    """The threshold of one class, and what the class has with it on the split that it was chosen on.

    value: a float32 number; the class is predicted if its probability is above it.
    """

    label: str
    value: float
    precision: float
    recall: float
    f1: float


def by_id(thresholds: Mapping[str, float], labels: Sequence[str]) -> dict[int, float]:
    """Return `thresholds`, by class, by class id, the place in `labels`. Raises ValueError for an unknown class."""
    return {labels.index(label): value for label, value in thresholds.items()}
