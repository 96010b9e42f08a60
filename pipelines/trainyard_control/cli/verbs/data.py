"""`trainyard data`: inspect, check, compare and upload data before training."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.errors import ConfigurationError, DataError
from trainyard.measured import metric_text
from trainyard_control.cli.options import (
    LOCAL,
    EnvironmentName,
    HtmlPage,
    Label,
    Output,
    OutputFormat,
    UploadLimit,
    confirm,
    print_answer,
    say,
    write_file,
    write_page,
)

if TYPE_CHECKING:
    from trainyard.contract.statistics.drift import Movement
    from trainyard.quality.profile import ColumnProfile, Profile
    from trainyard.spec.recipe import Recipe

app = typer.Typer(no_args_is_help=True, help="Inspect, check, compare and upload data before training.")

SourceName = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Table, folder of tables or images, or glob; gs:// and s3:// too.")
]
OfRecipe = Annotated[str | None, typer.Option("--recipe", help="Use the data of this recipe instead of SOURCE.")]


@app.command("inspect")
def inspect(
    source: SourceName = "",
    label: Label = None,
    recipe: OfRecipe = None,
    environment: EnvironmentName = LOCAL,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Show types, statistics, histograms and suspicious values."""
    from trainyard.quality.figures import page

    profile = _profile(source, label, recipe, environment)
    write_page(html, lambda: page(profile))
    print_answer(output, profile, lambda: _show(profile))


@app.command("upload")
def upload(
    path: Annotated[str, typer.Argument(metavar="PATH", help="File, folder or glob on this machine.")],
    environment: EnvironmentName,
    upload_limit: UploadLimit = "5Gi",
) -> None:
    """Upload data to a storage, and print the URI for data.path.

    Content that the storage has is not sent again, and a cut upload is resumed.
    """
    from trainyard_control.api import uploads

    uri, sentence = uploads.upload(path, environment, upload_limit, confirm)
    say(f"✓ {sentence}", err=True)
    say(uri)


@app.command("schema")
def schema(
    source: SourceName = "",
    label: Label = None,
    recipe: OfRecipe = None,
    environment: EnvironmentName = LOCAL,
    write: Annotated[Path | None, typer.Option("--write", metavar="FILE", help="File to write the schema to.")] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="FILE", help="Check the data against this schema; exit with 10 if they differ."
        ),
    ] = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Draft a schema from data, or check data against one."""
    if check is not None:
        if write is not None:
            raise ConfigurationError("--write and --check: give one of them.")
        _check(source, recipe, check, output, environment)
        return
    profile = _profile(source, label, recipe, environment)
    from trainyard.quality.schema import draft
    from trainyard.spec import plain_yaml

    text = draft(profile, datetime.datetime.now(datetime.UTC).date())
    if write is not None:
        write_file(text, write, "--write")
    elif output is Output.JSON:
        typer.echo(json.dumps(plain_yaml.YamlText(text, "schema").content))
    else:
        typer.echo(text, nl=False)


@app.command("compare")
def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="Data, or their statistics.")],
    now: Annotated[
        str, typer.Argument(metavar="NOW", help="Data to compare, such as a server's logs, or their statistics.")
    ],
    label: Label = None,
    recipe: Annotated[
        str | None,
        typer.Option("--bounds", metavar="RECIPE", help="Recipe with drift bounds. Default: the default bounds."),
    ] = None,
    environment: EnvironmentName = LOCAL,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Measure drift between days, or skew between training and serving."""
    from trainyard.contract.statistics import drift
    from trainyard.quality.source import require_libraries
    from trainyard.spec import recipe as recipes
    from trainyard.spec.schedule import Bounds
    from trainyard_control.cluster import environments

    require_libraries()
    environments.load(environment)
    from trainyard.quality.inspect import statistics_of

    loaded = recipes.load(recipe) if recipe else None
    statistics = statistics_of(before, now, label, loaded)
    movements = drift.compare(*statistics, loaded.drift if loaded else Bounds())
    print_answer(output, [movement.model_dump() for movement in movements], lambda: _show_movements(movements))
    sentences = [sentence for movement in movements for sentence in movement.sentences]
    if sentences:
        raise DataError(f"{now} left the bounds around {before}:", *(f"{line}." for line in sentences))


def _show_movements(movements: list[Movement]) -> None:
    from trainyard_control.api.drawing import markup, plain_table, table_console

    measures = ("L-infinity", "Jensen-Shannon", "PSI", "mean shift")
    table = plain_table("feature", *measures, "missing before", "now", "unknown, at least", "")
    for movement in movements:
        apart, missing = movement.distance, movement.missing
        distances = [apart.l_infinity, apart.jensen_shannon, apart.psi] if apart else [None] * 3
        table.add_row(
            markup(movement.feature),
            *("–" if value is None else metric_text(value) for value in distances),
            "–" if movement.shift is None else f"{movement.shift:.3f} σ",
            *(["–", "–"] if missing is None else [f"{share:.2%}" for share in missing]),
            "–" if movement.unknown is None else f"{movement.unknown:.2%}",
            "[red]✗[/]" if movement.sentences else "[green]✓[/]" if movement.distance else "not compared",
        )
    table_console().print(table)


