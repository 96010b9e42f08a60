"""The pushed versions of a model: list, show, compare, name by an alias, approve, reject, roll back, and export."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, overload

from trainyard.contract import version as contents
from trainyard.contract.document import SPLITS
from trainyard.contract.pushed_versions import (
    CANDIDATE,
    PushedVersion,
    find_version,
    read_versions,
    rejections,
    set_alias,
    split_name,
    version_numbers,
)
from trainyard.contract.version import PRODUCER
from trainyard.errors import ConfigurationError, DataError
from trainyard.graph import remedy
from trainyard.measured import interval_text
from trainyard.report import index, notify
from trainyard.spec.notify import Notify
from trainyard.steps.push.versions import Approved, Rejected, Rollback, person
from trainyard.steps.push.versions import approve as let_serve
from trainyard.steps.push.versions import reject as let_wait_no_longer
from trainyard.steps.push.versions import rollback as roll_back
from trainyard.storage import damage, disk, storage
from trainyard.storage.manifest import STAGING
from trainyard.storage.storage import Manifest
from trainyard.uris import is_bucket, path_error, without_secrets
from trainyard_control.api.arguments import LOCAL
from trainyard_control.api.model import Model, load, model_uri
from trainyard_control.cluster import environments
from trainyard_control.search.comparison import MISSING, Row, export_rows, metric_rows, settings_rows

_Done = TypeVar("_Done", Approved, Rejected, Rollback)
_MOST_NAME, _MOST_REASON = 100, 1000  # characters; chosen


@dataclass(frozen=True, repr=False)
class Version(PushedVersion):
    """A pushed version, ready to predict and to compare."""

    def __repr__(self) -> str:
        state = ["serves"] if self.serves else filter(None, [self.unapproved])
        return f"<Version {', '.join([self.name, *state, *filter(None, [self.metric, *self.aliases])])}>"

    @cached_property
    def model(self) -> Model:
        """The model, ready to predict. Raises `DataError` if its files are damaged."""
        return load(self.folder)

    def document(self) -> dict[str, Any]:
        """Return the version as JSON has it."""
        names = ("number", "folder", "serves", "metric", "run_folder", "report", "fault")
        fields = {name: getattr(self, name) for name in names}
        if self.rejection:
            fields["rejection"] = self.rejection.model_dump()
        return fields | {"aliases": list(self.aliases)} | self.record.model_dump(mode="json", exclude={"number", "run"})

    def export(self, folder: str | os.PathLike[str]) -> Manifest:
        """Copy the version to the local `folder`, which must be new or empty, and return the manifest of the copy.

        Every file is verified before the copy appears there at once. Raises `DataError` if a file of the version is
        missing or changed, `ConfigurationError` if `folder` cannot take it.
        """
        target = _new_folder(os.fspath(folder))
        source, files = storage.local(self.folder, remedy("push")), storage.require(self.folder, remedy("push"))
        try:
            with storage.stage(str(target), PRODUCER, origin=files.origin) as staging:
                for name in files.files:
                    (staging / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source / name, staging / name)
                    if storage.measure(staging / name) != files.files[name]:
                        raise damage.changed(files, name, self.folder, remedy("push"))
        finally:
            with suppress(OSError):  # another writer uses it
                (target.parent / STAGING).rmdir()
        return files

    def diff(self, other: Version) -> VersionDiff:
        """Compare with another version, of this model or of another one."""
        records = [self.record, other.record]
        data = [
            *((f"{split} examples", [f"{record.examples.get(split, 0):,}" for record in records]) for split in SPLITS),
            ("fingerprint", [record.fingerprint or MISSING for record in records]),
        ]
        return VersionDiff(
            [self, other],
            list(settings_rows([record.recipe for record in records])),
            [Row(name, cells, [cell != cells[0] for cell in cells]) for name, cells in data],
            list(metric_rows(records, [None, None])),
            list(export_rows([[file.model_dump() for file in record.exports] for record in records])),
        )


@dataclass(frozen=True)
class VersionDiff:
    """A comparison of two versions. settings: keys of the recipe that differ."""

    versions: list[Version]
    settings: list[Row]
    data: list[Row]
    metrics: list[Row]
    exports: list[Row]

    @property
    def intervals(self) -> list[list[str]]:
        """The 95 % intervals of `metrics`, a list for each row, '' if a version has none."""
        bounds = [[version.record.intervals.get(row.name) for version in self.versions] for row in self.metrics]
        return [[interval_text(interval.low, interval.high) if interval else "" for interval in row] for row in bounds]

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON has it."""
        rows = {
            name: {row.name: row.cells for row in getattr(self, name)}
            for name in ("settings", "data", "metrics", "exports")
        }
        return {"versions": [version.document() for version in self.versions], **rows}


