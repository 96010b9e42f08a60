"""The verbs that answer with a pushed model: `trainyard predict`, `evaluate` and `serve`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard import events
from trainyard.errors import ConfigurationError, ExitCode
from trainyard.graph import PREDICT
from trainyard_control.cli.options import (
    LOCAL,
    AnswerLog,
    DryRun,
    EnvironmentName,
    HtmlPage,
    Label,
    ModelName,
    Output,
    OutputFormat,
    PendingLimit,
    RunName,
    Sample,
    Wait,
    print_answer,
    write_page,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trainyard.serving.options import Addresses
    from trainyard.steps.predict.prediction import PredictionSummary
    from trainyard_control.api.evaluation import LabelledEvaluation

_ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Pushed version or folder of versions, as path or URI; or a recipe, for its champion."
    ),
]
_Input = Annotated[
    str,
    typer.Argument(
        metavar="INPUT", help="Folder of images, CSV, Parquet or TFRecord file, or glob; gs:// and s3:// too."
    ),
]
_Out = Annotated[
    str,
    typer.Option(
        "--out", metavar="FILE", help="File to write: .parquet, .csv or .jsonl. With --submit, a folder's URI."
    ),
]
_Key = Annotated[
    str | None,
    typer.Option("--key", metavar="COLUMN", help="Column that identifies the rows. Default: file and row number."),
]
_Submit = Annotated[
    bool,
    typer.Option("--submit", help="Predict on a pool of the environment. Inputs, model and output must be remote."),
]


def predict(
    model: _ModelName,
    input_: _Input,
    environment: EnvironmentName = LOCAL,
    out: _Out = "predictions.parquet",
    key: _Key = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    submit: _Submit = False,
    name: RunName = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    pending_limit: PendingLimit = 3600,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Predict with a pushed model.

    Each image or row gets a class or a number, and scores.
    """
    if submit:
        from trainyard_control.api.packages import prepare_prediction
        from trainyard_control.cli.follow import send_and_follow, show_all

        submission = prepare_prediction(model, input_, environment, out, key, name)
        if dry_run:
            show_all([submission], output)
        else:
            send_and_follow(submission, environment, wait=wait, pending_limit=pending_limit, output=output)
            typer.echo(f"✓ {_answers(out.rstrip('/'))}" if wait else f"· the answers will be in {out}", err=True)
        return
    if name or dry_run or wait:
        raise ConfigurationError(
            "--name, --dry-run and --wait are of a run on a cluster. Add --submit, or leave it out."
        )
    summary = _predict_here(model, environment, input_, out, key, force)
    print_answer(output, summary, lambda: _show(summary))


