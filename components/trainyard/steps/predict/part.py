"""One part of a large prediction: some files, answered by whichever process takes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.errors import ConfigurationError, DataError
from trainyard.quality.arrow import block_pandas_import
from trainyard.readers.rows import BadRow
from trainyard.steps.predict.prediction import answer_all, served_model
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.reading.inputs import source_items
from trainyard.steps.predict.reading.source import InputFiles
from trainyard.steps.predict.results import Results, rejected_file
from trainyard.storage.listing import SourceFile

if TYPE_CHECKING:
    from trainyard.steps.predict.served import ServedModel


@dataclass(frozen=True)
class PredictPart:
    """Predictions for the files of one of `parts` parts, in the `folder` that all workers see; Beam pickles it.

    source: where the files are; it holds none itself.
    """

    model: PushedModel
    source: InputFiles
    key: str | None
    folder: str
    parts: int

    def __call__(self, numbered: tuple[int, list[SourceFile]]) -> None:
        """Write the part of that number. Raises `ConfigurationError` if the folder is not here."""
        number, files = numbered
        if not Path(self.folder).is_dir():
            raise ConfigurationError(
                f"{self.folder}: Beam's workers do not see this folder of the step. "
                "Mount one volume on all of them under the same path, or predict with the runner direct."
            )
        block_pandas_import()
        with Results(self._part(number), self.model) as results:
            try:
                items = source_items(replace(self.source, files=files), self.model, self.key)
                answer_all(items, _served(self.model), results, lambda _: None)
            except DataError as error:  # a later file that lacks a column; of the first it is known that it has all
                results.reject(BadRow(files[0].name, None, "missing_column", str(error)))
            results.publish()
        record = {
            "predicted": results.predicted,
            "reasons": results.reasons,
            "classes": results.classes,
            "unknown": {name: counts.model_dump() for name, counts in results.unknown.counts().items()},
            "first": results.first,
        }
        partial = self.record_path(number).with_suffix(".partial")
        partial.write_text(json.dumps(record), encoding="utf-8")
        partial.replace(self.record_path(number))

    def record_path(self, number: int) -> Path:
        """Return the file that says what a part holds; it is there once the part is whole."""
        return self._part(number).with_suffix(".json")

    def rejected(self, number: int) -> Path:
        """Return the file of what a part set aside."""
        return rejected_file(self._part(number))

    def _part(self, number: int) -> Path:
        return Path(self.folder, f"part-{number:05}-of-{self.parts:05}.parquet")


@lru_cache(1)
def _served(model: PushedModel) -> ServedModel:
    return served_model(model)
