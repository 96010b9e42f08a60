"""What was predicted, and what the folder of predict holds."""

from __future__ import annotations

from typing import ClassVar

from trainyard.contract.document import Document, FrozenModel

MOST_UNKNOWN = 0.1
"""The share of a column's values that may be unknown without a warning; chosen."""


class UnknownValues(FrozenModel):
    """Cells of one category or text: values, those that training never saw (no word of a text), and missing ones."""

    values: int
    unknown: int
    missing: int

    def warning(self, name: str) -> str | None:
        """Return a sentence if more than `MOST_UNKNOWN` of the values are unknown."""
        if self.unknown <= MOST_UNKNOWN * self.values:
            return None
        return f"{self.unknown:,} of {self.values:,} values of '{name}' are unknown to the model."


class PredictionCounts(FrozenModel):
    """What was predicted of the input.

    reasons: how many inputs were rejected, by reason. classes: how many of each were predicted. ignored: files of the
    input that are of no kind that is read. unknown: by category and text, how many values the model never saw.
    """

    model: str
    kind: str
    files: int
    ignored: list[str]
    predicted: int
    rejected: int
    reasons: dict[str, int]
    classes: dict[str, int]
    unknown: dict[str, UnknownValues] = {}


class Predicted(PredictionCounts, Document):
    """Output of predict: what was predicted. The folder holds, beside this document:

    part-00000-of-00004-<crc32c>.parquet   a part for each file of rows, or for 1,024 pictures: key, prediction, scores
    rejected.csv   key, reason and detail of each input without an answer; not there if there is none
    """

    file: ClassVar[str] = "predicted.json"

    inputs: str
    parts: list[str]
