"""`trainyard models`: list, show, compare, name, approve, reject, roll back and export pushed versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.options import (
    LOCAL,
    DryRun,
    EnvironmentName,
    Output,
    OutputFormat,
    VersionName,
    print_answer,
    say,
    say_table,
)

if TYPE_CHECKING:
    from trainyard.contract.artifacts.gate import Approval
    from trainyard.steps.push.versions import Approved, Rejected, Rollback
    from trainyard_control.api.versions import Version, VersionDiff, Versions

Decider = Annotated[str, typer.Option("--as", metavar="NAME", help="Who decides. Default: this user.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason, kept with the decision.")]

app = typer.Typer(no_args_is_help=True, help="Compare, name, approve, reject, roll back and export versions.")


@app.command("list")
def list_(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Recipe or folder of versions. Default: all.")] = "",
    environment: EnvironmentName = LOCAL,
    output: OutputFormat = Output.TEXT,
) -> None:
    """List pushed versions, the newest first.

    Metric, time, whether it serves, aliases, run and recipe are shown.
    """
    from trainyard_control.api.versions import all_versions, versions

    found = [versions(model, environment=environment)] if model else all_versions(environment)
    documents = [version.document() for versions in found for version in versions]
    print_answer(output, documents, lambda: _show_list(found))


@app.command("show")
def show(model: VersionName, environment: EnvironmentName = LOCAL, output: OutputFormat = Output.TEXT) -> None:
    """Show the origin of a version: run, recipe, data, gates, files. Default: the version that serves."""
    from trainyard_control.api.versions import find_one

    version = find_one(model, environment)
    print_answer(output, version.document(), lambda: _show(version))


@app.command("diff")
def diff(
    first: Annotated[str, typer.Argument(metavar="MODEL", help="Version, such as digits@3.")],
    second: Annotated[str, typer.Argument(metavar="MODEL", help="Version to compare, such as digits@canary.")],
    environment: EnvironmentName = LOCAL,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Compare two versions: recipe, data, metrics, files."""
    from trainyard_control.api.versions import find_one

    compared = find_one(first, environment).diff(find_one(second, environment))
    print_answer(output, compared.document(), lambda: _show_diff(compared))


@app.command("alias")
def alias(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Alias, such as production or canary.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Version to name, such as digits@3.")],
    environment: EnvironmentName = LOCAL,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias of MODEL, a recipe or folder.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Name a version by an alias, or move an alias. What serves stays."""
    from trainyard_control.api.versions import find

    found, version = find(model, environment)
    if remove and version:
        raise ConfigurationError(f"{model}: names a version. Write the recipe or the folder alone.")
    if not remove and not version:
        raise ConfigurationError(f"{model}: names no version. Write {model}@VERSION.")
    named = found.alias(name, "" if remove else version, dry_run=dry_run)
    if remove:
        say(f"alias {name} of {named.name} {'would be' if dry_run else 'is'} removed", err=True)
    else:
        say(f"alias {name} {'would name' if dry_run else 'names'} {named.name}", err=True)


@app.command("approve")
def approve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Version that waits, such as digits@candidate.")],
    name: Decider = "",
    reason: Reason = "",
    environment: EnvironmentName = LOCAL,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Let the version that waits for approval serve."""
    found = _with_candidate(model, environment)
    done = found.approve(name, reason, dry_run=dry_run)
    replaced = f" instead of version {done.replaced}" if done.replaced is not None else ""
    verb = "would serve" if dry_run else "serves"
    _print_change(done, output, f"version {done.version} {verb} in {found.folder}{replaced}", dry_run=dry_run)


@app.command("reject")
def reject(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Version that waits, such as digits@candidate.")],
    name: Decider = "",
    reason: Reason = "",
    environment: EnvironmentName = LOCAL,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Reject the version that waits for approval. It stays until it is pruned."""
    done = _with_candidate(model, environment).reject(name, reason, dry_run=dry_run)
    verb = "would be" if dry_run else "is"
    _print_change(done, output, f"version {done.version} {verb} rejected: {done.path}", dry_run=dry_run)


def _print_change(
    done: Approved | Rejected | Rollback, output: Output, sentence: str, *, dry_run: bool, changed: bool = True
) -> None:
    """Print what was done, or would be."""
    from dataclasses import asdict

    print_answer(output, asdict(done) | {"dry_run": dry_run}, lambda: None)
    say(f"{'✓' if changed and not dry_run else '·'} {sentence}", err=True)


def _with_candidate(model: str, environment: str) -> Versions:
    """Return the versions of `model`. Raises `ConfigurationError` if it names another version than `CANDIDATE`."""
    from trainyard.contract.pushed_versions import CANDIDATE
    from trainyard_control.api.versions import find

    found, version = find(model, environment)
    if version != CANDIDATE:
        raise ConfigurationError(f"{model}: names another version than the one that waits. Write {model}@{CANDIDATE}.")
    return found


@app.command("rollback")
def rollback(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Version to restore, such as digits@3; digits restores the one that served before."
        ),
    ],
    environment: EnvironmentName = LOCAL,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Publish an earlier version again, so that it serves."""
    from trainyard_control.api.versions import find

    found, name = find(model, environment)
    done = found.rollback(name, dry_run=dry_run)
    copy = f", a copy of version {done.restored}" if done.restored != done.version else ""
    replaced = f" instead of version {done.replaced}" if done.replaced is not None else ""
    change = f"version {done.version} {'would serve' if dry_run else 'serves'} in {found.folder}"
    sentence = f"{change}{copy}{replaced}" if done.changed else f"{change} already"
    _print_change(done, output, sentence, dry_run=dry_run, changed=done.changed)
    if not done.changed:
        return
    for version in found:
        if version.aliases and version.number != done.version:
            say(f"· {', '.join(version.aliases)}: still version {version.number}", err=True)


@app.command("export")
def export(
    model: VersionName,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="New or empty folder to write.")],
    environment: EnvironmentName = LOCAL,
) -> None:
    """Copy a version to a local folder, with every file verified. Default: the version that serves."""
    from trainyard_control.api.versions import find_one
    from trainyard_control.cli.screen import size

    version = find_one(model, environment)
    copied = version.export(folder)
    say(f"✓ {version.name} is in {folder}: {len(copied.files)} files, {size(copied.bytes)}", err=True)


