"""`trainyard runs`: list, follow, compare and cancel runs; `trainyard prune`: delete old ones and unused outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainyard.errors import ConfigurationError, DataError, ExitCode, TrainyardError
from trainyard.measured import duration_text, metric_text
from trainyard_control.cli.follow import follow_to_last_screen
from trainyard_control.cli.options import (
    LOCAL,
    DryRun,
    EnvironmentName,
    HtmlPage,
    Output,
    OutputFormat,
    print_answer,
    print_lines,
    say,
    say_table,
    write_file,
    write_page,
)

if TYPE_CHECKING:
    from trainyard.report.local_runs import LocalRunView
    from trainyard_control.kubeflow.run_view import RunView
    from trainyard_control.kubeflow.runs import KubeflowRuns
    from trainyard_control.local.retention import Removal
    from trainyard_control.search.comparison import Comparison

app = typer.Typer(no_args_is_help=True, help="List, follow, compare, note and cancel runs.")
_Run = Annotated[str, typer.Argument(help="Name or id of the run.")]


@app.command("list")
def list_(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe. Default: all.")] = "",
    environment: EnvironmentName = LOCAL,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of newest runs.")] = 20,
    state: Annotated[str, typer.Option("--state", help="Only runs in this state, such as failed.")] = "",
    since: Annotated[str, typer.Option("--since", help="Only runs from this day on, YYYY-MM-DD.")] = "",
    note: Annotated[str, typer.Option("--note", help="Only runs of this machine with this text in their note.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Include all experiments.")] = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """List the newest runs.

    State, recipe and duration are shown, with the metric (local runs) or the cost (runs on a cluster).
    """
    if _local(environment):
        from trainyard_control import api

        runs = api.runs(environment, count=count, recipe=recipe, state=state, since=since, note=note)
        rows = [("NAME", "STATE", "RECIPE", "BEGUN", "METRIC", "DURATION", "NOTE")]
        for run in runs:
            begun = run.created[:16].replace("T", " ") or "–"
            took = duration_text(run.seconds)
            rows.append((run.name, run.state, run.recipe, begun, run.metric or "–", took, run.note or "–"))
        print_answer(output, [run.document() for run in runs], lambda: say_table(rows))
        return
    from trainyard.report.local_runs import RunFilter
    from trainyard_control.kubeflow.run_view import STATES

    if note:
        raise ConfigurationError(f"--note {note}: only runs of this machine have notes. Leave it out.")
    wanted = RunFilter(recipe, state, since, STATES)
    views = _runs(environment).newest(count, everything, wanted)
    columns = [("NAME", "STATE", "RECIPE", "ENVIRONMENT", "CREATED", "DURATION", "USD")]
    for view in views:
        took, cost = duration_text(view.seconds), str(view.cost or "–")
        columns.append((view.name, view.state, view.recipe, view.environment, view.created, took, cost))
    print_answer(output, [run.summary() for run in views], lambda: say_table(columns))


@app.command("show")
def show(run: _Run, environment: EnvironmentName = LOCAL, output: OutputFormat = Output.TEXT) -> None:
    """Show the steps of a run: states, pods, durations, outputs, cost."""
    if root := _local(environment):
        from trainyard.report import local_runs

        local = local_runs.find(root, run)
        print_answer(output, local.document(), lambda: _show_local(local))
        return
    runs = _runs(environment)
    view = runs.view(runs.find(run))
    print_answer(output, view.document(), lambda: _show_view(view))


@app.command("watch")
def watch(
    run: Annotated[str, typer.Argument(help="Name or id of the run. Default: the newest.")] = "",
    environment: EnvironmentName = LOCAL,
) -> None:
    """Follow a run to its end, and exit with its exit code."""
    if root := _local(environment):
        if code := _watch_local(root, run):
            raise typer.Exit(code)
    else:
        from trainyard_control.api.cluster_run import watch_command

        runs = _runs(environment)
        run_id = runs.find(run) if run else next((view.run_id for view in runs.newest(1, False)), "")
        if not run_id:
            raise ConfigurationError(f"{environment}: no run was submitted there. Submit one by `trainyard submit`.")
        follow_to_last_screen(runs, run_id, watch_command(run or run_id, environment), math.inf, Output.TEXT)


@app.command("logs")
def logs(
    run: _Run,
    step: Annotated[str, typer.Argument(help="Step, such as train, 'train worker 1' or 'train input worker 0'.")],
    environment: EnvironmentName = LOCAL,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Number of last lines to show.")] = None,
) -> None:
    """Print the log of a step (of a gang: of worker 0)."""
    if root := _local(environment):
        from trainyard.report import local_runs

        typer.echo(local_runs.log(local_runs.find(root, run), step, tail), nl=False)
        return
    runs = _runs(environment)
    typer.echo(runs.log(runs.find(run), step, tail), nl=False)


@app.command("report")
def report(
    run: _Run,
    environment: EnvironmentName = LOCAL,
    file: Annotated[str, typer.Option("--file", metavar="FILE", help="File to write. Default: RUN.html.")] = "",
) -> None:
    """Save the report of a run as one HTML file."""
    from trainyard.contract import keys
    from trainyard.report import local_runs
    from trainyard.storage import storage

    if root := _local(environment):
        found = local_runs.find(root, run)
        name, place = found.name, storage.join(found.folder, keys.REPORT)
    else:
        runs = _runs(environment)
        name, place = runs.report(runs.find(run))
    page = storage.read_text(place)
    if page is None:
        raise DataError(f"{run}: has no report ({place}). It is written when a run ends: trainyard runs show {name}")
    write_file(page, Path(file or f"{name}.html"), "--file")


@app.command("compare")
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN…", help="Names or folders of runs; a recipe stands for its newest run."),
    ],
    environment: EnvironmentName = LOCAL,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Compare runs of this machine: settings, metrics, speed, files."""
    from trainyard_control.api.arguments import local_environment
    from trainyard_control.api.run import ELSEWHERE, Runs

    compared = Runs(local_environment(environment, ELSEWHERE).storage).compare(*names)
    write_page(html, compared.page)
    print_answer(output, compared.document(), lambda: _show_comparison(compared))


