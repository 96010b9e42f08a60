"""Compares splits by content with scikit-learn's random split: the mean test metric of a tree, and the rows of test.

python -m benchmarks.data.splits SEEDS TABLE.csv [TABLE.csv ...]: the last column of a table is its label. `before`
hashed the label too, `together` keeps rows of equal features in one split, `now` is what preprocess does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from trainyard.quality.tables.hashes import row_hashes
from trainyard.spec.columns import SplitRows
from trainyard.steps.preprocess.repeats import Repeats
from trainyard.steps.preprocess.split import (
    Draws,
    by_rows,
    identity_draws,
    misses_share,
    numbers_of,
    row_draws,
)

_SPLIT = SplitRows()
_CLASSES = 20  # a label of at most so many values is one of classes
Splits = Callable[[int], NDArray[np.int8]]


def repeats_of(features: Draws, wholes: Draws) -> Repeats:
    """Return the repeats that preprocess counts in a table whose features and whole rows have these hashes."""
    _, places, counts = np.unique(features, return_inverse=True, return_counts=True)
    kinds = np.unique(np.stack([features, wholes]), axis=1)[0]
    labels = np.unique(kinds, return_counts=True)[1]
    return Repeats(len(features), len(counts), int((labels[places] > 1).sum()), int(counts.max()))


def content_splits(hashes: Draws, seed: int, *, repeats: Repeats | None) -> NDArray[np.int8]:
    """Return the split of each row by its two `hashes` (rows, 2); repeats: None to keep equal rows together."""
    draws = identity_draws(seed, [value.tobytes() for value in hashes[:, 0].astype(">u8")])
    if repeats is None:
        return numbers_of(draws, _SPLIT)
    draws = row_draws(draws, np.ascontiguousarray(hashes[:, 1]), seed, natural=repeats.are_natural)
    numbers = numbers_of(draws, _SPLIT)
    return by_rows(draws, _SPLIT) if misses_share(np.bincount(numbers, minlength=3), _SPLIT) else numbers


def random_splits(rows: int, seed: int) -> NDArray[np.int8]:
    """Return the splits of scikit-learn."""
    numbers = np.zeros(rows, np.int8)
    _, rest = train_test_split(np.arange(rows), test_size=_SPLIT.eval + _SPLIT.test, random_state=seed)
    numbers[rest[: len(rest) // 2]], numbers[rest[len(rest) // 2 :]] = 1, 2
    return numbers


def main(seeds: int, paths: list[str]) -> None:
    """Print a line for each table."""
    print("table,rows,distinct,contradicting,rule,metric,difference,error,least test,most test")
    for path in paths:
        table = csv.read_csv(path).combine_chunks()
        label = table.column_names[-1]
        hashes = row_hashes(table.to_batches()[0], {label})
        repeats = repeats_of(*np.ascontiguousarray(hashes.T))
        rules: dict[str, Splits] = {
            "before": partial(content_splits, hashes[:, [1, 1]], repeats=None),
            "together": partial(content_splits, hashes, repeats=None),
            "now": partial(content_splits, hashes, repeats=repeats),
        }
        judge = _judge(table, label)
        expected = _judged(judge, partial(random_splits, len(hashes)), seeds)[0]
        for rule, splits in rules.items():
            found, sizes = _judged(judge, splits, seeds)
            error = np.sqrt(np.nanvar(found) / seeds + np.nanvar(expected) / seeds)
            difference = np.nanmean(found) - np.nanmean(expected)
            described = f"{Path(path).stem},{len(hashes)},{repeats.distinct},{repeats.contradicting / len(hashes):.3f}"
            shares = f"{sizes.min() / len(hashes):.3f},{sizes.max() / len(hashes):.3f}"
            print(f"{described},{rule},{np.nanmean(expected):.3f},{difference:.4f},{error:.4f},{shares}", flush=True)


def _judge(table: pa.Table, label: str) -> Callable[[NDArray[np.int8]], float]:
    """Return a function that judges a tree that learns the rows of split 0 by those of split 2."""
    features = np.stack([_numbers(table[name]) for name in table.column_names if name != label], axis=1)
    target = _numbers(table[label])
    is_class = not pa.types.is_floating(table[label].type) and len(np.unique(target)) <= _CLASSES
    tree = (DecisionTreeClassifier if is_class else DecisionTreeRegressor)(min_samples_leaf=5, random_state=0)
    metric = accuracy_score if is_class else r2_score

    def judge(numbers: NDArray[np.int8]) -> float:
        test = numbers == 2
        if test.sum() < 2 or not (numbers == 0).any():
            return np.nan
        tree.fit(features[numbers == 0], target[numbers == 0])
        return float(metric(target[test], tree.predict(features[test])))

    return judge


def _judged(
    judge: Callable[[NDArray[np.int8]], float], splits: Splits, seeds: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    numbers = [splits(seed) for seed in range(seeds)]
    return np.array([judge(each) for each in numbers]), np.array([(each == 2).sum() for each in numbers])


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.nan_to_num(column.cast(pa.float64()).to_numpy())
    return column.combine_chunks().cast(pa.string()).dictionary_encode().indices.fill_null(-1).to_numpy().astype(float)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