def _show_list(found: list[Versions]) -> None:
    rows: list[tuple[str, ...]] = [("VERSION", "PUSHED", "METRIC", "SERVES", "ALIASES", "RUN", "RECIPE")]
    for version in (version for versions in found for version in versions):
        run = version.record.run.rpartition("/")[2]
        serves = "yes" if version.serves else "waits" if version.waits else "rejected" if version.rejection else ""
        cells = (_time(version.record.pushed), version.metric, serves, ", ".join(version.aliases), run)
        rows.append((str(version.number), *(cell or "–" for cell in cells), _recipe(version)))
    say_table(rows)
    for versions in found:
        faults = [version.fault for version in versions if version.fault]
        for sentence in filter(None, [versions.caution, *faults]):
            say(f"! {sentence}", err=True)


def _recipe(version: Version) -> str:
    return version.recipe or version.folder.rpartition("/")[0]


def _time(text: str) -> str:
    from datetime import datetime

    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M") if text else ""


def _show(version: Version) -> None:
    from trainyard.spec.gates import MAIN_METRIC
    from trainyard_control.api.drawing import counts_text, key_value_table, markup, table_console
    from trainyard_control.cli.screen import exports_table, gate_tables, metrics_table

    record = version.record
    fields = key_value_table()
    for name, text in _fields(version).items():
        fields.add_row(name, markup(text))
    if record.examples:
        fields.add_row("data", markup(f"{counts_text(record.examples)}; fingerprint {record.fingerprint}"))
    console = table_console()
    console.print(fields)
    if record.metrics:
        split = next((gate.split for gate in record.gates if gate.name == "model"), None)
        console.print(metrics_table(record.metrics, record.intervals, f"{split} split" if split else "as reported"))
    thresholds = [
        threshold.model_dump() | {"split": gate.split} for gate in record.gates for threshold in gate.thresholds
    ]
    for table in gate_tables(thresholds):
        console.print(table)
    if record.exports:
        metric = MAIN_METRIC.get(record.recipe.get("task", ""), "")
        console.print(exports_table([file.model_dump() | {"metric": metric} for file in record.exports]))


def _fields(version: Version) -> dict[str, str]:
    from trainyard.contract.artifacts.evaluate import threshold_text

    record = version.record
    waits = ["waits for approval"] if version.waits else ["rejected"] if version.rejection else []
    state = ["serves"] if version.serves else waits
    names = [f"alias {name}" for name in version.aliases if not version.waits]
    copy = [f"a copy of version {record.restored}"] if record.restored is not None else []
    fields = {
        "version": ", ".join([f"{version.number} of {_recipe(version)}", *state, *names, *copy]),
        "folder": version.folder,
        "pushed": f"{_time(record.pushed)} by {record.by}" if record.pushed else "",
        "override": f"{record.override.name}: {record.override.reason}" if record.override else "",
        "approved": _decision(record.approval),
        "rejected": _decision(version.rejection),
        "run": record.run.rpartition("/")[2],
        "report": version.report or ("deleted" if record.run else ""),
        "recipe": f"{version.run_folder}/recipe.yaml" if version.report else "",
        "trained on": ", ".join(record.devices),
        "thresholds": ", ".join(f"{label} above {threshold_text(value)}" for label, value in record.thresholds.items()),
        "damaged": version.fault,
    }
    return {name: text for name, text in fields.items() if text}


def _decision(decision: Approval | None) -> str:
    if decision is None:
        return ""
    return f"{_time(decision.time)} by {decision.name}" + (f": {decision.reason}" if decision.reason else "")


def _show_diff(compared: VersionDiff) -> None:
    from trainyard_control.api.drawing import markup, plain_table, table_console
    from trainyard_control.cli.screen import print_rows

    names = [version.name for version in compared.versions]
    console = table_console()
    parts = {"settings": compared.settings, "data": compared.data, "metrics": compared.metrics}
    is_marked = print_rows(console, names, parts)
    if any(cell for row in compared.intervals for cell in row):
        table = plain_table("95 % interval", *map(markup, names))
        for row, cells in zip(compared.metrics, compared.intervals, strict=True):
            table.add_row(markup(row.name), *(cell or "–" for cell in cells))
        console.print(table)
    print_rows(console, names, {"exports": compared.exports})
    if is_marked:
        console.print("* the 95 % intervals do not overlap", style="dim")
