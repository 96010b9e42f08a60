"""The `trainyard` program: its verbs, and errors as one sentence and an exit code."""

from __future__ import annotations

import importlib.metadata
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
import typer.core

from trainyard import escape
from trainyard.errors import ExitCode, TrainyardError, bug_sentence
from trainyard.process.signals import Terminated, handle_sigterm
from trainyard.storage import disk
from trainyard_control.cli.verbs import (
    bench,
    cluster,
    data,
    devices,
    models,
    plan,
    pools,
    predict,
    publish,
    recipe,
    run,
    runs,
    schedule,
    sweep,
)

_DEBUG = "TRAINYARD_DEBUG"
_LONGEST = 1000  # characters; chosen
# Commands that write to no bucket for long, so that a person waits for their answer. Trainings outlive an outage.
_TRAINING = frozenset({"bench", "learn-curve", "run", "submit", "sweep"})
_PATIENCE_SECONDS = 20.0  # chosen: what a person waits for a bucket

# The order of the help.
_PANELS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Train": {
        "run": run.run,
        "plan": plan.plan,
        "sweep": sweep.sweep,
        "bench": bench.bench,
        "learn-curve": sweep.learn_curve,
    },
    "Cluster": {
        "submit": cluster.submit,
        "explain": cluster.explain,
        "schedule": schedule.app,
        "doctor": cluster.doctor,
        "pools": pools.pools,
        "compile": cluster.compile,
        "place": cluster.place,
    },
    "Data": {"data": data.app, "recipe": recipe.app},
    "Models": {
        "predict": predict.predict,
        "evaluate": predict.evaluate,
        "models": models.app,
        "publish": publish.app,
        "serve": predict.serve,
        "devices": devices.app,
    },
    "Maintain": {"runs": runs.app, "prune": runs.prune},
}


@contextmanager
def _interrupts_said() -> Iterator[None]:
    """Say that Ctrl-C has ended a verb that says nothing itself: Typer would exit in silence."""
    try:
        yield
    except KeyboardInterrupt:
        print("✗ Interrupted.", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


class _Group(typer.core.TyperGroup):
    """The verbs of the program, listed by panel."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the words before the verb."""
        with _interrupts_said():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        with _interrupts_said():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - types of typer's private click
        """Write the verbs of each panel with their short help."""
        width = max(map(len, self.commands))
        for title, verbs in _PANELS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(formatter.width)) for name in verbs]
                formatter.write_dl(rows)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=None,  # importing the rich help takes longer than all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train one recipe anywhere: on this machine, on Kubernetes with CPU, GPU or TPU pools, or on Vertex AI.",
    epilog="Start with: trainyard run digits",
)
for _verbs in _PANELS.values():
    for _name, _verb in _verbs.items():
        if isinstance(_verb, typer.Typer):
            app.add_typer(_verb, name=_name)
        else:
            app.command(_name)(_verb)


def _version(asked: bool) -> None:
    if asked:
        print(f"trainyard {importlib.metadata.version('trainyard')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle the options before the verb."""
    if debug:
        os.environ[_DEBUG] = "1"
    if context.invoked_subcommand not in _TRAINING:
        from trainyard.storage.buckets.objects import deadline  # not needed for --help

        context.with_resource(deadline(_PATIENCE_SECONDS))


def readable(error: TrainyardError) -> list[str]:
    """Return the lines of `error` without secrets in URIs, each cut to a readable length."""
    from trainyard.uris import without_secrets  # pydantic is not needed for --help and --version

    return [line[:_LONGEST] for line in without_secrets(str(error)).splitlines()]


def main() -> None:
    """Run the CLI and exit with a code of `ExitCode`."""
    signal.signal(signal.SIGTERM, handle_sigterm)
    sys.stdout, sys.stderr = map(_Protected, (sys.stdout, sys.stderr))
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
    """Return the lines to print for `error`, and the exit code."""
    if isinstance(error, TrainyardError):
        return readable(error), error.exit_code
    if isinstance(error, OSError):
        fault = disk.fault(error, Path.cwd(), "used")
        return [str(fault)], fault.exit_code
    return [f"{bug_sentence(error)}; `trainyard --debug` shows where."], ExitCode.BUG


class _Protected(io.TextIOBase, TextIO):
    """A text stream that escapes control characters in what it writes to another, with `?` for what that cannot encode.

    It has no `buffer`, so that nobody bypasses it.
    rich_proxied_file: the stream that rich's consoles write to, because their text is escaped already.
    """

    def __init__(self, stream: TextIO) -> None:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        self.rich_proxied_file = self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has it writable
        """The encoding of the inner stream."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        """Write `text` with escapes for characters that would act on a terminal."""
        self._stream.write(escape.lines(text))
        return len(text)

    def flush(self) -> None:
        """Flush the inner stream."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return True if the inner stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the file descriptor of the inner stream."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True


if __name__ == "__main__":
    main()
