"""Runs one step: commits its output, and turns its errors into exit codes and a failure record for `explain`."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.origin import origin, why_again
from trainyard.errors import ExitCode, InfrastructureError, Preempted, TrainyardError, TransientError, module_line
from trainyard.escape import one_line
from trainyard.graph import ARGUMENTS, STEPS, producer, remedy
from trainyard.process.signals import Terminated, handle_sigint, handle_sigterm, map_signals
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard.storage import disk, storage

TIMEOUT_VARIABLE = "TRAINYARD_TIMEOUT_SECONDS"
"""Time limit of the step where nothing else enforces one, as on Vertex AI."""

_RECORD_BYTES = 4096  # chosen: more than a sentence takes

_LAST_RECORD_SECONDS = 20.0  # chosen: a silent storage may be the reason for the exit


def execute(run: Callable[..., None], output: str, unfetched: Collection[str] = (), **arguments: Any) -> None:
    """Commit the folder `output`, written by `run(output=<staging folder>, **arguments)`, unless it exists.

    `run` gets local folders: inputs in a bucket are fetched first, except those in `unfetched`; the output is published
    afterwards. If another process writes `output`, waits until it ends. Raises the errors of `run`.
    """
    step = run.__module__.split(".")[-2]
    earlier = storage.committed(output)
    with storage.lease(output, wait=True):
        storage.remove_abandoned(output)
        made = storage.committed(output)
        is_repeated = STEPS[step].always_run and made and earlier and made.origin == earlier.origin
        if made and not is_repeated:
            events.emit("reused", step=step, output=output)
            return
        assume_killed(step, output)
        recipe = arguments.get("recipe")
        made_from = origin(recipe, step, arguments) if isinstance(recipe, Recipe) else None
        reason = storage.read_text(keys.again_record(output))
        if made_from and not is_repeated:
            reason = reason or why_again(output, made_from)
        if reason:
            events.emit("runs_again", step=step, because=reason)
        start = time.monotonic()
        record = made_from.model_dump() if made_from else None
        with storage.stage(output, producer=producer(step), origin=record) as folder:
            fetched = {name: local_input(name, arguments[name]) for name in arguments if name not in unfetched}
            run(output=folder, **arguments | fetched)
            if is_repeated:
                storage.remove(output)  # not before: another run may be reading it
        storage.remove(keys.failure_record(output))
        storage.remove(keys.again_record(output))
        events.emit("done", step=step, output=output, seconds=round(time.monotonic() - start, 2))


def remove_for(first: str, output: str, *companions: str) -> None:
    """Remove `output` and its `companions`, and note the request to recompute all steps from `first` on."""
    with storage.lease(output):
        for uri in (output, *companions):
            storage.remove(uri)
        storage.write_text(keys.again_record(output), f"--from {first}")


def current_output() -> str:
    """Return the output folder of this process's step, whose lease it holds; '' without a step."""
    return _open[-1][1]() if _open else ""


def current_step() -> str:
    """Return the name of this process's step, '' without one."""
    return _open[-1][0] if _open else ""


def drop_checkpoints(model: str) -> None:
    """Remove the checkpoints of train's output `model` if it is committed, because nothing resumes from them.

    They stay if another process is writing `model` again and may resume from them.
    """
    checkpoints = keys.checkpoints(model)
    if not storage.children(checkpoints):
        return
    with events.warned(f"{checkpoints}: was not removed", TransientError), storage.lease(model):
        if storage.committed(model) is not None:
            storage.remove(checkpoints)


def local_input(name: str, value: Any) -> Any:
    """Return the local copy of an input in a bucket, and every other argument unchanged."""
    if name in ARGUMENTS and storage.is_bucket(value):
        return str(storage.local(value, remedy(ARGUMENTS[name])))
    return value


def main(run: Callable[..., None], command_line: list[str] | None = None, unfetched: Collection[str] = ()) -> None:
    """Run a step as a program whose options are the parameters of `run`; exits with the step's exit code.

    unfetched: as in `execute`.
    """
    step = run.__module__.split(".")[-2]
    parser = argparse.ArgumentParser(
        prog=f"python -m trainyard.steps {step}", description=sys.modules[run.__module__].__doc__
    )
    for name, parameter in inspect.signature(run).parameters.items():
        option = f"--{name.replace('_', '-')}"
        if parameter.default is False:
            parser.add_argument(option, action="store_true")
        elif parameter.default is inspect.Parameter.empty:
            parser.add_argument(option, required=True)
        else:
            parser.add_argument(option, default=parameter.default)
    arguments = vars(parser.parse_args(command_line))
    output = arguments.pop("output")

    def load_and_execute() -> None:
        arguments["recipe"] = recipes.load(arguments["recipe"])
        execute(run, output, unfetched, **arguments)

    run_as_program(step, output, load_and_execute)


