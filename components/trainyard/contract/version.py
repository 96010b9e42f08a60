"""The content of a pushed version, from which `push` tells if an export was pushed before."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ValidationError

from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.champion import EXTRA
from trainyard.errors import DataError
from trainyard.graph import producer
from trainyard.storage import manifest, storage
from trainyard.storage.storage import Manifest

PRODUCER = producer("push")
PREPROCESSING = "preprocessing.json"
"""The folder in a version, below `assets.extra/`, of the files that export writes beside the SavedModel."""

METRICS = "metrics.json"
"""Metrics of a custom program for the folder that it returned, as {name: number}; beside that folder."""

VOCABULARIES = "vocabularies"
"""The folder beside it of the vocabularies of its categories and texts, a value a line."""

LABELS, TARGETS = "labels.txt", "targets.txt"
"""Beside an exported model: the names of its classes, or of its several targets, one a line in their order."""

CARD = "README.md"
"""The model card of a version."""

SERVED = "saved_model.pb"
"""The file that makes a folder a SavedModel."""

FOLDER = "model"
"""The files that a program of the recipe's own left to be served as they are, instead of a SavedModel."""

_SERVED = ("saved_model/", f"{FOLDER}/")
_NOT_SERVED = "exports.json"


def names(folder: str, file: str) -> list[str] | None:
    """Return the lines of `file` in a committed `folder`: labels, targets or a vocabulary; None if it has none."""
    content = storage.read(folder, file)
    return None if content is None else manifest.text(content, f"{folder}/{file}").split("\n")[:-1]


def thresholds(folder: str) -> dict[str, float]:
    """Return the decision thresholds of the version in `folder` by class, {} if it has none.

    Raises `DataError` if its document is damaged.
    """
    name = f"{EXTRA}/{PREPROCESSING}"
    content = storage.read(folder, name)
    try:
        return _Decided.model_validate_json(content).thresholds if content else {}
    except ValidationError as error:
        raise DataError(f"{folder}/{name}: another version of Trainyard wrote it. Push the model again.") from error


class _Decided(BaseModel):
    thresholds: dict[str, float] = {}


def layout(exported: Manifest) -> dict[str, str]:
    """Return the path of each exported file in a version, as {path: name in the export's folder}.

    The folder itself is the SavedModel, or the output of a custom program; other files are in `assets.extra/`.
    """
    return {
        name.partition("/")[2] if name.startswith(_SERVED) else f"{EXTRA}/{name}": name
        for name in exported.files
        if name != _NOT_SERVED
    }


def content(exported: Manifest) -> Manifest:
    """Return the manifest that a version made of `exported` has: equal models have equal digests."""
    return replace(
        exported, producer=PRODUCER, files={path: exported.files[name] for path, name in layout(exported).items()}
    )


def digest(manifest: Manifest) -> str:
    """Return the digest of the model in a version: its card tells of a run, so it does not count."""
    return replace(manifest, files={name: file for name, file in manifest.files.items() if name != CARD}).digest


def record(folder: str) -> VersionRecord:
    """Return the record of the version in `folder`; an empty record if an older version of Trainyard pushed it.

    Raises `DataError` if it is not a version that Trainyard pushed, or its record is damaged.
    """
    pushed = storage.committed(folder)
    if pushed is None:
        raise DataError(f"{folder}: no manifest, so it is not a version that Trainyard pushed. Name another version.")
    try:
        return VersionRecord.model_validate(pushed.origin)
    except ValidationError as error:
        raise DataError(f"{folder}: another version of Trainyard wrote its record. Push the model again.") from error