@app.command("note")
def note(
    run: _Run,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note, such as '#baseline before the new labels'.")],
    environment: EnvironmentName = LOCAL,
) -> None:
    """Attach a note or tags to a run of this machine.

    `runs list --note` finds it. An empty TEXT deletes the note.
    """
    from trainyard.report import local_runs
    from trainyard_control.api.arguments import local_environment
    from trainyard_control.api.run import ELSEWHERE

    noted = local_runs.find(local_environment(environment, ELSEWHERE).storage, run)
    local_runs.write_note(noted, text)
    typer.echo(f"✓ {noted.name} of {noted.recipe}: {'noted' if text.strip() else 'no note any more'}", err=True)


@app.command("cancel")
def cancel(run: _Run, environment: EnvironmentName, dry_run: DryRun = False) -> None:
    """Cancel a run with all that it started, and wait for its end."""
    runs = _runs(environment)
    run_id = runs.find(run)
    if dry_run:
        view = runs.view(run_id)
        pods = [step.pod for step in view.steps if step.state in ("waiting", "running")]
        typer.echo(f"would end {view.name} ({run_id}) and its pods: {', '.join(pods) or 'none'}")
        return
    runs.cancel(run_id)
    typer.echo(f"✓ {run} has ended, and nothing of it is running", err=True)


def _local(environment: str) -> str:
    """Return the storage of a local environment, '' for others."""
    from trainyard_control.cluster import environments

    loaded = environments.load(environment)
    return loaded.storage if loaded.target == "local" else ""


