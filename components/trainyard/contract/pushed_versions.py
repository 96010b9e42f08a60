"""The versions of a model as they are listed: what serves, metric, aliases and run of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from trainyard.contract import version as contents
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.champion import champion
from trainyard.contract.serving import aliases, version_numbers
from trainyard.errors import DataError
from trainyard.measured import metric_text
from trainyard.spec.gates import MAIN_METRIC
from trainyard.storage import storage


@dataclass(frozen=True)
class PushedVersion:
    """A pushed version. record: its origin. serves: it is the one in champion.json.

    fault: why the record cannot be read, '' if it can.
    """

    number: int
    folder: str
    serves: bool
    aliases: tuple[str, ...]
    record: VersionRecord
    fault: str = ""

    @property
    def recipe(self) -> str:
        """The name of its recipe, '' if it is unknown."""
        return str(self.record.recipe.get("name", ""))

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

    newest: only as many of the newest are read, and those that serve or have an alias. Raises `DataError` if the file
    of aliases is damaged.
    """
    numbers, named = version_numbers(folder), aliases(folder)
    caution, serving = "", -1
    try:
        best = champion(folder)
    except DataError as error:
        caution = str(error)
    else:
        last = max(numbers, default=0)
        serving = best.version if best else 0
        if last > serving:
            caution = (
                f"TensorFlow Serving loads version {last}, and {f'version {serving}' if best else 'no version'} "
                f"is in champion.json: a push was killed, or another program wrote it. Push or roll back again."
            )
        serving = best.version if best else -1
    recent = numbers if newest is None else numbers[-newest:]
    listed = [number for number in numbers if number in {*recent, serving, *named.values()}]
    return [_version(folder, number, number == serving, named, kind) for number in reversed(listed)], caution


def _version(folder: str, number: int, serves: bool, named: dict[str, int], kind: Callable[..., V]) -> V:
    place, fault, record = storage.join(folder, str(number)), "", VersionRecord()
    try:
        record = contents.record(place)
    except DataError as error:
        fault = str(error)
    known = tuple(sorted(name for name, version in named.items() if version == number))
    return kind(number, place, serves, known, record, fault)
