"""Counts the cells of a split whose value the training split does not have, and those without a value."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract.artifacts.preprocess import ComputedFeature, RawFeature
from trainyard.contract.statistics.unknown import UnknownValues
from trainyard.data.examples import ExampleFolder, Tensors
from trainyard.data.formulas import computed
from trainyard.spec.recipe import Data
from trainyard.storage import storage
from trainyard.values.columns import count_known


class UnknownCounts:
    """Counts by category and text of `data`, from the batches of a split; none for images and custom transforms."""

    def __init__(self, data: Data, examples: ExampleFolder) -> None:
        document = examples.document
        self._data = data
        self._features: list[RawFeature | ComputedFeature] = [*document.raw_features, *document.computed_features]
        self._known = {
            feature.name: vocabulary
            for feature in self._features
            if (vocabulary := _vocabulary(feature, examples.uri)) is not None
        }
        self._rows, self._missing, self._unknown = 0, Counter[str](), Counter[str]()
        derives = any(feature.name in self._known for feature in document.computed_features)
        self._formulas = data.derived_features if derives else {}
        names = [feature.name for feature in document.raw_features]
        self.columns = [name for name in names if self._known and (derives or name in self._known)]
        """The raw columns that `add` needs."""

    def add(self, raw: Tensors) -> None:
        """Count the cells of raw features (n,)."""
        if not self._known:
            return
        columns = raw | computed(raw, self._formulas)
        self._rows += len(next(iter(columns.values())))
        for name, vocabulary in self._known.items():
            texts = pa.array(columns[name].numpy(), pa.binary()).cast(pa.string())
            feature = self._data.features[name]
            is_text = feature.type == "text"
            empty = pc.sum(pc.equal(texts, "")).as_py() or 0
            self._missing[name] += empty
            separator = feature.separator if feature.type == "text" else None
            self._unknown[name] += len(texts) - empty - count_known(texts, vocabulary, is_text, separator)

    def result(self) -> dict[str, UnknownValues]:
        """Return the counts by column."""
        stand_ins = {feature.name: feature.learned.missing if feature.learned else None for feature in self._features}
        return {
            name: UnknownValues(
                values=self._rows - self._missing[name],
                unknown=self._unknown[name],
                missing=self._missing[name],
                missing_is_unknown=stand_ins[name] is not None and stand_ins[name] not in vocabulary.to_pylist(),
            )
            for name, vocabulary in self._known.items()
        }


def _vocabulary(feature: RawFeature | ComputedFeature, examples: str) -> pa.Array | None:
    if feature.learned is None or feature.learned.vocabulary is None:
        return None
    file = Path(storage.join(examples, "transform", "transform_fn", "assets", feature.learned.vocabulary))
    return pa.array(file.read_text(encoding="utf-8").split("\n")[:-1], pa.string())
