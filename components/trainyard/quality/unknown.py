"""Counts the cells of categories and texts whose value training never saw, and those without a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract.statistics.drift import UnknownValues
from trainyard.values.columns import count_known


@dataclass(frozen=True)
class Vocabulary:
    """The values of a category that training saw, or the words or parts of a text.

    separator: as `count_known`. missing: the value that stands for a missing one.
    """

    values: pa.Array
    is_text: bool
    separator: str | None
    missing: str | None


class UnknownCounter:
    """Counts by column, for the columns of `vocabularies`."""

    def __init__(self, vocabularies: Mapping[str, Vocabulary]) -> None:
        self.vocabularies = vocabularies
        self._cells, self._unknown, self._missing = Counter[str](), Counter[str](), Counter[str]()

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        """Count the cells of columns of texts (n,) by name, in which a missing one is empty."""
        for name, known in self.vocabularies.items():
            texts = columns[name]
            missing = pc.sum(pc.equal(texts, "")).as_py() or 0
            self._cells[name] += len(texts)
            self._missing[name] += missing
            self._unknown[name] += (
                len(texts) - missing - count_known(texts, known.values, known.is_text, known.separator)
            )

    def counts(self) -> dict[str, UnknownValues]:
        """Return the counts by column."""
        return {
            name: UnknownValues(
                values=self._cells[name] - self._missing[name],
                unknown=self._unknown[name],
                missing=self._missing[name],
                missing_is_unknown=bool(known.missing) and known.missing not in known.values.to_pylist(),
            )
            for name, known in self.vocabularies.items()
        }
