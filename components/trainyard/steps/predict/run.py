"""Predict: the answers of a pushed model to any number of files, as a folder of Parquet parts beside what has none."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard import events
from trainyard.beam import progress
from trainyard.beam.tasks import run_tasks
from trainyard.contract import keys
from trainyard.contract.artifacts.predict import Predicted
from trainyard.contract.statistics.drift import UnknownValues
from trainyard.errors import ConfigurationError, DataError
from trainyard.readers.rows import BadRow
from trainyard.runtime import step
from trainyard.steps.predict.inputs import source_items
from trainyard.steps.predict.prediction import answer_all, nothing, served_model
from trainyard.steps.predict.pushed_model import PushedModel, find_model
from trainyard.steps.predict.results import Results, rejected_file
from trainyard.steps.predict.source import InputFiles, find_source
from trainyard.storage import storage
from trainyard.storage.listing import SourceFile
from trainyard.storage.manifest import ATTEMPTS
from trainyard.values.columns import block_pandas_import

if TYPE_CHECKING:
    from trainyard.steps.predict.served import ServedModel

_IMAGES = 1024  # files of a part; chosen: some ten seconds of a processor


def run(model: str, inputs: str, output: str, key: str = "", beam_options: str = "") -> None:
    """Leave in the committed folder `output` the answers of the pushed `model` to the files `inputs`.

    The folder holds a Parquet part for each file of rows, or for 1,024 images, `rejected.csv` with what has no answer
    and why, and `Predicted`, all of them directly below its name, for other programs. key: the column that names a row.
    beam_options: Beam's own, whose workers do the parts. What is there of the same model, files and key stays; raises
    `ConfigurationError` if other predictions or other files are there, or there is no column that `key` names, and
    `DataError` as `prediction.predict`.
    """
    start = time.monotonic()
    block_pandas_import()
    pushed = find_model(model)
    source = find_source(inputs, images=pushed.pixels is not None)
    made_from = {"model": pushed.folder, "inputs": inputs, "files": _digest(source), "key": key}
    with storage.lease(output):
        storage.remove_abandoned(output)
        if (committed := storage.committed(output)) is not None:
            _require_same(output, committed.origin, made_from)
            events.emit("reused", step="predict", output=output)
            return
        _require_own(output)
        step.assume_killed("predict", output)
        with storage.stage(output, "trainyard.predict", last=Predicted.file, origin=made_from) as folder:
            predicted = _predict(pushed, source, key or None, beam_options, folder)
            predicted.write(folder)
            for name, unknown in predicted.unknown.items():
                if sentence := unknown.warning(name):
                    events.warn(sentence)
        storage.remove(keys.failure_record(output))
    counts = {"predicted": predicted.predicted, "rejected": predicted.rejected, "parts": len(predicted.parts)}
    events.emit("done", step="predict", output=output, **counts, seconds=round(time.monotonic() - start, 2))


def _digest(source: InputFiles) -> str:
    """Return a digest that changes with every file of the source."""
    files = [astuple(file) for file in source.files]
    return hashlib.sha256(json.dumps([source.kind, files]).encode()).hexdigest()


def _require_same(output: str, before: dict[str, Any], now: dict[str, str]) -> None:
    for name, value in now.items():
        if before.get(name) != value:
            kept = "files that have changed since" if name == "files" else f"{name} '{before.get(name, '')}'"
            raise ConfigurationError(f"{output}: holds predictions of {kept}. Name another folder, or remove this one.")


def _require_own(output: str) -> None:
    """Raise `ConfigurationError` if the folder holds files, and no killed prediction has begun to write there."""
    names = storage.sizes(output)
    if names and not any(name.startswith(ATTEMPTS) for name in names):
        raise ConfigurationError(f"{output}: holds other files, such as {min(names)}. Name another folder.")


def _predict(model: PushedModel, source: InputFiles, key: str | None, beam_options: str, folder: Path) -> Predicted:
    # Faults of the first file end here, before there are workers.
    next(iter(source_items(replace(source, files=source.files[:1]), model, key)), None)
    size = _IMAGES if source.kind == "images" else 1
    groups = [source.files[start : start + size] for start in range(0, len(source.files), size)]
    tasks = list(enumerate(groups))
    do = PredictPart(model, replace(source, files=[]), key, str(folder), len(tasks))

    def pending() -> list[Any]:
        return [task for task in tasks if not do.record_path(task[0]).exists()]

    def done() -> int:
        return sum(len(files) for number, files in tasks if do.record_path(number).exists())

    with progress.reported(len(source.files), "files", done):
        data_bytes = sum(file.bytes for file in source.files)
        run_tasks(do, pending, beam_options, data_bytes, "trainyard.steps.predict.run")
    return _together(model, source, do, folder)


def _together(model: PushedModel, source: InputFiles, do: PredictPart, folder: Path) -> Predicted:
    """Merge the results of all parts, with the inputs that were set aside in one file."""
    predicted, reasons, classes, first = 0, Counter[str](), Counter[str](), ""
    unknown: dict[str, Counter[str]] = {}
    with (folder / "rejected.csv").open("wb") as rejected:
        for number in range(do.parts):
            record = json.loads(do.record_path(number).read_text(encoding="utf-8"))
            predicted += record["predicted"]
            reasons.update(record["reasons"])
            classes.update(record["classes"])
            for name, counts in record["unknown"].items():
                unknown.setdefault(name, Counter()).update(counts)
            first = first or record["first"]
            do.record_path(number).unlink()
            if (own := do.rejected(number)).exists():
                lines = own.read_bytes()
                rejected.write(lines if not rejected.tell() else lines.partition(b"\n")[2])
                own.unlink()
    if not reasons:
        (folder / "rejected.csv").unlink()
    if not predicted:
        raise DataError(nothing(source.path, reasons, first))
    return Predicted(
        model=model.folder,
        inputs=source.path,
        kind=source.kind,
        files=len(source.files),
        ignored=source.ignored,
        predicted=predicted,
        rejected=reasons.total(),
        reasons=dict(reasons.most_common()),
        classes=dict(classes.most_common()),
        unknown={name: UnknownValues(**counts) for name, counts in unknown.items()},
        parts=[_named_by_content(path) for path in sorted(folder.glob("*.parquet"))],
    )


def _named_by_content(part: Path) -> str:
    """Rename the file `part` so that no other attempt in a bucket has another file of its name; return the name."""
    named = part.with_name(f"{part.stem}-{storage.measure(part).crc32c}{part.suffix}")
    return part.rename(named).name


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
