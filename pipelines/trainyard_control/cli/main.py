"""The `trainyard` program: its verbs, and errors as one sentence and an exit code."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainyard.errors import ExitCode, TrainyardError, bug_sentence
from trainyard.signals import Terminated, handle_sigterm
from trainyard.storage import disk
from trainyard_control.cli.terminal import protect_streams
from trainyard_control.cli.verbs import (
    bench,
    data,
    explain,
    learn_curve,
    plan,
    predict,
    prune,
    recipe,
    run,
    runs,
    sweep,
)
from trainyard_control.cli.verbs.cluster import compile, doctor, place, pools, schedule, submit

_DEBUG = "TRAINYARD_DEBUG"
_LONGEST = 1000  # characters; chosen
# Commands that only ask or change a little, while a person waits. The others train or send for hours, and outlive an
# outage of the storage.
_ASKING = frozenset({"compile", "doctor", "explain", "place", "plan", "pools", "prune", "recipe", "runs", "schedule"})
_PATIENCE_SECONDS = 20.0  # chosen: what a person waits for a bucket

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # importing the rich help takes longer than all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train one recipe anywhere: on this machine, on Kubernetes with CPU, GPU or TPU pools, or on Vertex AI.",
    epilog="Start with: trainyard run digits",
)
app.command("run")(run.run)
app.command("predict")(predict.predict)
app.command("compile")(compile.compile)
app.command("place")(place.place)
app.command("submit")(submit.submit)
app.command("doctor")(doctor.doctor)
app.command("explain")(explain.explain)
app.add_typer(runs.app, name="runs")
app.add_typer(schedule.app, name="schedule")
app.command("plan")(plan.plan)
app.command("bench")(bench.bench)
app.command("sweep")(sweep.sweep)
app.command("learn-curve")(learn_curve.learn_curve)
app.command("pools")(pools.pools)
app.command("prune")(prune.prune)
app.add_typer(recipe.app, name="recipe")
app.add_typer(data.app, name="data")


def _version(asked: bool) -> None:
    if asked:
        print(f"trainyard {importlib.metadata.version('trainyard')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a fault, not its sentence alone.")
    ] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Take the options that stand before the verb."""
    if debug:
        os.environ[_DEBUG] = "1"
    if context.invoked_subcommand in _ASKING:
        from trainyard.storage.buckets.objects import deadline  # hashlib and more, which the help does without

        context.with_resource(deadline(_PATIENCE_SECONDS))


def readable(error: TrainyardError) -> list[str]:
    """Return the lines of `error` without the secrets of a URI, and none too long to read."""
    from trainyard.uris import without_secrets  # with pydantic, which the help and the version do without

    return [line[:_LONGEST] for line in without_secrets(str(error)).splitlines()]


def main() -> None:
    """Run the command line and end the process with the table's exit code."""
    signal.signal(signal.SIGTERM, handle_sigterm)
    protect_streams()
    try:
        app()
    except BrokenPipeError:
        os._exit(ExitCode.DONE)
    except Terminated as error:
        print(f"✗ {error}", file=sys.stderr)
        raise
    except Exception as error:
        if os.environ.get(_DEBUG):
            raise
        lines, code = _end(error)
        for line in lines:
            print(f"✗ {line}", file=sys.stderr)
        sys.exit(code)


def _end(error: Exception) -> tuple[list[str], ExitCode]:
    """Return the lines to print of `error`, and the exit code."""
    if isinstance(error, TrainyardError):
        return readable(error), error.exit_code
    if isinstance(error, OSError):
        return [str(disk.fault(error, Path.cwd(), "used"))], ExitCode.INFRASTRUCTURE
    return [f"{bug_sentence(error)}; `trainyard --debug` shows where."], ExitCode.BUG


if __name__ == "__main__":
    main()
