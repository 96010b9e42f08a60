"""Counts the cells of a split whose value the training split does not have, and those without a value."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from trainyard.contract.artifacts.preprocess import ComputedFeature, RawFeature
from trainyard.contract.document import Split
from trainyard.contract.statistics.unknown import UnknownValues
from trainyard.data.examples import ExampleFolder
from trainyard.data.formulas import computed
from trainyard.spec.recipe import Data
from trainyard.storage import storage
from trainyard.values.columns import count_known

_BATCH = 4096


def unknown_values(data: Data, examples: ExampleFolder, split: Split) -> dict[str, UnknownValues]:
    """Return the counts of `split` by category and text of `data`; none for images and custom transforms."""
    document = examples.document
    features: list[RawFeature | ComputedFeature] = [*document.raw_features, *document.computed_features]
    known = {
        feature.name: vocabulary
        for feature in features
        if (vocabulary := _vocabulary(feature, examples.uri)) is not None
    }
    if not known:
        return {}
    rows, missing, unknown = 0, Counter[str](), Counter[str]()
    for raw, label in examples.raw_batches(split, _BATCH, None if data.derived_features else known):
        rows += len(label)
        columns = raw | computed(raw, data.derived_features)
        for name, vocabulary in known.items():
            texts = pa.array(columns[name].numpy(), pa.binary()).cast(pa.string())
            feature = data.features[name]
            is_text = feature.type == "text"
            empty = pc.sum(pc.equal(texts, "")).as_py() or 0
            missing[name] += empty
            separator = feature.separator if feature.type == "text" else None
            unknown[name] += len(texts) - empty - count_known(texts, vocabulary, is_text, separator)
    stand_ins = {feature.name: feature.learned.missing if feature.learned else None for feature in features}
    return {
        name: UnknownValues(
            values=rows - missing[name],
            unknown=unknown[name],
            missing=missing[name],
            missing_is_unknown=stand_ins[name] is not None and stand_ins[name] not in vocabulary.to_pylist(),
        )
        for name, vocabulary in known.items()
    }


def _vocabulary(feature: RawFeature | ComputedFeature, examples: str) -> pa.Array | None:
    if feature.learned is None or feature.learned.vocabulary is None:
        return None
    file = Path(storage.join(examples, "transform", "transform_fn", "assets", feature.learned.vocabulary))
    return pa.array(file.read_text(encoding="utf-8").split("\n")[:-1], pa.string())
