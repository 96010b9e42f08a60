"""What preprocess says of itself while it works: true numbers, and the memory that it took."""

import threading

import pytest

from trainyard import events
from trainyard.steps.preprocess import progress


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(events, "emit", lambda _event, **fields: lines.append("{done}/{total} {unit}".format(**fields)))
    return lines


def test_what_was_counted_is_told_and_at_most_the_whole(said: list[str]) -> None:
    with progress.reported(2, 3, "examples"):
        for _ in range(4):  # one of them in a bundle that was done again
            progress.count("examples")
    assert said == ["3/3 examples"]


def test_where_others_count_the_pipelines_are_told(said: list[str]) -> None:
    with progress.reported(1, 3, "files"):
        progress.count("records")
    with progress.reported(2, 3, "examples"):
        pass
    assert said == ["1/2 pipelines", "2/2 pipelines"]


def test_it_tells_of_itself_while_it_works(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.001)
    told, emit = threading.Event(), events.emit

    def emitted(event: str, **fields: object) -> None:
        emit(event, **fields)
        told.set()

    monkeypatch.setattr(events, "emit", emitted)
    with pytest.raises(MemoryError), progress.reported(1, 3, "files"):
        progress.count("files")
        assert told.wait(10)
        raise MemoryError
    fields = events.parse(capfd.readouterr().err.splitlines()[-1])
    peak = fields.pop("peak_mib")
    assert fields == {"event": "progress", "done": 1, "total": 3, "unit": "files"} and peak > 0
