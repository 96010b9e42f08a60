"""`trainyard plan`: predict the time and cost of a training on each pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.options import (
    LOCAL,
    EnvironmentName,
    Output,
    OutputFormat,
    Overrides,
    RecipeName,
    print_answer,
)

if TYPE_CHECKING:
    from trainyard.contract.artifacts.export import ExportedFile
    from trainyard.spec.environment import Environment
    from trainyard.spec.recipe import Recipe
    from trainyard_control.planning.plan import Candidate
    from trainyard_control.planning.scaling import ScalingForecast
    from trainyard_control.planning.serving import Demand, Serving

_HOURS_A_MONTH = 730


def plan(
    recipe: RecipeName = "digits",
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Maximum time of the training, such as 4h or 1h30m.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="USD", min=0, max=1e12, help="Maximum cost of the training.")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10**12, help="Number of training examples, if it cannot be counted."),
    ] = None,
    preemption_rate: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            min=0,
            max=3600,
            help="Preemptions per Spot node and hour, to forecast train's list of pools. Default: the pools' own.",
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(metavar="LOAD", help="Size serving replicas instead, for a load such as qps=200,p95=50ms."),
    ] = None,
    scale: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, max=4096, help="Simulate 1, 2, 4 … N workers of the training's pool instead."),
    ] = None,
    place: Annotated[
        bool, typer.Option("--place", help="Write the recommended pool to the environment's file.")
    ] = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Predict the time and cost of a training on each pool.

    One pool is chosen: the cheapest within --deadline and --budget.
    """
    from trainyard_control import api
    from trainyard_control.api.drawing import table_console
    from trainyard_control.api.forecast import simulate

    if preemption_rate is not None and (scale is not None or serve is not None):
        raise ConfigurationError("--preemption-rate: is of one training. Leave --scale and --serve out.")
    if scale is not None:
        if deadline is not None or budget is not None or serve is not None or place:
            raise ConfigurationError("--scale: chooses no pool. Leave --deadline, --budget, --serve and --place out.")
        scaling = simulate(recipe, scale, environment=environment, set_=set_ or [], examples=examples)
        print_answer(output, scaling.as_dict(), lambda: _show_scaling(scaling))
        return
    if serve is not None:
        if deadline is not None or budget is not None or examples is not None or place:
            raise ConfigurationError("--serve: is no training. Leave --deadline, --budget, --examples and --place out.")
        _serve(recipe, set_ or [], environment, serve, output)
        return
    forecast = api.plan(
        recipe,
        environment=environment,
        set_=set_ or [],
        deadline=deadline,
        budget=budget,
        examples=examples,
        preemption_rate=preemption_rate,
    )
    document = [candidate.as_dict() for candidate in forecast.candidates]
    print_answer(output, document, lambda: forecast.print_to(table_console()))
    if place and forecast.environment.target == "local":
        raise ConfigurationError("--place: a local environment has no pools. Name one of a cluster with -e.")
    if place and forecast.chosen is None:
        raise ConfigurationError("--place: no pool meets the limits, so nothing is written. See the reasons above.")
    if place and forecast.chosen is not None:
        _write_choice(environment, forecast.environment, forecast.chosen)


def _write_choice(name: str, environment: Environment, chosen: Candidate) -> None:
    """Write the recommended pool, and a timeout if there is none, to the environment's file."""
    from trainyard.spec.environment import DEFAULT
    from trainyard_control.api.forecast import ROOM, set_train_pool, timeout

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
    """Print the number of replicas that answer the load on each pool."""
    from trainyard.spec import recipe as recipes
    from trainyard_control.cluster import environments
    from trainyard_control.planning import serving

    loaded, loaded_environment = recipes.load(recipe, set_), environments.load(environment)
    demand = serving.demand(load)
    exports = serving.last_exports(loaded, loaded_environment.storage)
    folder = serving.answers_folder(loaded, loaded_environment.storage)
    rows = serving.plan(
        loaded_environment, exports, demand, serving.answers(loaded, loaded_environment.storage), folder
    )
    print_answer(output, [vars(row) for row in rows], lambda: _show_serving(loaded, exports, demand, rows))


