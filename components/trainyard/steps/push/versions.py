"""The folder that a server polls: publishes numbered versions, each whole as soon as it can be seen, and rolls back.

TensorFlow Serving lists the folder again and again, takes every child whose name is a number for a version, and loads
the highest. Names that are no numbers, such as `.staging`, `champion.json` and the lock, mean nothing to it, nor does a
version's `assets.extra/`. A rollback is a new version too, with the files of an earlier one, so no version changes or
disappears; `kubectl rollout undo` numbers revisions so, too. An approval copies the version that waits, which keeps its
number if no other version came since.

On a file system a version appears whole, by a rename. A bucket has none, so there saved_model.pb comes after all other
files: a server that looks in between finds no SavedModel yet and, by its own default, tries again each minute, five
times.

Source: tensorflow_serving/model_servers/main.cc (max_num_load_retries, load_retry_interval_micros),
tensorflow_serving/sources/storage_path/file_system_storage_path_source.cc and the SavedModel layout at
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/python/saved_model/README.md.
"""

from __future__ import annotations

import getpass
import os
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from trainyard.contract.artifacts.gate import Approval
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.pushed_versions import (
    candidate,
    candidates,
    find_version,
    rejections,
    set_rejection,
    version_numbers,
)
from trainyard.contract.version import PRODUCER, SERVED, Champion, champion, set_champion
from trainyard.contract.version import digest as model_digest
from trainyard.contract.version import record as version_record
from trainyard.errors import ConfigurationError, DataError
from trainyard.graph import remedy
from trainyard.storage import storage
from trainyard.storage.storage import File, Manifest


def newest(destination: str) -> int:
    """Return the highest version number in `destination`, whoever wrote it, or 0."""
    return max(version_numbers(destination), default=0)


def number_for(destination: str, digest: str, waits: bool = False) -> tuple[int, bool]:
    """Return the number of the version for a model with the content `digest`, and True if it already exists.

    Only the newest version counts: a server loads the highest number, so an older model that is pushed again becomes a
    new version. waits: for approval.
    """
    waiting = candidates(destination)
    folder = waiting if waits else destination
    number = newest(folder)
    manifest = storage.committed(storage.join(folder, str(number)))
    if manifest is not None and model_digest(manifest) == digest:
        return number, True
    return 1 + max(newest(destination), newest(waiting)), False


def remove_candidates(destination: str, kept: int | None = None) -> None:
    """Remove the versions of `destination` that wait for approval, except `kept`; the caller holds its lease.

    Rejected versions stay.
    """
    waiting, rejected = candidates(destination), rejections(destination)
    if kept is None:
        storage.remove(storage.join(waiting, Champion.file))
    for number in version_numbers(waiting):
        if number != kept and number not in rejected:
            storage.remove(storage.join(waiting, str(number)))