def run_as_program(step: str, output: str, work: Callable[[], None]) -> NoReturn:
    """Exit with the exit code of `work`, which leaves the `output` of `step`."""
    signal.signal(signal.SIGTERM, handle_sigterm)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and it is not ignored
        signal.signal(signal.SIGINT, handle_sigint)
    events.emit("started", step=step)
    code: int = ExitCode.DONE
    try:
        with recorded(step, lambda: output):
            work()
    except SystemExit as end:
        code = int(end.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries mixed in one process (tf.Transform, Beam, LiteRT) may crash while the interpreter exits, after
    # all results are on disk; a step is judged by its committed manifest.
    os._exit(code)


@contextmanager
def recorded(step: str, output: Callable[[], str]) -> Iterator[None]:
    """Exit with the error's exit code and record the reason beside `output()` if the block fails.

    The same happens if the block exceeds TRAINYARD_TIMEOUT_SECONDS.
    """
    _open.append((step, output))
    try:
        with _limit_time(step), map_signals():
            yield
    except TrainyardError as error:
        _record(step, output(), error.exit_code, type(error).__name__, str(error))
        raise SystemExit(error.exit_code) from error
    except Terminated as error:
        _record(step, output(), ExitCode.PREEMPTED, Preempted.__name__, str(error))
        raise
    except KeyboardInterrupt as error:
        code = ExitCode.INTERRUPTED
        _record(step, output(), code, "Interrupted", "Interrupted. Run the same command again to resume.")
        raise SystemExit(code) from error
    except Exception as error:
        if cause := disk.disk_full_cause(error):  # outside the reach of `storage.stage`
            full = disk.disk_full(cause, Path(output()))
            _record(step, output(), full.exit_code, type(full).__name__, str(full))
            raise SystemExit(full.exit_code) from error
        traceback.print_exc()
        kind = type(error).__name__
        _record(step, output(), ExitCode.BUG, kind, f"{step}: {kind}: {one_line(error)}{module_line(error)}")
        raise SystemExit(ExitCode.BUG) from error
    finally:
        _open.pop()


_open: list[tuple[str, Callable[[], str]]] = []  # the blocks of `recorded` that this process is in


def end_with(error: TrainyardError) -> NoReturn:
    """Exit at once, from any thread, with `error` recorded as the failure of the step."""
    for step, output in _open[-1:]:
        with storage.deadline(_LAST_RECORD_SECONDS):
            _record(step, output(), error.exit_code, type(error).__name__, str(error))
    os._exit(error.exit_code)


def assume_killed(step: str, output: str) -> None:
    """Record beside `output` that this process was killed; a real failure overwrites the record, success removes it.

    Reserves space for the record, so that a failure on a full disk can be recorded too.
    """
    message = (
        f"{step}: was killed and left no reason: out of memory, lost with its node, or by a person. "
        "Run the same command again; if it happens again, give it more memory."
    )
    _write_record(step, output, ExitCode.TRANSIENT, "Killed", message)
    with suppress(TrainyardError):
        storage.reserve(keys.failure_record(output), _RECORD_BYTES)


@contextmanager
def _limit_time(step: str) -> Iterator[None]:
    seconds = os.environ.get(TIMEOUT_VARIABLE)
    if not seconds:
        yield
        return

    message = f"{step}: ran for more than the {seconds} s that it may. Raise timeout_seconds.{step} in the environment."
    # In a thread, because a call into TensorFlow blocks signals.
    timer = threading.Timer(float(seconds), end_with, (InfrastructureError(message),))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _record(step: str, output: str, code: ExitCode, error: str, message: str) -> None:
    events.emit("failed", step=step, code=int(code), error=error, message=message)
    _write_record(step, output, code, error, message)


def _write_record(step: str, output: str, code: ExitCode, error: str, message: str) -> None:
    record = {"step": step, "exit_code": int(code), "class": error, "message": message}
    uri = keys.failure_record(output)
    try:
        storage.write_text(uri, json.dumps(record, indent=1))
    except TrainyardError:
        events.emit("unrecorded", path=uri)
        with suppress(TrainyardError):
            storage.remove(uri)  # an earlier record would be taken for this failure
