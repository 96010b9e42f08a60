"""Runs the trials of a sweep on this machine, one at a time or several on their own cores.

Samplers and pruners are Optuna's. Trials are stored beside the outputs, so that an interrupted sweep resumes, even in
the middle of a training.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Protocol

import optuna

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.version import champion
from trainyard.errors import ConfigurationError, DataError, ExitCode, Preempted, TrainyardError
from trainyard.process.signals import on_sigterm
from trainyard.spec import code, plain_yaml
from trainyard.spec.recipe import Recipe
from trainyard.storage import cache, storage
from trainyard_control.local.local_run import Listener, LocalRun
from trainyard_control.local.step_process import Stop, forked
from trainyard_control.planning import data
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.history import last_preprocessed
from trainyard_control.search import trials
from trainyard_control.search.search_space import BlockSpace
from trainyard_control.search.study import Study, Sweep
from trainyard_control.search.trials import Result, Trial

_DRAWS = 50  # chosen: networks timed for one trial before it is skipped
_MADE_WRONGLY = (ExitCode.CONFIGURATION, ExitCode.DATA, ExitCode.BUG)  # caused by the variant, not by the machine


@dataclass(frozen=True)
class Slot:
    """A slot for one run at a time. cores: those it uses, None for all. stop: ends its run."""

    cores: frozenset[int] | None
    stop: Stop


class SweepListener(Listener, Protocol):
    """Receives the events of a sweep."""

    def for_trial(self, trial: Trial) -> Listener:
        """Return the receiver of the events of `trial`."""

    def trial_ended(self, trial: Trial, best: Trial | None) -> None:
        """Called when a trial is complete, pruned, failed or skipped. best: of all so far."""


Train = Callable[[Trial, optuna.Trial, Slot], Trial]


def run(sweep: Sweep, listener: SweepListener) -> Result:
    """Run or resume a sweep; `best.yaml` in its folder is the winner's recipe.

    Raises the error of a trial if the others would have it too, `ConfigurationError` if there are fewer cores than
    trials at a time or nothing meets the latency budget, and `DataError` if no trial is complete.
    """
    cores = shares(sweep.max_parallel)
    require_possible(sweep)
    with storage.lease(sweep.folder), storage.reading(storage.join(sweep.environment.storage, sweep.recipe.name)):
        study = Study(sweep)
        local = _Local(study, listener)
        in_slots(study, cores, local.train, listener)
        study.trials = with_latencies(study.trials, listener)
        winner = write_winner(study)
        judged = LocalRun(winner, sweep.environment, "", None, listener, folder=storage.join(sweep.folder, "best"))
        judged.preprocess()
        judged.train(champion(keys.models_folder(judged.root, winner)))
        return result(study, winner, Evaluation.read(judged.evaluate(None)))


def in_slots(study: Study, cores: Sequence[frozenset[int] | None], train: Train, listener: SweepListener) -> None:
    """Train all trials of the study, one at a time per slot, without those over the latency budget."""
    inputs: dict[str, DataSummary] = {}
    timing = threading.Lock()  # two networks at a time would slow each other

    def work_on(slot: Slot) -> None:
        while not slot.stop.begun and (next_trial := study.take()):
            with timing:
                trial, sampled = _within_budget(study, *next_trial, slot, inputs)
            if trial.state == "begun":
                trial = train(trial, sampled, slot)
            best = study.end(trial, sampled)
            listener.trial_ended(study.trials[trial.number], best)

    work(cores, work_on)


def shares(count: int) -> list[frozenset[int] | None]:
    """Return an equal share of this machine's cores for each of `count` slots; None for a single one.

    Raises `ConfigurationError` if there are too few cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(cores):
        raise ConfigurationError(
            f"max_parallel {count}: each trial needs its own core, and there are {len(cores)}. "
            f"Give {f'1 to {len(cores)}' if len(cores) > 1 else '1'}."
        )
    if count == 1:
        return [None]
    share = len(cores) // count
    return [frozenset(cores[share * number : share * (number + 1)]) for number in range(count)]


