"""Counts the cells of an input whose value the model never saw in training, and those without a value."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract import version
from trainyard.contract.champion import EXTRA
from trainyard.contract.statistics.unknown import UnknownValues
from trainyard.spec.feature_names import input_name
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.predict.reading.batches import InputBatch
from trainyard.values.columns import count_known


class UnknownCounter:
    """Counts by column: the values out of the vocabulary of a category, and texts without any word of theirs."""

    def __init__(self, model: PushedModel) -> None:
        self._known = {feature.name: known for feature in model.inputs if (known := _vocabulary(model, feature))}
        self._inputs = [feature for feature in model.inputs if feature.name in self._known]
        self._rows = 0
        self._unknown, self._missing = Counter[str](), Counter[str]()

    def add(self, batch: InputBatch) -> None:
        """Count the cells of `batch`."""
        self._rows += len(batch)
        for feature in self._inputs:
            texts = pa.array(batch.inputs[input_name(feature.name)], pa.string())
            missing = pc.sum(pc.equal(texts, "")).as_py() or 0
            column = feature.column
            is_text = column is not None and column.type == "text"
            known = count_known(texts, self._known[feature.name], is_text, column.separator if column else None)
            self._missing[feature.name] += missing
            self._unknown[feature.name] += len(batch) - missing - known

    def counts(self) -> dict[str, UnknownValues]:
        """Return the counts by column."""
        return {
            feature.name: UnknownValues(
                values=self._rows - self._missing[feature.name],
                unknown=self._unknown[feature.name],
                missing=self._missing[feature.name],
                missing_is_unknown=_knows_no_missing(feature, self._known[feature.name]),
            )
            for feature in self._inputs
        }


def _vocabulary(model: PushedModel, feature: RawInput) -> pa.Array | None:
    if not feature.vocabulary:
        return None
    known = version.names(model.folder, f"{EXTRA}/{version.VOCABULARIES}/{feature.vocabulary}")
    return None if known is None else pa.array(known, pa.string())


def _knows_no_missing(feature: RawInput, known: pa.Array) -> bool:
    stands_for_it = feature.learned and feature.learned.missing
    return bool(stands_for_it) and stands_for_it not in known.to_pylist()
