"""Schedules as files in git, and the actions that make a server match a file. Pure functions.

Kubeflow cannot edit a recurring run. So a changed schedule is a new one: the old one is disabled, the new one starts
where it stopped, and the old one is deleted when none of its runs is active.
"""

from __future__ import annotations

import hashlib
import json
import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from trainyard import uris
from trainyard.spec import documents
from trainyard.spec.documents import Strict
from trainyard.spec.schedule import When

SETTLE = timedelta(seconds=60)  # chosen: the controller looks at a schedule every 10 s and answers late under load

_RANGES = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 6)}
_LEAP_YEAR = 2024
_DIGEST = 8


_Name = Annotated[str, Field(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Schedule(Strict):
    """When a recipe runs in an environment."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")] = Field(
        description="Name of the schedule on the server, and prefix of its runs' names."
    )
    recipe: _Name = Field(description="Bundled recipe, a file next to this one, or a gs:// or s3:// URI.")
    environment: _Name = Field(description="Bundled environment, or a file next to this one.")
    overrides: list[_Name] = Field(
        [], alias="set", max_length=100, description="Overrides of the recipe, such as train.epochs=3."
    )
    cron: Annotated[str, Field(max_length=256)] = Field(
        description="minute hour day month weekday (0 is Sunday), such as 0 3 * * *."
    )
    time_zone: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_+/-]{0,63}$")] = Field(
        "UTC", description="Must be the server's time zone."
    )
    when: When | None = Field(None, description="Train only if one of these conditions holds. Default: always.")
    max_concurrency: Annotated[int, Field(ge=1, le=10)] = Field(
        1, description="Maximum active runs. Another tick fires once, when a run ends."
    )
    catch_up: bool = Field(False, description="Run every missed tick, not only the last one.")
    paused: bool = Field(False, description="Keep the schedule on the server, disabled.")

    @field_validator("cron")
    @classmethod
    def _fields(cls, cron: str) -> str:
        fields = cron.split()
        if len(fields) != len(_RANGES):
            raise ValueError(f"five fields are expected: {' '.join(_RANGES)}")
        _, _, days, months, _ = (_values(name, field) for name, field in zip(_RANGES, fields, strict=True))
        if fields[4] == "*" and min(days) > max(monthrange(_LEAP_YEAR, month)[1] for month in months):
            raise ValueError(f"no month {fields[3]} has a day {fields[2]}")
        return " ".join(fields)

    @property
    def server_cron(self) -> str:
        """The expression in the server's six fields, the first of which is seconds."""
        return f"0 {self.cron}"


def _values(name: str, field: str) -> set[int]:
    """Parse a field of a cron expression to numbers. Raises `ValueError`."""
    low, high = _RANGES[name]
    values: set[int] = set()
    for part in field.split(","):
        match = re.fullmatch(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?", part)
        first, last, step = (int(number) if number else None for number in match.groups()) if match else (None, None, 0)
        # As the server reads it, 5/10 is 5-59/10.
        end = last if last is not None else high if first is None or step else first
        start = low if first is None else first
        if not low <= start <= end <= high or (step is not None and not 1 <= step <= high):
            raise ValueError(f"{name}: '{part}' is not understood. Numbers are {low} to {high}")
        values |= set(range(start, end + 1, step or 1))
    return values


@dataclass(frozen=True)
class Recurring:
    """A recurring run on the server. last: creation of its newest run. running: one of its runs is active."""

    id: str
    name: str
    enabled: bool
    created: datetime
    last: datetime | None = None
    running: bool = False
    cron: str = ""


@dataclass(frozen=True)
class Action:
    """One action on the server, in this order. start: of a creation; ticks after it are run."""

    verb: Literal["disable", "create", "delete", "keep"]
    name: str
    id: str = ""
    start: datetime | None = None
    why: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.name}{f' ({self.why})' if self.why else ''}"


def load(path: Path) -> Schedule:
    """Load the schedule in `path`, with paths of recipe and environment relative to it."""
    schedule = documents.load(path, Schedule)
    beside = {
        key: str(path.parent / value)
        for key in ("recipe", "environment")
        if documents.is_file_name(value := getattr(schedule, key)) and not uris.is_bucket(value)
    }
    return schedule.model_copy(update=beside)


def digest(schedule: Schedule, package: str, account: str) -> str:
    """Return the digest of a schedule with its package."""
    fields = schedule.model_dump(mode="json", exclude={"recipe", "environment", "overrides"})
    content = json.dumps([fields, account], sort_keys=True) + package
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGEST]


def plan(name: str, paused: bool, existing: list[Recurring], now: datetime) -> list[Action]:
    """Return the actions that make `name` the only schedule of `existing`, without losing or repeating a tick.

    paused: the schedule is disabled. name: '' for no schedule. The new schedule starts where the old one stopped: after
    its newest run, but at most SETTLE ago. Otherwise a tick that the old one was about to run when it was disabled
    would be lost.
    """
    keeper = next((schedule for schedule in existing if schedule.name == name and schedule.enabled is not paused), None)
    outdated = [schedule for schedule in existing if schedule is not keeper]
    actions = [Action("disable", schedule.name, schedule.id) for schedule in outdated if schedule.enabled]
    if keeper:
        actions.append(Action("keep", keeper.name, keeper.id, why="unchanged, paused" if paused else "unchanged"))
    elif name and paused:
        actions.append(Action("create", name, start=now, why="paused: it starts no runs until paused is removed"))
    elif name:
        stopped = [max(schedule.last or schedule.created, now - SETTLE) for schedule in outdated if schedule.enabled]
        actions.append(Action("create", name, start=max(stopped, default=now)))
    return actions + [
        Action("keep", schedule.name, schedule.id, why="disabled; deleting it would end its active run")
        if schedule.running
        else Action("delete", schedule.name, schedule.id, why="its runs stay listed; their pods and logs are deleted")
        for schedule in outdated
    ]


def removal(existing: list[Recurring]) -> list[Action]:
    """Return the actions that remove all of `existing`."""
    return plan("", True, existing, datetime.now(UTC))