def _show_serving(recipe: Recipe, exports: list[ExportedFile], demand: Demand, rows: list[Serving]) -> None:
    """Print the replicas that each pool needs, the latencies behind them, and the assumptions."""
    from trainyard_control.api.drawing import markup, plain_table, table_console

    console = table_console()
    console.print(
        f"[bold]{markup(recipe.name)}[/]: {demand.qps:g} requests a second of one example, 95 % of them within "
        f"{demand.p95 * 1000:g} ms"
    )
    measured = ", ".join(
        f"{export.format} {export.latency_ms.p50:g} ms (p95 {export.latency_ms.p95:g})" for export in exports
    )
    console.print(f"measured by its last export on one core: {measured}", soft_wrap=True, markup=False)
    table = plain_table("pool", "format", "replicas", "servers each", "busy", "p95, ms", "nodes", "USD/h", "USD/month")
    for row in rows:
        usd = row.usd_per_hour
        table.add_row(
            f"[bold green]→ {markup(row.pool)}[/]" if row.chosen else f"  {markup(row.pool)}",
            *(
                "–" if value is None else form.format(value)
                for value, form in (
                    (row.format, "{}"),
                    (row.replicas, "{:,}"),
                    (row.servers, "{}"),
                    (row.utilisation, "{:.0%}"),
                    (row.p95_ms, "{:.3g}"),
                    (row.nodes, "{:,}"),
                    (usd, "{:,.2f}"),
                    (None if usd is None else usd * _HOURS_A_MONTH, "{:,.0f}"),
                )
            ),
        )
    console.print(table)
    reasons = [
        f"{'→' if row.chosen else '–' if row.feasible else '✗'} {row.pool}: {row.why or 'costs more, or has no price'}."
        for row in rows
    ]
    console.print("\n".join(reasons), soft_wrap=True, markup=False)
    console.print(
        "[dim]Assumed: requests come at random and are spread at random, a core or an accelerator takes one at a time, "
        "the pool's cores are those that export measured on; no spare replica.[/]",
        soft_wrap=True,
    )


def _show_scaling(scaling: ScalingForecast) -> None:
    """Print the speed at each number of workers, compared with ideal scaling, and the losses of a step."""
    from trainyard_control.api.drawing import markup, plain_table, table_console

    parts, console = scaling.parts, table_console()
    console.print(
        f"[bold]{markup(scaling.pool)}[/]: a worker's step of {parts.examples:,} examples computes "
        f"{1000 * parts.compute:,.3g} ms ± {parts.jitter:.1%} ({parts.origin})",
        soft_wrap=True,
    )
    table = plain_table("workers", "examples/s", "ideal", "efficiency", "sum of gradients", "stragglers", "input")
    for point in scaling.points:
        lost = (point.all_reduce, point.stragglers, point.input)
        table.add_row(
            f"{point.workers:,}",
            f"{point.examples_per_second:,.0f}",
            f"{point.workers * parts.examples / parts.compute:,.0f}",
            f"{point.efficiency:.0%}",
            *(f"{seconds / point.seconds:.0%}" for seconds in lost),
        )
    console.print(table)
    if scaling.largest is not None and scaling.points[-1].workers > scaling.largest:
        console.print(f"! the largest slice of {scaling.hardware.name} has {scaling.largest} hosts.", markup=False)
    network = scaling.hardware.network
    links = f"a network of {network * 8 / 1e9:g} Gbit/s, half of which a ring gets" if network else "the slice's links"
    console.print(
        f"[dim]Simulated: each worker keeps its batch, and prepares it without input workers; a step waits for the "
        f"slowest, then sums the gradients over {links}. Nothing larger than one worker is measured by it.[/]",
        soft_wrap=True,
    )
