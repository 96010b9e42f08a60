"""What a step says, line by line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trainyard import events
from trainyard.errors import CommandFailed, PeerLost, TrainyardError, from_code

TWO_THREADS = """
import threading
from trainyard import events
from trainyard.errors import TrainyardError, from_code
threads = [threading.Thread(target=lambda: [events.emit("said", number=n) for n in range(2000)]) for _ in "ab"]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_lines_of_two_threads_never_become_one() -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", TWO_THREADS], env=environment, stderr=subprocess.PIPE, text=True
    ).stderr
    numbers = [json.loads(line)["number"] for line in ended.splitlines()]
    assert sorted(numbers) == sorted([*range(2000)] * 2)


def test_what_was_written_is_read_again_whatever_stands_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    events.emit("progress", done=1, total=9)
    events.emit("progress", done=2, total=9)
    events.emit("failed", step="train", code=10, error="DataError", message="row 7: no label, seen=3 times.")
    lines = [f"2026-01-01T00:00:00Z stderr {line}" for line in capsys.readouterr().err.splitlines()]
    log = "\n".join([*lines, "progress", '{"event": "failed", "code": 1', '["no object"]', "last words"])
    assert events.last(log, "progress", "done") == {"done": 2, "total": 9}
    assert events.failure(log) == (10, "row 7: no label, seen=3 times.", "DataError")
    assert events.last(log, "progress", "loss") is None and events.last(log, "pace") is None
    assert events.failure('{"event": "failed", "code": "x", "message": "y"}') is None
    assert events.parse('{"event": ["no name"]}') == events.parse("story") == {}


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_a_failure_whose_sentence_names_what_some_take_for_a_lines_end_is_read(
    capsys: pytest.CaptureFixture[str], end: str
) -> None:
    events.emit("failed", step="preprocess", code=10, error="DataError", message=f"the class 'a{end}b' is empty.")
    log = f"before\n{capsys.readouterr().err}after\n"
    assert events.failure(log) == (10, f"the class 'a{end}b' is empty.", "DataError")


def test_an_error_comes_back_from_the_code_and_the_sentence_that_were_recorded() -> None:
    for kind in (*TrainyardError.__subclasses__(), TrainyardError):
        error = from_code(int(kind.exit_code), "row 7: no label.")
        assert (type(error), str(error)) == (kind, "row 7: no label.")
    assert type(from_code(137, "killed")) is TrainyardError


def test_an_error_comes_back_with_the_class_that_was_recorded_if_it_has_the_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events.emit("failed", step="train", code=20, error="CommandFailed", message="the program ended with 1.")
    recorded = events.failure(capsys.readouterr().err)
    assert recorded and type(from_code(*recorded)) is CommandFailed
    assert type(from_code(75, "it was killed.", "CommandFailed")) is PeerLost


def test_no_other_line_is_taken_for_a_sign_of_life(
    capfd: pytest.CaptureFixture[str],
) -> None:
    events.emit_alive()
    events.emit("progress", done=1, total=9)
    lines = capfd.readouterr().err.splitlines()
    assert [events.is_alive(events.parse(line)) for line in [*lines, "alive", '{"event": "alive"']] == [
        True,
        *[False] * 3,
    ]
