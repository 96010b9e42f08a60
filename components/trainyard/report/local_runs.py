"""The runs below a storage, read from what they left there."""

from __future__ import annotations

import fcntl
import re
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.contract.artifacts.gate import Threshold, recorded_refusal
from trainyard.contract.artifacts.train import Straggler
from trainyard.contract.document import Time
from trainyard.contract.pushed_versions import PushedVersion, read_versions
from trainyard.errors import ConfigurationError, DataError, did_you_mean, listed
from trainyard.graph import OUTPUTS
from trainyard.measured import metric_text, seconds_between
from trainyard.spec import plain_yaml
from trainyard.spec.gates import MAIN_METRIC
from trainyard.storage import storage

JOURNAL = "journal.jsonl"
"""The journal of a run in its folder; locked while the run is active."""

NOTE = "note.txt"
"""The note of a run in its folder."""

_LONGEST_NOTE = 500  # characters; chosen: a line or two of the list
_READERS = 16  # of records in a bucket at once; chosen: each waits for the network
_READ_AT_ONCE = 256  # chosen: records that are read before it is known whether older ones are needed
_SECOND = "%Y%m%d-%H%M%S"
_NAME = re.compile(r"(\d{8}-\d{6})-[0-9a-f]{4}")


class _Fields(BaseModel):
    """Fields of a run.json that are read; others are not checked."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _Data(_Fields):
    train: int
    eval: int
    test: int
    fingerprint: str


class _Training(_Fields):
    stragglers: list[Straggler] = []


class _Threshold(Threshold, _Fields):
    """A threshold, which a record also says the split of."""


class _Gate(_Fields):
    verdict: str
    thresholds: list[_Threshold]


class _Latency(_Fields):
    p50: float


class _Export(_Fields):
    format: str
    bytes: int
    latency_ms: _Latency


class _Pushed(_Fields):
    path: str
    version: int


class _Record(_Fields):
    data: _Data | None = None
    train: _Training | None = None
    metrics: dict[str, float] | None = None
    gate: _Gate | None = None
    exports: list[_Export] | None = None
    pushed: _Pushed | None = None
    report: str | None = None
    seconds: dict[str, float] = {}
    folders: dict[str, str] = {}
    unfinished: dict[str, str] = {}
    failure: str | None = None
    exit_code: int | None = None
    ended: Time | None = None


class _Note(_Fields):
    folder: str
    time: Time | None = None


STATES = ("pushed", "refused", "failed", "done", "running", "unfinished")
"""Of local runs. done: of a record without a push. unfinished: a run that was killed, or one in a bucket."""


@dataclass(frozen=True)
class LocalRunView:
    """A local run. record: its run.json, empty while it is active or if it was killed.

    state: one of `STATES`. created: local time, with zone. note: what `write_note` left.
    """

    name: str
    recipe: str
    folder: str
    created: str
    state: str
    record: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def time(self) -> str:
        """When it started, or if its name does not hold that, when it ended; '' if neither is known."""
        return self.created or str(self.record.get("ended", ""))

    @property
    def seconds(self) -> float | None:
        """From its start to its record, None while there is none."""
        return seconds_between(self.created, self.record.get("ended", ""))

    @property
    def metric(self) -> str:
        """The first metric of its model on the test split, such as `accuracy 0.9743`; '' if it was not judged."""
        metrics = self.record.get("metrics") or {}
        name = next((name for name in MAIN_METRIC.values() if name in metrics), next(iter(metrics), ""))
        return f"{name} {metric_text(metrics[name])}" if name else ""

    @property
    def reason(self) -> str:
        """The reason of its failure or refusal; '' otherwise."""
        return str(self.record.get("failure") or recorded_refusal(self.record)) if self.record else ""

    @property
    def settings(self) -> dict[str, Any]:
        """Its recipe, with every default, as nested dicts. Raises `DataError` if it is missing or damaged."""
        text = storage.read_text(storage.join(self.folder, "recipe.yaml"))
        if text is None:
            raise DataError(f"{self.folder}: no recipe.yaml, so it is no run of this machine. Name another run.")
        content = plain_yaml.YamlText(text, f"{self.folder}/recipe.yaml").content
        if not isinstance(content, dict) or "task" not in content:
            raise DataError(f"{self.folder}/recipe.yaml: is no recipe with every default. Restore it.")
        return content

    def document(self) -> dict[str, Any]:
        """Return the run as JSON has it."""
        names = ("name", "recipe", "folder", "created", "state", "seconds", "metric", "reason", "note", "record")
        return {name: getattr(self, name) for name in names}


def new_name() -> str:
    """Return the name of a run that begins now: the second in UTC, and four characters for another run in it."""
    return f"{datetime.now(UTC).strftime(_SECOND)}-{secrets.token_hex(2)}"


def begun(name: str) -> str:
    """Return the start of the run `name` in local time with its zone; '' if the name does not hold it."""
    match = _NAME.fullmatch(name)
    return datetime.strptime(match[1], _SECOND).replace(tzinfo=UTC).astimezone().isoformat() if match else ""


@dataclass(frozen=True)
class RunFilter:
    """The runs to list: of a recipe, in a state, from a day on in local time (YYYY-MM-DD), with a text in their note.

    Each is '' for all. known_states: of the place where they run. Raises `ConfigurationError` if it has no such state,
    or for no day.
    """

    recipe: str = ""
    state: str = ""
    since: str = ""
    known_states: tuple[str, ...] = STATES
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse what no run can fit."""
        if self.state and self.state not in self.known_states:
            near = did_you_mean(self.state, self.known_states)
            raise ConfigurationError(f"--state {self.state}: no such state.{near} Give {listed(self.known_states, 9)}.")
        try:
            is_day = f"{date.fromisoformat(self.since)}" == self.since
        except ValueError:
            is_day = False
        if self.since and not is_day:
            raise ConfigurationError(f"--since {self.since}: is no day. Give it as YYYY-MM-DD.")

    def is_late_enough(self, time: str) -> bool:
        """Return True if `time`, in ISO 8601 with a zone, is not before the first day; without a time it is."""
        return not self.since or (bool(time) and f"{datetime.fromisoformat(time).astimezone().date()}" >= self.since)

    def fits(self, recipe: str, state: str, time: str, note: str = "") -> bool:
        """Return True if a run of `recipe` in `state` that began at `time` is to be listed."""
        is_named = self.recipe in ("", recipe) and self.state in ("", state.lower())
        return is_named and self.note.lower() in note.lower() and self.is_late_enough(time)


