"""`trainyard bench`: measure how fast a recipe trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.options import (
    LOCAL,
    DryRun,
    EnvironmentName,
    HtmlPage,
    Output,
    OutputFormat,
    Overrides,
    PendingLimit,
    RecipeName,
    RunName,
    Wait,
    print_answer,
    write_page,
)

if TYPE_CHECKING:
    from trainyard_control.api.packages import Benchmarks
    from trainyard_control.search.bench_report import BenchmarkReport


def bench(
    recipe: RecipeName = "digits",
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three settings instead of six, and fewer epochs.")] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Compare 1, 2, 4 … N workers, each with a share of the cores."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", metavar="N", help="Number of rounds over all settings, 1 to 10. Default: 3."),
    ] = None,
    pools: Annotated[
        str | None,
        typer.Option("--pools", metavar="A,B", help="Compare these pools of a cluster, in parallel."),
    ] = None,
    name: RunName = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    pending_limit: PendingLimit = 3600,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Measure how fast a recipe trains.

    Short trainings of the recipe's own model on its own data compare batch sizes, XLA and precisions, in several
    rounds; `plan` learns from them. The input pipeline is measured alone as well. Nothing is evaluated or pushed.
    Instead of a recipe you can name a .keras file: its training steps are measured on random inputs, on the CPU and on
    each kind of accelerator, with XLA and without.

    With --pools each of these pools of a cluster gets a run. Run the command again with the same --name to see what
    has been measured: speed, and examples per dollar, compared with the first pool.
    """
    if pools is not None:
        if quick or workers is not None or rounds is not None:
            raise ConfigurationError("--quick, --workers and --rounds are of this machine. Leave them or --pools out.")
        from trainyard_control.api.packages import prepare_benchmarks

        names = [pool.strip() for pool in pools.split(",")]
        benchmarks = prepare_benchmarks(recipe, environment, set_ or [], names, name)
        if dry_run:
            from trainyard_control.cli.follow import show_all

            return show_all(benchmarks.runs.values(), output)
        measured = _on_pools(benchmarks, environment, wait, pending_limit)
    elif name or dry_run or wait:
        raise ConfigurationError("--name, --dry-run and --wait are of runs on a cluster. Add --pools, or leave it out.")
    else:
        from trainyard_control import api

        measured = api.bench(
            recipe, environment=environment, set_=set_ or [], quick=quick, workers=workers, rounds=rounds
        )
    if measured is not None:
        write_page(html, measured.page)
        print_answer(output, measured, lambda: _show(measured))


def _on_pools(benchmarks: Benchmarks, environment_name: str, wait: bool, pending_limit: int) -> BenchmarkReport | None:
    """Send the run of each pool, and return the speeds measured so far."""
    from trainyard_control.cli.follow import send_all
    from trainyard_control.cluster.environments import readable_storage
    from trainyard_control.search.bench import collect

    code = send_all(benchmarks.runs.values(), environment_name, wait=wait, pending_limit=pending_limit)
    environment = next(iter(benchmarks.runs.values())).environment
    readable_storage(environment)
    report, missing = collect(benchmarks.recipe, environment, {pool: run.run for pool, run in benchmarks.runs.items()})
    if missing:
        again = f"The same command with --name {benchmarks.name}"
        typer.echo(f"· not measured yet: {', '.join(missing)}. {again} shows it then.", err=True)
    if code:
        raise typer.Exit(code)
    return report


def _show(report: BenchmarkReport) -> None:
    from trainyard_control.api.drawing import markup, plain_table, table_console
    from trainyard_control.search.bench_report import input_table

    console = table_console()
    devices = ", ".join(f"{device.name} ({device.product})" for device in report.devices)
    console.print(
        f"[bold]{markup(report.recipe)}[/]: {markup(report.model)}, {report.parameters:,} parameters, "
        f"{report.flops_per_example / 1e6:,.4g} M operations a training example"
    )
    console.print(f"on {markup(devices)}, {report.cores} cores, {markup(report.machine)}", soft_wrap=True)
    ends = "95 % interval" if report.speeds[0].rounds else "range"
    table = plain_table("setting", "examples/s", ends, "×", "GFLOP/s", *report.peaks, "first step")
    for setting, rate, low, high, *shares, first_step in report.rows:
        table.add_row(setting, rate, f"{low} – {high}", *shares, f"{first_step} s")
    console.print(table)
    if report.inputs:
        alone = plain_table("input alone, from", "examples/s", ends, "")
        for source, rate, low, high, used in input_table(report.inputs)[1]:
            alone.add_row(source, rate, f"{low} – {high}", used)
        console.print(alone)
    for setting, why in report.skipped.items():
        console.print(f"– {markup(setting)}: skipped. {markup(why)}", soft_wrap=True)
    for sentence in report.sentences:
        console.print(f"· {markup(sentence)}", soft_wrap=True)
    console.print(f"measured {report.measured}", style="dim")
