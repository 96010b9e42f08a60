"""Finds examples of equal content, and tells tables whose rows repeat by nature from tables with copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainyard.contract.document import SPLITS, FrozenModel, Split
from trainyard.steps.preprocess.parts import Parts, fixed_bytes

_EXAMPLES_SHOWN = 5
_DIGESTS = 1 << 24  # chosen: digests of 8 bytes that are compared at once
_CONTRADICTING = 0.1  # simulated: share of rows whose features occur with another label; decision 43
_TIMES = 10  # chosen: so often are no rows copied by mistake


class Repeated(FrozenModel):
    """Examples of equal content: their names in order (at most five), labels and splits."""

    splits: list[Split]
    times: int
    labels: list[str]
    sources: list[str]


@dataclass(frozen=True)
class Repeats:
    """The number of rows, of those with different features, and of rows whose features occur with another label.

    largest: rows of equal features at most.
    """

    rows: int
    distinct: int
    contradicting: int
    largest: int

    @property
    def are_natural(self) -> bool:
        """True if rows repeat because few values are possible, not because they were copied.

        Copies have equal labels, so a table that is copied as a whole, or of which a class is, does not repeat.
        """
        return self.rows > 0 and (
            self.contradicting >= _CONTRADICTING * self.rows or self.rows >= _TIMES * self.distinct
        )

    @classmethod
    def from_rows(cls, contents: NDArray[np.uint64], labels: NDArray[np.int32]) -> Repeats:
        """Count rows by the digests of their features and the numbers of their labels."""
        _, places, counts = np.unique(contents, return_inverse=True, return_counts=True)
        kinds = np.unique(np.stack([places, labels.astype(np.int64)]), axis=1)[0]
        several = np.bincount(kinds, minlength=len(counts))[places] > 1
        return cls(len(contents), len(counts), int(several.sum()), int(counts.max(initial=1)))

    @classmethod
    def from_parts(cls, parts: Parts, repeated: list[Repeated]) -> Repeats:
        """Count the rows of `parts`, in which the rows of equal content are `repeated`."""
        return cls(
            rows=len(parts),
            distinct=len(parts) - sum(group.times - 1 for group in repeated),
            contradicting=sum(group.times for group in repeated if len(group.labels) > 1),
            largest=max((group.times for group in repeated), default=1),
        )


def find_repeated(parts: Parts) -> list[Repeated]:
    """Return the groups of rows of equal content, found by the first 8 bytes of the digests, a share at a time."""
    shares = 1 + len(parts) // _DIGESTS
    groups: dict[bytes, list[tuple[str, str, Split]]] = {}
    for share in range(shares):
        repeated = _equal_digests(parts, shares, share)
        if not len(repeated):
            continue
        for split, rows in _by_split(parts):
            for row in np.flatnonzero(np.isin(_digests(rows), repeated)).tolist():
                member = (rows["source"][row].as_py(), rows["label"][row].as_py(), split)
                groups.setdefault(rows["content"][row].as_py(), []).append(member)
    return [_group(sorted(members)) for members in groups.values() if len(members) > 1]


def _by_split(parts: Parts) -> Iterator[tuple[Split, pa.RecordBatch]]:
    for part in parts.parts:
        for split in SPLITS:
            for rows in part.light_batches(parts.work, split):
                yield split, rows


def _equal_digests(parts: Parts, shares: int, share: int) -> np.ndarray:
    columns = (_digests(rows) for rows in parts.light_batches())
    chosen = [column[column % np.uint64(shares) == share] for column in columns]
    digests = np.sort(np.concatenate(chosen or [np.zeros(0, np.uint64)]))
    return np.unique(digests[1:][digests[1:] == digests[:-1]])


def _digests(rows: pa.RecordBatch) -> np.ndarray:
    return fixed_bytes(rows["content"])[:, :8].copy().view(np.uint64)[:, 0]


def _group(members: list[tuple[str, str, Split]]) -> Repeated:
    return Repeated(
        splits=sorted({split for _, _, split in members}, key=SPLITS.index),
        times=len(members),
        labels=sorted({label for _, label, _ in members}),
        sources=[source for source, _, _ in members[:_EXAMPLES_SHOWN]],
    )
