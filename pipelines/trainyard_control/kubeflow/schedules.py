"""Schedules as files in git, and the actions that make a server match a file.

Kubeflow cannot edit a recurring run. So a changed schedule is a new one: the old one is disabled, the new one starts
where it stopped, and the old one is deleted when none of its runs is active.
"""

from __future__ import annotations

import hashlib
import json
import re
from calendar import monthrange
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trainyard import uris
from trainyard.contract import keys
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.kubernetes import client
from trainyard.report import notify
from trainyard.spec import documents
from trainyard.spec import recipe as recipes
from trainyard.spec.documents import Strict
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard.spec.schedule import When
from trainyard.storage import storage
from trainyard.values.zones import DEFAULT_ZONE
from trainyard_control.compiler import compilation
from trainyard_control.compiler.compilation import Submission, compiled
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer
from trainyard_control.kubeflow.run_view import OVER

SETTLE = timedelta(seconds=60)  # chosen: the controller looks at a schedule every 10 s and answers late under load

_RANGES = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 6)}
_LEAP_YEAR = 2024
_DIGEST = 8
_MESSAGE_RUNS = 3  # newest runs whose messages are looked for, because an active run has none; chosen
_MESSAGE_SECONDS = 5.0  # chosen: the storage may be unreachable from here
_ZONES = "pipeline-install-config"

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
    """A recurring run on the server. last: creation of its newest run. running: one of its runs is active.

    message: the newest one about its runs, as `notify.last_message` returns it; None if none was sent or can be read.
    """

    id: str
    name: str
    enabled: bool
    created: datetime
    last: datetime | None = None
    running: bool = False
    cron: str = ""
    message: dict[str, Any] | None = None


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


class Schedules:
    """The schedules of a Kubeflow environment."""

    def __init__(self, environment: Environment) -> None:
        if environment.target != "kubeflow":
            raise ConfigurationError(
                f"{environment.name}: its target is {environment.target}. Schedules are only supported on Kubeflow. "
                "Name an environment of a cluster."
            )
        self.environment = environment
        self.server = KubeflowServer(environment)

    def existing(self, schedule: str = "") -> list[Recurring]:
        """Return the recurring runs of `schedule`, or of all schedule files if it is ''."""
        experiment = self.server.find_experiment()
        runs = self.server.recurring_runs(experiment) if experiment else []
        return [
            self._recurring(run)
            for run in runs
            if (name := compilation.metadata_from_run(run).schedule) and schedule in ("", name)
        ]

    def perform(self, action: Action, schedule: Schedule | None = None, submission: Submission | None = None) -> None:
        """Perform one action. A creation needs the schedule and its submission."""
        if action.verb == "disable":
            self.server.disable_recurring(action.id)
        elif action.verb == "delete":
            self.server.delete_recurring(action.id)
        elif action.verb == "create" and schedule and submission and action.start:
            pipeline, version = self.server.upload(submission.pipeline, submission.version, submission.package)
            body = request(schedule, action, submission, self.server.experiment(), pipeline, version)
            self.server.create_recurring(body)

    def check_time_zone(self, schedule: Schedule) -> None:
        """Raise `ConfigurationError` if the server's schedules have another time zone.

        Its zone is one for all, set at installation; an offset would be wrong for half the year. Source:
        CRON_SCHEDULE_TIMEZONE in kubeflow/pipelines backend/src/crd/controller/scheduledworkflow/util/const.go
        """
        namespace = self.environment.kubeflow.namespace
        try:
            config_map = client.connect(namespace).get(f"/api/v1/namespaces/{namespace}/configmaps/{_ZONES}")
        except TrainyardError:
            config_map = None
        zone = ((config_map or {}).get("data") or {}).get("cronScheduleTimezone", "UTC")
        if schedule.time_zone != zone:
            raise ConfigurationError(
                f"{schedule.name}: time_zone: the server's schedules are in {zone}, "
                f"and {schedule.time_zone} is asked for. Write the hours of {zone}, "
                f"or set cronScheduleTimezone in the ConfigMap {_ZONES} of {namespace}."
            )

    def _recurring(self, recurring: Any) -> Recurring:
        runs = self.server.runs_made_by(str(recurring.recurring_run_id))
        cron = recurring.trigger.cron_schedule.cron if recurring.trigger and recurring.trigger.cron_schedule else ""
        return Recurring(
            id=str(recurring.recurring_run_id),
            name=str(recurring.display_name),
            enabled=str(recurring.status) == "ENABLED",
            created=recurring.created_at or datetime.now(UTC),
            last=runs[0].created_at if runs else None,
            running=any(str(run.state) not in OVER for run in runs),
            cron=str(cron),
            message=self._message(runs),
        )

    def _message(self, runs: list[Any]) -> dict[str, Any] | None:
        """Return the newest message about the newest of `runs`, None if the environment has no `notify`."""
        if self.environment.notify is None:
            return None
        root = self.environment.storage
        with suppress(TrainyardError, OSError, ValueError), storage.deadline(_MESSAGE_SECONDS):
            for run in runs[:_MESSAGE_RUNS]:
                folder = keys.run_folder(root, compilation.metadata_from_run(run).recipe, str(run.run_id))
                if message := notify.last_message(folder):
                    return message
        return None