def _predict_here(
    model: str, environment: str, inputs: str, out: str, key: str | None, force: bool
) -> PredictionSummary:
    """Write predictions to the file `out`, with progress. Exits if it is interrupted."""
    from trainyard_control.api.model import load, require_tensorflow
    from trainyard_control.api.progress import Screen

    require_tensorflow()
    from trainyard.steps.predict.prediction import predict as predict_all
    from trainyard.steps.predict.results import require_writable

    file = require_writable(out, force=force)
    pushed = load(model, environment=environment).pushed
    screen = Screen()

    def progress(done: int, total: int, unit: str) -> None:
        screen.step_event(PREDICT, events.fields_of("progress", done=done, total=total, unit=unit))

    try:
        with screen:
            screen.step_started(PREDICT)
            summary = predict_all(pushed, inputs, file, key, progress)
            screen.step_ended(PREDICT, summary.seconds, reused=False)
    except KeyboardInterrupt:
        print("✗ Interrupted. Nothing was written.", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    return summary


def _answers(folder: str) -> str:
    """Say where the predictions of a finished run are and how many, as far as this machine can read them."""
    from trainyard_control.api.packages import predicted

    found = predicted(folder)
    if found is None:
        return f"the answers are in {folder}, which this machine cannot read"
    rejected = f", {found.rejected:,} rejected: {folder}/rejected.csv" if found.rejected else ""
    return f"{found.predicted:,} answers in {folder}/part-*.parquet ({len(found.parts):,} files){rejected}"


def _show(summary: PredictionSummary) -> None:
    from trainyard_control.api.drawing import counts_text, key_value_table, markup, table_console

    table = key_value_table()
    unit = "images" if summary.kind == "images" else "rows"
    speed = summary.predicted / max(summary.predict_seconds, 0.01)
    table.add_row("model", markup(summary.model))
    table.add_row("predicted", f"{summary.predicted:,} {unit}, {speed:,.0f} a second")
    if summary.classes:
        table.add_row("classes", markup(counts_text(summary.classes)))
    if summary.rejected and summary.rejected_file:
        table.add_row(
            "rejected", markup(f"{summary.rejected:,}: {counts_text(summary.reasons)} → {summary.rejected_file}")
        )
    if warned := [sentence for name, counts in summary.unknown.items() if (sentence := counts.warning(name))]:
        table.add_row("[yellow]unknown[/]", "\n".join(map(markup, warned)))
    elif seen := {name: counts.unknown for name, counts in summary.unknown.items() if counts.unknown}:
        table.add_row("unknown", markup(f"values of {counts_text(seen)}"))
    if gaps := {name: counts.missing for name, counts in summary.unknown.items() if counts.missing}:
        table.add_row("missing", markup(counts_text(gaps)))
    if summary.ignored:
        table.add_row("ignored", markup(f"{len(summary.ignored):,} other files, such as {summary.ignored[0]}"))
    table.add_row("written", markup(f"{summary.predicted:,} answers in {summary.out}"))
    table_console().print(table)


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Recipe, version such as digits@3, folder of versions, or run.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Table with the label, or folder with a folder of images per class.")
    ] = "",
    environment: EnvironmentName = LOCAL,
    label: Label = None,
    answers: Annotated[
        str | None,
        typer.Option("--answers", metavar="LOG", help="Evaluate the answers in a folder of serve --log instead."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="FILE", help="Table with the labels of the answers.")
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="COLUMN", help="Column of both that names the example, such as id.")
    ] = None,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Evaluate a pushed model on new labelled data.

    Metrics, slices and worst mistakes are compared with the model's test split. Inputs without a known label are left
    out and counted.
    """
    if answers or labels or on:
        if data or not (answers and labels and on):
            raise ConfigurationError(
                "--answers, --labels and --on: belong together, without DATA. Give the log, the table of labels and "
                "the column that names the example."
            )
        _evaluate_answers(model, answers, labels, on, label, environment, html, output)
        return
    if not data:
        raise ConfigurationError("DATA: is missing. Name labelled data, or a server's log by --answers.")
    from trainyard_control.api.evaluation import evaluate as evaluated

    found = evaluated(model, data, label=label, environment=environment)
    write_page(html, found.page)
    print_answer(output, found.document(), lambda: _show_evaluation(found))


def _evaluate_answers(
    model: str,
    answers: str,
    labels: str,
    on: str,
    label: str | None,
    environment: str,
    html: Path | None,
    output: Output,
) -> None:
    from trainyard_control.api.answers import ServedEvaluation, evaluate_answers

    def show(found: ServedEvaluation) -> None:
        from trainyard_control.api.drawing import counts_text, key_value_table, markup, table_console
        from trainyard_control.cli.screen import print_rows

        fields = key_value_table()
        fields.add_row("model", markup(f"{found.model.name}, {found.model.folder}"))
        for name, evaluation in found.versions.items():
            left_out = f"; left out: {counts_text(evaluation.left_out)}" if evaluation.left_out else ""
            fields.add_row(f"version {name}", markup(f"{evaluation.examples:,} answers with a label{left_out}"))
        if found.unanswered:
            fields.add_row("not in the log", f"{found.unanswered:,} labels")
        console = table_console()
        console.print(fields)
        if print_rows(console, found.columns, {"metrics": found.rows, "slices": found.slice_rows}):
            console.print("* the 95 % intervals do not overlap", style="dim")
        for shadow in found.shadows:
            console.print(markup(f"{shadow.sentence}:"))
            if print_rows(console, shadow.columns, {"metrics": shadow.rows}):
                console.print("* the 95 % interval of the difference excludes 0", style="dim")
        notes = [f"version {found.model.number}: {sentence}" for sentence in found.below_gates]
        notes += [note for evaluation in found.versions.values() for note in evaluation.notes]
        for note in dict.fromkeys(notes):
            console.print(markup(f"! {note}"))

    found = evaluate_answers(model, answers, labels, on, label=label, environment=environment)
    write_page(html, found.page)
    print_answer(output, found.document(), lambda: show(found))


def _show_evaluation(found: LabelledEvaluation) -> None:
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


def serve(
    model: _ModelName,
    environment: EnvironmentName = LOCAL,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for a free one.")] = 8080,
    name: ModelName = None,
    reload_seconds: Annotated[
        float, typer.Option("--reload-seconds", min=0.1, help="How often to look for another version.")
    ] = 10.0,
    request_mib: Annotated[
        int, typer.Option("--request-mib", min=1, max=1024, help="Maximum size of a request in MiB.")
    ] = 16,
    grpc_port: Annotated[
        int | None,
        typer.Option("--grpc-port", min=0, max=65535, help="Also serve gRPC, on this port; 0 for a free one."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option("--cors", metavar="ORIGIN", help="Origin whose pages may read answers; '*' for all. Repeatable."),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a JSON line on stderr for each request.")
    ] = False,
    log: AnswerLog = None,
    sample: Sample = None,
    shadow: Annotated[
        str | None,
        typer.Option("--shadow", metavar="MODEL", help="Version whose answers only go to --log: NAME@candidate."),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes that answer, at most one per core (Linux).")
    ] = 1,
) -> None:
    """Serve a pushed model over HTTP and gRPC.

    REST API of TensorFlow Serving, Open Inference Protocol, Prometheus metrics, and a page to try it.
    """
    from trainyard.serving.options import LogOptions, Options
    from trainyard_control.api.model import serve as serve_model

    logged = LogOptions.from_texts(log, sample)

    def started(addresses: Addresses) -> None:
        served = f"✓ version {addresses.version} of {addresses.folder} serves at {addresses.url}"
        served += f", gRPC at {addresses.rpc}" if addresses.rpc else ""
        typer.echo(served + (f", with the shadow {addresses.shadow}" if addresses.shadow else ""), err=True)

    serve_model(
        model,
        environment=environment,
        options=Options(
            name=name or "",
            host=host,
            port=port,
            reload_seconds=reload_seconds,
            request_bytes=request_mib << 20,
            grpc_port=grpc_port,
            cors=tuple(cors or ()),
            access_log=access_log,
            log=logged,
            workers=workers,
            shadow=shadow or "",
        ),
        started=started,
    )
