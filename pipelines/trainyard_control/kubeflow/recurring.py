"""Applies the schedule of a file to a server, with Kubeflow's recurring runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.kubernetes import client
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard_control.compiler import about
from trainyard_control.compiler import submission as submissions
from trainyard_control.compiler.compilation import compiled
from trainyard_control.compiler.submission import Submission
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer
from trainyard_control.kubeflow.run_view import OVER
from trainyard_control.kubeflow.schedules import Action, Recurring, Schedule, digest

_ZONES = "pipeline-install-config"


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
        return [self._recurring(run) for run in runs if (name := about.of_run(run).schedule) and schedule in ("", name)]

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
        )


def package(schedule: Schedule, environment: Environment) -> tuple[Submission, str]:
    """Build the submission of the schedule, and the name of the recurring run for exactly this content."""
    recipe = recipes.load(schedule.recipe, schedule.overrides)
    placed = compiled(recipe, environment, schedule.when)
    submission = submissions.submission(recipe.name, environment, placed, schedule.name)
    submission = replace(submission, about=replace(submission.about, schedule=schedule.name))
    return submission, f"{schedule.name}.{digest(schedule, submission.package, environment.service_accounts.run)}"


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
        runtime_config=kfp.V2beta1RuntimeConfig(parameters=submission.about.parameters()),
        service_account=submission.environment.service_accounts.run or None,
        trigger=kfp.V2beta1Trigger(cron_schedule=trigger),
        max_concurrency=str(schedule.max_concurrency),
        no_catchup=not schedule.catch_up,
        mode=kfp.RecurringRunMode.DISABLE if schedule.paused else kfp.RecurringRunMode.ENABLE,
    )
