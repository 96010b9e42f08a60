"""`trainyard plan`: what a training takes on each pool, which one to take, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.answers import print_answer
from trainyard_control.cli.options import LOCAL, EnvironmentName, Output, OutputFormat, Overrides, RecipeName

if TYPE_CHECKING:
    from trainyard.spec.environment import Environment
    from trainyard_control.planning.plan import Candidate


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
    from trainyard_control import api
    from trainyard_control.api.drawing import table_console
    from trainyard_control.api.forecast import simulate
    from trainyard_control.cli.plan_tables import show_scaling

    if scale is not None:
        if deadline is not None or budget is not None or serve is not None or place:
            raise ConfigurationError("--scale: chooses no pool. Leave --deadline, --budget, --serve and --place out.")
        scaling = simulate(recipe, scale, environment=environment, set_=set_ or [], examples=examples)
        print_answer(output, scaling.as_dict(), lambda: show_scaling(scaling))
        return
    if serve is not None:
        if deadline is not None or budget is not None or examples is not None or place:
            raise ConfigurationError("--serve: is no training. Leave --deadline, --budget, --examples and --place out.")
        _serve(recipe, set_ or [], environment, serve, output)
        return
    forecast = api.plan(
        recipe, environment=environment, set_=set_ or [], deadline=deadline, budget=budget, examples=examples
    )
    document = [candidate.as_dict() for candidate in forecast.candidates]
    print_answer(output, document, lambda: forecast.print_to(table_console()))
    if place and forecast.environment.target == "local":
        raise ConfigurationError("--place: a local environment has no pools. Name one of a cluster with -e.")
    if place and forecast.chosen is None:
        raise ConfigurationError("--place: no pool meets the limits, so none is written. See the reasons above.")
    if place and forecast.chosen is not None:
        _write_choice(environment, forecast.environment, forecast.chosen)


def _write_choice(name: str, environment: Environment, chosen: Candidate) -> None:
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


def _serve(recipe: str, set_: list[str], environment: str, load: str, output: Output) -> None:
    """Show how many replicas on which pool answer the load."""
    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard_control.cli.plan_tables import show_serving
    from trainyard_control.planning.serving import replicas as serving

    loaded, where = recipes.load(recipe, set_), environments.load(environment)
    demand = serving.demand(load)
    exports = serving.last_exports(loaded, where.storage)
    folder = serving.answers_folder(loaded, where.storage)
    rows = serving.plan(where, exports, demand, serving.answers(loaded, where.storage), folder)
    print_answer(output, [vars(row) for row in rows], lambda: show_serving(loaded, exports, demand, rows))