def package(schedule: Schedule, environment: Environment) -> tuple[Submission, str]:
    """Build the submission of the schedule, and the name of the recurring run for exactly this content."""
    recipe = _with_days(recipes.load(schedule.recipe, schedule.overrides), schedule)
    recipe, code = compilation.with_code(recipe, environment)
    placed = compiled(recipe, environment, schedule.when)
    submission = compilation.submission(recipe.name, environment, placed, schedule.name, schedule=schedule.name)
    submission = replace(submission, uploads=code)
    return submission, f"{schedule.name}.{digest(schedule, submission.package, environment.service_accounts.run)}"


def _with_days(recipe: Recipe, schedule: Schedule) -> Recipe:
    """Return `recipe` with the days of its window in the schedule's time zone, unless its data have one.

    Raises `ConfigurationError` if dates in the data would then be of other days.
    """
    data = recipe.data
    if data.window_days is None or data.time_zone != DEFAULT_ZONE or schedule.time_zone == DEFAULT_ZONE:
        return recipe
    if data.counts_days:
        raise ConfigurationError(
            f"{schedule.name}: time_zone: is {schedule.time_zone}, and data.time_zone, in which window_days and dates "
            f"are counted, is {DEFAULT_ZONE}. Set data.time_zone to {schedule.time_zone}, or to +00:00 for days of UTC."
        )
    return recipe.model_copy(update={"data": data.model_copy(update={"time_zone": schedule.time_zone})})


def request(
    schedule: Schedule, action: Action, submission: Submission, experiment: str, pipeline: str, version: str
) -> Any:
    """Build the body of Kubeflow's CreateRecurringRun. The last three arguments are ids of the server."""
    import kfp_server_api as kfp

    trigger = kfp.V2beta1CronSchedule(cron=schedule.server_cron, start_time=action.start)
    return kfp.V2beta1RecurringRun(
        display_name=action.name,
        description=f"schedule {schedule.name}: {submission.pipeline} {submission.version}",
        experiment_id=experiment,
        pipeline_version_reference=kfp.V2beta1PipelineVersionReference(
            pipeline_id=pipeline, pipeline_version_id=version
        ),
        runtime_config=kfp.V2beta1RuntimeConfig(parameters=submission.metadata.parameters()),
        service_account=submission.environment.service_accounts.run or None,
        trigger=kfp.V2beta1Trigger(cron_schedule=trigger),
        max_concurrency=str(schedule.max_concurrency),
        no_catchup=not schedule.catch_up,
        mode=kfp.RecurringRunMode.DISABLE if schedule.paused else kfp.RecurringRunMode.ENABLE,
    )
