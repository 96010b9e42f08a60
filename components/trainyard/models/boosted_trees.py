"""Gradient-boosted trees over columns: trained by scikit-learn, and answered by tensor operations alone.

`fit` grows scikit-learn's histogram trees. `BoostedTrees.model` compiles them to a Keras model of Keras' own layers and
operations, so that each file format, server and step treats it like a network. The model descends all trees together,
one level at a time: a table holds the nodes of all trees, and a gather reads the current node of each tree. Source: S.
Nakandala et al., A Tensor Compiler for Unified Machine Learning Prediction Serving (Hummingbird), OSDI 2020, section
4.1, "tree traversal". Its other form, products of matrices with all nodes and leaves of a tree, takes memory and
operations that grow with the square of the leaves.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import layers, ops
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from trainyard import events
from trainyard.contract.artifacts.preprocess import Feature
from trainyard.errors import ConfigurationError, DataError
from trainyard.models.build import column_inputs, columns_matrix
from trainyard.spec.model import TREE_CLASSES, Trees
from trainyard.values.numbers import filled_columns

Estimator: TypeAlias = HistGradientBoostingClassifier | HistGradientBoostingRegressor
Floats = NDArray[np.float32]

_MOST_CATEGORIES = 255  # that scikit-learn's trees tell apart; more ids count as numbers
_UNSEEN = -50.0  # chosen: logit of a class without training examples; its probability is below 1e-9
_REPORT_SECONDS = 0.5  # chosen
_MISSING = float(np.finfo(np.float32).max)  # chosen: with infinity LiteRT and ONNX files answered otherwise
_MOST_NODES = 1 << 24  # float32 counts no further


class Rows(NamedTuple):
    """Examples of a split: the values (n, columns) as `Columns.matrix` gives them, labels (n,), and weights or None."""

    values: Floats
    labels: NDArray[Any]
    weights: NDArray[Any] | None


class Columns:
    """The columns that trees split on: ids of few categories first, as scikit-learn sorts them, then numbers.

    A number with an indicator of missing values is one column, NaN where it is missing. indicators: by such a number.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        for feature in features:
            if len(feature.shape) > 1 or feature.encoded or (feature.shape and feature.vocabulary_size):
                raise ConfigurationError(
                    f"model.name: boosted_trees takes numbers and one category an example; '{feature.name}' has shape "
                    f"{feature.shape}. Leave the feature out, or name mlp or wide_deep."
                )
        numbers = {feature.name for feature in features if not _is_category(feature)}
        self.indicators = {
            feature.missing_of: feature.name
            for feature in features
            if feature.missing_of in numbers and feature.missing_of
        }
        with_values = [feature for feature in features if feature.name not in self.indicators.values()]
        self.features = sorted(with_values, key=lambda feature: (not _is_category(feature), feature.name))
        self.categories = [feature.vocabulary_size or 0 for feature in self.features if _is_category(feature)]
        self.count = sum(math.prod(feature.shape) for feature in self.features)

    def matrix(self, values: Mapping[str, NDArray[Any]]) -> Floats:
        """Return float32 (n, count) of the features' `values` by name, NaN if missing."""
        known = {**values} | {
            name: np.where(values[indicator] > 0, np.nan, values[name]) for name, indicator in self.indicators.items()
        }
        parts = [known[each.name].astype(np.float32).reshape(-1, math.prod(each.shape)) for each in self.features]
        return np.concatenate(parts, axis=1)

    def may_lack(self) -> NDArray[np.bool_]:
        """Return a mask of the columns (count,) that may be NaN."""
        return np.concatenate([np.full(math.prod(each.shape), each.name in self.indicators) for each in self.features])

    def tensor(self, inputs: Mapping[str, keras.KerasTensor]) -> keras.KerasTensor:
        """Return the same of the model's `inputs`, `_MISSING` if missing."""
        columns = {each.name: inputs[each.name] for each in self.features}
        values = columns_matrix(list(columns.values()))
        if not self.indicators:
            return values
        lacks = {
            name: inputs[self.indicators[name]] if name in self.indicators else ops.zeros_like(column)
            for name, column in columns.items()
        }
        return ops.where(columns_matrix(list(lacks.values())) > 0, _MISSING, values)