def _watch_local(root: str, name: str) -> int:
    """Follow a local run, and return its exit code."""
    from trainyard.report import local_runs
    from trainyard_control.api.progress import Screen
    from trainyard_control.local import local_run

    run = local_runs.find(root, name) if name else next(iter(local_runs.newest(root, 1)), None)
    if run is None:
        raise ConfigurationError(f"{root}: no run was begun there. Start one by `trainyard run`.")
    typer.echo(f"· {run.name} of {run.recipe}", err=True)
    try:
        with Screen() as screen:
            run = local_run.watch(root, run, screen)
    except KeyboardInterrupt:
        typer.echo(f"! the run continues without this command: trainyard runs watch {run.name}", err=True)
        return ExitCode.INTERRUPTED
    mark = {"failed": "✗", "refused": "!"}.get(run.state, "✓")
    outcome = ", ".join(filter(None, [run.state, run.metric, run.reason.rstrip(".")]))
    typer.echo(f"{mark} {outcome} ({duration_text(run.seconds)})", err=True)
    return int(run.record.get("exit_code", 0))


def _show_view(view: RunView) -> None:
    from trainyard_control.kubeflow.run_view import CACHED

    typer.echo(
        f"{view.name}  {view.state}  {duration_text(view.seconds)}  "
        f"({view.recipe} on {view.environment}, {view.run_id})"
    )
    rows = [("STEP", "STATE", "POOL", "NODE", "POD", "DURATION", "USD", "OUTPUT")]
    for step in view.steps:
        notes = ([f"{step.attempts} pods"] if step.attempts > 1 else []) + ([CACHED] if step.cause == CACHED else [])
        state = f"{step.state} ({', '.join(notes)})" if notes else step.state
        took, cost = duration_text(step.seconds), str(step.cost or "–")
        rows.append((step.name, state, step.pool, step.node, step.pod, took, cost, step.output))
    say_table(rows)
    for key, path in view.uploads.items():
        say(f"upload  {key}: {path}")
    if cost_text := _cost_text(view):
        typer.echo(f"cost    {cost_text}")
    if view.record:
        _show_stragglers(view.record)
        typer.echo(f"report  {view.record['report']}")
    if view.state != "SUCCEEDED" or view.refused or (view.record and view.record.get("not_due")):
        typer.echo(f"{view.reason.rstrip('.')}.")


def _cost_text(view: RunView) -> str:
    """Format the cost of the run, and that of its training compared with the plan; '' if nothing is known."""
    from trainyard_control.planning.plan import usd

    cost = view.cost
    if cost is None:
        return ""
    if cost.usd is None:
        text = f"not known: no price of {', '.join(cost.unpriced)}. Set price_per_hour of the pool in the environment"
    else:
        bound, now = "at most" if cost.at_most else "about", " so far" if cost.so_far else ""
        text = f"{bound} {usd(cost.usd)} USD{now}, at list price"
    planned = view.expected.cost_usd if view.expected else None
    training = next((step.cost for step in view.steps if step.name == "train"), None)
    if planned is None or training is None:
        return text
    return f"{text}. The training: {training}; the plan said about {usd(planned)}"


def _show_local(run: LocalRunView) -> None:
    typer.echo(f"{run.name}  {run.state}  {duration_text(run.seconds)}  ({run.recipe})")
    folders, seconds = run.record.get("folders", {}), run.record.get("seconds", {})
    rows = [("STEP", "DURATION", "OUTPUT")]
    rows += [(step, duration_text(seconds.get(step)), folder) for step, folder in folders.items()]
    rows += [(step, "unfinished", folder) for step, folder in run.record.get("unfinished", {}).items()]
    say_table(rows)
    for metric, value in (run.record.get("metrics") or {}).items():
        typer.echo(f"{metric}  {metric_text(value)}")
    if data := run.record.get("data"):
        counts = ", ".join(f"{split} {data[split]:,}" for split in ("train", "eval", "test"))
        typer.echo(f"data    {counts}; fingerprint {data['fingerprint']}")
    _show_stragglers(run.record)
    if gate := run.record.get("gate"):
        typer.echo(f"gate    {gate['verdict']}")
    if run.record.get("report"):
        typer.echo(f"report  {run.record['report']}")
    if pushed := run.record.get("pushed"):
        waits = ", which waited for approval" if pushed.get("waits") else ""
        typer.echo(f"pushed  version {pushed['version']}{waits}: trainyard models show {pushed['path']}")
    if run.note:
        typer.echo(f"note    {run.note}")
    if run.reason:
        typer.echo(f"{run.reason.rstrip('.')}.")


