"""A sweep, its stored trials, and the Optuna study of them, shared by several threads."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import TrialState, create_trial
from pydantic import TypeAdapter, ValidationError

from trainyard.contract.artifacts.train import Epoch
from trainyard.contract.gang import usd_per_hour
from trainyard.errors import DataError
from trainyard.spec import recipe as recipes
from trainyard.spec.archive import Archive
from trainyard.spec.environment import Environment
from trainyard.spec.networks import TREES
from trainyard.spec.recipe import Recipe
from trainyard.spec.selection import compared
from trainyard.storage import storage
from trainyard_control.search.search_space import BlockSpace, Dimension, variant
from trainyard_control.search.trials import Pruned, Trial

if TYPE_CHECKING:
    from optuna.study import Study as OptunaStudy

_STARTUP_TRIALS = 4  # chosen: the median of fewer is not reliable
_REDRAWS = 20  # chosen: samples to find values that differ from all earlier trials
_WARM_UP = 0.25  # chosen: share of the epochs before any trial is pruned
_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "skipped": TrialState.PRUNED,  # the sampler would ignore a failed trial
    "failed": TrialState.FAIL,
}
_TRIALS = TypeAdapter(list[Trial])


@dataclass(frozen=True)
class Sweep:
    """A sweep over variants of the recipe `name`, all with `overrides`.

    trials: number of trials; None tries each combination if all dimensions are values. prune: stop a trial that is
    worse than the median of the earlier ones at the same epoch. max_parallel: trials at a time. latency_budget: maximum
    milliseconds of a prediction on one core. run: prefix of the names of runs on a cluster.
    """

    name: str
    overrides: list[str]
    dimensions: Sequence[Dimension | BlockSpace]
    environment: Environment
    trials: int | None = None
    prune: bool = True
    max_parallel: int = 1
    latency_budget: float | None = None
    run: str = ""

    @property
    def recipe(self) -> Recipe:
        """The recipe whose variants are tried."""
        return recipes.load(self.name, self.overrides)

    def variant(self, values: dict[str, Any]) -> Recipe:
        """Load the recipe of a trial."""
        return variant(self.name, self.overrides, values)

    @property
    def digest(self) -> str:
        """The digest of the search, equal for the same sweep with more trials."""
        recipe = self.recipe
        content = recipe.model_dump(mode="json")
        if isinstance(recipe.files, Archive):
            content["files"] = recipe.files.sha256  # wherever it is
        described: list[Any] = [content, [repr(dimension) for dimension in self.dimensions]]
        if self.latency_budget is not None:
            described.append(self.latency_budget)
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The folder of trials and results."""
        parts = [self.run, self.digest] if self.run else [self.digest]
        return storage.join(self.environment.storage, self.recipe.name, "sweeps", "-".join(parts))

    @property
    def combinations(self) -> list[tuple[Any, ...]] | None:
        """All combinations in their order, or None if a dimension is a range."""
        if not all(dimension.values for dimension in self.dimensions):
            return None
        combinations = list(itertools.product(*(dimension.values for dimension in self.dimensions)))
        random.Random(self.recipe.seed).shuffle(combinations)  # noqa: S311 - an order, no secret
        return combinations

    @property
    def count(self) -> int:
        """The total number of trials."""
        combinations = self.combinations
        if combinations is None:
            return self.trials or 12
        return min(len(combinations), self.trials or len(combinations))

    @property
    def dollars_per_hour(self) -> float | None:
        """The price per hour of a trial, None if it is unknown: of all its nodes, or of its share of this machine.

        Nodes of input workers are included. This machine costs the price of the pool that train is placed on, if it has
        one.
        """
        environment = self.environment
        pool = environment.pools.get(environment.pool_name("train"))
        if pool is None:
            return None
        if environment.target == "local":
            return None if pool.price_per_hour is None else pool.price_per_hour / self.max_parallel
        return usd_per_hour(environment, pool)


