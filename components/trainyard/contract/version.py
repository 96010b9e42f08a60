"""A pushed version: its content, from which `push` tells if an export was pushed before; and the champion.

The champion is the version of a model that was pushed last, and what a new one is compared with.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import BaseModel, Field, ValidationError

from trainyard.contract.artifacts.gate import Approval, Override
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.document import FrozenModel, Time
from trainyard.contract.statistics.drift import Statistics
from trainyard.errors import DataError
from trainyard.graph import producer, remedy
from trainyard.spec import archive
from trainyard.storage import manifest, storage
from trainyard.storage.storage import Manifest

EXTRA = "assets.extra"
"""Folder of a version that holds what was exported beside the SavedModel; servers do not read it."""

PRODUCER = producer("push")
PREPROCESSING = "preprocessing.json"
"""The document of the inputs of a model and how they are computed, which export writes beside the SavedModel."""

METRICS = "metrics.json"
"""Metrics of a custom program for the folder that it returned, as {name: number}; beside that folder."""

VOCABULARIES = "vocabularies"
"""The folder beside it of the vocabularies of its categories and texts, a value a line."""

LABELS, TARGETS = "labels.txt", "targets.txt"
"""Beside an exported model: the names of its classes, or of its several targets, one a line in their order."""

CARD = "README.md"
"""The model card of a version."""

CODE = f"{EXTRA}/{archive.FILE}"
"""The archive of the recipe's code in a version, if the recipe does not hold that."""

SERVED = "saved_model.pb"
"""The file that makes a folder a SavedModel."""

FOLDER = "model"
"""The files that a program of the recipe's own left to be served as they are, instead of a SavedModel."""

_SERVED = ("saved_model/", f"{FOLDER}/")
_NOT_SERVED = "exports.json"
_REMOVE = "Remove it; the next push or `trainyard models rollback` writes it again."


def names(folder: str, file: str) -> list[str] | None:
    """Return the lines of `file` in a committed `folder`: labels, targets or a vocabulary; None if it has none."""
    content = storage.read(folder, file, remedy("push"))
    return None if content is None else manifest.text(content, f"{folder}/{file}").split("\n")[:-1]


def thresholds(folder: str) -> dict[str, float]:
    """Return the decision thresholds of the version in `folder` by class, {} if it has none.

    Raises `DataError` if its document is damaged.
    """
    name = f"{EXTRA}/{PREPROCESSING}"
    content = storage.read(folder, name, remedy("push"))
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
    """Return the digest of the model in a version, without its card and its code, which tell how it was made."""
    files = {name: file for name, file in manifest.files.items() if name not in (CARD, CODE)}
    return replace(manifest, files=files).digest


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


class Champion(FrozenModel):
    """The model last pushed. path is the folder of its version, a SavedModel; metrics are those of its evaluation.

    pushed: when, in UTC, or when an equal model was pushed again; '' if an older version of Trainyard wrote it.
    override: who had it pushed although a gate refused it, and why. approval: who let it serve. compared: the digest of
    the champion that a version which waits for approval was compared with, '' without one. checksum: of the other
    fields, so that an edit is detected; '' if an older version of Trainyard wrote it.
    """

    file: ClassVar[str] = "champion.json"

    version: int
    path: str
    digest: str
    metrics: dict[str, float]
    pushed: Time = ""
    override: Override | None = Field(None, exclude_if=lambda override: override is None)
    approval: Approval | None = Field(None, exclude_if=lambda approval: approval is None)
    compared: str = Field("", exclude_if=lambda compared: not compared)
    checksum: str = Field("", exclude=True)


def champion(destination: str) -> Champion | None:
    """Return the champion among the versions in `destination`, or None if nothing was pushed yet.

    Raises `DataError` if the pointer is damaged, was edited, or its version is gone.
    """
    pointer = storage.join(destination, Champion.file)
    text = storage.read_text(pointer)
    if text is None:
        return None
    try:
        best = Champion.model_validate_json(text)
    except ValidationError as error:
        raise DataError(f"{pointer}: not a pointer of Trainyard. {_REMOVE}") from error
    if best.checksum and best.checksum != _checksum(json.loads(text)):
        raise DataError(f"{pointer}: was edited, its checksum differs. {_REMOVE}")
    folder = storage.join(destination, str(best.version))
    if not storage.children(folder):
        if storage.read_text(pointer) != text:  # another version replaced this one meanwhile
            return champion(destination)
        raise DataError(
            f"{pointer}: points to version {best.version}, which is not there. "
            "Restore the folder, or remove the pointer to continue without a champion."
        )
    return best.model_copy(update={"path": folder, "checksum": ""})


def version_statistics(folder: str) -> Statistics | None:
    """Return the statistics that the version in `folder` holds, or None. Raises `DataError` if they are damaged."""
    name = f"{EXTRA}/{Statistics.file}"
    content = storage.read(folder, name, remedy("push"))
    try:
        return None if content is None else Statistics.model_validate_json(content)
    except ValidationError as error:
        raise DataError(
            f"{storage.join(folder, name)}: not the statistics of a data set. Remove it; the next check trains."
        ) from error


def set_champion(destination: str, best: Champion) -> None:
    """Make `best` the champion in one step; its path is kept relative, so that `destination` can move."""
    fields = best.model_copy(update={"path": str(best.version)}).model_dump(mode="json")
    content = json.dumps(fields | {"checksum": _checksum(fields)}, indent=1)
    storage.write_text(storage.join(destination, Champion.file), content)


def _checksum(fields: dict[str, Any]) -> str:
    """Return the SHA-256 of the fields of a pointer, except the checksum."""
    content = {name: value for name, value in fields.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
