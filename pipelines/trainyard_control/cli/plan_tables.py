"""The tables of `trainyard plan --serve` and `--scale` on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.contract.artifacts.export import ExportedFile
    from trainyard.spec.recipe import Recipe
    from trainyard_control.planning.scaling import ScalingForecast
    from trainyard_control.planning.serving.replicas import Demand, Serving

_HOURS_A_MONTH = 730


def show_serving(recipe: Recipe, exports: list[ExportedFile], demand: Demand, rows: list[Serving]) -> None:
    """Print the replicas that each pool needs, the measurements they follow from, and what was assumed."""
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


def show_scaling(scaling: ScalingForecast) -> None:
    """Print the speed at each number of workers beside the ideal one, and where the rest of a step goes."""
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
        console.print(f"! the largest slice of {scaling.site.hardware} has {scaling.largest} hosts.", markup=False)
    network = scaling.site.network
    links = f"a network of {network * 8 / 1e9:g} Gbit/s, half of which a ring gets" if network else "the slice's links"
    console.print(
        f"[dim]Simulated: each worker keeps its batch, and prepares it without input workers; a step waits for the "
        f"slowest, then sums the gradients over {links}. Nothing larger than one worker is measured by it.[/]",
        soft_wrap=True,
    )
