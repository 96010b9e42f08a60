"""Runs the trials of a sweep on a cluster: each trial is a run that preprocesses and trains, as in `bench --pools`.

A run's name is unique at Kubeflow, so an interrupted sweep resumes by following the runs that it had started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import optuna

from trainyard import errors, events
from trainyard.contract.artifacts.train import Epoch
from trainyard.contract.gang import STEP as TRAIN
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.graph import OUTPUTS
from trainyard.storage import storage
from trainyard_control.cluster.environments import store_uploads
from trainyard_control.compiler import compilation
from trainyard_control.compiler.compilation import Submission, compiled_benchmark
from trainyard_control.kubeflow.kubeflow_api import submit
from trainyard_control.kubeflow.run_view import RunView, StepView
from trainyard_control.kubeflow.runs import KubeflowRuns, changes
from trainyard_control.search.bench import find_training
from trainyard_control.search.study import Study, Sweep
from trainyard_control.search.sweep import Slot, SweepListener, in_slots, require_possible, result, write_winner
from trainyard_control.search.trials import Pruned, Result, Trial, as_pruned, judge_new, with_training

PREPROCESS = OUTPUTS[0]
_POLL_SECONDS = 1.0
_LOG_LINES = 2_000  # chosen: minutes of a training's log, of which each poll needs the end


class ClusterListener(SweepListener, Protocol):
    """Receives the events of a sweep on a cluster."""

    def trial_sent(self, trial: Trial, run: str, run_id: str, attached: bool) -> None:
        """Called when the trial's run is on the server. attached: it had been sent before."""

    def trial_step(self, trial: Trial, step: StepView) -> None:
        """Called when a step of the trial's run has a new sentence."""


def run(sweep: Sweep, listener: ClusterListener, pending_limit: float, runs: KubeflowRuns) -> Result:
    """Run or resume a sweep on the cluster. The winner is not evaluated there.

    If a step waits for a node longer than `pending_limit` seconds, its run and the sweep end. Raises as `sweep.run`,
    and as the calls of `runs`.
    """
    require_room(sweep)
    _submission(sweep, Trial(number=sweep.count - 1, values={}))  # raises for a name or path that no run can have
    require_possible(sweep)
    with storage.lease(sweep.folder):
        study = Study(sweep)
        cluster = _ClusterTrials(study, listener, pending_limit, runs)
        in_slots(study, [None] * sweep.max_parallel, cluster.train, listener)
        return result(study, write_winner(study), None)


def require_room(sweep: Sweep) -> None:
    """Raise `ConfigurationError` if the pool of train has too few nodes for this many trials at a time."""
    environment, max_parallel = sweep.environment, sweep.max_parallel
    name = environment.pool_name("train")
    pool = environment.pools[name]
    room = max_parallel if pool.nodes is None else pool.nodes // pool.max_workers
    if not 1 <= max_parallel <= room:
        per_trial = "one" if pool.max_workers == 1 else f"{pool.max_workers}"
        nodes = (
            ""
            if pool.nodes is None
            else f": pool '{name}' has at most {pool.nodes} nodes, and a trial takes {per_trial}"
        )
        raise ConfigurationError(f"max_parallel {max_parallel}: is not possible{nodes}. Give 1 to {max(1, room)}.")


def packages(sweep: Sweep) -> list[Submission]:
    """Return the submissions that a new sweep would send first."""
    if sweep.environment.target == "local":
        raise ConfigurationError("--dry-run: shows the runs of a cluster. Name its environment with -e.")
    require_room(sweep)
    study = Study(sweep, stored=False)
    sampled = [study.take() for _ in range(min(sweep.max_parallel, sweep.count))]
    return [_submission(sweep, trial) for trial, _ in filter(None, sampled)]


def _submission(sweep: Sweep, trial: Trial) -> Submission:
    name = f"{sweep.run}-{trial.number + 1}"
    variant, code = compilation.with_code(sweep.variant(trial.values), sweep.environment)
    placed = compiled_benchmark(variant, sweep.environment, label=name)
    submission = compilation.submission(variant.name, sweep.environment, placed, name)
    return replace(submission, pipeline=f"trainyard-sweep-{variant.name}", uploads=code)


@dataclass
class _ClusterTrials:
    """Trains trials as runs of a cluster. examples: set when a run has preprocessed; the first run goes alone."""

    study: Study
    listener: ClusterListener
    pending_limit: float
    runs: KubeflowRuns
    examples: threading.Event = field(default_factory=threading.Event)
    _first: threading.Lock = field(default_factory=threading.Lock)

    def train(self, trial: Trial, sampled: optuna.Trial, slot: Slot) -> Trial:
        """Train a trial, and return it as it ended."""
        try:
            submission = _submission(self.study.sweep, trial)
        except ConfigurationError as error:
            return trial.model_copy(update={"state": "failed", "why": str(error)})
        store_uploads(submission.uploads, submission.environment)
        self._wait_for_examples(slot)
        run_id, attached = submit(submission, self.runs.server)
        self.listener.trial_sent(trial, submission.run, run_id, attached)
        epochs: list[Epoch] = []
        try:
            view = self._followed(trial, run_id, slot, lambda: self._judge(sampled, run_id, epochs))
        except Pruned as pruned:
            self.runs.cancel(run_id)
            trial = as_pruned(trial, epochs, sum(epoch.seconds for epoch in epochs), pruned)
        else:
            trial = self._ended(trial, submission.run, view)
        self.examples.set()
        return trial

    def _wait_for_examples(self, slot: Slot) -> None:
        """Wait until the first run has preprocessed; the first caller returns at once."""
        first = self._first.acquire(blocking=False)
        while not (first or self.examples.wait(_POLL_SECONDS)):
            _require_going_on(slot)

    def _judge(self, sampled: optuna.Trial, run_id: str, epochs: list[Epoch]) -> None:
        """Add new epochs from the log of the run's training to `epochs`. Raises `Pruned` as the study does.

        Without access to the log, the trial is trained to its end.
        """
        try:
            log = self.runs.log(run_id, TRAIN, _LOG_LINES)
        except TrainyardError:
            return
        judge_new(epochs, map(events.parse, log.splitlines()), partial(self.study.require_promising, sampled))

    def _followed(self, trial: Trial, run_id: str, slot: Slot, judge: Callable[[], None]) -> RunView:
        """Follow the trial's run to its end; `judge` is called while it trains.

        Raises `TransientError` if it waits too long for a node.
        """
        views = changes(self.runs.watch(run_id), lambda step: self.listener.trial_step(trial, step))
        for view in views:
            _require_going_on(slot)
            if any(step.name == PREPROCESS and step.state == "done" for step in view.steps):
                self.examples.set()
            if self.study.sweep.prune and any(step.name == TRAIN and step.state == "running" for step in view.steps):
                judge()
            self.runs.end_long_wait(view, self.pending_limit)
        return view

    def _ended(self, trial: Trial, run: str, view: RunView) -> Trial:
        sweep = self.study.sweep
        if view.state == "SUCCEEDED":
            training = find_training(sweep.environment, sweep.recipe.name, run)
            if training is not None:
                return with_training(trial, sweep.recipe.name, *training)
            why = f"{run} has succeeded, and its model is not in {sweep.environment.storage}"
        else:
            why = view.reason
        if not self.examples.is_set():  # the other trials would fail too
            raise errors.from_code(int(view.exit_code), why)
        return trial.model_copy(update={"state": "failed", "why": why})


def _require_going_on(slot: Slot) -> None:
    if slot.stop.begun:  # the runs continue
        raise KeyboardInterrupt
