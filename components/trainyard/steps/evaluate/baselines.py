"""Baselines of a model: a constant answer and boosted trees; and the permutation importance of columns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from trainyard import events
from trainyard.contract.artifacts.evaluate import Baseline, Importance
from trainyard.contract.artifacts.preprocess import Examples, Feature
from trainyard.contract.document import Split
from trainyard.contract.statistics.scores import example_scores
from trainyard.data.examples import ExampleFolder
from trainyard.spec.columns import Date, date_names
from trainyard.spec.gates import BASELINE_METRICS
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.evaluate.metrics.registry import measure
from trainyard.values.numbers import filled_columns

Arrays = dict[str, NDArray[Any]]
_Trees: TypeAlias = HistGradientBoostingClassifier | HistGradientBoostingRegressor

MOST_EXAMPLES = 100_000
"""Of the training split that the trees learn from. Chosen: 1.5 s with 20 columns and two classes, 6 s with 50 classes,
measured on two cores."""

_MOST_CELLS = 50_000_000  # of those examples; chosen: 200 MB
_BATCH = 4096
_MOST_CLASSES = 50  # chosen: an iteration grows a tree a class
_MOST_CATEGORIES = 255  # that scikit-learn's trees tell apart; more ids count as numbers
_MOST_WORDS = 200  # chosen: of a text, those that come most often
_ANSWER_CLASSES = 20  # the most that an answer names; chosen
_EXAMPLES, _REPEATS, _COLUMNS = 2000, 3, 200  # of the importances; chosen: some seconds at the most


def baseline(candidate: SplitPredictions, examples: Examples) -> Baseline:
    """Return the metrics of the training split's most frequent class, or of the mean of the judged targets.

    The most frequent class is that of the largest sum of sample weights. The mean is that of the examples that are
    judged, which no other constant beats in its squared error. Of multi_label the answer is as many of the most
    frequent classes as score best.
    """
    totals = examples.splits["train"].class_totals
    if not examples.labels or not totals:
        answers = _mean_answer(candidate, examples)
        values = measure("regression", answers)
        answer = "Each target's mean" if examples.targets else f"The mean {answers.outputs[0]:.6g}"
        return Baseline(answer=answer, metrics={name: values[name] for name in BASELINE_METRICS["regression"]})
    if examples.task == "multi_label":
        return _most_frequent(candidate, examples.labels, totals)[0]
    index = int(np.argmax(totals))
    return Baseline(
        answer=f"'{examples.labels[index]}'", metrics={"accuracy": candidate.mean(candidate.labels == index)}
    )


def baseline_predictions(candidate: SplitPredictions, examples: Examples) -> SplitPredictions:
    """Return the answer of `baseline` to every example."""
    totals = examples.splits["train"].class_totals
    if not examples.labels or not totals:
        return _mean_answer(candidate, examples)
    if examples.task == "multi_label":
        answer = _most_frequent(candidate, examples.labels, totals)[1]
    else:
        answer = np.arange(candidate.outputs.shape[1]) == np.argmax(totals)
    return replace(candidate, outputs=np.broadcast_to(answer.astype(np.float32), candidate.outputs.shape))


def _mean_answer(candidate: SplitPredictions, examples: Examples) -> SplitPredictions:
    labels = candidate.labels if examples.targets else candidate.labels.astype(np.float64)
    mean = np.average(labels, axis=0, weights=candidate.weights)
    return replace(candidate, outputs=np.broadcast_to(mean.astype(np.float32), labels.shape))


def _most_frequent(
    candidate: SplitPredictions, labels: list[str], totals: Sequence[float]
) -> tuple[Baseline, NDArray[np.bool_]]:
    order = np.argsort(-np.asarray(totals), kind="stable")[:_ANSWER_CLASSES]
    scores = []
    for count in range(len(order) + 1):
        answer = np.isin(np.arange(len(labels)), order[:count])
        answers = np.broadcast_to(answer.astype(np.float32), candidate.labels.shape)
        scores.append(candidate.mean(example_scores("multi_label", candidate.labels, answers)))
    best = int(np.argmax(scores))
    answer_text = " and ".join(f"'{labels[index]}'" for index in order[:best]) or "no class"
    baseline = Baseline(answer=answer_text, metrics={"f1": scores[best]})
    return baseline, np.isin(np.arange(len(labels)), order[:best])


def is_table(examples: ExampleFolder) -> bool:
    """Return True if every feature is a number or an id per example, or a row of them."""
    features = examples.document.features
    return bool(features) and all(len(feature.shape) <= 1 and not feature.encoded for feature in features)


def first_examples(examples: ExampleFolder, split: Split, limit: int) -> tuple[Arrays, NDArray[Any]]:
    """Return the first examples of `split`, which are in random order: features (n,) by name, and labels (n,)."""
    features, labels = [], []
    for batch, label, _ in examples.batches(split, 4096).take(-(-limit // 4096)):
        features.append({name: values.numpy() for name, values in batch.items()})
        labels.append(label.numpy())
    joined = {name: np.concatenate([batch[name] for batch in features])[:limit] for name in features[0]}
    return joined, np.concatenate(labels)[:limit]


def features_by_column(recipe: Recipe, examples: ExampleFolder) -> dict[str, list[str]]:
    """Return the features that each column of the recipe became; those of an own preprocessing_fn stand alone."""
    remaining = {feature.name for feature in examples.document.features}
    indicators = examples.document.indicators
    columns: dict[str, list[str]] = {}
    for name, kind in recipe.data.features.items():
        parts = date_names(name, hour=True) if isinstance(kind, Date) else [name]
        names = [*parts, *([indicators[name]] if name in indicators else [])]
        made = [feature for feature in names if feature in remaining]
        if made:
            columns[name] = made
            remaining -= set(made)
    return columns | {name: [name] for name in sorted(remaining)}


def boosted_predictions(examples: ExampleFolder, split: Split, seed: int) -> tuple[SplitPredictions, int] | None:
    """Train boosted trees on the training split, and return their predictions for `split` in stored order.

    Also returns the number of training examples. The trees are scikit-learn's with its defaults, on the model's
    features; a text becomes counts of its 200 most frequent words. Each label of multi_label and each target has its
    own trees, with proportionally fewer examples. None if the examples are no table or have over 50 classes or targets.
    """
    labels, several = examples.document.labels, math.prod(examples.document.label_shape)
    if not is_table(examples) or examples.document.outputs > _MOST_CLASSES:
        return None
    started = time.monotonic()
    inputs = sorted(examples.document.features, key=lambda feature: feature.name)
    width = sum(map(_width, inputs))
    features, targets = first_examples(examples, "train", min(MOST_EXAMPLES // several, _MOST_CELLS // width))
    weights = examples.weights("train")
    if weights is not None:  # trees count a row of weight 0 in their bins and leaves
        counted = np.flatnonzero(weights[: len(targets)])
        features = {name: values[counted] for name, values in features.items()}
        weights, targets = weights[counted], targets[counted]
        weights /= weights.mean()  # only ratios matter, and scikit-learn has a least weight for a split
    if not len(targets) or any(len(np.unique(column)) < 2 for column in targets.reshape(len(targets), -1).T):
        return None
    categorical = [
        not input_.shape and 0 < (input_.vocabulary_size or 0) <= _MOST_CATEGORIES
        for input_ in inputs
        for _ in range(_width(input_))
    ]
    kind = HistGradientBoostingRegressor if labels is None else HistGradientBoostingClassifier
    matrix = filled_columns(_matrix(features, inputs))
    trees = [
        kind(random_state=seed, categorical_features=categorical).fit(matrix, column, weights)
        for column in targets.reshape(len(targets), -1).T
    ]
    answers = [
        (
            label.numpy(),
            _answer(trees, {name: values.numpy() for name, values in batch.items()}, inputs, examples.document),
        )
        for batch, label, _ in examples.batches(split, _BATCH)
    ]
    events.emit("boosted", examples=len(targets), seconds=round(time.monotonic() - started, 2))
    judged_labels, outputs = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    return SplitPredictions(judged_labels, outputs, examples.weights(split)), len(targets)


def _answer(trees: list[_Trees], features: Arrays, inputs: list[Feature], examples: Examples) -> NDArray[np.float32]:
    """Return predictions (n,) or (n, targets), or probabilities (n, classes): 0 for a class that no tree has met."""
    matrix = _matrix(features, inputs)
    columns = []
    for tree in trees:
        if isinstance(tree, HistGradientBoostingRegressor):
            columns.append(tree.predict(matrix))
        elif examples.task == "multi_label":
            columns.append(tree.predict_proba(matrix)[:, 1])
        else:
            outputs = np.zeros((len(matrix), examples.outputs), np.float32)
            outputs[:, tree.classes_] = tree.predict_proba(matrix)
            return outputs
    return np.stack(columns, axis=1).astype(np.float32).reshape(-1, *examples.label_shape)


def _matrix(features: Arrays, inputs: list[Feature]) -> NDArray[np.float32]:
    known = features | {
        feature.missing_of: np.where(features[feature.name] > 0, np.nan, features[feature.missing_of])
        for feature in inputs
        if feature.missing_of
    }
    return np.concatenate([_columns(known[feature.name], feature) for feature in inputs], axis=1)


def _columns(values: NDArray[Any], feature: Feature) -> NDArray[np.float32]:
    """Return the trees' input for a feature, (n, _width(feature)): a row of ids becomes counts."""
    width = _width(feature)
    if not feature.shape or feature.vocabulary_size is None:
        return values.astype(np.float32).reshape(-1, width)
    counts = np.zeros((len(values), width), np.float32)
    rows, _ = known = np.nonzero((values < width) & (values != feature.filler))
    np.add.at(counts, (rows, values[known]), 1)
    return counts