class Versions(Sequence[Version]):
    """The versions in a folder, the newest first. An index is a position, or the text of an alias or a number.

    caution: why what serves is not as it should be, '' otherwise. webhook: receives a message about a rollback.
    """

    def __init__(self, folder: str, webhook: Notify | None = None) -> None:
        self.folder, self.webhook = folder, webhook
        self._read()

    def _read(self) -> None:
        self._versions, self.caution = read_versions(self.folder, Version)

    def _changed(self) -> None:
        self._read()
        if not storage.volume(self.folder):  # the command that changed it there wrote its index too
            index.write_again(self.folder)

    def _done(self, kind: type[_Done], here: Callable[[], _Done], dry_run: bool, arguments: list[str]) -> _Done:
        """Call `here`, or `models` with `arguments` at the volume of the versions, and read them again."""
        if (volume := storage.volume(self.folder)) and not dry_run:
            answer = json.loads(volume.run("models", *arguments, "-o", "json"))
            done = kind(**{field.name: answer[field.name] for field in fields(kind)})
        else:
            done = here()
        if not dry_run:
            self._changed()
        return done

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[Version]:
        return iter(self._versions)

    @overload
    def __getitem__(self, index: int | str) -> Version: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Version]: ...
    def __getitem__(self, index: int | str | slice) -> Version | Sequence[Version]:
        if index == CANDIDATE and (waiting := next((each for each in self._versions if each.waits), None)):
            return waiting
        if isinstance(index, str):
            if found := [each for each in self._versions if each.rejection and str(each.number) == index]:
                return found[0]
            number = find_version(self.folder, index)
            return next(version for version in self._versions if version.number == number)
        return self._versions[index]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self._versions))}]"

    @property
    def serving(self) -> Version | None:
        """The version that serves, None if none does."""
        return next((version for version in self._versions if version.serves), None)

    def diff(self, first: str, second: str) -> VersionDiff:
        """Compare two versions, each named by an alias or a number."""
        return self[first].diff(self[second])

    def alias(self, name: str, version: str, *, dry_run: bool = False) -> Version:
        """Let the alias `name` name `version`, an alias or a number; '' removes the alias. Returns the version.

        Never changes what serves. Raises `ConfigurationError` for an unknown version or alias, or an invalid name, and
        `TransientError` while a push or a rollback writes.
        """
        found = self[version or name]
        if found.unapproved:
            raise ConfigurationError(
                f"{self.folder}: version {found.number} {found.unapproved}. Only an approved version has an alias."
            )
        if not version and name not in found.aliases:
            raise ConfigurationError(f"{self.folder}: {name} is not an alias. Name an alias to remove.")
        if not dry_run:
            if volume := storage.volume(self.folder):
                named = [f"{self.folder}@{found.number}"] if version else [self.folder, "--remove"]
                volume.run("models", "alias", name, *named)
            else:
                with storage.lease(self.folder):
                    set_alias(self.folder, name, found.number if version else None)
            self._changed()
        return self[str(found.number)]

    def approve(self, name: str = "", reason: str = "", *, dry_run: bool = False) -> Approved:
        """Let the version that waits for approval serve. name: who approves it, by default this machine's user.

        The files become a new version, as those of a rollback, and champion.json holds name, time and reason. Raises
        `ConfigurationError` if no version waits, or if another model serves than the one that it was compared with, and
        as `rollback`; then nothing is changed.
        """
        name = _decided_by(name, reason)
        decide = partial(let_serve, self.folder, name, reason, dry_run)
        done = self._done(Approved, decide, dry_run, ["approve", *_decision(self.folder, name, reason)])
        if not dry_run:
            instead = f" instead of {done.replaced}" if done.replaced is not None else ""
            why = f": {reason}" if reason else ""
            text = f"{self.folder}: version {done.version} serves{instead}, approved by {name}{why}"
            notify.send(self.webhook, notify.Message("pushed", f"{text.rstrip('.')}.", asdict(done)))
        return done

    def reject(self, name: str = "", reason: str = "", *, dry_run: bool = False) -> Rejected:
        """Reject the version that waits for approval. name: who rejects it, by default this machine's user.

        Name, time and reason are kept beside the version, which stays until it is pruned. Raises `ConfigurationError`
        if no version waits, and as `rollback`; then nothing is changed.
        """
        name = _decided_by(name, reason)
        decide = partial(let_wait_no_longer, self.folder, name, reason, dry_run)
        done = self._done(Rejected, decide, dry_run, ["reject", *_decision(self.folder, name, reason)])
        if not dry_run:
            why = f": {reason}" if reason else ""
            text = f"{self.folder}: version {done.version} was rejected by {name}{why}"
            notify.send(self.webhook, notify.Message("refused", f"{text.rstrip('.')}.", asdict(done)))
        return done

    def rollback(self, version: str = "", *, dry_run: bool = False) -> Rollback:
        """Let an earlier version serve again, by default the newest before the serving version that has another model.

        The version's files become a new version with the highest number, which TensorFlow Serving loads, and
        champion.json points to it. Raises `DataError` if the version's files are missing or changed, and as `alias`;
        then nothing is changed.
        """
        named = f"{self.folder}@{version}" if version else self.folder
        restore = partial(roll_back, self.folder, version, dry_run)
        done = self._done(Rollback, restore, dry_run, ["rollback", named])
        if done.changed and not dry_run:
            text = f"{self.folder}: version {done.version} serves instead of {done.replaced}"
            copied = f", a copy of version {done.restored}" if done.restored != done.version else ""
            notify.send(self.webhook, notify.Message("rolled_back", f"{text}{copied}.", asdict(done)))
        return done