def _check(source: str, recipe: str | None, file: Path, output: Output, environment: str) -> None:
    from trainyard.spec.data_schema import load_schema

    expected = load_schema(file)
    loaded = _recipe(source, recipe, environment)
    from trainyard.quality.inspect import recipe_source
    from trainyard.quality.schema import check_source
    from trainyard.quality.source import find_source

    files = recipe_source(loaded) if loaded else find_source(source)
    anomalies = check_source(expected, files, loaded.data.zone) if loaded else check_source(expected, files)
    if output is Output.JSON:
        typer.echo(json.dumps([anomaly.model_dump() for anomaly in anomalies]))
    if anomalies:
        count = f"{len(anomalies)} {'anomaly' if len(anomalies) == 1 else 'anomalies'}"
        raise DataError(f"{files.path}: {count} by {file}:", *(f"{anomaly.sentence}." for anomaly in anomalies))
    say(f"✓ {files.path} fits {file}", err=True)


def _recipe(source: str, recipe: str | None, environment: str) -> Recipe | None:
    """Load the recipe that names the data, None for a source. Raises `ConfigurationError` for both or none."""
    from trainyard.quality.source import require_libraries
    from trainyard.spec import recipe as recipes
    from trainyard_control.cluster import environments

    require_libraries()
    environments.load(environment)
    if bool(source) == bool(recipe):
        raise ConfigurationError("name either a SOURCE or --recipe RECIPE.")
    return recipes.load(recipe) if recipe else None


def _profile(source: str, label: str | None, recipe: str | None, environment: str) -> Profile:
    """Profile the source or the recipe's data. Raises as `_recipe`."""
    loaded = _recipe(source, recipe, environment)
    from trainyard.quality.inspect import inspect, inspect_recipe

    if loaded is None:
        return inspect(source, label)
    if label is not None:
        raise ConfigurationError("--label: the recipe names the label. Leave --label or --recipe out.")
    return inspect_recipe(loaded)


def _show(profile: Profile) -> None:
    from trainyard_control.api.drawing import counts_text, markup, plain_table, table_console
    from trainyard_control.cli.screen import size

    console = table_console()
    is_table = profile.kind != "image_folder"
    unit = "rows" if is_table else "images"
    columns = f" × {len(profile.columns)} columns" if is_table else f" in {len(profile.classes)} classes"
    if profile.labels_file and not profile.classes:
        columns = f" with numbers in '{profile.label}' of {profile.labels_file}"
    console.print(
        f"[bold]{markup(profile.source)}[/]: {profile.rows:,} {unit}{columns}, {profile.files:,} "
        f"{'file' if profile.files == 1 else 'files'}, {size(profile.bytes)}"
    )
    table = plain_table("column", "type", "missing", "distinct", "min", "median", "max", "")
    table.columns[-1].justify = "left"
    for column in profile.columns:
        table.add_row(*map(markup, _cells(column, profile)))
    console.print(table)
    if profile.label and profile.classes:
        guess = " (a guess; --label names another)" if profile.label_is_guessed else ""
        console.print(f"\nlabel [bold]{markup(profile.label)}[/]{guess}: {markup(counts_text(profile.classes))}")
    if profile.images:
        formats = ", ".join(f"{name} {count:,}" for name, count in profile.images.formats.items())
        console.print(f"formats: {markup(formats)}; {profile.images.hashed:,} images compared by perceptual hash")
    if len(profile.first) > 1:
        first = plain_table(*map(markup, profile.first[0]))
        for row in profile.first[1:]:
            first.add_row(*(markup(cell[:24]) for cell in row))
        console.print("\nfirst rows")
        console.print(first)
    console.print()
    for finding in profile.findings:
        console.print(f"[yellow]![/] {markup(finding)}", soft_wrap=True)
    if not profile.findings:
        console.print("[green]✓[/] nothing looks suspicious")


def _cells(column: ColumnProfile, profile: Profile) -> list[str]:
    from trainyard.quality.figures import format_value, spark

    statistics = column.statistics
    rows = profile.rows or 1
    missing = f"{statistics.missing / rows:.1%}" if statistics.missing else "–"
    name = f"{column.name} ←" if column.name == profile.label else column.name
    start = [name, column.type, missing, f"{column.distinct:,}"]
    if statistics.histogram is not None:
        values = (statistics.min, column.quantiles.get("0.5"), statistics.max)
        return [*start, *(format_value(value, column.type) for value in values), spark(statistics.histogram)]
    top = ", ".join(f"{entry.value[:16]} {entry.count / rows:.0%}" for entry in column.top[:3])
    return [*start, "", "", "", top]
