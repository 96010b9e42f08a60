"""What settings that were measured in turn, round after round, say of a speed, and of how two speeds compare.

A machine that does other things, or grows hot, is as slow for minutes: the epochs of one training do not show that, and
rounds do. It slows all settings of a round alike, so that the quotient of two settings is taken round by round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

MOST = 10
# Student's t, 0.975, for 1 to 9 degrees of freedom. Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of two to ten `values` above 0 and the ends of its 95 % interval.

    >>> [round(end, 3) for end in interval([1.0, 1.0])]
    [1.0, 1.0, 1.0]
    """
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    half = _T[len(logs) - 2] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def quotient(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Return how many times `base` the `values` of the same rounds are, as `interval`."""
    return interval([value / other for value, other in zip(values, base, strict=True)])
