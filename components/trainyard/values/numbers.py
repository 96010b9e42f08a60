"""The precision of numbers in the 32 bits in which networks compute, and matrices for scikit-learn's trees."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Float = TypeVar("_Float", np.float32, np.float64)

MOST_OF_FEATURE, MOST_OF_TARGET = 1e-3, 1e-4
"""The largest step of a 32-bit float, relative to a column's standard deviation; chosen: below a model's resolution."""


def coarse(low: float, high: float, std: float, limit: float) -> str | None:
    """Return in words how 32 bits cut numbers from `low` to `high` of deviation `std`, None if it does not show.

    limit: the largest step that is allowed, as a share of `std`.
    """
    largest = max(abs(low), abs(high))
    step = float(np.spacing(np.float32(largest)))
    if not std or low == high or step <= limit * std:  # of one value the deviation may be what rounding left
        return None
    return (
        f"lies from {low:.12g} to {high:.12g} (standard deviation {std:.4g}), where a 32-bit float, in which networks "
        f"compute, has steps of {step:g}. Write it in the data less a constant, such as {low:.12g}"
    )


def filled_columns(matrix: NDArray[_Float]) -> NDArray[_Float]:
    """Return `matrix` (rows, columns) with 0 in each column that is NaN in every row.

    scikit-learn's trees raise "window shape cannot be larger than input array shape" for such a column (1.9), and
    cannot split by it.
    """
    empty = np.isnan(matrix).all(axis=0)
    return np.where(empty, np.zeros_like(matrix), matrix) if empty.any() else matrix
