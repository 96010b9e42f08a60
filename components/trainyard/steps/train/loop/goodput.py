"""What a gang has survived so far, and how much of its time went into steps that count."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from trainyard import events
from trainyard.contract.artifacts import Restart

_START = frozenset({"import", "join", "build", "compile"})


@dataclass
class Past:
    """The gang's time before this start: when it began, from which step it went on at first (None before its first
    new steps), what was survived, what broke it last, and what was spent already, in seconds by name.

    Times are of time.monotonic() on the chief's machine, where worker 0's supervisor runs too.
    """

    started: float = field(default_factory=time.monotonic)
    began_at: int | None = None
    restarts: list[Restart] = field(default_factory=list)
    broken: tuple[str, int, float] | None = None
    spent: dict[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Past:
        """Return what the supervisor wrote as `text`; a beginning just now where it is empty."""
        if not text:
            return cls()
        document = json.loads(text)
        last = document["break"]
        return cls(
            started=document["started"],
            began_at=document["began_at"],
            restarts=[Restart.model_validate(restart) for restart in document["restarts"]],
            broken=(last["reason"], last["step"], last["at"]) if last else None,
            spent={"meet": document["meet"]},
        )

    def went_on(self, resumed_at: int) -> None:
        """Note that new steps were taken, from the checkpoint of step `resumed_at` on."""
        if self.began_at is None:
            self.began_at = resumed_at
            events.emit("began", began_at=resumed_at)
        if self.broken is None:
            return
        reason, step, at = self.broken
        self.broken = None
        seconds = round(time.monotonic() - at, 3)
        lost = max(0, step - resumed_at)
        restart = Restart(reason=reason, step=step, resumed_at=resumed_at, lost_steps=lost, seconds=seconds)
        self.restarts.append(restart)
        events.emit("recovered", **restart.model_dump())

    def split(
        self, step: int, step_seconds: float, spent: dict[str, float], queue: float | None = None
    ) -> dict[str, float]:
        """Return the seconds since the beginning by what they went into; `step` is what counts, `other` what is left.

        step: the one that the training ended at. spent: what this process, the last one, spent by name. queue: what
        passed before the beginning, if that is known.
        """
        known = {"step": (step - (step if self.began_at is None else self.began_at)) * step_seconds}
        spent = {**self.spent, **spent}
        if self.restarts:
            # What the starts after a break took is in the restarts' own seconds.
            spent = {name: value for name, value in spent.items() if name not in _START}
            known["restart"] = sum(each.seconds for each in self.restarts)
            known["lost_work"] = sum(each.lost_steps for each in self.restarts) * step_seconds
        known |= {name: value for name, value in spent.items() if name != "step"}
        left = time.monotonic() - self.started - sum(known.values())
        known |= {} if queue is None else {"queue": queue}
        return {name: round(value, 3) for name, value in {**known, "other": max(0.0, left)}.items()}


def share(seconds: dict[str, float]) -> float:
    """Return the share of all `seconds` that went into steps which count."""
    return seconds["step"] / max(1e-9, sum(seconds.values()))
