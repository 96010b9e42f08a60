"""Counts the cells of an input whose value the model never saw in training, and those without a value."""

from __future__ import annotations

import pyarrow as pa

from trainyard.contract import version
from trainyard.contract.champion import EXTRA
from trainyard.quality.unknown import UnknownCounter, Vocabulary
from trainyard.spec.feature_names import input_name
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.reading.batches import InputBatch


class UnknownInputs(UnknownCounter):
    """Counts by column of the model's inputs."""

    def __init__(self, model: PushedModel) -> None:
        vocabularies = dict[str, Vocabulary]()
        for feature in model.inputs:
            file = feature.vocabulary and f"{EXTRA}/{version.VOCABULARIES}/{feature.vocabulary}"
            if file and feature.learned and (values := version.names(model.folder, file)) is not None:
                is_text = feature.column is not None and feature.column.type == "text"
                separator = feature.column.separator if feature.column else None
                vocabulary = Vocabulary(pa.array(values, pa.string()), is_text, separator, feature.learned.missing)
                vocabularies[feature.name] = vocabulary
        super().__init__(vocabularies)

    def add_batch(self, batch: InputBatch) -> None:
        """Count the cells of `batch`."""
        self.add({name: pa.array(batch.inputs[input_name(name)], pa.string()) for name in self.vocabularies})
