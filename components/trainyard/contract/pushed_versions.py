"""The pushed versions of a model: which one serves, the aliases of others, and how they are listed.

The version that serves is the one in champion.json. A push and a rollback publish a new version before they set it, so
that it also has the highest number, which TensorFlow Serving loads. An alias never changes what serves.

A version that waits for approval is in the folder `CANDIDATE`, which has another champion.json: servers look for
numbers, and do not see it. No two versions of both folders have one number. A rejected version stays there until it is
pruned, and nothing names it but its number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from trainyard.contract import version as contents
from trainyard.contract.artifacts.gate import Approval
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.document import FrozenModel
from trainyard.contract.version import Champion, champion
from trainyard.errors import ConfigurationError, DataError, did_you_mean
from trainyard.measured import metric_text
from trainyard.spec.gates import MAIN_METRIC
from trainyard.storage import storage

CANDIDATE = "candidate"
"""The name of the version that waits for approval, and its folder among the versions."""

_SHOWN = 10  # names in a sentence; chosen


class Aliases(FrozenModel):
    """The versions that have a name, in the file beside them."""

    file: ClassVar[str] = "aliases.json"

    aliases: dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9._-]{0,62}$")], Annotated[int, Field(ge=0)]]


class Rejections(FrozenModel):
    """Who rejected which versions, in the folder of those that wait for approval."""

    file: ClassVar[str] = "rejected.json"

    rejected: dict[Annotated[int, Field(ge=0)], Approval]


def version_numbers(destination: str) -> list[int]:
    """Return the numbers of the versions in `destination`, whoever wrote them, in order."""
    return sorted(int(name) for name in storage.children(destination) if re.fullmatch(r"[0-9]+", name))


def aliases(destination: str) -> dict[str, int]:
    """Return the version of each alias in `destination`. Raises `DataError` if the file of aliases is damaged."""
    file = storage.join(destination, Aliases.file)
    text = storage.read_text(file)
    try:
        return Aliases.model_validate_json(text).aliases if text is not None else {}
    except ValidationError as error:
        raise DataError(f"{file}: not a list of aliases. Correct or remove it.") from error


def set_alias(destination: str, name: str, version: int | None) -> None:
    """Let the alias `name` name `version`, or nothing if None; the caller holds the lease of `destination`.

    Raises `ConfigurationError` for an invalid name.
    """
    if name == CANDIDATE and version is not None:
        raise ConfigurationError(f"alias {name}: is the version that waits for approval. Choose another name.")
    known = {alias: number for alias, number in aliases(destination).items() if alias != name}
    try:
        document = Aliases(aliases=known | ({} if version is None else {name: version}))
    except ValidationError as error:
        raise ConfigurationError(
            f"alias {name[:100]!r}: not a name. Use at most 63 lowercase letters, digits, '.', '_' and '-', and start "
            "with a letter."
        ) from error
    storage.write_text(storage.join(destination, Aliases.file), document.model_dump_json(indent=1))


def candidates(destination: str) -> str:
    """Return the folder of the versions of `destination` that wait for approval; a newer one replaces the others."""
    return storage.join(destination, CANDIDATE)


def candidate(destination: str, best: Champion | None) -> Champion | None:
    """Return the version of `destination` that waits for approval, None without one. Raises as `champion`.

    best: the version that serves.
    """
    waiting = champion(candidates(destination))
    return None if waiting and best and best.digest == waiting.digest else waiting


def rejections(destination: str) -> dict[int, Approval]:
    """Return who rejected which versions of `destination`. Raises `DataError` if their file is damaged."""
    file = storage.join(candidates(destination), Rejections.file)
    text = storage.read_text(file)
    try:
        return Rejections.model_validate_json(text).rejected if text is not None else {}
    except ValidationError as error:
        raise DataError(f"{file}: not a list of rejections. Correct or remove it.") from error


def set_rejection(destination: str, version: int, rejection: Approval | None) -> None:
    """Keep who rejected `version`, or forget it if None; the caller holds the lease of `destination`."""
    known = {number: kept for number, kept in rejections(destination).items() if number != version}
    document = Rejections(rejected=known | ({} if rejection is None else {version: rejection}))
    storage.write_text(storage.join(candidates(destination), Rejections.file), document.model_dump_json(indent=1))


def is_pushed_to(destination: str) -> bool:
    """Return True if `destination` has a version, also if it only waits for approval."""
    return bool(version_numbers(destination) or version_numbers(candidates(destination)))


def serving_version(destination: str, name: str = "") -> str:
    """Return the folder of the version in `destination` that serves, or that `name` names: an alias or a number.

    `CANDIDATE` is the version that waits for approval. Reads champion.json or the aliases again at each call, so a
    server that polls it learns of a push, an approval or a rollback.

    Raises `DataError` if nothing serves yet, or as `champion`; `ConfigurationError` for an unknown name.
    """
    if name and name != CANDIDATE:
        return storage.join(destination, str(find_version(destination, name)))
    best = champion(destination)
    if name:
        waiting = candidate(destination, best)
        return waiting.path if waiting else storage.join(destination, str(find_version(destination, name)))
    if best is None:
        waiting = candidate(destination, best)
        advice = f"Approve version {waiting.version}, which waits" if waiting else "Push a model, or name one"
        raise DataError(f"{destination}: no version serves, as there is no champion.json. {advice}.")
    return best.path


def split_name(model: str) -> tuple[str, str]:
    """Split MODEL@NAME, where NAME is an alias or a number; the name is '' if there is none.

    >>> split_name("digits@canary"), split_name("models/3")
    (('digits', 'canary'), ('models/3', ''))
    """
    base, _, name = model.rpartition("@")
    return (base, name) if base and "/" not in name else (model, "")


def find_version(destination: str, name: str) -> int:
    """Return the number of the version that `name`, an alias or a number, names.

    Raises `ConfigurationError` if there is no such version, with the nearest name.
    """
    named, numbers = aliases(destination), version_numbers(destination)
    if re.fullmatch(r"[0-9]{1,18}", name):
        number = int(name)
        near = min(numbers, key=lambda known: (abs(known - number), -known), default=None)
        hint = "" if near is None else f" The nearest is {near}."
    else:
        number = named.get(name, -1)
        hint = did_you_mean(name, named)
    if number in numbers:
        return number
    if name in named:
        raise DataError(f"{destination}: version {number} of the alias '{name}' is gone. Set the alias again.")
    if name == CANDIDATE:
        waiting = candidate(destination, champion(destination))
        state = f"version {waiting.version} waits for approval" if waiting else "no version waits for approval"
        raise ConfigurationError(f"{destination}: '{name}': {state}. Name a version that was approved.")
    versions = ", ".join(map(str, numbers[-_SHOWN:])) or "none"
    aliases_text = f"; aliases: {', '.join(sorted(named)[:_SHOWN])}" if named else ""
    raise ConfigurationError(f"{destination}: no version '{name[:100]}'. Versions: {versions}{aliases_text}.{hint}")


@dataclass(frozen=True)
class PushedVersion:
    """A pushed version. record: its origin. serves: it is the one in champion.json.

    fault: why the record cannot be read, '' if it can. rejection: who rejected it instead of an approval.
    """

    number: int
    folder: str
    serves: bool
    aliases: tuple[str, ...]
    record: VersionRecord
    fault: str = ""
    rejection: Approval | None = None

    @property
    def recipe(self) -> str:
        """The name of its recipe, '' if it is unknown."""
        return str(self.record.recipe.get("name", ""))

    @property
    def waits(self) -> bool:
        """True if it serves when a person has approved it."""
        return self.folder.split("/")[-2:-1] == [CANDIDATE] and self.rejection is None

    @property
    def unapproved(self) -> str:
        """The end of a sentence about a version that waits for approval or was rejected; '' for others."""
        if self.rejection is None:
            return "waits for approval" if self.waits else ""
        reason = f": {self.rejection.reason}" if self.rejection.reason else ""
        return f"was rejected by {self.rejection.name} at {self.rejection.time}{reason}"

    @property
    def name(self) -> str:
        """Its recipe and number."""
        return f"{self.recipe or 'version'}@{self.number}"

    @property
    def metric(self) -> str:
        """The metric of its first gate, or its main metric, such as `accuracy 0.9743`; '' if it is unknown."""
        gates, metrics = (self.record.recipe.get("evaluate") or {}).get("gates") or [], self.record.metrics
        names = [*(gate["metric"] for gate in gates[:1]), *MAIN_METRIC.values(), *metrics]
        return next((f"{name} {metric_text(metrics[name])}" for name in names if name in metrics), "")

    @property
    def run_folder(self) -> str:
        """The folder of its run, also if the storage was moved since; '' if it is unknown."""
        root, _, name = self.folder.rpartition("/")[0].rpartition("/")
        run = self.record.run.rpartition("/")[2]
        moved = storage.join(root, "runs", run)
        return moved if run and name == "models" and storage.children(moved) else self.record.run

    @property
    def report(self) -> str:
        """The report page of its run, '' if it is unknown or was deleted."""
        folder = self.run_folder
        return storage.join(folder, "report.html") if folder and "report.html" in storage.children(folder) else ""


V = TypeVar("V", bound=PushedVersion)


def read_versions(folder: str, kind: Callable[..., V], newest: int | None = None) -> tuple[list[V], str]:
    """Return the versions in `folder`, newest first, and the problem with the serving version, '' without one.

    newest: only as many of the newest are read, and those that serve, wait for approval, were rejected or have an
    alias. Raises `DataError` if the file of aliases or of rejections is damaged.
    """
    numbers, named = version_numbers(folder), aliases(folder)
    caution, serving, waiting = "", -1, None
    try:
        best = champion(folder)
    except DataError as error:
        caution = str(error)
    else:
        serving, last = best.version if best else -1, max(numbers, default=-1)
        if last > serving:
            caution = (
                f"TensorFlow Serving loads version {last}, and {f'version {serving}' if best else 'no version'} "
                f"is in champion.json: a push is writing or was killed, or another program wrote it. "
                f"Wait, or push or roll back again."
            )
        try:
            waiting = candidate(folder, best)
        except DataError as error:
            caution = caution or str(error)
    recent = numbers if newest is None else numbers[-newest:]
    listed = [number for number in numbers if number in {*recent, serving, *named.values()}]
    found = [_version(folder, number, number == serving, named, kind) for number in reversed(listed)]
    rejected = rejections(folder)
    for number in (rejected.keys() & version_numbers(candidates(folder))) - {waiting.version if waiting else None}:
        found.append(_version(candidates(folder), number, False, {}, kind, rejected[number]))
    found.sort(key=lambda version: -version.number)
    if waiting:
        beside = {CANDIDATE: waiting.version}
        found.insert(0, _version(candidates(folder), waiting.version, False, beside, kind))
    return found, caution


def _version(
    folder: str,
    number: int,
    serves: bool,
    named: dict[str, int],
    kind: Callable[..., V],
    rejection: Approval | None = None,
) -> V:
    place, fault, record = storage.join(folder, str(number)), "", VersionRecord()
    try:
        record = contents.record(place)
    except DataError as error:
        fault = str(error)
    known = tuple(sorted(name for name, version in named.items() if version == number))
    return kind(number, place, serves, known, record, fault, rejection)
