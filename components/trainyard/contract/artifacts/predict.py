"""The files in the folder of predict, and their summary."""

from __future__ import annotations

from typing import ClassVar

from trainyard.contract.document import Document, FrozenModel
from trainyard.contract.statistics.drift import UnknownValues


class PredictionCounts(FrozenModel):
    """The summary of a prediction.

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

    part-00000-of-00004-<crc32c>.parquet   a part for each file of rows, or for 1,024 images: key, prediction, scores
    rejected.csv   key, reason and detail of each input without an answer; not there if there is none
    """

    file: ClassVar[str] = "predicted.json"

    inputs: str
    parts: list[str]
