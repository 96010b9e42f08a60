"""What a gang has survived so far, and how much of its time went into steps that count."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from trainyard.core import events
from trainyard.core.artifacts import Restart


@dataclass
class Past:
    """The gang's time before this start: when it began, what was survived, what broke it last.

    Times are of time.monotonic() on the chief's machine, where worker 0's supervisor runs too.
    """

    started: float = field(default_factory=time.monotonic)
    restarts: list[Restart] = field(default_factory=list)
    broken: tuple[str, int, float] | None = None

    @classmethod
    def parse(cls, text: str) -> Past:
        """Return what the supervisor wrote as `text`; a beginning just now where it is empty."""
        if not text:
            return cls()
        document = json.loads(text)
        last = document["break"]
        return cls(
            started=document["started"],
            restarts=[Restart.model_validate(restart) for restart in document["restarts"]],
            broken=(last["reason"], last["step"], last["at"]) if last else None,
        )

    def went_on(self, resumed_at: int) -> None:
        """Note that new steps were taken, from the checkpoint of step `resumed_at` on."""
        if self.broken is None:
            return
        reason, step, at = self.broken
        self.broken = None
        seconds = round(time.monotonic() - at, 3)
        lost = max(0, step - resumed_at)
        restart = Restart(reason=reason, step=step, resumed_at=resumed_at, lost_steps=lost, seconds=seconds)
        self.restarts.append(restart)
        events.emit("recovered", **restart.model_dump())

    def goodput(self, useful_seconds: float) -> float:
        """Return the share of the time since the gang began that `useful_seconds` of training steps are."""
        return min(1.0, useful_seconds / max(1e-9, time.monotonic() - self.started))
