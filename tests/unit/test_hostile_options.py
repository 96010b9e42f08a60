"""Whatever is given for an argument or option of a verb: one sentence and an exit code of the table, never a traceback.

The verbs and their parameters are those of the program itself, so that a later one is tried without a line here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from trainyard.errors import ExitCode, TrainyardError
from trainyard_control.cli.main import app, readable

COMMAND = cache(get_command)  # the runner builds the command line anew for every call: 40 % of these tests' time
NUMBERS = ["-1", "0", "1e30", "nan", "inf", "-inf", "9" * 5000, "", "true", "0x10"]
TEXTS = ["", "-", "a\0b.yaml", "\udcff.yaml", "x" * 5000 + ".yaml", "../../x", "s3://key:secret@bucket/x.yaml"]
OVERRIDES = [
    "=",
    "a=" + "[" * 5000,
    "train.epochs=2024-13-45",
    "seed=!!bool maybe",
    "a={b: &x 1, c: *x}",
    "a.b" * 5000 + "=1",
]
TIMES = ["2024-13-45", "0001-01-01T00:00+14:00", "9" * 5000 + "h", "0h", "٣h", "1h1h"]
FILES = ["pipe.yaml", "folder.yaml", "not-utf-8.yaml", "empty.yaml", "deep.yaml", "loop.yaml", "huge.yaml", "/dev/zero"]
# Where a hostile value could be a good one: what keeps the verb from its work.
SAFE = {
    "run": ["-e", "small.yaml"],
    "sweep": ["-e", "small.yaml", "--over", "train.epochs=1,2", "--dry-run"],
    "learn-curve": ["-e", "small.yaml"],
    "bench": ["-e", "small.yaml"],
    "submit": ["-e", "small.yaml", "--dry-run"],
    "predict": ["-e", "small.yaml", "--submit", "--dry-run"],
    "runs list": ["-e", "small.yaml"],
    "runs show": ["-e", "small.yaml"],
    "runs watch": ["-e", "small.yaml"],
    "runs logs": ["-e", "small.yaml"],
    "runs cancel": ["-e", "small.yaml", "--dry-run"],
    "schedule apply": ["--dry-run"],
}
REQUIRED = {"run": "x", "step": "train", "file": "nowhere/x.yaml", "recipe": "digits"}
# Read again for every value, so of nothing but what is required.
ENVIRONMENT = """
target: kubeflow
storage: /mnt/runs
volume: {claim: runs, path: /mnt/runs}
images: {cpu: "example/cpu:1"}
pools: {cpu: {kind: cpu, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}}}}
placement: {default: cpu}
"""


def verbs(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command by its words."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, f"{name} {word}".strip())
        else:
            yield f"{name} {word}".strip(), command


COMMANDS = dict(verbs(typer.main.get_command(app)))
CASES = [
    (verb, parameter.name)
    for verb, command in COMMANDS.items()
    for parameter in command.params
    if not getattr(parameter, "is_flag", False)
]


def values(verb: str, name: str) -> list[str]:
    """Return what is tried for a parameter: by its type and name."""
    hint = get_type_hints(inspect.unwrap(COMMANDS[verb].callback))[name]
    if {hint, *get_args(hint)} & {int, float}:
        return NUMBERS
    if name == "set_":
        return [*TEXTS, *OVERRIDES]
    if name in ("day", "deadline"):
        return [*TEXTS, *TIMES]
    # To write into a pipe waits for its reader, as it does everywhere.
    return [*TEXTS, *(file for file in FILES if name != "to" or file != "pipe.yaml")]


def line(verb: str, name: str, value: str) -> list[str]:
    """Return the command line that gives `value` for one parameter, and what is required for the others."""
    command = [*verb.split(), *SAFE.get(verb, [])]
    for parameter in COMMANDS[verb].params:
        value_or_default = (
            value if parameter.name == name else REQUIRED.get(parameter.name) if parameter.required else None
        )
        if value_or_default is not None:
            command += [parameter.opts[0], value_or_default] if parameter.param_type_name == "option" else []
    # Behind --, so that an argument may begin with a dash.
    arguments = [argument for argument in COMMANDS[verb].params if argument.param_type_name == "argument"]
    command += ["--", *(value if argument.name == name else REQUIRED.get(argument.name, "x") for argument in arguments)]
    return command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of hostile files; one of its own, as `compile --to` writes over them."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "small.yaml").write_text(ENVIRONMENT)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "not-utf-8.yaml").write_bytes(b"\xff\xfe\0name")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "deep.yaml").write_text("[" * 5000)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with (tmp_path / "huge.yaml").open("wb") as stream:
        stream.truncate(1 << 33)
    return tmp_path


@pytest.mark.parametrize(("verb", "name"), CASES, ids=[f"{verb} {name}" for verb, name in CASES])
def test_a_hostile_value_is_answered_in_one_sentence(
    verb: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.testing._get_command", COMMAND)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setenv("HOME", str(folder))
    for value in values(verb, name):
        result = CliRunner().invoke(app, line(verb, name, value))
        error = result.exception
        assert error is None or isinstance(error, TrainyardError | SystemExit), (value[:80], error)
        code = error.exit_code if isinstance(error, TrainyardError) else result.exit_code
        allowed = (ExitCode.DONE, ExitCode.USAGE, ExitCode.CONFIGURATION)
        reads_data = verb in ("run", "submit") or verb.startswith(
            ("data ", "evaluate", "models ", "predict", "publish ", "recipe new", "serve")
        )
        allowed = (*allowed, ExitCode.DATA) if reads_data else allowed
        # Any name may be that of a machine, which then does not answer.
        allowed = (*allowed, ExitCode.TRANSIENT) if (verb, name) == ("devices add", "ssh") else allowed
        assert code in allowed, (value[:80], error)
        lines = readable(error) if isinstance(error, TrainyardError) else []
        assert not any("secret@" in error_line or len(error_line) > 1000 for error_line in lines), (value[:80], error)
