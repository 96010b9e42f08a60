"""Compiled trees answer as scikit-learn's do, for each kind of column and label, and at their very thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trainyard.data  # noqa: F401 - chooses Keras 3

# isort: split
import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from trainyard.contract.artifacts.preprocess import Feature
from trainyard.errors import ConfigurationError, DataError
from trainyard.models import boosted_trees
from trainyard.models.boosted_trees import BoostedTrees, Columns, Rows, below
from trainyard.spec.model import Trees

FEATURES = [
    Feature(name="km/h", dtype="float32", shape=()),
    Feature(name="city", dtype="int64", shape=(), vocabulary_size=40),
    Feature(name="pair", dtype="float32", shape=(2,)),
    Feature(name="day", dtype="int64", shape=()),
    Feature(name="ok", dtype="int64", shape=(), vocabulary_size=3),
    Feature(name="shop", dtype="int64", shape=(), vocabulary_size=900),
]
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


def table(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return features by name, coarse and thus often equal, and a score that depends on each."""
    draw = np.random.default_rng(seed)
    values = {
        "km/h": np.round(draw.normal(size=rows), 1).astype(np.float32),
        "city": draw.integers(0, 40, rows),
        "pair": draw.normal(size=(rows, 2)).astype(np.float32) * 1e6,
        "day": draw.integers(-3, 4, rows),
        "ok": draw.integers(0, 3, rows),
        "shop": draw.integers(0, 900, rows),
    }
    score = values["km/h"] + np.sin(3.0 * values["city"]) + values["pair"].sum(axis=1) / 1e6 * (values["ok"] - 1)
    return values, score + 0.2 * values["day"] + values["shop"] / 900


def grown(
    values: dict[str, np.ndarray], labels: np.ndarray, seed: int = 1, patience: int | None = None, **trees: Any
) -> BoostedTrees:
    """Return trees that learned the first half, judged by the second one."""
    columns, half = Columns(FEATURES), len(labels) // 2
    matrix, weights = columns.matrix(values), np.linspace(0, 2, len(labels))
    first, second = (Rows(matrix[part], labels[part], weights[part]) for part in (slice(None, half), slice(half, None)))
    return boosted_trees.fit(Trees(**trees), columns, first, second, patience, seed, lambda _: None)


def answers(trees: BoostedTrees, matrix: np.ndarray) -> np.ndarray:
    """Return scikit-learn's probabilities, or numbers (n, 1)."""
    estimator: Any = trees.estimator
    return (
        estimator.predict_proba(matrix) if hasattr(estimator, "predict_proba") else estimator.predict(matrix)[:, None]
    )


@settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate])  # shrinking would take minutes
@given(
    rows=st.integers(60, 600),
    classes=st.integers(1, 4),
    max_leaf_nodes=st.integers(2, 40),
    iterations=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_a_compiled_model_answers_as_scikit_learn_does(
    rows: int, classes: int, max_leaf_nodes: int, iterations: int, seed: int
) -> None:
    values, score = table(rows, seed)
    values["city"][: rows // 2] %= 33  # the others come in no training row
    labels = score
    if classes > 1:
        labels = np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))
    trees = grown(values, labels, max_iter=iterations, max_leaf_nodes=max_leaf_nodes)
    model = trees.model(FEATURES, classes, iterations)
    # Each number is also moved to a threshold of its column, or next to it.
    draw = np.random.default_rng(seed)
    nodes = np.concatenate([tree.nodes for grown_together in trees.estimator._predictors for tree in grown_together])
    for column, numbers in ((3, values["km/h"]), (4, values["pair"][:, 0]), (5, values["pair"][:, 1])):
        thresholds = below(nodes["num_threshold"][(nodes["feature_idx"] == column) & (nodes["is_leaf"] == 0)])
        if len(thresholds):
            chosen = draw.choice(thresholds, rows)
            above = np.nextafter(chosen, np.float32(np.inf))
            numbers[:] = np.choose(draw.integers(0, 3, rows), [chosen, above, numbers])
    outputs = model(values).numpy()
    found = outputs if classes == 1 else tf.nn.softmax(outputs).numpy()
    np.testing.assert_allclose(found, answers(trees, trees.columns.matrix(values)), rtol=1e-6, atol=1e-6)


