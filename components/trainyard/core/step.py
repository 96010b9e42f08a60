"""Runs one step: its output under the commit protocol, its errors as exit codes and as a record for `explain`."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from trainyard.core import documents, events, storage
from trainyard.core.errors import ExitCode, Preempted, TrainyardError
from trainyard.core.recipe import Recipe


def execute(run: Callable[..., None], output: str, **arguments: Any) -> None:
    """Leave the committed folder `output`, written by `run(output=<staging folder>, **arguments)` unless it is there.

    Raises what `run` raises, `TransientError` where another process is writing `output`.
    """
    step = run.__module__.split(".")[-2]
    with storage.lease(output):
        if storage.committed(output) is not None:
            events.emit("reused", step=step, output=output)
            return
        start = time.monotonic()
        with storage.stage(output, producer=f"trainyard.{step}") as folder:
            run(output=folder, **arguments)
        Path(failure_record(output)).unlink(missing_ok=True)
        events.emit("done", step=step, output=output, seconds=round(time.monotonic() - start, 2))


def failure_record(output: str) -> str:
    """Return where a failed step writes its exit code, class and sentence."""
    return f"{output}.failure.json"


def main(run: Callable[..., None], doc: str | None) -> None:
    """Run a step as a program: its options are the parameters of `run`. Ends the process with the table's exit code."""
    step = run.__module__.split(".")[-2]
    parser = argparse.ArgumentParser(prog=f"python -m trainyard.{step}", description=doc)
    for name, parameter in inspect.signature(run).parameters.items():
        required = parameter.default is inspect.Parameter.empty
        parser.add_argument(
            f"--{name.replace('_', '-')}", required=required, default=None if required else parameter.default
        )
    arguments = vars(parser.parse_args())
    output = arguments.pop("output")
    signal.signal(signal.SIGTERM, _preempted)
    events.emit("started", step=step)
    code = ExitCode.DONE
    try:
        arguments["recipe"] = documents.load(Path(arguments["recipe"]), Recipe)
        execute(run, output, **arguments)
    except TrainyardError as error:
        code = error.exit_code
        _record(step, output, code, type(error).__name__, str(error))
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        events.emit(
            "failed",
            step=step,
            code=int(code),
            error="Interrupted",
            message="Interrupted. Run the same command again to go on.",
        )
    except Exception as error:  # noqa: BLE001 - the process ends here, and its exit code must say how
        traceback.print_exc()
        code = ExitCode.BUG
        _record(step, output, code, type(error).__name__, f"{step}: {type(error).__name__}: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries that were mixed in one process (tf.Transform, Beam, LiteRT) may crash while the interpreter ends, after
    # all results are on disk; a step is judged by its committed manifest.
    os._exit(code)


def _preempted(_signal: int, _frame: FrameType | None) -> None:
    raise Preempted("told to stop (SIGTERM). Run the same command again to go on.")


def _record(step: str, output: str, code: ExitCode, error: str, message: str) -> None:
    events.emit("failed", step=step, code=int(code), error=error, message=message)
    record = {"step": step, "exit_code": int(code), "class": error, "message": message}
    try:
        storage.write_text(failure_record(output), json.dumps(record, indent=1))
    except (OSError, TrainyardError):
        events.emit("unrecorded", path=failure_record(output))
