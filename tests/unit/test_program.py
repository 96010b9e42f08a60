"""The options before the verb, and what a fault looks like with them."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from trainyard.errors import ConfigurationError, ExitCode
from trainyard_control.cli import start
from trainyard_control.cli.main import app, main
from trainyard_control.cli.options import Output


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("TRAINYARD_DEBUG", "")

    def run(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["trainyard", *arguments])
        main()

    return run


def test_the_program_tells_its_version(call, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        call("--version")
    assert end.value.code == ExitCode.DONE
    assert capsys.readouterr().out == f"trainyard {importlib.metadata.version('trainyard')}\n"


def test_a_fault_is_a_sentence_and_with_debug_a_traceback(call, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        call("compile", "nothing")
    assert end.value.code == ExitCode.CONFIGURATION
    assert capsys.readouterr().err.startswith("✗ no recipe 'nothing'")
    with pytest.raises(ConfigurationError):
        call("--debug", "compile", "nothing")


@pytest.mark.parametrize("place", ["trainyard.spec.recipe.load", "typer.core.TyperGroup.parse_args"])
def test_ctrl_c_in_any_verb_and_before_it_is_said(
    place: str, call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    with pytest.raises(SystemExit) as end:
        call("compile", "digits", "-e", "gke")
    assert end.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "✗ Interrupted.\n"


def test_ctrl_c_while_the_program_is_imported_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "trainyard_control.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "trainyard_control.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        start.main()
    assert end.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "✗ Interrupted.\n"


@pytest.mark.parametrize("verb", ["submit", "runs cancel x", "schedule list"])
def test_a_verb_of_clusters_asks_for_an_environment_of_one(verb: str, call, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        call(*verb.split())
    assert end.value.code == ExitCode.USAGE and "Missing option '--environment' / '-e'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        call(*verb.split(), "-e", "local")
    assert end.value.code == ExitCode.CONFIGURATION
    output = capsys.readouterr().err
    assert "its target is local" in output and "environment of a cluster" in output


def test_the_lists_of_verbs_fit_80_columns_a_line_each(call, capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.main.get_command(app)
    groups = [name for name, verb in group.commands.items() if hasattr(verb, "commands")]  # type: ignore[attr-defined]
    for arguments in ([], *([name] for name in groups)):
        with pytest.raises(SystemExit):
            call(*arguments, "--help")
        text = capsys.readouterr().out
        _, _, listed = text.partition("Train:" if not arguments else "Commands:")
        lines = [line for line in listed.splitlines()[1:] if line.startswith("  ") and line[2] != "S"]
        assert lines and all(line[2] != " " and line.endswith(".") and "..." not in line for line in lines), text


def _options(command: Any) -> Iterator[Any]:
    """Yield the options of `command` and of every verb below it."""
    for inner in getattr(command, "commands", {}).values():
        yield from _options(inner)
    yield from (option for option in command.params if option.param_type_name == "option")


def test_an_option_means_the_same_in_every_verb() -> None:
    seen: dict[str, set[tuple[Any, ...]]] = {}
    for option in _options(typer.main.get_command(app)):
        for name in option.opts:
            seen.setdefault(name, set()).add((option.default, option.help))
    for name in ("--from", "--workers"):  # a step of `run`, data in `recipe new`; of a gang, of a server
        assert len(seen.pop(name)) == 2, "both read as English"
    for name in ("-e", "--environment"):
        (spelled,) = {text for _, text in seen[name]}
        assert seen.pop(name) == {("local", spelled), (None, spelled)}  # required of verbs that need a cluster
    assert {name: meanings for name, meanings in seen.items() if len(meanings) > 1} == {}
    assert [default for default, _ in seen["-o"]] == [Output.TEXT]