def test_a_number_that_is_missing_takes_the_branch_that_scikit_learn_gives_it_in_litert_too() -> None:
    draw = np.random.default_rng(3)
    told = [Feature(name=f"{name}_missing", dtype="float32", shape=(), missing_of=name) for name in ("a", "b", "c")]
    kind = Feature(name="kind", dtype="int64", shape=(), vocabulary_size=40)
    features = [*(Feature(name=name, dtype="float32", shape=()) for name in ("a", "b", "c")), kind, *told]
    kinds = draw.integers(0, 40, 2000)
    missing = draw.random((2000, 3)) < (0.3, 0.3, 0.0)  # of c none, but the file may be asked about one
    numbers = draw.normal(size=(2000, 3)).astype(np.float32)
    labels = np.where(missing[:, 0], 2.0, numbers[:, 0]) + np.where(missing[:, 1], -1.0, numbers[:, 1]) + numbers[:, 2]
    labels += kinds % 3
    columns = Columns(features)
    assert columns.count == 4

    def inputs(missing: np.ndarray) -> dict[str, np.ndarray]:
        values = {name: np.where(missing[:, at], 0, numbers[:, at]) for at, name in enumerate("abc")} | {"kind": kinds}
        return values | {f"{name}_missing": missing[:, at].astype(np.float32) for at, name in enumerate("abc")}

    rows = Rows(columns.matrix(inputs(missing)), labels, None)
    assert np.isnan(rows.values[:, 1:]).tolist() == missing.tolist()
    trees = boosted_trees.fit(Trees(max_iter=60), columns, rows, rows, None, 1, lambda _: None)
    model = trees.model(features, 1, 60)
    asked = missing | (draw.random((2000, 3)) < 0.1)
    answers_now = model({name: tf.constant(values) for name, values in inputs(asked).items()}).numpy()
    np.testing.assert_allclose(answers_now, answers(trees, columns.matrix(inputs(asked))), rtol=1e-4, atol=1e-5)
    r2 = 1 - np.square(answers_now[:, 0] - labels)[~asked[:, 2]].mean() / labels.var()
    assert r2 > 0.8
    one = {feature.name: tf.TensorSpec((1,), feature.dtype, name=feature.name) for feature in features}
    function = tf.function(lambda row: {"answer": model(row)}, autograph=False).get_concrete_function(one)
    module = tf.Module()
    module.model_variables = [variable.value for variable in model.weights]
    file = tf.lite.TFLiteConverter.from_concrete_functions([function], module).convert()
    ask = Interpreter(model_content=file).get_signature_runner()
    found = [ask(**{name: values[row : row + 1] for name, values in inputs(asked).items()}) for row in range(50)]
    np.testing.assert_allclose([each["answer"][0] for each in found], answers_now[:50], rtol=1e-5, atol=1e-5)


def test_a_number_without_a_value_in_the_training_split_is_left_alone() -> None:
    told = [Feature(name=f"{name}_missing", dtype="float32", shape=(), missing_of=name) for name in "ab"]
    columns = Columns([*(Feature(name=name, dtype="float32", shape=()) for name in "ab"), *told])
    numbers = np.random.default_rng(3).normal(size=(200, 2)).astype(np.float32)
    numbers[:, 1] = np.nan
    rows = Rows(numbers, numbers[:, 0], None)
    trees = boosted_trees.fit(Trees(max_iter=5), columns, rows, rows, None, 1, lambda _: None)
    with_value = np.where(np.isnan(numbers), np.float32(7), numbers)
    np.testing.assert_array_equal(answers(trees, numbers), answers(trees, with_value))


@given(st.floats(allow_nan=False), FLOATS)
def test_a_threshold_of_32_bits_parts_all_numbers_of_32_bits_alike(threshold: float, value: float) -> None:
    rounded = below(np.array([threshold]))
    with np.errstate(over="ignore"):
        near = np.float32(threshold)
    for each in (
        np.float32(value),
        near,
        np.nextafter(near, np.float32(np.inf)),
        np.nextafter(near, np.float32(-np.inf)),
    ):
        if each == 0 or abs(each) >= np.finfo(np.float32).smallest_normal:
            assert (each <= rounded[0]) == (float(each) <= threshold)


def test_equal_arguments_give_equal_weights_and_the_file_opens_with_keras_alone(tmp_path: Path) -> None:
    values, score = table(400, 3)
    labels = (score > 0.5).astype(np.int64)
    models = [grown(values, labels, max_iter=8).model(FEATURES, 2, 8) for _ in range(2)]
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)
    models[0].save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(loaded(values).numpy(), models[1](values).numpy())


def test_training_stops_when_the_eval_loss_has_not_fallen_for_as_many_iterations_as_asked() -> None:
    values, score = table(300, 4)
    labels = (score + np.random.default_rng(1).normal(0, 3, 300) > 0).astype(np.int64)
    trees = grown(values, labels, patience=3, max_iter=200)
    losses = trees.losses[1]
    assert len(losses) < 200 and losses[-3:].min() >= losses[-4] and losses[:-3].argmin() == len(losses) - 4


def test_a_class_without_training_examples_is_never_predicted() -> None:
    values, score = table(200, 5)
    for seen, outputs in (([0, 2], 3), ([0, 2, 3], 5)):
        labels = np.array(seen)[np.digitize(score, np.quantile(score, np.linspace(0, 1, len(seen) + 1)[1:-1]))]
        trees = grown(values, labels, max_iter=3)
        probabilities = tf.nn.softmax(trees.model(FEATURES, outputs, 3)(values)).numpy()
        expected = np.zeros_like(probabilities)
        expected[:, seen] = answers(trees, trees.columns.matrix(values))
        np.testing.assert_allclose(probabilities, expected, atol=1e-6)


def test_what_trees_cannot_learn_from_is_refused() -> None:
    values, score = table(100, 6)
    with pytest.raises(DataError, match="all examples of the training split have the same label"):
        grown(values, np.zeros(100, np.int64))
    values["km/h"][7] = np.nan
    with pytest.raises(DataError, match="values that are missing or infinite"):
        grown(values, score)
    words = Feature(name="words", dtype="int64", shape=(9,), vocabulary_size=40, filler=0)
    with pytest.raises(ConfigurationError, match=r"'words' has shape \(9,\)"):
        Columns([words])
