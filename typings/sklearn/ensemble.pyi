from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[Any]

class _Predictor:
    nodes: _Array
    raw_left_cat_bitsets: NDArray[np.uint32]

class _Trees:
    train_score_: NDArray[np.float64]
    validation_score_: NDArray[np.float64]
    _baseline_prediction: NDArray[np.float64]
    _predictors: list[list[_Predictor]]
    def __init__(
        self,
        *,
        random_state: int,
        categorical_features: Sequence[bool],
        learning_rate: float = 0.1,
        max_iter: int = 100,
        max_leaf_nodes: int = 31,
        early_stopping: bool = ...,
        n_iter_no_change: int = 10,
        tol: float = 1e-7,
    ) -> None: ...
    def fit(
        self,
        X: _Array,
        y: _Array,
        sample_weight: _Array | None = None,
        *,
        X_val: _Array | None = None,
        y_val: _Array | None = None,
        sample_weight_val: _Array | None = None,
    ) -> Self: ...
    def predict(self, X: _Array) -> NDArray[Any]: ...
    def staged_predict(self, X: _Array) -> Iterator[NDArray[Any]]: ...

class HistGradientBoostingRegressor(_Trees): ...

class HistGradientBoostingClassifier(_Trees):
    classes_: NDArray[np.int64]
    def predict_proba(self, X: _Array) -> NDArray[np.float64]: ...
