"""What preprocess says of itself while it works: true numbers, and the memory that it took."""

import threading

import pytest

from trainyard import events
from trainyard.beam import progress


@pytest.fixture
def printed_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(events, "emit", lambda _event, **fields: lines.append("{done}/{total} {unit}".format(**fields)))
    return lines


def test_what_was_counted_is_told_and_at_most_the_whole(printed_lines: list[str]) -> None:
    with progress.reported(3, "examples", lambda: 0):
        for _ in range(4):  # one of them in a bundle that was done again
            progress.count("examples")
    assert printed_lines == ["3/3 examples"]


def test_where_others_work_the_files_that_they_finished_are_told(printed_lines: list[str]) -> None:
    finished = iter((2, 3))
    with progress.reported(3, "files", lambda: next(finished)):
        progress.count("records")
    with progress.reported(3, "files", lambda: next(finished)):
        progress.count("files")
    assert printed_lines == ["2/3 files", "3/3 files"]


def test_it_tells_of_itself_while_it_works(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.001)
    reported, emit = threading.Event(), events.emit

    def emitted(event: str, **fields: object) -> None:
        emit(event, **fields)
        if fields["done"]:  # it may be quicker than the count
            reported.set()

    monkeypatch.setattr(events, "emit", emitted)
    with pytest.raises(MemoryError), progress.reported(3, "files", lambda: 0):
        progress.count("files")
        assert reported.wait(60)
        raise MemoryError
    fields = events.parse(capfd.readouterr().err.splitlines()[-1])
    peak = fields.pop("peak_mib")
    assert fields == {"event": "progress", "done": 1, "total": 3, "unit": "files"} and peak > 0