def _decision(folder: str, name: str, reason: str) -> list[str]:
    """Return the arguments of `models approve` and `models reject`."""
    return [f"{folder}@{CANDIDATE}", "--as", name, *(["--reason", reason] if reason else [])]


def _decided_by(name: str, reason: str) -> str:
    """Return `name`, by default this machine's user. Raises `ConfigurationError` unless both are short lines."""
    name = name or person()
    for option, text, most in (("--as", name, _MOST_NAME), ("--reason", reason, _MOST_REASON)):
        if len(text) > most or (text and not text.isprintable()) or text.strip() != text:
            raise ConfigurationError(f"{option}: is no line of at most {most} characters. Write it in one line.")
    return name


def versions(model: str | os.PathLike[str], *, environment: str = LOCAL) -> Versions:
    """List the pushed versions of a model, the newest first.

    model: a recipe, a folder of versions or its URI. Raises `DataError` if nothing was pushed.

    >>> import trainyard as ty
    >>> ty.versions("digits").rollback()  # doctest: +SKIP
    """
    return find(os.fspath(model), environment)[0]


def find(model: str, environment: str) -> tuple[Versions, str]:
    """Return the versions of `model`, and the version that it names: a number or an alias; '' for none.

    model: as `model_uri` takes it. Raises as that.
    """
    loaded = environments.load(environment)
    return _found(model_uri(model, loaded), loaded.notify)


def _found(uri: str, webhook: Notify | None = None) -> tuple[Versions, str]:
    names = storage.children(uri)
    if not names:
        folder, name = split_name(uri)
    elif uri.rpartition("/")[2].isdecimal() and not version_numbers(uri):
        folder, name = (uri.rpartition("/")[0] or ".", uri.rpartition("/")[2])
    else:
        folder, name = uri, ""
    if folder.endswith(f"/{CANDIDATE}"):
        folder = folder.removesuffix(f"/{CANDIDATE}")
        name = name if name.isdecimal() and int(name) in rejections(folder) else CANDIDATE
    found = Versions(folder, webhook)
    if not found:
        raise DataError(f"{folder}: no versions of a model. Name a recipe, or a folder that `push` wrote to.")
    return found, name


def find_one(model: str, environment: str) -> Version:
    """Return the version that `model` names, or the one that serves; also a copy of a version. Raises as `find`."""
    uri = model_uri(model, environments.load(environment))
    if not uri.rpartition("/")[2].isdecimal() and (files := storage.committed(uri)) and files.producer == PRODUCER:
        record = contents.record(uri)
        return Version(record.number or 0, uri, serves=False, aliases=(), record=record)
    found, name = _found(uri)
    version = found[name] if name else found.serving
    if version is None:
        raise DataError(f"{found.folder}: no version serves. {found.caution or 'Name a version'}")
    return version


def _new_folder(name: str) -> Path:
    """Return the local folder `name`. Raises `ConfigurationError` if it is not new or empty."""
    if why := "it is in a bucket" if is_bucket(name) else path_error(name):
        raise ConfigurationError(f"{without_secrets(name)[:200]}: {why}. Name a new or an empty local folder.")
    folder = Path(name).resolve()
    with disk.os_errors(folder, "read"):
        if folder == Path.cwd() or folder.is_mount():  # a rename cannot replace it
            raise ConfigurationError(f"{folder}: is the current folder or a disk. Name a new folder in it.")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigurationError(f"{folder}: already exists. Name a new or an empty folder.")
    return folder


def all_versions(environment: str) -> list[Versions]:
    """Return the versions of every recipe in the environment's storage that has some."""
    root = environments.readable_storage(environments.load(environment))
    found = (Versions(storage.join(root, recipe, "models")) for recipe in storage.children(root))
    return [versions for versions in found if versions]
