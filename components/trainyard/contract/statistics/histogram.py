"""A histogram whose bins do not depend on the order of the data, so that any number of workers can count one together.

All bins are 2**exponent wide and begin at a multiple of it. Two histograms differ in the exponent only, and the finer
one becomes the coarser one by adding up neighbors, which loses nothing that the coarser one would have known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from trainyard.contract.document import FrozenModel


class Histogram(FrozenModel):
    """The counts of non-empty bins: one starts at each of `starts` and is 2**exponent wide.

    starts are in order. With an exponent as small as it gets they are the values themselves.
    """

    exponent: int
    starts: list[float]
    counts: list[int]

    def coarsened(self, exponent: int) -> Histogram:
        """Return the same counts in bins of 2**exponent, which must not be finer."""
        counts: dict[float, int] = {}
        for start, count in zip(self.starts, self.counts, strict=True):
            wide = math.ldexp(math.floor(math.ldexp(start, -exponent)), exponent)
            counts[wide] = counts.get(wide, 0) + count
        return Histogram(exponent=exponent, starts=list(counts), counts=list(counts.values()))

    def limited(self, limit: int) -> Histogram:
        """Return the same counts in at most `limit` bins."""
        if len(self.starts) <= limit:
            return self
        # Bins of a `most`-th of the range are coarse enough; finer ones may be, if there are gaps.
        exponent = max(self.exponent, math.frexp((self.starts[-1] - self.starts[0]) / (limit - 1))[1] + 1)
        limited = self.coarsened(exponent)
        while exponent > self.exponent and len((finer := self.coarsened(exponent - 1)).starts) <= limit:
            exponent, limited = exponent - 1, finer
        return limited

    def quantile(self, share: float) -> float:
        """Return about the value that `share` of the values do not exceed, as if a bin's values were evenly spread."""
        width, target, below = 2.0**self.exponent, share * sum(self.counts), 0
        for start, count in zip(self.starts, self.counts, strict=True):
            if below + count >= target:
                return start + max(0.0, target - below) / count * width
            below += count
        return self.starts[-1] + width if self.starts else 0.0

    def edges(self, groups: int) -> list[float]:
        """Return the inner boundaries of at most `groups` groups of about equal counts."""
        edges: list[float] = []
        total, below = sum(self.counts), 0
        for start, count in zip(self.starts, self.counts, strict=True):
            if below and below >= (len(edges) + 1) * total / groups:
                edges.append(start)
            below += count
        return edges[: groups - 1]

    def grouped(self, edges: Sequence[float]) -> list[int]:
        """Return the counts of the groups that `edges` separate."""
        counts = [0] * (len(edges) + 1)
        for start, count in zip(self.starts, self.counts, strict=True):
            counts[bisect_right(edges, start)] += count
        return counts


def aligned(first: Histogram, second: Histogram) -> tuple[Histogram, Histogram]:
    """Return both with bins of the same width."""
    exponent = max(first.exponent, second.exponent)
    return first.coarsened(exponent), second.coarsened(exponent)
