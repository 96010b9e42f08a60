from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class _Images:
    images: Sequence[NDArray[np.float64]]
    target: Sequence[int]

class _Table:
    data: Sequence[Sequence[float]]
    target: Sequence[int]
    feature_names: Sequence[str]
    target_names: Sequence[str]

def load_digits() -> _Images: ...
def load_breast_cancer() -> _Table: ...