ALL_RUNS = RunFilter()


def newest(
    root: str, count: int, wanted: RunFilter = ALL_RUNS, named: list[tuple[str, str]] | None = None
) -> list[LocalRunView]:
    """Return the newest `wanted` runs below the storage `root`, the newest first. named: `names`, if they are known."""
    named = names(root, wanted.recipe) if named is None else named
    timed = sorted((pair for pair in named if _NAME.fullmatch(pair[0])), reverse=True)
    timed = [pair for pair in timed if wanted.is_late_enough(begun(pair[0]))]
    if not (wanted.state or wanted.note):
        timed = timed[:count]
    untimed = [pair for pair in named if not _NAME.fullmatch(pair[0])]  # their records say when they ended
    with ThreadPoolExecutor(_READERS if storage.is_bucket(root) else 1) as pool:

        def fitting(pairs: list[tuple[str, str]]) -> list[LocalRunView]:
            runs = pool.map(lambda pair: view(root, pair[1], pair[0]), pairs)
            return [run for run in runs if wanted.fits(run.recipe, run.state, run.time, run.note)]

        found: list[LocalRunView] = []
        while timed and len(found) < count:
            found += fitting(timed[:_READ_AT_ONCE])
            timed = timed[_READ_AT_ONCE:]
        found += fitting(untimed)
    return sorted(found, key=_order, reverse=True)[:count]


def no_runs(place: str, recipe: str, known: Iterable[str]) -> ConfigurationError:
    """Return the error for a `recipe` without runs at `place`, which has runs of the recipes `known`."""
    names = sorted(filter(None, known))
    return ConfigurationError(
        f"{place}: no runs of '{recipe[:200]}'. There: {listed(names, 20) or 'none'}.{did_you_mean(recipe, names)}"
    )


def find(root: str, text: str) -> LocalRunView:
    """Return the run that `text` names: by its name, its folder, or its recipe, of which it is the newest.

    Raises `ConfigurationError` if there is none.
    """
    folder, _, name = text.rstrip("/").rpartition("/")
    if folder.endswith("/runs"):
        above, _, recipe = folder.removesuffix("/runs").rpartition("/")
        root = above or "."
    else:
        name, recipe = text, ""
    known = recipes_by_run(root)
    if name in known and recipe in ("", known[name]):
        return view(root, known[name], name)
    if name in known.values():
        return newest(root, 1, RunFilter(name))[0]
    if version := _version_of(root, name, recipe):
        raise ConfigurationError(
            f"{text[:200]}: the run was deleted, and {version.name} is of it, which keeps its recipe, data, metrics "
            f"and gates. See `trainyard models show {version.folder}`."
        )
    shown = ", ".join(sorted(known)[-3:]) or "none"
    near = did_you_mean(name, [*known, *set(known.values())])
    raise ConfigurationError(
        f"{text[:200]}: no such run in {root}.{near} Name a run, its folder, or a recipe for its newest; the newest "
        f"are: {shown}."
    )


