"""Searches a recipe's settings: trial after trial on this machine, each known to the sampler before the next.

Samplers and pruners are Optuna's. What a trial gave is kept beside the outputs, so that a sweep that was ended goes on
where it stopped, in the middle of a training too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import optuna
from optuna.trial import TrialState, create_trial
from pydantic import TypeAdapter, ValidationError

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.train import Epoch
from trainyard.contract.champion import champion
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec import plain_yaml
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard.spec.gates import LARGER_MAIN_IS_BETTER
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.local.local_run import Listener, LocalRun
from trainyard_control.search import space, trials
from trainyard_control.search.latencies import with_latencies
from trainyard_control.search.result import Result
from trainyard_control.search.space import Dimension
from trainyard_control.search.trials import Pruned, Trial

if TYPE_CHECKING:
    from optuna.study import Study

_STARTUP_TRIALS = 4  # chosen: the median of fewer says little
_WARM_UP = 0.25  # chosen: share of the epochs before which no trial is left
_TRIALS = TypeAdapter(list[Trial])


class SweepListener(Listener, Protocol):
    """Receives what happens in a sweep."""

    def trial_started(self, trial: Trial) -> None:
        """A trial begins, or goes on."""

    def trial_ended(self, trial: Trial, best: Trial | None) -> None:
        """The trial is complete, pruned or failed; `best` of all so far."""


@dataclass(frozen=True)
class Sweep:
    """Variants of the recipe `name`, with `overrides` for all of them.

    trials: how many; None tries each combination if all dimensions are values. prune: leave a trial that is worse than
    the median of those before it at the same epoch.
    """

    name: str
    overrides: list[str]
    dimensions: list[Dimension]
    environment: Environment
    trials: int | None = None
    prune: bool = True

    @property
    def recipe(self) -> Recipe:
        """The recipe of which variants are tried."""
        return recipes.load(self.name, self.overrides)

    @property
    def folder(self) -> str:
        """Where trials and results are: the same for the same sweep, however many trials it has."""
        described = [self.recipe.model_dump(mode="json"), [repr(dimension) for dimension in self.dimensions]]
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]
        return storage.join(self.environment.storage, self.recipe.name, "sweeps", digest)

    @property
    def combinations(self) -> list[tuple[Any, ...]] | None:
        """All combinations, in the order in which they are tried, or None if a dimension is a range."""
        if not all(dimension.values for dimension in self.dimensions):
            return None
        combinations = list(itertools.product(*(dimension.values for dimension in self.dimensions)))
        random.Random(self.recipe.seed).shuffle(combinations)  # noqa: S311 - an order, no secret
        return combinations

    @property
    def count(self) -> int:
        """How many trials there are in all."""
        combinations = self.combinations
        if combinations is None:
            return self.trials or 12
        return min(len(combinations), self.trials or len(combinations))


def run(sweep: Sweep, listener: SweepListener) -> Result:
    """Train what is not trained yet, and return what was found; `best.yaml` in the sweep's folder is the winner.

    Raises what a trial raises if the others would meet it too, and the first trial's error if all of them fail.
    """
    with storage.lease(sweep.folder):
        done = _read(sweep.folder)
        study = _study(sweep, done)
        recipe = sweep.recipe
        for number in range(sweep.count):
            if number < len(done) and done[number].state != "begun":
                continue
            drawn = _ask(sweep, study, done, number)
            values = {dimension.key: dimension.value(drawn.params[dimension.key]) for dimension in sweep.dimensions}
            done[number:] = [Trial(number=number, values=values)]
            _write(sweep.folder, done)
            listener.trial_started(done[number])
            done[number] = _train(sweep, done[number], drawn, listener)
            _write(sweep.folder, done)
            _tell(study, drawn, done[number])
            listener.trial_ended(done[number], _best(done, recipe))
        return _result(sweep, study, done, listener)


def _ask(sweep: Sweep, study: Study, done: list[Trial], number: int) -> optuna.Trial:
    if number < len(done):  # it was begun: its checkpoints are there
        fixed: dict[str, Any] | None = done[number].values
    elif combinations := sweep.combinations:
        fixed = dict(zip((dimension.key for dimension in sweep.dimensions), combinations[number], strict=True))
    else:
        fixed = None
    if fixed:
        study.enqueue_trial({dimension.key: dimension.drawn(fixed[dimension.key]) for dimension in sweep.dimensions})
    return study.ask({dimension.key: dimension.distribution for dimension in sweep.dimensions})


def _train(sweep: Sweep, trial: Trial, drawn: optuna.Trial, listener: Listener) -> Trial:
    reported: set[int] = set()

    def on_epoch(epoch: Epoch) -> None:
        if epoch.epoch not in reported:  # a training that goes on tells of its first epochs again
            reported.add(epoch.epoch)
            drawn.report(epoch.metric, epoch.epoch)
            if sweep.prune and drawn.should_prune():
                raise Pruned(f"worse after epoch {epoch.epoch} than the median of the trials before it")

    folder = storage.join(sweep.folder, "trials", str(trial.number))
    try:
        overrides = [space.override(key, value) for key, value in trial.values.items()]
        recipe = recipes.load(sweep.name, [*sweep.overrides, *overrides])
        return trials.train(trial, recipe, sweep.environment, folder, listener, on_epoch)
    except (ConfigurationError, DataError) as error:  # of the variant, and not of the machine
        if trial.number == 0:
            raise
        return trial.model_copy(update={"state": "failed", "why": str(error)})


def _tell(study: Study, drawn: optuna.Trial, trial: Trial) -> None:
    if trial.state == "complete":
        study.tell(drawn, trial.metric)
    else:
        study.tell(drawn, state=TrialState.PRUNED if trial.state == "pruned" else TrialState.FAIL)


def _study(sweep: Sweep, done: list[Trial]) -> Study:
    """Return a study that knows the trials that were `done`."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    recipe = sweep.recipe
    study = optuna.create_study(
        direction="maximize" if LARGER_MAIN_IS_BETTER[recipe.task] else "minimize",
        sampler=optuna.samplers.TPESampler(seed=recipe.seed + len(done), n_startup_trials=max(4, sweep.count // 4)),
        pruner=optuna.pruners.MedianPruner(_STARTUP_TRIALS, max(1, round(_WARM_UP * recipe.train.epochs))),
    )
    states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
    distributions = {dimension.key: dimension.distribution for dimension in sweep.dimensions}
    for trial in done:
        if trial.state in states:
            study.add_trial(
                create_trial(
                    state=states[trial.state],
                    value=trial.metric,
                    params={each.key: each.drawn(trial.values[each.key]) for each in sweep.dimensions},
                    distributions=distributions,
                    intermediate_values=dict(enumerate(trial.epochs, 1)),
                )
            )
    return study


def _result(sweep: Sweep, study: Study, done: list[Trial], listener: Listener) -> Result:
    recipe = sweep.recipe
    done = with_latencies(done, listener)
    _write(sweep.folder, done)
    best = _best(done, recipe)
    if best is None:
        raise DataError(f"{recipe.name}: none of the {len(done)} trials was completed; the last: {done[-1].why}")
    overrides = [space.override(key, value) for key, value in best.values.items()]
    winner = recipes.load(sweep.name, [*sweep.overrides, *overrides])
    content = winner.model_dump(mode="json", exclude_defaults=True)
    storage.write_text(storage.join(sweep.folder, "best.yaml"), plain_yaml.dump(content, allow_unicode=True))
    judged = LocalRun(winner, sweep.environment, "", None, listener, folder=storage.join(sweep.folder, "best"))
    judged.preprocess()
    judged.train(champion(keys.models_folder(judged.root, winner)))
    test = Evaluation.read(judged.evaluate(None))
    return Result(sweep.folder, sweep.dimensions, done, best, winner, test, _importance(study))


def _importance(study: Study) -> dict[str, float]:
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    if len(complete) < 2 or len({trial.value for trial in complete}) < 2:
        return {}
    return optuna.importance.get_param_importances(study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=1))


def _best(done: list[Trial], recipe: Recipe) -> Trial | None:
    """Return the best of the complete trials; of equal ones that with the smaller loss."""
    sign = -1 if LARGER_MAIN_IS_BETTER[recipe.task] else 1
    complete = [trial for trial in done if trial.metric is not None and trial.state == "complete"]
    return min(complete, key=lambda trial: (sign * (trial.metric or 0), trial.eval_loss or 0), default=None)


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


def _write(folder: str, done: list[Trial]) -> None:
    storage.write_text(storage.join(folder, "trials.json"), _TRIALS.dump_json(done, indent=1).decode())
