"""`trainyard bench`: how fast a recipe trains on this machine, and in which settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainyard_control.cli.options import LOCAL, EnvironmentName, HtmlPage, Output, OutputFormat, Overrides, RecipeName

if TYPE_CHECKING:
    from trainyard_control.search.certificate import Certificate


def bench(
    recipe: RecipeName = "digits",
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three settings instead of six, and fewer epochs.")] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Compare 1, 2, 4 … N workers, each on cores of its own, instead."),
    ] = None,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Measure how fast a recipe's own model trains on its own data here, as a certificate.

    Batch sizes, XLA and precisions are compared by short trainings, one after the other; `plan` learns from them.
    Nothing is evaluated or pushed. Instead of a recipe it takes a Keras model, saved as a .keras file: training steps
    on made-up inputs, on the CPU and on each kind of accelerator, with XLA and without.
    """
    from trainyard_control import api

    measured = api.bench(recipe, environment=environment, set_=set_ or [], quick=quick, workers=workers)
    if html is not None:
        from trainyard.quality.page import write_html

        write_html(measured.page(), html)
        typer.echo(f"✓ wrote {html}", err=True)
    if output is Output.JSON:
        typer.echo(measured.model_dump_json())
    else:
        _show(measured)


def _show(certificate: Certificate) -> None:
    from rich.markup import escape

    from trainyard_control.api.drawing import plain_table, table_console

    console = table_console()
    devices = ", ".join(f"{device.name} ({device.product})" for device in certificate.devices)
    console.print(
        f"[bold]{escape(certificate.recipe)}[/]: {escape(certificate.model)}, {certificate.parameters:,} parameters, "
        f"{certificate.flops_per_example / 1e6:,.4g} M operations a training example"
    )
    console.print(f"on {escape(devices)}, {certificate.cores} cores, {escape(certificate.machine)}", soft_wrap=True)
    table = plain_table("setting", "examples/s", "range", "×", "GFLOP/s", "of peak", "first step")
    base = certificate.speeds[0].examples_per_second
    for speed in certificate.speeds:
        table.add_row(
            speed.setting,
            f"{speed.examples_per_second:,.0f}",
            f"{speed.low:,.0f} – {speed.high:,.0f}",
            f"{speed.examples_per_second / base:.2f}",
            f"{1000 * speed.tflops:,.3g}",
            "–" if speed.peak_share is None else f"{speed.peak_share:.0%}",
            f"{speed.first_step_seconds:.1f} s",
        )
    console.print(table)
    for sentence in certificate.sentences:
        console.print(f"· {escape(sentence)}", soft_wrap=True)
    console.print(f"certificate {certificate.digest[:16]}, {certificate.measured}", style="dim")
