"""The share of a column's values that a model does not know."""

from __future__ import annotations

from trainyard.contract.document import FrozenModel

MOST_UNKNOWN = 0.1
"""The share of a column's values that may be unknown without a warning; chosen."""


class UnknownValues(FrozenModel):
    """Cells of one category or text: values, those that training never saw (no word of a text), and missing ones.

    missing_is_unknown: training never saw a missing one either.
    """

    values: int
    unknown: int
    missing: int
    missing_is_unknown: bool = False

    def warning(self, name: str) -> str | None:
        """Return a warning if the share of unknown values in column `name` exceeds `MOST_UNKNOWN`."""
        cells = self.values + self.missing
        sentences = []
        if self.unknown > MOST_UNKNOWN * self.values:
            sentences.append(f"{self.unknown:,} of {self.values:,} values of '{name}' are unknown to the model.")
        if self.missing_is_unknown and self.missing > MOST_UNKNOWN * cells:
            sentences.append(f"{self.missing:,} of {cells:,} cells of '{name}' are missing, and none was in training.")
        return " ".join(sentences) or None
