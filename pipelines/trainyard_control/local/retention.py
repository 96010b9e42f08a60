"""Retention of a storage: old runs, outputs that no kept run uses, and abandoned attempts."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from trainyard.contract import keys, origin
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.pushed_versions import (
    CANDIDATE,
    aliases,
    candidates,
    rejections,
    set_rejection,
    version_numbers,
)
from trainyard.contract.version import champion, digest, record
from trainyard.errors import DataError, TransientError
from trainyard.graph import OUTPUTS, STEPS
from trainyard.report import local_runs
from trainyard.storage import storage, uploads
from trainyard.storage.manifest import ATTEMPTS, STAGING

RUNNING_DAYS = 14  # chosen: twice what the longest step may take by default
_RUNNING = timedelta(days=RUNNING_DAYS)
_LOCKS = re.compile(r"\..+\.(lock|lease)")

Output = tuple[str, str]
"""An output by its step and its key: where the storage lay when a record was written does not matter."""


Over = Callable[[list[str]], Collection[str]]
"""Tells which of some runs without a record have ended."""


@dataclass(frozen=True)
class Removal:
    """One folder that goes, with its companions.

    kind: 'run', 'output', 'version', 'attempt', the half-written files of an output that stays, or 'upload', of the
    recipe 'uploads'.
    """

    kind: str
    recipe: str
    name: str
    bytes: int

    @property
    def has_checkpoints(self) -> bool:
        """True if it is the output of a step that keeps checkpoints beside it."""
        return "checkpoints" in STEPS[self.name.partition("/")[0]].inputs

    def uri(self, root: str) -> str:
        """Return its URI below the storage `root`."""
        return storage.join(root, self.recipe, self.name)


@dataclass(frozen=True)
class Pruning:
    """The folders to delete, and in sentences why others stay. runs: the names of all runs by recipe."""

    removals: list[Removal]
    notes: list[str]
    runs: dict[str, frozenset[str]]


def plan(
    root: str,
    keep: int,
    recipe: str = "",
    now: datetime | None = None,
    over: Over | None = None,
    scheduled: Callable[[], str | None] = str,
) -> Pruning:
    """Return the folders to delete below `root`, for `recipe` or all, if the newest `keep` runs of each stay.

    scheduled: returns text with the URIs that schedules need; None if these are unknown, so that all uploads stay.

    A rejected version goes with its run. The champion, a version that waits for approval and versions with an alias
    stay with their runs and all that they were made from. Of a recipe with a run that may be active no output is
    deleted. Raises `ConfigurationError` for an unknown recipe, `DataError` if a champion cannot be read.
    """
    recipes = [name for name in storage.children(root) if storage.children(storage.join(root, name, "runs"))]
    if recipe and recipe not in recipes:
        raise local_runs.no_runs(root, recipe, recipes)
    plans = [
        _Store(root, name, now or datetime.now(UTC), over).plan(keep) for name in ([recipe] if recipe else recipes)
    ]
    removals = [removal for pruning in plans for removal in pruning.removals]
    if not recipe:
        removals += _unused_uploads(root, removals, now or datetime.now(UTC), scheduled)
    runs = {name: names for pruning in plans for name, names in pruning.runs.items()}
    return Pruning(removals, [note for pruning in plans for note in pruning.notes], runs)


def _unused_uploads(
    root: str, removals: list[Removal], now: datetime, scheduled: Callable[[], str | None] = str
) -> Iterator[Removal]:
    """Yield uploads that no output or schedule names after `removals` and no submission used for `RUNNING_DAYS`."""
    sizes: dict[str, int] = defaultdict(int)
    for name, size in storage.sizes(storage.join(root, uploads.FOLDER)).items():
        sizes[name.partition("/")[0]] += size
    known = [name for name in sorted(sizes) if re.fullmatch(uploads.NAME, name)]
    used = {name: uploads.last_used(storage.join(root, uploads.FOLDER, name)) for name in known}
    stale = now - _RUNNING
    old = [name for name, time in used.items() if time and time < stale]
    if not old or (schedules := scheduled()) is None:
        return
    gone = {(removal.recipe, removal.name) for removal in removals if removal.kind == "output"}
    named = schedules + "".join(_origins(root, gone))
    for name in old:
        if f"/{uploads.FOLDER}/{name}/" not in named:
            yield Removal("upload", uploads.FOLDER, name, sizes[name])


def _origins(root: str, gone: set[tuple[str, str]]) -> Iterator[str]:
    """Yield as JSON the origins of the outputs below `root` that are not `gone`, and the wheels of versions."""
    models = [storage.join(root, recipe, "models") for recipe in storage.children(root)]
    for destination in [*models, *map(candidates, models)]:
        for number in version_numbers(destination):
            with suppress(DataError):
                yield json.dumps(record(storage.join(destination, str(number))).recipe.get("packages"))
    for recipe, step in ((recipe, step) for recipe in storage.children(root) for step in OUTPUTS):
        for key in storage.children(storage.join(root, recipe, step)):
            if (recipe, f"{step}/{key}") not in gone:
                manifest = storage.committed(storage.join(root, recipe, step, key))
                yield json.dumps(manifest.origin if manifest else {})


def remove(root: str, removal: Removal, runs: Collection[str]) -> str:
    """Remove it, and return '', or why it stays: another process uses it.

    runs: of the recipe, as the plan has them.
    """
    uri = removal.uri(root)
    if removal.kind == "upload" and (used := uploads.last_used(uri)) and used > datetime.now(UTC) - _RUNNING:
        return f"{uri}: a submission has used it meanwhile, so it stays"
    if removal.kind in ("run", "upload"):
        storage.remove(uri)
        return ""
    if removal.kind == "version":
        destination, _, number = uri.rpartition(f"/{CANDIDATE}/")
        try:
            with storage.lease(destination):
                storage.remove(uri)
                set_rejection(destination, int(number), None)
        except TransientError as error:
            return str(error)
        return ""
    checkpoints = storage.lease(keys.checkpoints(uri)) if removal.has_checkpoints else nullcontext()
    try:
        with _unread(root, removal.recipe, runs), storage.lease(uri), checkpoints:
            if removal.kind == "output":
                for ending in ("", *keys.COMPANIONS):
                    storage.remove(f"{uri}{ending}")
            storage.remove_abandoned(uri)
    except TransientError as error:
        return str(error)
    return ""


@contextmanager
def _unread(root: str, recipe: str, runs: Collection[str]) -> Iterator[None]:
    """Raise `TransientError` if a run or a search of `recipe` reads its outputs; none begins to in the block.

    A bucket only knows the runs that are not among the planned `runs`: they began since, or are about to.
    """
    with ExitStack() as stack:
        if storage.is_bucket(root):
            if later := set(storage.children(storage.join(root, recipe, "runs"))).difference(runs):
                raise TransientError(f"{recipe}: {min(later)} has begun meanwhile, so its outputs stay")
        else:
            try:
                stack.enter_context(storage.lease(storage.join(root, recipe)))
            except TransientError as error:
                raise TransientError(f"a run or a search of {recipe} is active, so its outputs stay") from error
        yield


@dataclass
class _Run:
    """A run and the outputs that it made, used or began.

    time: its end, or the last sign of activity; None if unknown. pushed: the folder of versions and the version.
    """

    name: str
    time: datetime | None
    ended: bool
    pushed: tuple[str, str]
    outputs: set[Output]


@dataclass
class _Store:
    """The folder of one recipe."""

    root: str
    recipe: str
    now: datetime
    over: Over | None
    outputs: dict[Output, int] = field(default_factory=lambda: defaultdict(int))
    attempts: dict[Output, int] = field(default_factory=lambda: defaultdict(int))
    runs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    candidates: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def plan(self, keep: int) -> Pruning:
        self._measure()
        known = {self.recipe: frozenset(self.runs)}
        unknown, stale = datetime.min.replace(tzinfo=UTC), self.now - _RUNNING
        runs = sorted(map(self._run, self.runs), key=lambda run: (run.time or unknown, run.name), reverse=True)
        running = [run for run in runs if not run.ended and (run.time is None or run.time > stale)]
        over = self.over([run.name for run in running]) if self.over and running else ()
        running = [run for run in running if run.name not in over]
        destinations = sorted(
            {self._models, candidates(self._models), *(run.pushed[0] for run in runs if run.pushed[0])}
        )
        champions = {destination: best for destination in destinations if (best := champion(destination))}
        retained = {run.name for run in [*runs[:keep], *running]}
        versions = {(destination, str(best.version)) for destination, best in champions.items()}
        named = {(place, str(number)) for place in destinations for number in aliases(place).values()}
        versions |= named
        recorded = {keys.split(run)[1] for version in versions if (run := _run_of(storage.join(*version)))}
        retained |= {run.name for run in runs if run.pushed in versions or run.name in recorded}
        old = sorted(self.runs.keys() - retained)
        removals = [Removal("run", self.recipe, f"runs/{name}", self.runs[name]) for name in old]
        removals += self._rejected(versions, retained)
        if running:
            names = ", ".join(run.name for run in running)
            note = f"{self.recipe}: {names} may be active (no run.json yet), so all outputs of {self.recipe} stay"
            return Pruning(removals, [note], known)
        used = {output for run in runs if run.name in retained for output in run.outputs}
        manifests = [storage.committed(storage.join(*version)) for version in sorted(named)]
        digests = {digest(manifest) for manifest in manifests if manifest}
        used = self._with_inputs(used | self._pushed(digests | {best.digest for best in champions.values()}))
        for (step, key), size in sorted(self.outputs.items()):
            kind, rest = ("attempt", self._abandoned((step, key))) if (step, key) in used else ("output", size)
            if rest:
                removals.append(Removal(kind, self.recipe, f"{step}/{key}", rest))
        return Pruning(removals, [], known)

    def _rejected(self, versions: set[tuple[str, str]], retained: set[str]) -> Iterator[Removal]:
        """Yield the rejected versions that are not in `versions` and whose runs are not `retained`."""
        waiting = candidates(self._models)
        for number in sorted(rejections(self._models).keys() & version_numbers(waiting)):
            run = keys.split(_run_of(storage.join(waiting, str(number))))[1]
            if (waiting, str(number)) not in versions and run not in retained:
                yield Removal("version", self.recipe, f"models/{CANDIDATE}/{number}", self.candidates[str(number)])

    def _measure(self) -> None:
        for name, size in storage.sizes(storage.join(self.root, self.recipe)).items():
            top, _, below = name.partition("/")
            first, _, rest = below.partition("/")
            if top == "runs" and rest:
                self.runs[first] += size
            elif (top, first) == ("models", CANDIDATE):
                self.candidates[rest.partition("/")[0]] += size
            elif top in OUTPUTS and first and not _LOCKS.fullmatch(first):
                attempt = first == STAGING
                key = rest.partition("/")[0].rpartition("-")[0] if attempt else first.removeprefix(".")
                output = top, key.partition(".")[0]
                self.outputs[output] += size
                if attempt or rest.startswith(ATTEMPTS):
                    self.attempts[output] += size

    def _abandoned(self, output: Output) -> int:
        """Return the size of what was left half-written of `output`, which stays."""
        uri, size = storage.join(self.root, self.recipe, *output), self.attempts.get(output, 0)
        if not size or not storage.is_bucket(uri):
            return size
        manifest = storage.committed(uri)
        return max(0, size - manifest.bytes) if manifest else 0  # its writer may still be active

    def _run(self, name: str) -> _Run:
        folder = storage.join(self.root, self.recipe, "runs", name)
        record = local_runs.read_record(folder)
        cancelled = storage.read_text(keys.cancellation(folder)) or ""
        notes = [note for step in OUTPUTS if (note := local_runs.read_note(folder, step))]
        uris = [note["folder"] for note in notes]
        uris += [uri for part in ("folders", "unfinished") for uri in record.get(part, {}).values()]
        times = [text for part in (record, *notes) if (text := part.get("ended") or part.get("time"))]
        if cancelled:
            times.append(cancelled)
        elif not times and (begun := local_runs.begun(name)):
            times = [begun]
        try:
            time = max(map(datetime.fromisoformat, times), default=None)
        except (TypeError, ValueError) as error:
            raise DataError(f"{keys.cancellation(folder)}: holds no time ({error}). Delete it.") from error
        destination, _, version = str((record.get("pushed") or {}).get("path", "")).rpartition("/")
        if destination.endswith(f"/{self.recipe}/models"):  # also if the storage was moved since
            destination = self._models
        if destination.endswith(f"/{self.recipe}/models/{CANDIDATE}"):
            destination = candidates(self._models)
        return _Run(name, time, bool(record or cancelled), (destination, version), {_output(uri) for uri in uris})

    @property
    def _models(self) -> str:
        return storage.join(self.root, self.recipe, "models")

    def _pushed(self, digests: set[str]) -> set[Output]:
        """Return the outputs of push that pushed a model with one of the `digests`."""
        pushes = {
            output: storage.join(self.root, self.recipe, *output)
            for output in self.outputs
            if output[0] == Pushed.made_by
        }
        done = [output for output, uri in pushes.items() if storage.committed(uri) is not None]
        return {output for output in done if Pushed.read(pushes[output]).digest in digests}

    def _with_inputs(self, outputs: set[Output]) -> set[Output]:
        """Return `outputs` and all that they were made from."""
        reached: set[Output] = set()
        todo = sorted(outputs)
        while todo:
            output = todo.pop()
            if output not in reached:
                reached.add(output)
                made_from = origin.recorded(storage.join(self.root, self.recipe, *output))
                todo += map(_output, made_from.inputs.values()) if made_from else ()
        return reached


def _run_of(version: str) -> str:
    """Return the folder of the run that made the model of `version`, also if a rollback copied it; '' if unknown."""
    with suppress(DataError):
        return record(version).run
    return ""


def _output(uri: str) -> Output:
    folder, key = keys.split(uri)
    return keys.split(folder)[1], key