def work(cores: Sequence[frozenset[int] | None], task: Callable[[Slot], None]) -> None:
    """Call `task` in a thread for each of `cores`, and return when all have ended.

    The first error ends the other slots and is raised. Ctrl-C ends all of them; SIGTERM is passed to their steps.
    """
    stop, ended = Stop(), queue.SimpleQueue[BaseException | None]()

    def work_on(own: frozenset[int] | None) -> None:
        try:
            task(Slot(own, stop))
        except BaseException as error:  # noqa: BLE001 - it is raised in the main thread
            ended.put(error)
        else:
            ended.put(None)

    threads = [threading.Thread(target=work_on, args=(own,), daemon=True) for own in cores]
    with on_sigterm(stop.terminate):
        for thread in threads:
            thread.start()
        try:
            for _ in threads:
                if error := ended.get():
                    raise error
            if stop.preempted.is_set():
                raise Preempted
        finally:
            stop.end()  # nothing if all are done
            for thread in threads:
                thread.join()


@dataclass
class _Local:
    """Trains trials on this machine."""

    study: Study
    listener: SweepListener
    preprocessing: threading.Lock = field(default_factory=threading.Lock)
    _equal: dict[str, threading.Lock] = field(default_factory=dict)

    def train(self, trial: Trial, sampled: optuna.Trial, slot: Slot) -> Trial:
        """Train a trial, and return it as it ended."""
        sweep = self.study.sweep
        folder, listener = storage.join(sweep.folder, "trials", str(trial.number)), self.listener.for_trial(trial)
        try:
            variant = sweep.variant(trial.values)
            run = LocalRun(
                variant, sweep.environment, "", None, listener, folder=folder, cores=slot.cores, stop=slot.stop
            )
            # Trials with equal values run one after another: the second reuses the first's training.
            with self._equal.setdefault(json.dumps(trial.values, sort_keys=True), threading.Lock()):
                return trials.train(trial, run, self.preprocessing, partial(self.study.require_promising, sampled))
        except TrainyardError as error:
            several = trial.number or sweep.max_parallel > 1
            if error.exit_code not in _MADE_WRONGLY or not several:
                raise
            return trial.model_copy(update={"state": "failed", "why": str(error)})


def _within_budget(
    study: Study, trial: Trial, sampled: optuna.Trial, slot: Slot, inputs: dict[str, DataSummary]
) -> tuple[Trial, optuna.Trial]:
    """Return the trial, if needed with other values, so that its untrained network meets the latency budget.

    If none does, the trial is skipped.
    """
    budget = study.sweep.latency_budget
    if budget is None:
        return trial, sampled
    for draw in itertools.count(1):
        try:
            took = _untrained_latency(study.sweep, trial, slot, inputs)
        except ConfigurationError as error:
            return trial.model_copy(update={"state": "failed", "why": str(error)}), sampled
        if took <= budget:
            break
        if draw == _DRAWS or (other := study.again(trial, sampled)) is None:
            why = f"an answer takes {took:.3g} ms on one core, and the budget is {budget:g} ms"
            return trial.model_copy(update={"state": "skipped", "milliseconds": took, "why": why}), sampled
        trial, sampled = other
    return trial.model_copy(update={"milliseconds": took}), sampled


def _untrained_latency(sweep: Sweep, trial: Trial, slot: Slot, inputs: dict[str, DataSummary]) -> float:
    """Return the milliseconds of a prediction. inputs: cached features by data section."""
    variant = sweep.variant(trial.values)
    section = variant.data.model_dump_json()
    if section not in inputs:  # computing it lists the source
        inputs[section] = features(variant, sweep)
    return untrained(variant, inputs[section], slot.cores, slot.stop)


def require_possible(sweep: Sweep) -> None:
    """Raise `ConfigurationError` if the images are too small for the stages, or no network is fast enough."""
    space = next((dimension for dimension in sweep.dimensions if isinstance(dimension, BlockSpace)), None)
    if sweep.latency_budget is not None or space:
        known = _known_features(sweep)
    if space is None:
        return
    side = min(known.image[:2]) if known and known.image else None
    if side is not None and side < 2 ** (space.max_stages - 1):
        raise ConfigurationError(
            f"blocks: the pools between {space.max_stages} stages leave nothing of {side} pixels. "
            f"Give at most {side.bit_length()} stages, or a larger data.image_size."
        )
    if sweep.latency_budget is None or known is None:
        return
    fastest = float("inf")
    for value in space.cheapest:
        variant = sweep.variant({space.key: value})
        fastest = min(fastest, untrained(variant, known, None, Stop()))
        if fastest <= sweep.latency_budget:
            return
    raise ConfigurationError(
        f"latency_budget {sweep.latency_budget:g}ms: no network of these blocks meets it; the smallest takes "
        f"{fastest:.3g} ms on one core of this machine. Give more, or fewer channels."
    )


