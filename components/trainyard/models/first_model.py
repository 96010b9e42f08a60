"""Chooses a table's first model by repeated cross-validation of its training rows.

Boosted trees of two sizes are compared with a linear model. All are scikit-learn's, so that thousands of rows take
seconds, where networks take minutes.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from trainyard.quality.recipe_draft import LINEAR, PATIENCE, TREE_SIZES, Comparison
from trainyard.spec.model import Trees
from trainyard.spec.recipe import Data, Recipe
from trainyard.values.numbers import filled_columns

_ROWS = 5_000  # chosen: of more, these are compared
_CELLS = 1_000_000  # rows x columns x trees an iteration; chosen: seconds
_MOST_CLASSES, _MOST_WIDTH = 10, 300  # chosen: an iteration grows a tree a class; columns x trees
_LEAST = 40  # chosen: of fewer rows a fold says nothing
_FOLDS = 5
_SMALL = 1_000  # chosen: fewer rows are cut into folds twice
_CATEGORIES = 255  # that scikit-learn's trees tell apart; the others are one
_PER_LEVEL = 5  # chosen: rows of a value of a category, of which the linear model learns one weight
_LEAST_PROBABILITY = 1e-4  # chosen: a wrong answer costs at most 9.2

_SCALES: dict[str, Callable[[Any], Any]] = {"none": lambda values: values, "log": np.log, "log1p": np.log1p}

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


def compare(table: Any, recipe: Recipe) -> Comparison | None:
    """Compare trees of both sizes with a linear model; None with few rows, one label, or too many classes or columns.

    table: the training rows of `recipe` in random order, with `label` and `raw/<feature>`.
    """
    is_class, data, seed = recipe.task == "classification", recipe.data, recipe.seed
    labels: Any = _ids(table["label"]) if is_class else _SCALES[recipe.train.target.scale](_numbers(table["label"]))
    matrix, categorical = _matrix(table, data)
    classes = len(np.unique(labels)) if is_class else 1
    if classes > _MOST_CLASSES or matrix.shape[1] * classes > _MOST_WIDTH:
        return None
    limit = min(_ROWS, _CELLS // (matrix.shape[1] * (classes if classes > 2 else 1)))
    matrix, labels = matrix[:limit], labels[:limit]
    if is_class:
        frequent = np.isin(labels, np.flatnonzero(np.bincount(labels) >= _FOLDS))  # each fold has one
        matrix, labels = matrix[frequent], np.unique(labels[frequent], return_inverse=True)[1]
    if len(labels) < _LEAST or len(np.unique(labels)) < 2:
        return None
    models: dict[str, Callable[[Floats, Any, Floats], Floats]] = {
        **{name: _trees(size, categorical, is_class, seed) for name, size in TREE_SIZES.items()},
        LINEAR: _linear(categorical, is_class),
    }
    losses: dict[str, list[Floats]] = {name: [] for name in models}
    with threadpool_limits(1), warnings.catch_warnings():  # one thread: equal rows give equal choices
        warnings.simplefilter("ignore")  # a column without values in a fold, or a solver's last iteration
        for repeat in range(2 if len(labels) < _SMALL else 1):
            kind = StratifiedKFold if is_class else KFold
            for train, held in kind(_FOLDS, shuffle=True, random_state=seed + repeat).split(matrix, labels):
                for name, fitted in models.items():
                    losses[name].append(_losses(fitted(matrix[train], labels[train], matrix[held]), labels[held]))
    scale = 1.0 if is_class else float(np.var(labels))
    means = {name: float(np.concatenate(parts).mean()) / scale for name, parts in losses.items()}
    return Comparison("log loss" if is_class else "squared error", len(labels), means)


def _losses(answers: Floats, labels: Any) -> Floats:
    if answers.ndim == 1:
        return np.square(answers - labels)
    return -np.log(np.clip(answers[np.arange(len(labels)), labels], _LEAST_PROBABILITY, 1))


def _trees(size: Trees, categorical: list[bool], is_class: bool, seed: int) -> Callable[[Floats, Any, Floats], Floats]:
    """Return a function that trains as `boosted_trees.fit` does, with a ninth of the rows as the eval split."""
    kind = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor

    def answers(matrix: Floats, labels: Any, held: Floats) -> Floats:
        estimator = kind(
            **size.model_dump(),
            categorical_features=categorical,
            early_stopping=True,
            validation_fraction=1 / 9,
            n_iter_no_change=PATIENCE,
            tol=0.0,
            random_state=seed,
        ).fit(filled_columns(matrix), labels)
        best = int(np.argmax(estimator.validation_score_[1:]))
        staged = estimator.staged_predict_proba(held) if is_class else estimator.staged_predict(held)
        return next(answer for iteration, answer in enumerate(staged) if iteration == best)

    return answers


def _linear(categorical: list[bool], is_class: bool) -> Callable[[Floats, Any, Floats], Floats]:
    """Return a function that fits logistic or ridge regression on scaled numbers and a weight a category."""
    numbers = [at for at, is_category in enumerate(categorical) if not is_category]
    categories = [at for at, is_category in enumerate(categorical) if is_category]
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=_PER_LEVEL, sparse_output=False)
    columns = ColumnTransformer(
        [
            (
                "numbers",
                make_pipeline(SimpleImputer(add_indicator=True, keep_empty_features=True), StandardScaler()),
                numbers,
            ),
            ("categories", make_pipeline(SimpleImputer(strategy="constant", fill_value=-1), encoder), categories),
        ]
    )

    def answers(matrix: Floats, labels: Any, held: Floats) -> Floats:
        model = make_pipeline(columns, LogisticRegression(max_iter=300) if is_class else Ridge()).fit(matrix, labels)
        return np.asarray(model.predict_proba(held) if is_class else model.predict(held))

    return answers


def _matrix(table: Any, data: Data) -> tuple[Floats, list[bool]]:
    """Return the features (rows, columns), NaN if missing, and which columns are ids of categories."""
    columns: list[Floats] = []
    categorical: list[bool] = []
    for name, feature in data.inputs.items():
        column = table[f"raw/{name}"]
        if feature.type == "numeric":
            columns.append(_numbers(column))
        elif feature.type == "date":
            days = np.array([text[:10] or "NaT" for text in column.to_pylist()], "datetime64[D]")
            columns.append(np.where(np.isnat(days), math.nan, days.astype(np.int64)))
        else:
            ids = _ids(column)
            columns.append(np.where(ids < _CATEGORIES, ids, _CATEGORIES - 1).astype(np.float64))
        categorical.append(feature.type == "category")
    return np.stack(columns, axis=1), categorical


def _ids(column: Any) -> Ids:
    """Return a number for each text, 0 for the most frequent one."""
    texts = column.to_pylist()
    ordered = sorted(Counter(texts).items(), key=lambda item: (-item[1], item[0]))
    places = {text: place for place, (text, _) in enumerate(ordered)}
    return np.array([places[text] for text in texts], np.int64)


def _numbers(column: Any) -> Floats:
    return np.asarray(column.cast(pa.float64()).fill_null(math.nan), np.float64)
