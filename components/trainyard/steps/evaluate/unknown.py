"""Counts the cells of a split whose value the training split does not have, and those without a value."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from trainyard.contract.artifacts.preprocess import ComputedFeature, RawFeature
from trainyard.data.examples import ExampleFolder, Tensors
from trainyard.data.formulas import computed
from trainyard.quality.unknown import UnknownCounter, Vocabulary
from trainyard.spec.recipe import Data
from trainyard.storage import storage


class UnknownCounts(UnknownCounter):
    """Counts by category and text of `data`, from the batches of a split; none for images and custom transforms."""

    def __init__(self, data: Data, examples: ExampleFolder) -> None:
        document, vocabularies = examples.document, dict[str, Vocabulary]()
        features: list[RawFeature | ComputedFeature] = [*document.raw_features, *document.computed_features]
        for feature in features:
            if (learned := feature.learned) and learned.vocabulary is not None:
                file = storage.join(examples.uri, "transform", "transform_fn", "assets", learned.vocabulary)
                values = pa.array(Path(file).read_text(encoding="utf-8").split("\n")[:-1], pa.string())
                column = data.features[feature.name]
                separator = column.separator if column.type == "text" else None
                vocabularies[feature.name] = Vocabulary(values, column.type == "text", separator, learned.missing)
        super().__init__(vocabularies)
        derives = any(feature.name in vocabularies for feature in document.computed_features)
        self._formulas = data.derived_features if derives else {}
        names = [feature.name for feature in document.raw_features]
        self.columns = [name for name in names if vocabularies and (derives or name in vocabularies)]
        """The raw columns that `add_raw` needs."""

    def add_raw(self, raw: Tensors) -> None:
        """Count the cells of raw features (n,)."""
        if self.vocabularies:
            columns = raw | computed(raw, self._formulas)
            cells = {name: pa.array(columns[name].numpy(), pa.binary()) for name in self.vocabularies}
            self.add({name: binary.cast(pa.string()) for name, binary in cells.items()})