def publish(
    source: str,
    files: dict[str, str],
    manifest: Manifest,
    destination: str,
    version: int,
    record: VersionRecord,
    extra: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Leave `files` of the folder `source` as `version` in `destination`; nobody sees a part of it.

    files: the name in `source` of each file of the version. manifest: of `source`. extra: the content of other files of
    the version, by path; a file of `source` stays, such as a program's README.md.

    Raises `DataError` if a file is not the one that its manifest tells of, `InfrastructureError` as `storage.stage`.
    """
    last = SERVED if SERVED in files else next(iter(files))
    target = storage.join(destination, str(version))
    origin = record.model_copy(update={"number": version}).model_dump(mode="json", exclude_defaults=True)
    with storage.stage(target, producer=PRODUCER, last=last, origin=origin) as folder:
        for path, name in files.items():
            _copy(Path(source) / name, folder / path, manifest.files[name])
        for path in extra.keys() - files.keys():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(extra[path])


def _copy(source: Path, target: Path, expected: File) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if storage.measure(target) != expected:
        raise DataError(
            f"{source}: its content differs from its manifest's checksum. Run with --from export to write it again."
        )


def person() -> str:
    """Return the name of this process's user, or its number in a container without names."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()}"


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
            publish(str(source.local), files, source.manifest, destination, plan.version, record)
        set_champion(
            destination,
            Champion(
                version=plan.version,
                path=plan.path,
                digest=model_digest(source.manifest),
                metrics=source.record.metrics,
                pushed=now,
                override=source.record.override,
                approval=source.record.approval,
            ),
        )
    return plan


@dataclass(frozen=True)
class Approved:
    """A version that serves because a person approved it. replaced: the version that served before, if any."""

    version: int
    path: str
    replaced: int | None


def approve(destination: str, name: str, reason: str = "", dry_run: bool = False) -> Approved:
    """Let the version of `destination` that waits for approval serve; with `dry_run` say what would be done.

    name: of the person who approves it; name, time and reason are in champion.json and in the version's record.

    Raises before anything changes: `ConfigurationError` if no version waits, or if another model serves than the one
    that it was compared with; `DataError` if files of it are missing or changed; `TransientError` while a push or a
    rollback writes.
    """
    with nullcontext() if dry_run else storage.lease(destination):
        best = champion(destination)
        waiting = candidate(destination, best)
        if waiting is None:
            raise _nothing_waits(destination, best)
        if waiting.compared != (best.digest if best else ""):
            serving = f"version {best.version} serves" if best else "no version serves"
            raise ConfigurationError(
                f"{destination}: version {waiting.version} was compared with another model than the one that serves "
                f"now: {serving}. Run the recipe again, which compares both."
            )
        source = _whole(waiting.path)
        number, already = number_for(destination, waiting.digest)
        if not already:
            number = max(newest(destination) + 1, waiting.version)
        done = Approved(number, storage.join(destination, str(number)), best.version if best else None)
        if dry_run:
            return done
        storage.remove_unfinished(destination)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        approval = Approval(name=name, time=now, reason=reason)
        if not already:
            record = source.record.model_copy(update={"approval": approval})
            files = {path: path for path in source.manifest.files}
            publish(str(source.local), files, source.manifest, destination, number, record)
        update = {"version": number, "path": done.path, "pushed": now, "approval": approval, "compared": ""}
        set_champion(destination, waiting.model_copy(update=update))
        remove_candidates(destination)
    return done


@dataclass(frozen=True)
class Rejected:
    """A version that does not serve because a person rejected it."""

    version: int
    path: str


def reject(destination: str, name: str, reason: str = "", dry_run: bool = False) -> Rejected:
    """Let the version of `destination` that waits for approval wait no longer; with `dry_run` say which one.

    name: of the person who rejects it; name, time and reason are beside the version, which stays until it is pruned.

    Raises before anything changes: `ConfigurationError` if no version waits; `TransientError` while a push or a
    rollback writes.
    """
    with nullcontext() if dry_run else storage.lease(destination):
        best = champion(destination)
        waiting = candidate(destination, best)
        if waiting is None:
            raise _nothing_waits(destination, best)
        if not dry_run:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            set_rejection(destination, waiting.version, Approval(name=name, time=now, reason=reason))
            storage.remove(storage.join(candidates(destination), Champion.file))
    return Rejected(waiting.version, waiting.path)


def _nothing_waits(destination: str, best: Champion | None) -> ConfigurationError:
    """Return the error that no version waits, with the last approval and rejection."""
    said = ""
    if best and (approval := best.approval):
        said += f" {approval.name} approved version {best.version} at {approval.time}."
    if rejected := rejections(destination):
        number = max(rejected)
        said += f" {rejected[number].name} rejected version {number} at {rejected[number].time}."
    return ConfigurationError(f"{destination}: no version waits for approval.{said}")


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
    number, already = number_for(destination, model_digest(source.manifest))
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
            if manifest is not None and model_digest(manifest) != best.digest:
                return number
    raise ConfigurationError(
        f"{destination}: version {best.version} serves, and no earlier version has another model. Name a version."
    )


def _whole(folder: str) -> _Source:
    """Return the version in `folder`, all of whose files are as they were pushed."""
    try:
        record, local = version_record(folder), storage.local(folder, remedy("push"))
        return _Source(record, storage.require(folder, remedy("push")), local)
    except DataError as error:
        raise DataError(f"{folder}: cannot serve, and nothing was changed.", *error.args) from error