def _width(feature: Feature) -> int:
    return (
        min(feature.vocabulary_size, _MOST_WORDS)
        if feature.shape and feature.vocabulary_size
        else math.prod(feature.shape)
    )


def importances(
    recipe: Recipe, examples: ExampleFolder, split: Split, predict: Callable[[dict[str, tf.Tensor]], tf.Tensor]
) -> list[Importance]:
    """Return the increase of the mean loss on `split` when a column is shuffled, largest first.

    At most 2,000 examples and three shuffles a column; nothing for images, and for more than 200 columns.
    Source: Breiman, Random Forests, 2001, section 10; Fisher, Rudin and Dominici, All Models are Wrong, 2019.
    """
    columns = features_by_column(recipe, examples) if is_table(examples) else {}
    if not 1 < len(columns) <= _COLUMNS:
        return []
    features, labels = first_examples(examples, split, _EXAMPLES)
    weights = examples.weights(split)
    weights = None if weights is None or not weights[:_EXAMPLES].any() else weights[:_EXAMPLES]

    def loss(inputs: Arrays) -> float:
        outputs = predict({name: tf.constant(values) for name, values in inputs.items()}).numpy()
        judged = SplitPredictions(labels, outputs, weights)
        return judged.mean(judged.losses)

    whole, draw = loss(features), np.random.default_rng(recipe.seed)
    results = []
    for name, made in columns.items():
        orders = [draw.permutation(len(labels)) for _ in range(_REPEATS)]
        grown = [loss(features | {feature: features[feature][order] for feature in made}) - whole for order in orders]
        results.append(Importance(column=name, loss_increase=float(np.mean(grown)), spread=float(np.std(grown))))
    return sorted(results, key=lambda feature: -feature.loss_increase)
