"""Finds target leakage: columns that predict the label alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.quality.tables.cells import Cells

_ENOUGH = 0.99  # chosen: of the mistakes that always naming the largest class makes, this share is gone
_GROUPS = 64  # chosen: quantile groups of a number; more would each hold too few rows
_LEAST = 5  # chosen: rows a group on average; fewer remember the rows instead of telling about them
_LINEAR = 0.9999  # chosen: correlation of a number with a number to predict


def target_leakage(columns: Mapping[str, Cells], label: str, is_number: bool) -> dict[str, float]:
    """Return the certainty of `label` given each suspicious column, by its name.

    is_number: the label is a number to predict, measured by correlation. Otherwise it is the share of rows predicted
    right by the most frequent class of each value, or of each of 64 quantile groups of a number.
    """
    target = columns[label]
    certainties = {}
    for name, other in columns.items():
        if name != label:
            certainty = (
                _correlation(other.numbers, target.numbers)
                if is_number
                else _certainty(groups(other), codes(target.texts.dictionary_encode()))
            )
            if certainty is not None:
                certainties[name] = certainty
    return certainties


def are_enough(column: NDArray[np.int64]) -> bool:
    """Return True if the groups of `column` have enough rows for a verdict."""
    return len(column) > 0 and len(column) >= _LEAST * (int(column.max()) + 1)


def _certainty(column: NDArray[np.int64], classes: NDArray[np.int64]) -> float | None:
    if not are_enough(column):
        return None
    pairs, counts = np.unique(column * (int(classes.max()) + 1) + classes, return_counts=True)
    best = np.zeros(int(column.max()) + 1, np.int64)
    np.maximum.at(best, pairs // (int(classes.max()) + 1), counts)
    right = best.sum() / len(column)
    baseline = np.bincount(classes).max() / len(classes)
    return float(right) if baseline < 1 and (1 - right) <= (1 - _ENOUGH) * (1 - baseline) else None


def groups(column: Cells) -> NDArray[np.int64]:
    """Return the number of each cell's group: of its value, or of a quantile of 64 where there are more numbers."""
    numbers = column.numbers
    if np.isnan(numbers).mean() > 0.5 or len(np.unique(numbers)) <= _GROUPS:
        return codes(column.texts.dictionary_encode())
    edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, _GROUPS + 1)[1:-1]))
    return np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers, side="right"))


def codes(encoded: Any) -> NDArray[np.int64]:
    """Return the number of each value of the Arrow array `encoded` of dictionary type."""
    return np.asarray(encoded.indices).astype(np.int64)


def _correlation(numbers: NDArray[np.float64], target: NDArray[np.float64]) -> float | None:
    both = ~np.isnan(numbers) & ~np.isnan(target)
    numbers, target = numbers[both], target[both]
    if len(numbers) < 10 or not numbers.std() or not target.std():
        return None
    correlation = float(np.corrcoef(numbers, target)[0, 1])
    return correlation if abs(correlation) >= _LINEAR else None
