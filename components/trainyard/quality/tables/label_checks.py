"""Checks of a label: target leakage (columns that predict it alone) and likely label errors.

A label error is a row whose other columns predict another class. Naive Bayes predicts the class of each row from all
others: its own share in the counts is taken away, so no row vouches for itself. A row is named only if it is among
those predicted so surely that nearly all of them agree.
Source: C. Northcutt et al., Confident Learning, arXiv:1911.00068, for judging labels by out-of-sample predictions, and
with a threshold for each class.
"""

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
_CLASSES = 50  # chosen: of more, few have rows enough in a sample
_TOGETHER = 100  # chosen: rows, by their margins, among which agreement is counted
_AGREE = 0.95  # chosen: of all that are predicted so surely; so up to one label in twenty may be wrong
_MAX_CLASS_SHARE = 0.5  # chosen: of a class whose rows look so more often, the other columns tell nothing
_AGREE_TOGETHER = 0.9  # chosen: of a hundred of them, for some have more wrong ones by chance


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


def label_errors(columns: Mapping[str, Cells], label: str) -> list[tuple[int, str, str]]:
    """Return the suspicious rows of a table of `columns`, the surest first; `label` is one of classes.

    Of each its position in the table, its label and the class that the other columns name.
    """
    encoded = columns[label].texts.dictionary_encode()
    labels = codes(encoded)
    classes = encoded.dictionary.to_pylist()
    if not 2 <= len(classes) <= _CLASSES:
        return []
    grouped = [groups(column) for name, column in columns.items() if name != label]
    grouped = [column for column in grouped if are_enough(column) and column.max() > 0]
    if not grouped:
        return []
    scores = _scores(labels, grouped, len(classes))
    likely = scores.argmax(axis=1)
    best = np.partition(scores, -2, axis=1)[:, -2:]
    margins = best[:, 1] - best[:, 0]
    sure = np.zeros(len(labels), bool)
    for number in range(len(classes)):
        sure[_sure(np.flatnonzero(likely == number), labels == number, margins)] = True
    rows = np.flatnonzero(sure & (likely != labels))
    totals, named = (np.bincount(labels[places], minlength=len(classes)) for places in (slice(None), rows))
    rows = rows[(named < _MAX_CLASS_SHARE * totals)[labels[rows]]]
    rows = rows[np.argsort(-margins[rows], kind="stable")]
    return [(int(row), classes[labels[row]], classes[likely[row]]) for row in rows]


def _scores(labels: NDArray[np.int64], columns: list[NDArray[np.int64]], classes: int) -> NDArray[np.float64]:
    """Return the log probability of each class in each row, (rows, classes), up to a constant per row.

    A column's groups have one row more in each class than were counted (Laplace).
    """
    totals = np.bincount(labels, minlength=classes).astype(np.float64)
    rows = np.arange(len(labels))
    scores = np.tile(np.log(totals), (len(labels), 1))
    own = np.log(np.maximum(totals[labels] - 1, 0.5))
    for column in columns:
        size = int(column.max()) + 1
        counts = np.bincount(column * classes + labels, minlength=size * classes).reshape(size, classes)
        scores += np.log((counts + 1) / (totals + size))[column]
        own += np.log(counts[column, labels] / (totals[labels] - 1 + size))  # one less, and one more
    scores[rows, labels] = own
    return scores


def _sure(rows: NDArray[np.int64], agree: NDArray[np.bool_], margins: NDArray[np.float64]) -> NDArray[np.int64]:
    """Filter `rows` of one predicted class to margins at which nearly all rows `agree`."""
    ordered = rows[np.argsort(-margins[rows], kind="stable")]
    together = agree[ordered[: len(ordered) // _TOGETHER * _TOGETHER]].reshape(-1, _TOGETHER).mean(axis=1)
    before = np.cumsum(together) / np.arange(1, len(together) + 1)
    odd = np.flatnonzero((together < _AGREE_TOGETHER) | (before < _AGREE))
    return ordered[: _TOGETHER * (odd[0] if len(odd) else len(together))]
