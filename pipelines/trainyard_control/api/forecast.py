"""Forecasts of a training: its time and cost on each pool, and the pool to take, written to the environment."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.spec import documents
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import BUNDLED, TRAIN, Environment
from trainyard.spec.networks import MODEL_FAMILIES, Network
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.api.arguments import LOCAL, at_least_one, overrides
from trainyard_control.api.drawing import Console, as_html, markup, plain_table
from trainyard_control.cluster import environments
from trainyard_control.planning import cost, data, scaling
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.hardware import THIS_MACHINE, ExampleCost
from trainyard_control.planning.history import Estimate, History, Observation, read_history
from trainyard_control.planning.plan import ADVICE, CLASSES, Candidate, candidates, choose, usd, with_list
from trainyard_control.planning.scaling import ScalingForecast

_DAY = CLASSES["hours"]
_HOURS = {"d": 24.0, "h": 1.0, "m": 1 / 60, "s": 1 / 3600}
# Chosen: the timeout is this multiple of the plan's upper estimate, and at least this many seconds, because the plan
# does not count the pull of the image and more.
ROOM = 2
LEAST_SECONDS = 3600


@dataclass(frozen=True)
class Forecast:
    """The forecast of every pool of an environment, the best first.

    work: cost of a training example. runs: number of recorded runs that it learned from. day: sentences about the
    chosen or fastest pool: how many trainings fit the limits, and what would make it faster.
    """

    recipe: Recipe
    environment: Environment
    data: DataSummary
    work: ExampleCost
    candidates: list[Candidate]
    runs: int
    day: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate | None:
        """The pool to take, None if no pool meets the limits."""
        return next((candidate for candidate in self.candidates if candidate.chosen), None)

    def __repr__(self) -> str:
        chosen = f"take {self.chosen.pool}" if self.chosen else "no pool meets the limits"
        return f"<Forecast of {self.recipe.name} on {self.environment.name}: {chosen}>"

    def _repr_html_(self) -> str:
        return as_html(self.print_to)

    def print_to(self, console: Console) -> None:
        """Print the table of pools, with a reason for each."""
        recipe, data, work, candidates = self.recipe, self.data, self.work, self.candidates
        unit = "images/s" if data.image else "rows/s"
        size = " · ".join(map(str, data.image)) if data.image else f"{len(data.features)} columns"
        console.print(
            f"[bold]{markup(recipe.name)}[/]: {recipe.model.name or 'own model'}, {work.parameters:,} parameters, "
            f"{work.flops_per_example / 1e6:,.4g} MFLOP a training example of {size}; {data.train:,} examples "
            f"({data.origin}), {recipe.train.epochs} epochs, batch {recipe.train.batch_size}"
        )
        table = plain_table("pool", "devices", "workers", unit, "time", "class", "USD")
        for candidate in candidates:
            table.add_row(
                f"[bold green]→ {markup(candidate.pool)}[/]" if candidate.chosen else f"  {markup(candidate.pool)}",
                str(candidate.devices),
                str(candidate.workers),
                _between(candidate.examples_per_second),
                _time(candidate.hours),
                candidate.duration or "–",
                _cost(candidate),
            )
        console.print(table)
        classes = dict.fromkeys(candidate.duration for candidate in candidates if candidate.duration)
        lines = [*(f"{name}: {ADVICE[name]}." for name in classes), *self.day, ""]
        lines += [_reason(candidate) for candidate in candidates]
        lines += [] if any(candidate.chosen for candidate in candidates) else ["No pool meets the limits."]
        lines += ["", *(_needs(candidate) for candidate in candidates if candidate.selector or candidate.tolerations)]
        console.print("\n".join(lines), soft_wrap=True, markup=False)
        console.print(f"[dim]In brackets 80 % intervals, from {self.runs} recorded runs.[/]")


def plan(
    recipe: str = "digits",
    *,
    environment: str = LOCAL,
    set_: Sequence[str] = (),
    deadline: str | None = None,
    budget: float | None = None,
    examples: int | None = None,
    preemption_rate: float | None = None,
    **settings: Any,
) -> Forecast:
    """Predict the time and cost of a training on every pool of an environment, and choose one.

    deadline: the longest training, such as 4h or 1h30m. budget: the most that it may cost, in USD. examples: how many
    to train on, if that is not known. preemption_rate: preemptions per Spot node and hour, to forecast the list of
    pools in placement.train as well; default: the pools' own, if one has it. settings, set_: as `run` has them.

    Raises `ConfigurationError` if a limit is none, and for what `run` refuses.

    >>> import trainyard as ty
    >>> ty.plan("digits", examples=50_000).chosen.pool
    'this machine'
    """
    limit = None if deadline is None else hours(deadline)
    if budget is not None and not 0 < budget < math.inf:
        raise ConfigurationError(f"budget {budget:g}: must be above 0. Write it in USD, such as 50.")
    loaded, loaded_environment = recipes.load(recipe, overrides(set_, settings)), environments.load(environment)
    past, known, work = _known(loaded, loaded_environment, examples)
    forecasts = choose(candidates(loaded, loaded_environment, known, work, past.observations), limit, budget)
    feasible = [candidate for candidate in forecasts if candidate.feasible and candidate.hours]
    one = next((candidate for candidate in feasible if candidate.chosen), None)
    one = one or min(feasible, key=lambda row: row.expected_hours, default=None)
    sentences: list[str] = []
    if one is not None:
        sentences = [
            _trials_sentence(one, limit, budget),
            _help_sentence(one, forecasts, loaded, loaded_environment, known, past.observations),
        ]
    pools = [loaded_environment.pools[name] for name in loaded_environment.pool_names(TRAIN)]
    stated = len(pools) > 1 and any(pool.preemption_rate is not None for pool in pools)
    if stated or preemption_rate is not None:
        forecasts = with_list(forecasts, loaded, loaded_environment, known, preemption_rate)
    return Forecast(
        loaded, loaded_environment, known, work, forecasts, len(past.observations), tuple(filter(None, sentences))
    )


def simulate(
    recipe: str, workers: int, *, environment: str = LOCAL, set_: Sequence[str] = (), examples: int | None = None
) -> ScalingForecast:
    """Simulate how the training scales to `workers` workers of its pool. The other arguments are as in `plan`.

    Raises `ConfigurationError` on Vertex AI, before recorded runs are read, and as `scaling.plan`.
    """
    loaded, loaded_environment = recipes.load(recipe, list(set_)), environments.load(environment)
    if loaded_environment.target == "vertex":
        raise ConfigurationError(
            "--scale: a step of Vertex AI Pipelines is one machine, so there are no workers to add. "
            "Name an environment of Kubeflow."
        )
    past, known, work = _known(loaded, loaded_environment, examples)
    return scaling.plan(loaded, loaded_environment, known, work, past.observations, workers)


def _known(recipe: Recipe, environment: Environment, examples: int | None) -> tuple[History, DataSummary, ExampleCost]:
    """Return the recorded runs, a summary of the data, and the cost of an example."""
    at_least_one("examples", examples)
    cost.require_network(recipe)
    past = read_history(environment, recipe)
    if past.warning:
        print(f"! the plan learns from {len(past.observations)} recorded runs alone: {past.warning}", file=sys.stderr)
    known = data.find(recipe, past.examples, examples)
    return past, known, cost.from_recipe(recipe, known)


def hours(text: str) -> float:
    """Parse a duration to hours. Raises `ConfigurationError` if `text` is none.

    >>> hours("1h30m")
    1.5
    """
    match = re.fullmatch("".join(rf"(?:([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in _HOURS), text)
    numbers = match.groups() if match else ()
    total = sum(float(number or 0) * _HOURS[unit] for number, unit in zip(numbers, _HOURS, strict=False))
    if not total:
        why = "must be above 0" if any(numbers) else "not a duration"
        raise ConfigurationError(f"deadline {text[:80]}: {why}. Write it such as 90m, 4h, 1h30m or 2d.")
    return total


def _reason(candidate: Candidate) -> str:
    mark = "→" if candidate.chosen else "–" if candidate.feasible else "✗"
    sentences = [f"{mark} {candidate.pool}: {candidate.why or 'it can train this'}."]
    if candidate.price:
        spot = " on Spot" if candidate.price.spot else ""
        dated = f", list price of {candidate.price.region} as of {candidate.price.date}" if candidate.price.date else ""
        sentences.append(f"{candidate.price.usd_per_hour:g} USD an hour for one {candidate.machine}{spot}{dated}.")
    if candidate.cost_usd is not None and candidate.input_cost_usd is not None:
        sentences.append(
            f"Its input workers take {usd(candidate.input_cost_usd)} of its {usd(candidate.cost_usd)} USD."
        )
    if last := candidate.errors[-3:]:
        runs = "run" if len(last) == 1 else f"{len(last)} runs"
        sentences.append(
            f"Its speed was predicted off by {', '.join(f'{100 * error:+.0f} %' for error in last)} in the last {runs}."
        )
    return " ".join(sentences)


def _cost(candidate: Candidate) -> str:
    if candidate.cost_usd is not None:
        return usd(candidate.cost_usd)
    return "no price" if candidate.feasible and candidate.pool != THIS_MACHINE else "–"


def _needs(candidate: Candidate) -> str:
    selects = ", ".join(candidate.selector) or "any node"
    return f"  {candidate.pool} selects {selects}; tolerates {', '.join(candidate.tolerations) or 'nothing'}"


def _between(values: Estimate | None) -> str:
    return f"{values.expected:,.0f} ({values.low:,.0f} – {values.high:,.0f})" if values else "–"


def _time(values: Estimate | None) -> str:
    if values is None:
        return "–"
    unit, factor = next(
        (name, factor)
        for name, factor, limit in (("s", 3600, 1 / 30), ("min", 60, 1), ("h", 1, 48), ("d", 1 / 24, 1e18))
        if values.expected < limit
    )
    return f"{values.expected * factor:.3g} {unit} ({values.low * factor:.3g} – {values.high * factor:.3g})"


def _trials_sentence(candidate: Candidate, deadline: float | None, budget: float | None) -> str:
    """Say how many such trainings fit a deadline (hours) and a budget (USD); '' without limits or a duration."""
    if candidate.hours is None:
        return ""
    in_turn = None if deadline is None else math.floor(deadline / max(candidate.hours.expected, 1e-9))
    paid = None if budget is None or not candidate.cost_usd else math.floor(budget / candidate.cost_usd)
    if 0 in (in_turn, paid) or (in_turn is None and paid is None):
        return ""  # the pool's own line says by how much a limit is missed
    if paid is None:
        return f"A sweep of {in_turn:,} such trainings on {candidate.pool}, one after the other, fits {deadline:g} h."
    if in_turn is None:
        return f"A sweep of {paid:,} such trainings on {candidate.pool} fits {budget:g} USD."
    if paid <= in_turn:
        return (
            f"A sweep of {paid:,} such trainings on {candidate.pool} fits {budget:g} USD, and one after the other they "
            f"fit {deadline:g} h."
        )
    beside = math.ceil(paid / in_turn)
    return (
        f"A sweep of {paid:,} such trainings on {candidate.pool} fits {budget:g} USD; one after the other only "
        f"{in_turn:,} fit {deadline:g} h, so run {beside:,} in parallel."
    )


def _help_sentence(
    candidate: Candidate,
    alternatives: list[Candidate],
    recipe: Recipe,
    environment: Environment,
    data: DataSummary,
    observations: list[Observation],
) -> str:
    """Say how a training of more than a day could take less than one; '' if it already does."""
    if candidate.hours is None or candidate.expected_hours < _DAY:
        return ""

    def hours_with(name: Network) -> float | None:
        model = recipe.model.model_copy(update={"name": name, "width": 1.0, "depth": 1.0, "freeze": "none"})
        other = recipe.model_copy(update={"model": model})
        try:
            forecasts = candidates(other, environment, data, cost.from_recipe(other, data), observations)
        except TrainyardError:
            return None
        pools = (row for row in forecasts if row.pool == candidate.pool and row.hours and row.feasible)
        return next((row.expected_hours for row in pools), None)

    times = candidate.expected_hours / _DAY
    advice = [f"The training on {candidate.pool} would have to be {times:,.1f} times as fast to take less than a day."]
    feasible = [other for other in alternatives if other.feasible and other.hours]
    faster = min(feasible, key=lambda other: other.expected_hours, default=candidate)
    if faster.expected_hours < _DAY:
        advice.append(f"{faster.pool} takes {faster.expected_hours:.2g} h.")
    images = recipe.data.is_image and recipe.model.name is not None
    for name in reversed(MODEL_FAMILIES["efficient"]) if images else ():
        hours = hours_with(name) if name != recipe.model.name else None
        if hours is not None and hours < _DAY:
            advice.append(
                f"On {candidate.pool} {name} would take {hours:.2g} h; `trainyard sweep --family` compares networks."
            )
            break
    advice.append(
        "Compare settings on a part of the data (data.fraction); `trainyard learn-curve` shows what that loses."
    )
    return " ".join(advice)


def timeout(hours: float) -> int:
    """Return the timeout in seconds of a training with the upper estimate `hours`."""
    return max(LEAST_SECONDS, math.ceil(ROOM * hours * 3600))


def set_train_pool(name: str, pool: str, timeout_seconds: int | None = None) -> Path:
    """Set `placement.train` of the environment `name` to `pool` in its file, and return the file.

    timeout_seconds: also set `timeout_seconds.train`. Raises `ConfigurationError` if the environment is bundled,
    because such a file is not the user's.
    """
    path = documents.find("environment", name, BUNDLED)
    if path.resolve().parent == BUNDLED.resolve():
        raise ConfigurationError(
            f"--place: the environment '{name}' comes with Trainyard and is not written. "
            f"Copy {path} to your own file and give its path to -e."
        )
    text = path.read_text(encoding="utf-8")
    changed = with_train(text, "placement", pool)
    if timeout_seconds is not None:
        changed = with_train(changed, "timeout_seconds", str(timeout_seconds))
    read = documents.parse(changed, Environment, name=str(path))
    if read.placement.get("train") != pool or timeout_seconds not in (None, read.timeout_seconds.get("train")):
        raise ConfigurationError(f"{path}: it cannot be edited. Write `placement: {{train: {pool}}}` into it by hand.")
    if changed != text:
        storage.write_text(str(path.absolute()), changed)
    return path


def with_train(text: str, section: str, written: str) -> str:
    """Set `train: written` in the mapping `section` of the environment's text, and change nothing else.

    >>> print(with_train("placement: {default: cpu}  # all", "placement", "gpu"))
    placement: {train: gpu, default: cpu}  # all
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    sections = {key.value: (key, value) for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    if section not in sections or not isinstance(sections[section][1], yaml.MappingNode):
        return f"{text.rstrip()}\n{section}:\n  train: {written}\n"
    node = sections[section][1]
    for key, value in node.value:
        if key.value == "train" and isinstance(value, yaml.SequenceNode) and value.value and not value.flow_style:
            return f"{text[: key.end_mark.index]}: {written}{text[value.value[-1].end_mark.index :]}"
        if key.value == "train":
            return text[: value.start_mark.index] + written + text[value.end_mark.index :]
    if node.flow_style:
        inside = f"train: {written}, " if node.value else f"train: {written}"
        return text[: node.start_mark.index + 1] + inside + text[node.start_mark.index + 1 :]
    first = node.value[0][0].start_mark
    return f"{text[: first.index]}train: {written}\n{' ' * first.column}{text[first.index :]}"
