from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[Any]

def confusion_matrix(y_true: _Array, y_pred: _Array, *, labels: _Array) -> NDArray[np.int64]: ...
def precision_recall_fscore_support(
    y_true: _Array, y_pred: _Array, *, labels: _Array, zero_division: int, sample_weight: _Array | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]: ...
def roc_auc_score(
    y_true: _Array, y_score: _Array, *, average: str = "macro", sample_weight: _Array | None = None
) -> float: ...
def roc_curve(
    y_true: _Array, y_score: _Array, *, sample_weight: _Array | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]: ...
