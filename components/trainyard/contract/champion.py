"""The champion: the version of a model that was pushed last, and what a new one is compared with."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

from pydantic import Field, ValidationError

from trainyard.contract.artifacts.gate import Override
from trainyard.contract.document import FrozenModel
from trainyard.contract.statistics.drift import Statistics
from trainyard.errors import DataError
from trainyard.storage import storage

EXTRA = "assets.extra"
"""Folder of a version that holds what was exported beside the SavedModel; servers do not read it."""

_REMOVE = "Remove it; the next push or `trainyard models rollback` writes it again."


class Champion(FrozenModel):
    """The model last pushed. path is the folder of its version, a SavedModel; metrics are those of its evaluation.

    pushed: when, in UTC, or when an equal model was pushed again; '' if an older version of Trainyard wrote it.
    override: who had it pushed although a gate refused it, and why. checksum: of the other fields, so that an edit is
    detected; '' if an older version of Trainyard wrote it.
    """

    file: ClassVar[str] = "champion.json"

    version: int
    path: str
    digest: str
    metrics: dict[str, float]
    pushed: str = ""
    override: Override | None = Field(None, exclude_if=lambda override: override is None)
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
        raise DataError(
            f"{pointer}: points to version {best.version}, which is not there. "
            "Restore the folder, or remove the pointer to continue without a champion."
        )
    return best.model_copy(update={"path": folder, "checksum": ""})


def version_statistics(folder: str) -> Statistics | None:
    """Return the statistics that the version in `folder` holds, or None. Raises `DataError` if they are damaged."""
    name = f"{EXTRA}/{Statistics.file}"
    content = storage.read(folder, name)
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