def _version_of(root: str, run: str, recipe: str) -> PushedVersion | None:
    """Return the version below the storage `root` that the deleted `run` pushed, None without one."""
    for name in [recipe] if recipe else storage.children(root) if _NAME.fullmatch(run) else ():
        for version in read_versions(storage.join(root, name, "models"), PushedVersion)[0]:
            if version.record.run.rpartition("/")[2] == run:
                return version
    return None


def recipes_by_run(root: str) -> dict[str, str]:
    """Return the recipe of every run below the storage `root`, by the run's name."""
    return dict(names(root))


def names(root: str, recipe: str = "") -> list[tuple[str, str]]:
    """List the name and recipe of every run below the storage `root`; recipe: of this one alone."""
    return [
        (run, parent)
        for parent in ([recipe] if recipe else storage.children(root))
        for run in storage.children(_runs(root, parent))
    ]


def view(root: str, recipe: str, name: str) -> LocalRunView:
    """Return the run `name` of a recipe below the storage `root`, as far as it is recorded."""
    folder = storage.join(_runs(root, recipe), name)
    try:
        record = read_record(folder)
    except DataError:  # damaged by hand or by a disk: the run is listed all the same
        record = {"failure": f"{folder}/run.json is damaged"}
    state = _state(record) if record else "running" if _goes_on(folder) else "unfinished"
    note = storage.read_text(storage.join(folder, NOTE), "replace") or ""
    return LocalRunView(name, recipe, folder, begun(name), state, record, " ".join(note.split())[:_LONGEST_NOTE])


def read_record(folder: str) -> dict[str, Any]:
    """Return run.json of the run in `folder`, empty if it is missing. Raises `DataError` if it is damaged."""
    return _checked(storage.join(folder, "run.json"), _Record)


def read_note(folder: str, step: str) -> dict[str, Any]:
    """Return the note of `step` in the `folder` of its run, empty if it is missing. Raises as `read_record`."""
    return _checked(storage.join(folder, f"{step}.json"), _Note)


def _checked(file: str, model: type[_Fields]) -> dict[str, Any]:
    """Return the JSON object in `file`, whose fields are those of `model`, empty if it is missing."""
    record = storage.read_json(file)
    try:
        if record:
            model.model_validate(record)
    except ValidationError as error:
        fault = error.errors()[0]
        raise DataError(
            f"{file}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}. It was edited or is damaged. Delete it, or "
            "restore it."
        ) from error
    return record


def write_note(run: LocalRunView, note: str) -> None:
    """Replace the note of `run`; an empty one deletes it. Raises `ConfigurationError` if it is too long."""
    line = " ".join(note.split())
    if len(line) > _LONGEST_NOTE or not line.isprintable():
        raise ConfigurationError(
            f"the note has {len(line)} characters, or unprintable ones. At most {_LONGEST_NOTE} printable ones are "
            "kept. Shorten it."
        )
    storage.write_text(storage.join(run.folder, NOTE), line)


def log(run: LocalRunView, step: str, tail: int | None) -> str:
    """Return the log of a step, of `tail` only the last lines. Raises `ConfigurationError` if it has none."""
    text = storage.read_text(storage.join(run.folder, f"{step}.log"), "replace") if step in OUTPUTS else None
    if text is None:
        logged = {name.removesuffix(".log") for name in storage.children(run.folder) if name.endswith(".log")}
        known = [name for name in OUTPUTS if name in logged]
        raise ConfigurationError(
            f"{step}: {run.name} has no log of it.{did_you_mean(step, known)} There: {', '.join(known) or 'none'}; "
            "a reused step writes none."
        )
    return "".join(text.splitlines(keepends=True)[-tail:] if tail else text)


def _runs(root: str, recipe: str) -> str:
    return storage.join(root, recipe, "runs")


def _order(run: LocalRunView) -> tuple[float, str]:
    return datetime.fromisoformat(run.time).timestamp() if run.time else 0.0, run.name


def is_written(journal: IO[str]) -> bool:
    """Return True if the run of this journal is active: it holds the file's lock."""
    try:
        fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _goes_on(folder: str) -> bool:
    if storage.is_bucket(folder):
        return False
    try:
        with Path(folder, JOURNAL).open(encoding="utf-8") as journal:
            return is_written(journal)
    except OSError:
        return False


def _state(record: dict[str, Any]) -> str:
    if record.get("failure"):
        return "failed"
    if record.get("pushed"):
        return "pushed"
    return "refused" if recorded_refusal(record) else "done"
