"""How far two frequencies of the same values are apart, as three numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainyard.contract.document import FrozenModel

_FLOOR = 1e-4  # chosen: the share that an unseen value counts with in PSI, which is infinite at 0


class Distance(FrozenModel):
    """Between the shares of the values in two data sets.

    l_infinity: the largest change of any one share, 0 to 1. Source: TensorFlow Data Validation,
    https://www.tensorflow.org/tfx/data_validation/get_started
    jensen_shannon: the mean of both Kullback-Leibler divergences from the middle, in bits, 0 to 1. Source: Lin (1991),
    https://doi.org/10.1109/18.61115
    psi: the population stability index, the symmetric Kullback-Leibler divergence in nats; by a rule of thumb of credit
    scoring 0.1 is small and 0.25 is large. Source: Siddiqi (2006), Credit Risk Scorecards.
    """

    l_infinity: float
    jensen_shannon: float
    psi: float


def distance(before: Sequence[float], now: Sequence[float]) -> Distance:
    """Return the distance between the counts of the same values, in the same order."""
    old, new = _shares(before), _shares(now)
    middle = [(p + q) / 2 for p, q in zip(old, new, strict=True)]
    apart = (_divergence(old, middle) + _divergence(new, middle)) / 2
    floored = [(max(p, _FLOOR), max(q, _FLOOR)) for p, q in zip(old, new, strict=True)]
    return Distance(
        l_infinity=_rounded(max((abs(q - p) for p, q in zip(old, new, strict=True)), default=0.0)),
        jensen_shannon=_rounded(max(0.0, apart)),
        psi=_rounded(sum((q - p) * math.log(q / p) for p, q in floored)),
    )


def _shares(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _divergence(shares: Sequence[float], reference: Sequence[float]) -> float:
    return sum(p * math.log2(p / q) for p, q in zip(shares, reference, strict=True) if p)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