def _is_category(feature: Feature) -> bool:
    return not feature.shape and 0 < (feature.vocabulary_size or 0) <= _MOST_CATEGORIES


@dataclass(frozen=True)
class BoostedTrees:
    """Trained trees. known: the ids in the training split of each column of categories."""

    estimator: Estimator
    columns: Columns
    known: list[NDArray[np.int64]]

    @property
    def losses(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean loss of the training and the eval split after each iteration."""
        factor = 2.0 if isinstance(self.estimator, HistGradientBoostingRegressor) else 1.0  # it halves the squares
        return -factor * self.estimator.train_score_[1:], -factor * self.estimator.validation_score_[1:]

    def staged(self, values: Floats) -> Iterator[NDArray[Any]]:
        """Yield the predicted label ids (n,), or numbers, of the matrix `values` after each iteration."""
        with threadpool_limits(1, user_api="openmp"):
            yield from self.estimator.staged_predict(values)

    def model(self, features: Sequence[Feature], outputs: int, iterations: int) -> keras.Model:
        """Return the first `iterations` as a Keras model: logits (batch, outputs), for regression numbers (batch, 1).

        A row of float32 takes the same branches as in scikit-learn. Two classes get the logits 0 and scikit-learn's
        decision; a class without training examples gets a logit that stands for no probability.
        """
        baseline, grown = self.estimator._baseline_prediction, self.estimator._predictors
        # Summed in groups as many as their trees: a plain sum of float32 loses a digit with hundreds of trees.
        side = math.isqrt(iterations) + 1
        table = _Table(self.columns, self.known, roots=baseline.size * side * side)
        for place, constant in enumerate(baseline.ravel()):
            for root in range(side * side):
                at = place * side * side + root
                if root < iterations:
                    table.add(at, grown[root][place])
                else:
                    table.add_leaf(at, constant if root == iterations else 0.0)
        inputs = column_inputs(features)
        leaves = table.leaves(self.columns.tensor(inputs))
        answers = ops.sum(ops.sum(ops.reshape(leaves, (-1, baseline.size, side, side)), axis=-1), axis=-1)
        return keras.Model(inputs, self._logits(answers, outputs), name="boosted_trees")

    def _logits(self, answers: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
        if isinstance(self.estimator, HistGradientBoostingRegressor):
            return answers
        seen = self.estimator.classes_.tolist()
        if len(seen) == 2:
            answers = ops.concatenate([ops.zeros_like(answers), answers], axis=1)
        if len(seen) == outputs:
            return answers
        unseen = ops.zeros_like(answers[:, :1]) + _UNSEEN
        parts = [
            answers[:, seen.index(label) : seen.index(label) + 1] if label in seen else unseen
            for label in range(outputs)
        ]
        return ops.concatenate(parts, axis=1)


class _Table:
    """The nodes of all trees, a row each: column, threshold, right child, value of a leaf, place of its categories.

    If numbers may be missing, which are `_MISSING` here, a sixth number is 1 if they go left, otherwise 0. The roots
    come first, and a left child before its right one. A leaf is its own right child, and no value is below its
    threshold.
    """

    def __init__(self, columns: Columns, known: Sequence[NDArray[np.int64]], roots: int) -> None:
        self._columns, self._known = columns, known
        self._width = 6 if columns.indicators else 5
        self._rows = [np.zeros((roots, self._width))]
        self._count, self._depth = roots, 0
        self._goes_left = [np.zeros(1)]  # the place 0 is for nodes that split a number
        self._places = 1

    def add_leaf(self, root: int, value: float) -> None:
        """Add a tree of one leaf at the row `root`."""
        self._rows[0][root, :5] = 0, -np.inf, root, value, 0

    def add(self, root: int, tree: Any) -> None:
        """Add scikit-learn's `tree`, a TreePredictor, at the row `root`."""
        nodes = tree.nodes
        inner = np.flatnonzero(nodes["is_leaf"] == 0)
        rows = np.full(len(nodes), root)
        rows[nodes["left"][inner]] = self._count + 2 * np.arange(len(inner))
        rows[nodes["right"][inner]] = rows[nodes["left"][inner]] + 1
        table = np.zeros((len(nodes), self._width))
        table[:, 1], table[:, 2], table[:, 3] = -np.inf, rows, np.where(nodes["is_leaf"], nodes["value"], 0)
        table[inner, 0], table[inner, 2] = nodes["feature_idx"][inner], rows[nodes["right"][inner]]
        table[inner, 1] = below(nodes["num_threshold"][inner])
        table[inner, 5:] = nodes["missing_go_to_left"][inner, None]
        for node in inner[nodes["is_categorical"][inner] == 1]:
            table[node, 1], table[node, 4] = -np.inf, self._places
            self._add_categories(nodes[node], tree.raw_left_cat_bitsets[nodes[node]["bitset_idx"]])
        self._rows[0][root] = table[0]
        self._rows.append(table[np.argsort(rows[1:]) + 1])  # all but the root, in the order of their rows
        self._count += len(nodes) - 1
        self._depth = max(self._depth, int(nodes["depth"].max()))

    def _add_categories(self, node: Any, left: NDArray[np.uint32]) -> None:
        """Add a row of 1 for each id that goes left. scikit-learn counts the known ids, and the others are missing."""
        column = int(node["feature_idx"])
        ids = self._known[column]
        goes_left = np.full(self._columns.categories[column], float(node["missing_go_to_left"]))
        ranks = np.arange(len(ids))
        goes_left[ids] = (left[ranks // 32] >> (ranks % 32).astype(np.uint32)) & 1
        self._goes_left.append(goes_left)
        self._places += len(goes_left)

    def leaves(self, values: keras.KerasTensor) -> keras.KerasTensor:
        """Return the value of the leaf (batch, roots) in which each tree puts the row of `values` (batch, columns)."""
        if max(self._count, self._places) >= _MOST_NODES:
            raise ConfigurationError(
                f"model.trees: the trees have {max(self._count, self._places):,} nodes and categories, and a model "
                f"holds {_MOST_NODES - 1:,}. Lower max_iter or max_leaf_nodes."
            )
        nodes = _lookup(self._count, self._width, "nodes")
        is_left = _lookup(self._places, 1, "categories") if self._places > 1 else None
        first = (ops.cumsum(ops.cast(ops.ones_like(values[:, :1]), "int32"), axis=0) - 1) * self._columns.count
        flat = ops.reshape(values, (-1,))
        at = ops.zeros_like(first) + np.arange(len(self._rows[0]), dtype=np.int32)[None]
        for _ in range(self._depth):
            node = nodes(at)
            value = ops.take(flat, first + ops.cast(node[:, :, 0], "int32"), axis=0)
            left = ops.cast(value <= node[:, :, 1], "int32")
            if self._columns.indicators:
                left = ops.cast(ops.where(value >= _MISSING, node[:, :, 5], left), "int32")
            if is_left is not None:
                place = node[:, :, 4]
                listed = is_left(ops.cast(ops.where(place > 0, place + value, 0.0), "int32"))
                left = ops.maximum(left, ops.cast(listed[:, :, 0], "int32"))
            at = ops.cast(node[:, :, 2], "int32") - left  # Keras turns a sum into BiasAdd, which LiteRT lacks for int32
        answers = nodes(at)[:, :, 3]
        nodes.set_weights([np.concatenate(self._rows).astype(np.float32)])
        if is_left is not None:
            is_left.set_weights([np.concatenate(self._goes_left)[:, None].astype(np.float32)])
        return answers


def _lookup(count: int, width: int, name: str) -> layers.Embedding:
    return layers.Embedding(count, width, embeddings_initializer="zeros", dtype="float32", trainable=False, name=name)


@contextmanager
def _reported(estimator: Estimator, report: Callable[[int], None]) -> Iterator[None]:
    """Report the iterations of `estimator` from another thread while the block trains it."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_REPORT_SECONDS):
            report(len(getattr(estimator, "_predictors", ())))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _judged(kind: Any, judge: Callable[[NDArray[np.float64], float], bool]) -> Any:
    """Return the estimator `kind` that `judge` stops.

    scikit-learn's own `scoring` predicts with all trees after each iteration, which takes quadratic time; the method
    below has the answers already (1.9, gradient_boosting.py).
    """

    class Judged(kind):
        def _check_early_stopping_loss(self, **arguments: Any) -> bool:
            super()._check_early_stopping_loss(**arguments)
            is_start = len(self.validation_score_) == 1  # before the first tree
            return not is_start and judge(arguments["raw_predictions_val"], -self.validation_score_[-1])

    return Judged


def below(thresholds: NDArray[np.float64]) -> Floats:
    """Return the largest float32 at most as large as each threshold, so that both compare alike with every float32.

    None is subnormal, because TensorFlow counts such a number as 0.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = thresholds.astype(np.float32)
    lower = np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    tiny = np.finfo(np.float32).smallest_normal
    subnormal = (lower != 0) & (np.abs(lower) < tiny)
    return np.where(subnormal, np.where(lower < 0, -tiny, np.float32(0)), lower).astype(np.float32)


def fit(
    trees: Trees,
    columns: Columns,
    train: Rows,
    judged: Rows,
    patience: int | None,
    seed: int,
    report: Callable[[int], None],
    judge: Callable[[NDArray[np.float64], float], bool] | None = None,
) -> BoostedTrees:
    """Grow trees on `train`, and measure the loss on `judged`, the eval split, after each iteration.

    Labels of classes are ids; those of a regression are standardized. patience: iterations without a smaller loss
    before the training stops; None for all iterations. report: gets the number of iterations now and then. One thread
    sums the gradients, so that equal arguments give equal trees on every machine. judge: gets the answers of an
    iteration for `judged` and its loss, and returns whether to stop, instead of `patience`. Raises `DataError` if the
    trees cannot learn from `train`.
    """
    is_class = train.labels.dtype.kind in "iu"
    different = len(np.unique(train.labels))
    if is_class and different > TREE_CLASSES:
        text = f"boosted_trees: {different:,} classes; trees of more than {TREE_CLASSES} can diverge. Compare with mlp"
        events.warn(text)
    if different < 2:
        raise DataError(
            "model.name: boosted_trees: all examples of the training split have the same label. "
            f"Give data with {'two classes' if is_class else 'different targets'}."
        )
    filled = ~columns.may_lack()
    if not all(np.isfinite(rows.values[:, filled]).all() for rows in (train, judged)):
        raise DataError(
            "model.name: boosted_trees: preprocessing_fn gives values that are missing or infinite. Fill them in."
        )
    kind = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    estimator: Estimator = (kind if judge is None else _judged(kind, judge))(
        learning_rate=trees.learning_rate,
        max_iter=trees.max_iter,
        max_leaf_nodes=trees.max_leaf_nodes,
        min_samples_leaf=trees.min_samples_leaf,
        categorical_features=[column < len(columns.categories) for column in range(columns.count)],
        early_stopping=True,  # otherwise it keeps no losses
        n_iter_no_change=patience or trees.max_iter + 1,
        tol=0.0,
        random_state=seed,
    )
    with threadpool_limits(1, user_api="openmp"), _reported(estimator, report):
        estimator.fit(
            filled_columns(train.values),
            train.labels,
            train.weights,
            X_val=judged.values,
            y_val=judged.labels,
            sample_weight_val=judged.weights,
        )
    known = [np.unique(train.values[:, column]).astype(np.int64) for column in range(len(columns.categories))]
    return BoostedTrees(estimator, columns, known)
