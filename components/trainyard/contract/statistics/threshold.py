"""Decision thresholds of classes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from trainyard.contract.document import FrozenModel

# Documents hold these, which every command reads: no NumPy here.


class ClassThreshold(FrozenModel):
    """The threshold of one class, with its metrics on the split that chose it.

    value: a float32 number; the class is predicted if its probability is above it.
    """

    label: str
    value: float
    precision: float
    recall: float
    f1: float


def shown(value: float) -> str:
    """Return the shortest decimal number that is the same float32 number as `value`, so it decides alike.

    >>> shown(0.25), shown(0.9999999403953552)
    ('0.25', '0.99999994')
    """
    single = struct.pack("f", value)
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))  # 9 digits tell all float32 numbers apart
    return next(text for text in texts if struct.pack("f", float(text)) == single)


def by_id(thresholds: Mapping[str, float], labels: Sequence[str]) -> dict[int, float]:
    """Return `thresholds`, by class, by class id, the place in `labels`. Raises ValueError for an unknown class."""
    return {labels.index(label): value for label, value in thresholds.items()}
