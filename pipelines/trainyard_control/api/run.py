"""Runs of recipes on this machine: start one, read its results, list and compare runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.artifacts.train import Training
from trainyard.errors import ConfigurationError, DataError, ExitCode, TrainyardError, bug_sentence
from trainyard.process.signals import Terminated, on_sigterm
from trainyard.report import local_runs, summary
from trainyard.report.local_runs import LocalRunView
from trainyard.report.pages import in_iframe
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard.storage import disk, storage
from trainyard_control.api.arguments import LOCAL, at_least_one, known_step, local_environment, overrides
from trainyard_control.api.model import Model, load
from trainyard_control.api.progress import Screen
from trainyard_control.cluster import environments
from trainyard_control.local.local_run import Journal, LocalRun
from trainyard_control.planning import expectation
from trainyard_control.search import comparison
from trainyard_control.search.comparison import Comparison

ELSEWHERE = "Its runs are on a cluster: see `trainyard runs`."
INTERRUPTED = "Interrupted. Run the same command again to resume it."
_ENDING = {
    "startup_seconds",
    "failure",
    "exit_code",
    "unfinished",
    "not_due",
    "predicted",
    "ended",
}  # see `summary.write`


@dataclass(frozen=True)
class Report(os.PathLike[str]):
    """The report page of a run. A notebook draws it; elsewhere it is the `path` or URI of the file."""

    path: str

    def __str__(self) -> str:
        return self.path

    def __fspath__(self) -> str:
        return self.path

    def _repr_html_(self) -> str:
        page = storage.read_text(self.path)
        if page is None:
            raise DataError(f"{self.path}: is not there any more. Run the recipe again.")
        return in_iframe(page)


class Run(LocalRunView):
    """A run of this machine, or an ended one of a cluster, with the fields of `trainyard runs`.

    state: pushed, refused, failed, done, running or unfinished. record: its run.json. settings: its recipe with every
    default.
    """

    @classmethod
    def from_view(cls, view: LocalRunView) -> Self:
        """Convert a `LocalRunView`."""
        return cls(**{name: getattr(view, name) for name in view.__dataclass_fields__})

    def __repr__(self) -> str:
        return f"<Run {self.name} of {self.recipe}: {', '.join(filter(None, [self.state, self.metric, self.reason]))}>"

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test split; empty if the model was not evaluated."""
        return self.record.get("metrics") or {}

    @property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % intervals of the metrics (`low`, `high`). Raises `DataError` if the evaluation was deleted."""
        folder = self.outputs.get("evaluate")
        return Evaluation.read(folder).intervals if folder else {}

    @property
    def verdict(self) -> str:
        """The gate's verdict: blessed, refused (see `reason`), or '' without one."""
        return str((self.record.get("gate") or {}).get("verdict", ""))

    @property
    def outputs(self) -> dict[str, str]:
        """The output folder or URI of each step, by its name."""
        return self.record.get("folders") or {}

    @property
    def report(self) -> Report | None:
        """The report page, None if there is none."""
        return Report(self.record["report"]) if self.record.get("report") else None

    @property
    def summary(self) -> dict[str, Any]:
        """The record of `trainyard run -o json`, without the fields about the run's end."""
        return {name: value for name, value in self.record.items() if name not in _ENDING}

    @cached_property
    def model(self) -> Model:
        """The model that the run pushed. Raises `DataError` if it pushed none."""
        pushed = self.record.get("pushed")
        if not pushed:
            raise DataError(f"{self.name}: pushed no model, it is {self.state}. {self.reason}".rstrip())
        return load(pushed["path"])


def run(
    recipe: str = "digits",
    *,
    environment: str = LOCAL,
    set_: Sequence[str] = (),
    from_step: str | None = None,
    day: str = "",
    push: bool = True,
    override: str = "",
    name: str | None = None,
    **settings: Any,
) -> Run:
    """Train a recipe, from data to a pushed model, as `trainyard run` does.

    Finished steps of earlier runs are reused, and an interrupted one is resumed. recipe: a bundled recipe or a YAML
    file. from_step: recompute this step and the later ones. day: day of the run, YYYY-MM-DD, for a recipe with a window
    of days. push: False keeps the champion. override: the reason to push a model that a gate refuses, recorded with
    your name and the time. settings: values of the recipe, `train__epochs=3` for `train.epochs`; `set_` takes them as
    `--set` does. A model that the gate refuses is no error: see `verdict`.

    With the environment of a cluster, the run is submitted there as by `submit`, and followed to its end. name: its
    name there; the same name follows an existing run. `push` and `override` are of a run on this machine.

    Raises `TrainyardError` with the sentence that the CLI shows. Ctrl-C ends the step and raises `KeyboardInterrupt`;
    the same call resumes the run. A run on a cluster continues without you.

    >>> import trainyard as ty
    >>> run = ty.run("digits", train__epochs=3)  # doctest: +SKIP
    >>> run.metrics["accuracy"], run.verdict  # doctest: +SKIP
    """
    sets = overrides(set_, settings)
    loaded_environment = environments.load(environment)
    check_options(loaded_environment, push=push, override=override, name=name)
    if loaded_environment.target != "local":
        from trainyard_control.api import cluster_run

        return cluster_run.run(recipe, environment, sets, name=name, day=day, from_step=from_step)
    loaded = recipes.load(recipe, sets)
    run_id = local_runs.new_name()
    screen, first = Screen(), known_step(from_step)
    with Journal(keys.run_folder(loaded_environment.storage, loaded.name, run_id), screen) as journal:
        local_run = LocalRun(
            loaded, loaded_environment, run_id, first, journal, day, push=push, override=override.strip()
        )
        if left := [key for key, _ in recipes.left_out(recipe, sets)]:
            message = f"{loaded.model.name} has none of the recipe's {', '.join(left)}, which are left out"
            journal.step_event("train", events.fields_of("warning", message=message))
        _executed(local_run, screen)
    return Run.from_view(local_runs.view(local_run.root, loaded.name, run_id))


