"""The options before the verb, and what a fault looks like with them."""

from __future__ import annotations

import importlib.metadata

import pytest

from trainyard.errors import ConfigurationError, ExitCode
from trainyard_control.cli.main import main


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
