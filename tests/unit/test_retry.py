"""The one retry, on a clock that sleeping alone moves."""

from collections.abc import Callable

import pytest

from trainyard import retry as module
from trainyard.retry import retry


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module.random, "uniform", lambda low, high: (low + high) / 2)
    return clock


def calls(faults: int, seconds: float = 10.0, on_retry: Callable[[Exception, float], None] | None = None) -> str:
    left = [ConnectionError(str(number)) for number in range(faults)]

    def call() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    def transient(error: Exception) -> bool:
        return isinstance(error, ConnectionError)

    return retry(call, transient, seconds=seconds, first_pause=1.0, longest_pause=3.0, on_retry=on_retry)


def test_pauses_double_up_to_the_longest_and_each_is_told_before_it(clock: Clock) -> None:
    warnings: list[tuple[str, float]] = []
    assert calls(4, on_retry=lambda error, passed: warnings.append((str(error), passed))) == "answer"
    assert clock.pauses == [1.0, 2.0, 3.0, 3.0]
    assert warnings == [("0", 0.0), ("1", 1.0), ("2", 3.0), ("3", 6.0)]


def test_no_pause_goes_beyond_the_deadline_and_the_last_error_is_raised_as_it_came(clock: Clock) -> None:
    with pytest.raises(ConnectionError, match="2"):
        calls(9, seconds=5.0)
    assert clock.pauses == [1.0, 2.0]


def test_an_error_that_does_not_pass_is_raised_at_once(clock: Clock) -> None:
    def call() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        retry(call, lambda error: isinstance(error, OSError), seconds=9, first_pause=1, longest_pause=1)
    assert clock.pauses == []