class Study:
    """The trials of a sweep, done and in progress.

    stored: False reads and writes nothing, to show the first trials.
    """

    def __init__(self, sweep: Sweep, stored: bool = True) -> None:
        self.sweep, self._stored = sweep, stored
        self.trials = _read(sweep.folder) if stored else []
        self._lock = threading.RLock()
        self._skipped: list[dict[str, Any]] = []
        done = [trial for trial in self.trials if trial.state != "begun"]
        ended = {trial.number for trial in done}
        self._waiting = [number for number in range(sweep.count) if number not in ended]
        self.optuna = _optuna_study(sweep, done)

    def take(self) -> tuple[Trial, optuna.Trial] | None:
        """Start the next trial, None if there is none. Trials that were started before come first."""
        with self._lock:
            return self._begin(self._waiting.pop(0)) if self._waiting else None

    def again(self, trial: Trial, sampled: optuna.Trial) -> tuple[Trial, optuna.Trial] | None:
        """Start a trial again with other values, None if there is no choice."""
        with self._lock:
            if self.sweep.combinations is not None:
                return None
            self.optuna.tell(sampled, state=TrialState.PRUNED)
            self._skipped.append(trial.values)
            self.trials[trial.number] = trial.model_copy(update={"values": {}, "draws": trial.draws + 1})
            return self._begin(trial.number)

    def require_promising(self, sampled: optuna.Trial, epoch: Epoch) -> None:
        """Report the epoch. Raises `Pruned` if the trial is unlikely to become the best."""
        with self._lock:
            sampled.report(epoch.compared, epoch.epoch)
            if self.sweep.prune and sampled.should_prune():
                raise Pruned(f"worse after epoch {epoch.epoch} than the median of the trials before it")

    def end(self, trial: Trial, sampled: optuna.Trial) -> Trial | None:
        """Store the trial as it ended; return the best so far."""
        with self._lock:
            if (price := self.sweep.dollars_per_hour) is not None and trial.state in ("complete", "pruned"):
                trial = trial.model_copy(update={"dollars": float(f"{trial.seconds * price / 3600:.4g}")})
            self.trials[trial.number] = trial
            self.write()
            if trial.state == "complete":
                self.optuna.tell(sampled, trial.metric)
            else:
                self.optuna.tell(sampled, state=_STATES[trial.state])
            return self.best

    @property
    def best(self) -> Trial | None:
        """The best complete trial; of tied ones, the one with the smaller loss."""
        sign = compared(self.sweep.recipe).sign
        complete = [trial for trial in self.trials if trial.metric is not None and trial.state == "complete"]
        return min(complete, key=lambda trial: (sign * (trial.metric or 0), trial.eval_loss or 0), default=None)

    @property
    def importance(self) -> dict[str, float]:
        """The share of each parameter in the variance of the metric, if it can be computed."""
        complete = [trial for trial in self.optuna.trials if trial.state == TrialState.COMPLETE]
        if len(complete) < 2 or len({trial.value for trial in complete}) < 2:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=1)
        return optuna.importance.get_param_importances(self.optuna, evaluator=evaluator)

    def write(self) -> None:
        """Store the trials."""
        text = _TRIALS.dump_json(self.trials, indent=1).decode()
        if self._stored:
            storage.write_text(storage.join(self.sweep.folder, "trials.json"), text)

    def _begin(self, number: int) -> tuple[Trial, optuna.Trial]:
        dimensions, combinations = self.sweep.dimensions, self.sweep.combinations
        if number < len(self.trials) and self.trials[number].values:  # it was started and has checkpoints
            fixed = self.trials[number].values
        elif combinations is not None:
            fixed = dict(zip((dimension.key for dimension in dimensions), combinations[number], strict=True))
        else:
            fixed = {}
        if fixed:
            self.optuna.enqueue_trial(_parameters(dimensions, fixed))
        tried = [other.values for other in self.trials if other.number != number] + self._skipped
        for redraws in reversed(range(_REDRAWS)):
            sampled = self.optuna.ask()
            values = {dimension.key: dimension.suggest(sampled) for dimension in dimensions}
            if fixed or values not in tried or not redraws:  # there may be no other values
                break
            self.optuna.tell(sampled, state=TrialState.FAIL)  # the sampler ignores it
        draws = self.trials[number].draws if number < len(self.trials) else 0
        self.trials[number : number + 1] = [Trial(number=number, values=values, draws=draws)]
        self.write()
        return self.trials[number], sampled


def _parameters(dimensions: Sequence[Dimension | BlockSpace], values: dict[str, Any]) -> dict[str, Any]:
    sampled: dict[str, Any] = {}
    for dimension in dimensions:
        sampled |= dimension.parameters(values[dimension.key])
    return sampled


def _optuna_study(sweep: Sweep, done: list[Trial]) -> OptunaStudy:
    """Create Optuna's study with the trials that are `done`."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    recipe = sweep.recipe
    study = optuna.create_study(
        direction="minimize" if compared(recipe).sign > 0 else "maximize",
        sampler=optuna.samplers.TPESampler(
            seed=recipe.seed + len(done),
            n_startup_trials=max(4, sweep.count // 4),
            constant_liar=sweep.max_parallel > 1,  # otherwise parallel trials would be too similar
        ),
        pruner=optuna.pruners.MedianPruner(_STARTUP_TRIALS, max(1, round(_WARM_UP * recipe.train.epochs))),
    )
    for trial in done:
        fixed = optuna.trial.FixedTrial(_parameters(sweep.dimensions, trial.values))
        for dimension in sweep.dimensions:
            dimension.suggest(fixed)
        study.add_trial(
            create_trial(
                state=_STATES[trial.state],
                value=trial.metric,
                params=fixed.params,
                distributions=fixed.distributions,
                # An iteration of trees is no epoch of a network.
                intermediate_values={} if trial.values.get("model.name") == TREES else dict(enumerate(trial.epochs, 1)),
            )
        )
    return study


def _read(folder: str) -> list[Trial]:
    text = storage.read_text(storage.join(folder, "trials.json"))
    if text is None:
        return []
    try:
        return _TRIALS.validate_json(text)
    except ValidationError as error:
        raise DataError(
            f"{folder}/trials.json: another version of Trainyard wrote it. Remove it and run again."
        ) from error