def _show_stragglers(record: dict[str, Any]) -> None:
    from trainyard.contract.artifacts.train import Straggler

    for fields in (record.get("train") or {}).get("stragglers", ()):
        say(f"slow    {Straggler.model_validate(fields)}")


def _show_comparison(compared: Comparison) -> None:
    from trainyard_control.api.drawing import table_console
    from trainyard_control.cli.screen import print_rows

    console = table_console()
    titles = {"settings": "settings", "metrics (test split)": "metrics", "training": "training", "exports": "exports"}
    if print_rows(console, compared.names, {title: getattr(compared, name) for title, name in titles.items()}):
        console.print(f"* differs from the first run at 95 % confidence ({compared.method})", style="dim")
    if compared.caution:
        console.print(f"! {compared.caution}")


def _runs(environment: str) -> KubeflowRuns:
    from trainyard_control.cluster import environments
    from trainyard_control.kubeflow.runs import KubeflowRuns

    return KubeflowRuns(environments.load(environment))


def prune(
    recipe: Annotated[str, typer.Argument(help="Recipe name. Default: all recipes in the storage.")] = "",
    environment: EnvironmentName = LOCAL,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Number of newest runs of each recipe to keep.")] = 10,
    dry_run: DryRun = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Delete old runs and unused outputs.

    Outputs that no kept run uses and abandoned attempts are deleted. The champion and versions with an alias are kept,
    with their runs and everything that they were made from.
    """
    from trainyard.report import index
    from trainyard_control.cli.screen import size
    from trainyard_control.cluster import environments
    from trainyard_control.local import retention

    loaded = environments.load(environment)
    root = environments.writable_storage(loaded)
    notes: list[str] = []

    def over(runs: list[str]) -> set[str]:
        """Return the runs that have ended without a record, according to Kubeflow if the environment has one."""
        from trainyard_control.kubeflow.runs import KubeflowRuns

        try:
            return KubeflowRuns(loaded).over(runs) if loaded.target == "kubeflow" else set()
        except TrainyardError as error:
            notes.append(str(error))
            return set()

    def scheduled() -> str | None:
        """Return the pipelines of the schedules in Kubeflow, None if they are unknown."""
        from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

        try:
            return "".join(KubeflowServer(loaded).scheduled_packages()) if loaded.target == "kubeflow" else ""
        except TrainyardError as error:
            notes.append(f"uploads stay, as a schedule may need them: {error}")
            return None

    plan = retention.plan(root, keep, recipe, over=over, scheduled=scheduled)
    notes += plan.notes

    def removals() -> Iterator[Removal]:
        for removal in plan.removals:
            if not dry_run and (reason := retention.remove(root, removal, plan.runs.get(removal.recipe, ()))):
                notes.append(reason)
            else:
                yield removal

    removed = print_lines(output, removals(), _line)
    if removed and not dry_run:
        index.write(root)
    total = sum(removal.bytes for removal in removed)

    def show() -> None:
        folders = "1 folder" if len(removed) == 1 else f"{len(removed):,} folders"
        typer.echo(f"{size(total):>10}  {'would be deleted' if dry_run else 'deleted'}, {folders} of {root}")
        for note in notes:
            say(f"! {note}", err=True)

    answer = {"removed": list(map(asdict, removed)), "bytes": total, "dry_run": dry_run, "notes": notes}
    print_answer(output, answer, show)


def _line(removal: Removal) -> str:
    from trainyard_control.cli.screen import size

    more = " (abandoned attempts)" if removal.kind == "attempt" else ""
    return f"{size(removal.bytes):>10}  {removal.recipe}/{removal.name}{more}"