def check_options(environment: Environment, *, push: bool, override: str, name: str | None) -> None:
    """Raise `ConfigurationError` for options that a run in `environment` does not have, and for contradictions."""
    if environment.target != "local" and (override or not push):
        option = "--override" if override else "--no-push"
        raise ConfigurationError(
            f"{option}: is of a run on this machine, and the target of {environment.name} is {environment.target}. "
            "Leave it out."
        )
    if environment.target == "local" and name is not None:
        raise ConfigurationError(f"--name {name}: is of a run on a cluster. Name its environment, or leave --name out.")
    if override and not (push and override.strip()):
        why = "a reason is missing. Write one" if push else "nothing is pushed with --no-push. Leave one of them out"
        raise ConfigurationError(f"--override: {why}.")


def _predicted(run: LocalRun) -> dict[str, float] | None:
    """Predict the speed of the training of `run`, None if an earlier training was reused."""
    if "train" not in run.startup_seconds:
        return None
    predicted = expectation.predicted(run.recipe, run.environment, Training.read(run.folders["train"]))
    return predicted.model_dump() if predicted else None


def _executed(run: LocalRun, screen: Screen) -> None:
    """Execute `run` with progress on `screen`, and write its record in any case."""
    failure: str | None = "was ended without a word"
    code: int = ExitCode.BUG
    prediction: dict[str, float] | None = None
    try:
        with screen, disk.os_errors(Path(run.root), "used"):
            run.execute()
            prediction = _predicted(run)
        failure, code = None, ExitCode.DONE
    except TrainyardError as error:
        failure, code = str(error), error.exit_code
        raise
    except KeyboardInterrupt:
        failure, code = INTERRUPTED, ExitCode.INTERRUPTED
        raise
    except Terminated as error:
        failure, code = str(error), ExitCode.PREEMPTED
        raise
    except Exception as error:
        failure = bug_sentence(error)
        raise
    finally:
        ended: dict[str, Any] = {
            "startup_seconds": run.startup_seconds,
            "failure": failure,
            "exit_code": int(code),
            "unfinished": run.unfinished,
            "predicted": prediction,
        }
        with on_sigterm(lambda: None):  # a run that is over keeps its record
            folders, webhook = run.folders, run.environment.notify
            summary.write(run.root, run.recipe, run.run_id, folders, run.seconds, ended, run.usd_per_hour, webhook)


class Runs(Sequence[Run]):
    """The newest runs of a storage, the newest first. An index is a number, or a name as in `compare`."""

    def __init__(self, root: str, runs: Sequence[Run] = ()) -> None:
        self._root, self._runs = root, list(runs)

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, index: int | str) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | str | slice) -> Run | Runs:
        if isinstance(index, str):
            return Run.from_view(local_runs.find(self._root, index))
        return Runs(self._root, self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self._runs))}]"

    def compare(self, *runs: Run | str) -> Comparison:
        """Compare runs, by default all of these.

        runs: run objects, names or folders of runs, or recipes, which stand for their newest runs. Raises
        `ConfigurationError` for fewer than two runs or a repeated one.
        """
        return comparison.compare([self[run] if isinstance(run, str) else run for run in runs or self._runs])


def runs(
    environment: str = LOCAL, *, count: int = 20, recipe: str = "", state: str = "", since: str = "", note: str = ""
) -> Runs:
    """List the newest `count` runs of this machine, of one `recipe`, in one `state`, `since` a day, or all.

    note: a text in their notes, which `trainyard runs note` writes.

    Raises `ConfigurationError` if the environment is not local, the recipe has no runs, the state is unknown, or
    `since` is not YYYY-MM-DD.

    >>> import trainyard as ty
    >>> ty.runs(recipe="digits")[:2].compare()  # doctest: +SKIP
    """
    at_least_one("count", count)
    loaded_environment = local_environment(environment, ELSEWHERE)
    wanted, root = local_runs.RunFilter(recipe, state, since, note=note), loaded_environment.storage
    found = local_runs.newest(root, count, wanted)
    if recipe and not found and recipe not in (known := local_runs.recipes_by_run(root).values()):
        raise local_runs.no_runs(root, recipe, set(known))
    return Runs(root, [Run.from_view(view) for view in found])
