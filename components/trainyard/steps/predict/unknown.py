"""Counts the cells of an input whose value the model never saw in training, and those without a value."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract import version
from trainyard.contract.artifacts.predict import UnknownValues
from trainyard.contract.champion import EXTRA
from trainyard.spec.feature_names import input_name
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.predict.reading.batches import InputBatch
from trainyard.values.patterns import BETWEEN_WORDS, WORD_OF_ITS_OWN


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
            present = pc.not_equal(texts, "")
            self._missing[feature.name] += len(batch) - _count(present)
            self._unknown[feature.name] += _count(present) - _known(texts, feature, self._known[feature.name])

    def counts(self) -> dict[str, UnknownValues]:
        """Return the counts by column."""
        return {
            name: UnknownValues(
                values=self._rows - self._missing[name], unknown=self._unknown[name], missing=self._missing[name]
            )
            for name in self._known
        }


def _vocabulary(model: PushedModel, feature: RawInput) -> pa.Array | None:
    if not feature.vocabulary:
        return None
    known = version.names(model.folder, f"{EXTRA}/{version.VOCABULARIES}/{feature.vocabulary}")
    return None if known is None else pa.array(known, pa.string())


def _known(texts: pa.Array, feature: RawInput, known: pa.Array) -> int:
    """Count the `texts` that are known or contain a known word."""
    column = feature.column
    if column is None or column.type != "text":
        return _count(pc.is_in(texts, value_set=known))  # no vocabulary has the empty text
    if column.separator is not None:
        lists = pc.split_pattern(texts, column.separator)
    else:
        cut = pc.replace_substring_regex(pc.utf8_lower(texts), BETWEEN_WORDS, " ")
        lists = pc.split_pattern(pc.replace_substring_regex(cut, WORD_OF_ITS_OWN, r" \0 "), " ")
    found = pc.is_in(pc.list_flatten(lists), value_set=known)
    return len(pc.unique(pc.filter(pc.list_parent_indices(lists), found)))


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)
