"""`trainyard evaluate`: evaluate a pushed model on new labelled data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainyard_control.cli.answers import print_answer, write_page
from trainyard_control.cli.options import LOCAL, EnvironmentName, HtmlPage, Label, Output, OutputFormat

if TYPE_CHECKING:
    from trainyard_control.api.evaluation import LabelledEvaluation


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Recipe, version such as digits@3, folder of versions, or run.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Table with the label, or folder with a folder of images per class.")
    ],
    environment: EnvironmentName = LOCAL,
    label: Label = None,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Evaluate a pushed model on new labelled data.

    Metrics, slices and worst mistakes are compared with the model's test split. Inputs without a known label are left
    out and counted.
    """
    from trainyard_control.api.evaluation import evaluate as evaluated

    found = evaluated(model, data, label=label, environment=environment)
    write_page(html, found.page)
    print_answer(output, found.document(), lambda: _show(found))


def _show(found: LabelledEvaluation) -> None:
    from trainyard_control.api.drawing import counts_text, key_value_table, markup, plain_table, table_console
    from trainyard_control.cli.screen import metrics_table, print_rows

    fields = key_value_table()
    fields.add_row("model", markup(f"{found.version.name}, {found.version.folder}"))
    fields.add_row("data", markup(f"{found.examples:,} examples of {found.data}"))
    if found.left_out:
        fields.add_row("[yellow]left out[/]", markup(counts_text(found.left_out)))
    console = table_console()
    console.print(fields)
    console.print(metrics_table(found.metrics, found.intervals, "new data"))
    is_marked = print_rows(console, ["test split", "new data"], {"metrics": found.rows, "slices": found.slice_rows})
    if found.worst:
        table = plain_table("worst mistakes", "label", "predicted", "loss")
        for item in found.worst:
            table.add_row(markup(item.key), markup(item.label), markup(item.predicted), f"{item.loss:.4g}")
        console.print(table)
    if is_marked:
        console.print("* the 95 % intervals do not overlap", style="dim")
    for note in found.notes:
        console.print(markup(f"! {note}"))
