"""`trainyard plan`: what a training takes on each pool, which one to take, and why."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard_control.cli.options import LOCAL, EnvironmentName, Output, OutputFormat, Overrides, RecipeName

if TYPE_CHECKING:
    from trainyard.spec.environment import Environment
    from trainyard.spec.recipe import Recipe
    from trainyard_control.planning.data import DataSummary
    from trainyard_control.planning.plan import Candidate, Range
    from trainyard_control.planning.roofline import ExampleCost
    from trainyard_control.planning.scaling import Scaling

_HOURS = {"d": 24.0, "h": 1.0, "m": 1 / 60, "s": 1 / 3600}


def plan(
    recipe: RecipeName = "digits",
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="Longest training, such as 4h or 1h30m.")] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="USD", min=0, max=1e12, help="Most that the training may cost.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=10**12, help="Training examples, if they are not known.")
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(metavar="LOAD", help="Size replicas that serve the exported model instead: qps=200,p95=50ms."),
    ] = None,
    scale: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, max=4096, help="Simulate 1, 2, 4 … N workers of the training pool instead."),
    ] = None,
    place: Annotated[bool, typer.Option("--place", help="Write the choice into the environment's file.")] = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Predict time and cost of a training on every pool of an environment, and choose one."""
    from trainyard.errors import ConfigurationError
    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard_control.planning import cost, data, scaling
    from trainyard_control.planning.choice import choose
    from trainyard_control.planning.history import read_history
    from trainyard_control.planning.plan import candidates

    loaded_recipe, loaded_environment = recipes.load(recipe, set_), environments.load(environment)
    if scale is not None and (deadline is not None or budget is not None or serve is not None or place):
        raise ConfigurationError("--scale: chooses no pool. Leave --deadline, --budget, --serve and --place out.")
    if serve is not None:
        if deadline is not None or budget is not None or examples is not None or place:
            raise ConfigurationError("--serve: is no training. Leave --deadline, --budget, --examples and --place out.")
        _serve(loaded_recipe, loaded_environment, serve, output)
        return
    most = None if deadline is None else hours(deadline)
    if budget is not None and not 0 < budget < float("inf"):
        raise ConfigurationError(f"--budget {budget:g}: is no amount of money above 0. Write it in USD, such as 50.")
    past = read_history(loaded_environment, loaded_recipe)
    if past.warning:
        print(f"! the plan learns from {len(past.observations)} recorded runs alone: {past.warning}", file=sys.stderr)
    known = data.find(loaded_recipe, past.examples, examples)
    work = cost.of_recipe(loaded_recipe, known)
    if scale is not None:
        _scale(scaling.plan(loaded_recipe, loaded_environment, known, work, past.observations, scale), output)
        return
    forecasts = choose(candidates(loaded_recipe, loaded_environment, known, work, past.observations), most, budget)
    chosen = next((candidate for candidate in forecasts if candidate.chosen), None)
    if output is Output.JSON:
        print(json.dumps([candidate.as_dict() for candidate in forecasts]))
    else:
        _show(loaded_recipe, known, work, forecasts, len(past.observations))
    if place and loaded_environment.target == "local":
        raise ConfigurationError("--place: a local environment has no pools. Name one of a cluster with -e.")
    if place and chosen is None:
        raise ConfigurationError("--place: no pool meets the limits, so none is written. See the reasons above.")
    if place and chosen is not None:
        _place(environment, loaded_environment, chosen)


def _place(name: str, environment: Environment, chosen: Candidate) -> None:
    """Write the choice into the environment's file, with a timeout of the training if it names none."""
    from trainyard.spec.environment import DEFAULT
    from trainyard_control.planning.environment_file import ROOM, set_train_pool, timeout

    high = chosen.hours.high if chosen.hours else 0.0
    named = environment.timeout_seconds.get("train", environment.timeout_seconds.get(DEFAULT))
    file = set_train_pool(name, chosen.pool, timeout(high) if named is None else None)
    sentence = f"placement.train is {chosen.pool}"
    if named is None:
        sentence += (
            f", timeout_seconds.train is {timeout(high)} ({ROOM} times the plan's high estimate, an hour at least)"
        )
    typer.echo(f"✓ {file}: {sentence}", err=True)
    if named is not None and named < high * 3600:
        short = f"may take {high:.3g} h, and {environment.name} lets it run for {named / 3600:.3g} h"
        typer.echo(f"! the training {short}. Raise timeout_seconds.train", err=True)


def _scale(scaling: Scaling, output: Output) -> None:
    """Show the simulated speeds."""
    from trainyard_control.cli.plan_tables import show_scaling

    if output is Output.JSON:
        print(json.dumps(scaling.as_dict()))
    else:
        show_scaling(scaling)


