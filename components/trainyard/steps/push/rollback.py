"""Roll back: an earlier version serves again, as a new version that holds its files.

A server that polls the folder loads the highest number, as after every push, so the new version reaches it the same way
and no version changes or disappears. `kubectl rollout undo` numbers revisions so, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract import version
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.pushed_versions import find_version, version_numbers
from trainyard.contract.version import Champion, champion, set_champion
from trainyard.errors import ConfigurationError, DataError
from trainyard.steps.push import versions
from trainyard.steps.push.run import person
from trainyard.storage import storage
from trainyard.storage.storage import Manifest


@dataclass(frozen=True)
class Rollback:
    """A rollback. restored: the version whose files it holds. replaced: the version that served before, if known.

    changed: False if this model served already.
    """

    version: int
    path: str
    restored: int
    replaced: int | None
    changed: bool


def rollback(destination: str, name: str = "", dry_run: bool = False) -> Rollback:
    """Let an earlier version of `destination` serve again; with `dry_run` say what would be done.

    name: its number or alias; by default the newest version before the serving version that has another model.

    Raises before anything changes: `ConfigurationError` for an unknown version, or if no earlier one exists;
    `DataError` if files of it are missing or changed; `TransientError` while a push or another rollback writes.
    """
    if dry_run:
        return _plan(destination, name)[0]
    with storage.lease(destination):
        storage.remove_unfinished(destination)
        plan, source, already = _plan(destination, name)
        if not plan.changed:
            return plan
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if not already:
            record = source.record.model_copy(update={"restored": plan.restored, "pushed": now, "by": person()})
            files = {path: path for path in source.manifest.files}
            versions.publish(str(source.local), files, source.manifest, destination, plan.version, record)
        set_champion(
            destination,
            Champion(
                version=plan.version,
                path=plan.path,
                digest=version.digest(source.manifest),
                metrics=source.record.metrics,
                pushed=now,
                override=source.record.override,
            ),
        )
    return plan


@dataclass(frozen=True)
class _Source:
    """The version to restore: its record, its manifest, and a local folder with its files."""

    record: VersionRecord
    manifest: Manifest
    local: Path


def _plan(destination: str, name: str) -> tuple[Rollback, _Source, bool]:
    """Return the plan of a rollback, the version that it restores, and whether the newest version is that already."""
    best = _champion(destination, name)
    restored = find_version(destination, name) if name else _before(destination, best)
    source = _whole(storage.join(destination, str(restored)))
    number, already = versions.place(destination, version.digest(source.manifest))
    changed = not (already and best is not None and best.version == number)
    path = storage.join(destination, str(number))
    return Rollback(number, path, restored, best.version if best else None, changed), source, already


def _champion(destination: str, name: str) -> Champion | None:
    """Return the champion, None if its pointer is damaged and a version is named, because a rollback replaces it."""
    try:
        return champion(destination)
    except DataError:
        if not name:
            raise
        return None


def _before(destination: str, best: Champion | None) -> int:
    """Return the newest version before `best` that holds another model."""
    if best is None:
        raise ConfigurationError(f"{destination}: no version serves, so there is no earlier one. Name a version.")
    for number in reversed(version_numbers(destination)):
        if number < best.version:
            manifest = storage.committed(storage.join(destination, str(number)))
            if manifest is not None and version.digest(manifest) != best.digest:
                return number
    raise ConfigurationError(
        f"{destination}: version {best.version} serves, and no earlier version has another model. Name a version."
    )


def _whole(folder: str) -> _Source:
    """Return the version in `folder`, all of whose files are as they were pushed."""
    try:
        record, local = version.record(folder), storage.local(folder, "push")
        return _Source(record, storage.require(folder, "push"), local)
    except DataError as error:
        raise DataError(f"{folder}: cannot serve, and nothing was changed.", *error.args) from error
