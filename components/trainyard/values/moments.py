"""The weighted mean and standard deviation of numbers that come part by part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DIGITS = 9  # of a standard deviation; chosen: those beyond depend on the order of the additions


@dataclass
class WeightedMoments:
    """Source: Chan, Golub, LeVeque (1979), the pairwise update of the sum of squares; as `low` -inf if one is NaN."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def from_values(cls, values: NDArray[np.float64], weights: NDArray[np.float64]) -> WeightedMoments:
        """Summarize `values` (n,) with their `weights` (n,)."""
        if not np.isfinite(values).all():
            return cls(low=-math.inf)
        if not weights.any():
            return cls()
        mean = float(np.average(values, weights=weights))
        squares = float((weights * np.square(values - mean)).sum())
        return cls(float(weights.sum()), mean, squares, float(values.min()), float(values.max()))

    def merge(self, other: WeightedMoments) -> None:
        """Count all that `other` counted."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        if weight := self.weight + other.weight:
            delta = other.mean - self.mean
            self.mean += delta * other.weight / weight
            self.squares += other.squares + delta * delta * self.weight * other.weight / weight
            self.weight = weight

    @property
    def are_known(self) -> bool:
        """True if all values are numbers, and there are some."""
        return self.weight > 0 and math.isfinite(self.low)

    @property
    def deviation(self) -> float:
        """The standard deviation of the population, 0 of equal values."""
        return math.sqrt(self.squares / self.weight) if self.high > self.low else 0.0

    def rounded(self) -> tuple[float, float]:
        """Return the mean and the standard deviation, 1 of equal values, without digits that the order changes."""
        if not self.deviation:
            return float(f"{self.mean:.{_DIGITS}g}"), 1.0
        decimals = _DIGITS - 1 - math.floor(math.log10(self.deviation))
        return round(self.mean, decimals), float(f"{self.deviation:.{_DIGITS}g}")