def features(recipe: Recipe, sweep: Sweep) -> DataSummary:
    """Return the features of the network's input, from the last preprocessing or from the recipe."""
    known = data.find(recipe, last_preprocessed(recipe, sweep.environment.storage), 1)
    if known.image is None or recipe.data.image_size is None:
        return known
    shape = (*recipe.data.image_size, recipe.data.channels)  # the last preprocessing may have another image size
    sized = [feature.model_copy(update={"shape": shape}) for feature in known.features]
    return replace(known, image=shape, features=sized)


def _known_features(sweep: Sweep) -> DataSummary | None:
    try:
        return features(sweep.recipe, sweep)
    except ConfigurationError as error:
        if sweep.latency_budget is None:
            return None
        raise ConfigurationError(f"latency_budget: {error}") from error


def write_winner(study: Study) -> Recipe:
    """Return the recipe of the best trial, and store it. Raises `DataError` if no trial is complete."""
    sweep, best = study.sweep, study.best
    study.write()
    if best is None:
        name, count = sweep.recipe.name, len(study.trials)
        raise DataError(f"{name}: none of the {count} trials was completed; the last: {study.trials[-1].why}")
    winner = code.stored(sweep.variant(best.values), sweep.environment.storage)
    content = winner.model_dump(mode="json", exclude_defaults=True)
    storage.write_text(storage.join(sweep.folder, "best.yaml"), plain_yaml.dump(content, allow_unicode=True))
    return winner


def result(study: Study, winner: Recipe, test: Evaluation | None) -> Result:
    """Build the result of a study."""
    best = study.best
    assert best is not None  # noqa: S101 - write_winner raised otherwise
    return Result(study.sweep.folder, study.sweep.dimensions, study.trials, best, winner, test, study.importance)


def untrained(recipe: Recipe, data: DataSummary, cores: frozenset[int] | None, stop: Stop) -> float:
    """Measure the milliseconds of a prediction of the recipe's untrained network on one core.

    Raises `ConfigurationError` if the network cannot be built for such data.
    """
    features = json.dumps([feature.model_dump() for feature in data.features])
    with cache.temporary_folder() as folder:
        file = folder / "recipe.yaml"
        file.write_text(plain_yaml.dump(recipe.model_dump(mode="json")), encoding="utf-8")
        answers, why = _measure("time_recipe", (str(file), features, str(data.classes)), cores, stop)
    if not answers or answers[0] is None:
        raise ConfigurationError(f"{recipe.name}: the network cannot be built ({why})")
    return answers[0]


def with_latencies(trials: list[Trial], listener: Listener) -> list[Trial]:
    """Add missing latencies to the complete `trials`, as far as their models exist.

    The models are measured one after another.
    """
    missing = [
        trial
        for trial in trials
        if trial.state == "complete" and trial.milliseconds is None and storage.committed(trial.model) is not None
    ]
    if not missing:
        return trials
    answers, why = _measure("time_outputs", tuple(trial.model for trial in missing), None, Stop())
    if len(answers) < len(missing):  # not worth losing the sweep's result
        listener.step_event(
            "train", events.fields_of("warning", message=f"not all latencies could be measured ({why})")
        )
    times = dict(zip((trial.number for trial in missing), answers, strict=False))
    return [trial.model_copy(update={"milliseconds": times.get(trial.number, trial.milliseconds)}) for trial in trials]


def _measure(
    function: str, arguments: tuple[str, ...], cores: frozenset[int] | None, stop: Stop
) -> tuple[list[float | None], str]:
    """Call `function` of trainyard.models.costs.measure; return its milliseconds, and why there are not more."""
    with forked(_call, (function, arguments), "latency", stop, cores) as running:
        lines = list(running.child.lines)
        running.wait()
    running.require_undisturbed("latency")
    answers = [event["milliseconds"] for event in map(events.parse, lines) if event.get("event") == "latency"]
    failure = events.failure("".join(lines))
    return answers, failure.message if failure else (lines[-1].strip()[:300] if lines else "no reason given")


def _call(function: str, arguments: tuple[str, ...]) -> None:
    """Measure in the child process, which has imported TensorFlow; this process never does."""
    try:
        getattr(import_module("trainyard.models.costs.measure"), function)(*arguments)
    except TrainyardError as error:
        events.emit("failed", code=int(error.exit_code), message=str(error))