def _serve(recipe: Recipe, environment: Environment, load: str, output: Output) -> None:
    """Show how many replicas on which pool answer the load."""
    from trainyard_control.cli.plan_tables import show_serving
    from trainyard_control.planning.serving import replicas as serving

    wanted = serving.demand(load)
    exports = serving.last_exports(recipe, environment.storage)
    rows = serving.plan(environment, exports, wanted)
    if output is Output.JSON:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        show_serving(recipe, exports, wanted, rows)


def hours(text: str) -> float:
    """Return the hours of a time that a person wrote. Raises `ConfigurationError` if it is none.

    >>> hours("1h30m")
    1.5
    """
    from trainyard.errors import ConfigurationError

    match = re.fullmatch("".join(rf"(?:([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in _HOURS), text)
    numbers = match.groups() if match else ()
    total = sum(float(number or 0) * _HOURS[unit] for number, unit in zip(numbers, _HOURS, strict=False))
    if not total:
        why = "no training takes no time" if any(numbers) else "is no time"
        raise ConfigurationError(f"--deadline {text[:80]}: {why}. Write it such as 90m, 4h, 1h30m or 2d.")
    return total


def _show(recipe: Recipe, data: DataSummary, work: ExampleCost, candidates: list[Candidate], runs: int) -> None:
    from rich.markup import escape

    from trainyard_control.cli.screen import plain_table, table_console
    from trainyard_control.planning.plan import ADVICE

    unit = "images/s" if data.image else "rows/s"
    console = table_console()
    size = " · ".join(map(str, data.image)) if data.image else f"{len(data.features)} columns"
    console.print(
        f"[bold]{escape(recipe.name)}[/]: {recipe.model.name or 'own model'}, {work.parameters:,} parameters, "
        f"{work.flops_per_example / 1e6:,.4g} MFLOP a training example of {size}; {data.train:,} examples "
        f"({data.origin}), {recipe.train.epochs} epochs, batch {recipe.train.batch_size}"
    )
    table = plain_table("pool", "devices", "workers", unit, "time", "class", "USD")
    for candidate in candidates:
        table.add_row(
            f"[bold green]→ {escape(candidate.pool)}[/]" if candidate.chosen else f"  {escape(candidate.pool)}",
            str(candidate.devices),
            str(candidate.workers),
            _between(candidate.examples_per_second, "{:,.0f}"),
            _time(candidate.hours),
            candidate.duration or "–",
            _cost(candidate),
        )
    console.print(table)
    classes = dict.fromkeys(candidate.duration for candidate in candidates if candidate.duration)
    lines = [" · ".join(f"{name}: {ADVICE[name]}" for name in classes), ""]
    lines += [_reason(candidate) for candidate in candidates]
    lines += [] if any(candidate.chosen for candidate in candidates) else ["No pool meets the limits."]
    lines += ["", *(_needs(candidate) for candidate in candidates if candidate.selector or candidate.tolerations)]
    console.print("\n".join(lines), soft_wrap=True, markup=False)
    console.print(f"[dim]In brackets 80 % intervals, from {runs} recorded runs.[/]")


def _reason(candidate: Candidate) -> str:
    mark = "→" if candidate.chosen else "–" if candidate.feasible else "✗"
    sentences = [f"{mark} {candidate.pool}: {candidate.why or 'it can train this'}."]
    if candidate.price:
        spot = " on Spot" if candidate.price.spot else ""
        dated = f", list price of {candidate.price.region} as of {candidate.price.date}" if candidate.price.date else ""
        sentences.append(f"{candidate.price.usd_per_hour:g} USD an hour for one {candidate.machine}{spot}{dated}.")
    if last := candidate.errors[-3:]:
        runs = "run" if len(last) == 1 else f"{len(last)} runs"
        sentences.append(
            f"Its speed was predicted off by {', '.join(f'{100 * error:+.0f} %' for error in last)} in the last {runs}."
        )
    return " ".join(sentences)


def _cost(candidate: Candidate) -> str:
    from trainyard_control.planning.choice import usd
    from trainyard_control.planning.sites import HERE

    if candidate.feasible and candidate.cost_usd is not None:
        return usd(candidate.cost_usd)
    return "no price" if candidate.feasible and candidate.pool != HERE else "–"


def _needs(candidate: Candidate) -> str:
    selects = ", ".join(candidate.selector) or "any node"
    return f"  {candidate.pool} selects {selects}; tolerates {', '.join(candidate.tolerations) or 'nothing'}"


def _between(values: Range | None, form: str) -> str:
    if values is None:
        return "–"
    return f"{form.format(values.expected)} ({form.format(values.low)} – {form.format(values.high)})"


def _time(values: Range | None) -> str:
    if values is None:
        return "–"
    unit, factor = next(
        (name, factor)
        for name, factor, most in (("s", 3600, 1 / 30), ("min", 60, 1), ("h", 1, 48), ("d", 1 / 24, 1e18))
        if values.expected < most
    )
    return f"{values.expected * factor:.3g} {unit} ({values.low * factor:.3g} – {values.high * factor:.3g})"
