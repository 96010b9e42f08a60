"""Reads, follows and cancels the runs of an environment, from Kubeflow's API and the pods in Kubernetes.

The pods are read for `explanation`, with their events, nodes and the ends of their logs.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.gang import notes_attempts
from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError, TransientError, did_you_mean
from trainyard.kubernetes import client, kueue, labels
from trainyard.kubernetes.client import JOBS, Cluster, Manifest
from trainyard.kubernetes.diagnosis import (
    DRIVER,
    WAIT,
    PodTask,
    conditions,
    diagnose,
    main_container,
    name_of,
    owner_uids,
    task_of,
)
from trainyard.kubernetes.pod_spec import variable
from trainyard.measured import duration_text
from trainyard.report.local_runs import ALL_RUNS, RunFilter, no_runs
from trainyard.spec.environment import LISTED, TRAIN, Environment
from trainyard.steps.train.peers import settings
from trainyard.storage import storage
from trainyard_control.cluster import argo
from trainyard_control.cluster.environments import readable_storage
from trainyard_control.cluster.explanation import QUEUED, Evidence, Finding, explain, refused
from trainyard_control.cluster.scheduling import Obstacle
from trainyard_control.compiler import compilation
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer
from trainyard_control.kubeflow.run_view import (
    OVER,
    RunView,
    StepView,
    gang_pods,
    step_cost,
    steps,
    steps_of_tasks,
    with_attempts,
    with_lost_attempts,
    with_podless,
)
from trainyard_control.planning.expectation import Expectation

_POLL_SECONDS = 3.0  # chosen: two servers are asked, and a step takes ten seconds at least
_ENDING = OVER | {"CANCELING"}
_SILENT_SECONDS = 600.0  # chosen: a laptop changes its network, or a person logs in again
_NOTE_SECONDS = 5.0  # chosen: the storage may be unreachable from here
_EVENT_LINES = 2000  # chosen: a step warns at its start or end, and a training's lines of progress are between
_LAUNCHER_LINES = 200  # chosen: more than Kubeflow's launcher writes after a step
_PROMPT_SECONDS = 20  # chosen: a running controller ends a run within seconds
_GONE_SECONDS = 180  # chosen: how long the pods of a cancelled run may take to end, a checkpoint included
_LOG_LINES = 200  # chosen: a Python traceback and the lines around it
_WORKFLOWS = "apis/argoproj.io/v1alpha1"
_READERS = 16  # of logs at once; chosen: each waits for a node
_FEW_PODS = 16  # chosen: a call for each of more takes longer than one for the events of all pods


class KubeflowRuns:
    """The runs of a Kubeflow environment."""

    def __init__(self, environment: Environment) -> None:
        if environment.target != "kubeflow":
            raise ConfigurationError(
                f"{environment.name}: its target is {environment.target}. Runs are only supported on Kubeflow. "
                "Name an environment of a cluster with -e."
            )
        self.environment = environment
        self._connect()

    def _connect(self) -> None:
        """Connect to the servers with the credentials of now."""
        self.server = KubeflowServer(self.environment)
        vars(self).pop("cluster", None)

    @cached_property
    def cluster(self) -> client.Cluster:
        """The cluster of the pods."""
        return client.connect(self.environment.namespace)

    def newest(self, count: int, everything: bool, wanted: RunFilter = ALL_RUNS) -> list[RunView]:
        """Return the newest `count` runs that are `wanted`, of the environment's experiment or of all.

        Their steps come from Kubeflow alone. Raises `ConfigurationError` if the recipe has no runs.
        """
        experiment = None if everything else self.server.find_experiment()
        if experiment is None and not everything:
            return []
        every = ((run, self._without_steps(run)) for run in self.server.runs(experiment))
        late_enough = itertools.takewhile(lambda pair: wanted.is_late_enough(pair[1].created), every)
        fitting = ((run, view) for run, view in late_enough if wanted.fits(view.recipe, view.state, view.created))
        priced = []
        for run, view in itertools.islice(fitting, count):
            by_task = _by_task(run)
            priced.append(replace(view, steps=self._priced(run, by_task, by_task)))
        if wanted.recipe and not priced:
            known = {self._without_steps(run).recipe for run in self.server.runs(experiment)}
            if wanted.recipe not in known:
                raise no_runs(self.server.host, wanted.recipe, known)
        return priced

    def find(self, name: str) -> str:
        """Return the id of the newest run with this name or id. Raises `ConfigurationError` if there is none."""
        if runs := self.server.find_runs(name):
            return str(runs[0].run_id)
        known = list(itertools.islice(self.server.runs(), 50))
        if any(run.run_id == name for run in known):
            return name
        if len(name) == 36 and name.count("-") == 4:
            return str(self.server.run(name).run_id)
        names = [str(run.display_name) for run in known]
        raise ConfigurationError(
            f"no run '{name}' at {self.server.host}. Newest: {', '.join(names[:5]) or 'none'}."
            f"{did_you_mean(name, names)}"
        )

    def view(self, run_id: str) -> RunView:
        """Return the run with its steps, and its record if it can be read from here.

        A caller that may not read pods gets the states that Kubeflow knows.
        """
        run = self.server.run(run_id)
        view, now = self._without_steps(run), datetime.now(UTC)
        overdue, cached = None, set[str]()
        try:
            pods, jobs, workflows = run_objects(self.cluster, run_id)
            found = findings(self.cluster, pods, jobs, view.expected, workflows) + uncreated_steps(workflows)
            views_by_pod, overdue, cached = steps(found, now), argo.overdue(workflows), argo.cached(workflows)
        except (ConfigurationError, InfrastructureError):
            views_by_pod = ()
        # By default Argo deletes pods an hour after the run, and a cached step has none.
        by_task = _by_task(run)
        views = self._priced(run, with_lost_attempts(with_podless(views_by_pod, by_task, cached), by_task), by_task)
        folder = self._folder(view.recipe, run_id)
        record = self._json(folder, "run") if view.over else None
        if attempts := self._attempts(folder, record):
            views = tuple(
                with_attempts(step, attempts, self.environment, gang_pods(step, views), now) for step in views
            )
        folders = (record or {}).get("folders", {})
        views = tuple(replace(step, output=folders.get(step.name, "")) for step in views)
        view = replace(view, steps=views, record=record, overdue=overdue)
        return replace(view, stuck=self._controller_fault()) if view.idle else view

    def _controller_fault(self) -> str:
        """Return the fault of Kubeflow's workflow controller, '' if it has none or may not be read."""
        namespace = self.environment.kubeflow.namespace
        try:
            since = argo.silent_since(self.cluster, namespace)
        except (ConfigurationError, InfrastructureError):
            return ""
        return argo.silence_sentence(since, namespace) if since else ""

    def over(self, run_ids: Iterable[str]) -> set[str]:
        """Return the `run_ids` that Kubeflow knows and that have ended."""
        ended = set()
        for run_id in run_ids:
            with suppress(ConfigurationError):  # Kubeflow does not know it
                if self._state(run_id) in OVER:
                    ended.add(run_id)
        return ended

    def report(self, run_id: str) -> tuple[str, str]:
        """Return the name of the run, and the URI of its report, which may not be written yet."""
        readable_storage(self.environment)
        run = self.server.run(run_id)
        folder = self._folder(compilation.metadata_from_run(run).recipe, run_id)
        return str(run.display_name), storage.join(folder, keys.REPORT)

    def log(self, run_id: str, step: str, tail: int | None) -> str:
        """Return the newest log of `step`; of a gang, that of worker 0.

        tail: number of last lines, not counting those of Kubeflow's launcher and of Argo.
        """
        pods, _, _ = run_objects(self.cluster, run_id)
        tasks = [task_of(pod) for pod in pods]
        chief = [pod for pod, task in zip(pods, tasks, strict=True) if task == PodTask(step, worker="0")]
        candidates = chief or [pod for pod, task in zip(pods, tasks, strict=True) if task.name == step]
        if not candidates:
            known = sorted({task.name for task in tasks} - {DRIVER})
            raise ConfigurationError(
                f"run {run_id}: no pod of step '{step}'. There are: {', '.join(known) or 'none any more'}."
                f"{did_you_mean(step, known)}"
            )
        pod, container = name_of(candidates[-1]), main_container(candidates[-1])
        if tail is None:
            return self.cluster.log(pod, container)
        lines = argo.step_lines(self.cluster.log(pod, container, tail + _LAUNCHER_LINES))
        return "".join(f"{line}\n" for line in lines[-tail:])

    def step_events(self, run_id: str, step: str) -> list[dict[str, Any]]:
        """Return the last events of a step, as `trainyard.events` has them; none if its log cannot be read."""
        with suppress(TrainyardError):
            return list(filter(None, map(events.parse, self.log(run_id, step, _EVENT_LINES).splitlines())))
        return []

    def end_long_wait(self, view: RunView, limit: float) -> None:
        """Cancel the run if a step waits longer than `limit` seconds to start: Kubeflow itself would wait for ever.

        Raises `InfrastructureError` if waiting cannot help, otherwise `TransientError`.
        """
        waiting = longest_wait(view, datetime.now(UTC))
        if waiting is None or waiting[0] <= limit or view.over:
            return
        self.cancel(view.run_id)
        seconds, step = duration_text(waiting[0]), waiting[1]
        kind = InfrastructureError if step.permanent else TransientError
        raise kind(
            f"{view.name}: {step.name} waits for {seconds} ({step.sentence.rstrip('.')}): the run is ended. "
            "Run the same command with the same --name to resume."
        )

    def cancel(self, run_id: str) -> None:
        """End the run, its pods and its gangs, and wait until they are gone.

        Raises `TransientError` if they do not end, `InfrastructureError` if no controller is there to end them.
        """
        ended_before = self._terminate(run_id)
        deadline = time.monotonic() + _GONE_SECONDS
        looks_at_controller = time.monotonic() + _PROMPT_SECONDS
        heartbeats: set[str] = set()
        while True:
            # Argo kills a launcher before it can delete its gang, so delete it here.
            pods, jobs, _ = run_objects(self.cluster, run_id)
            heartbeats |= {uri for job in jobs if (uri := launcher_heartbeat(job))}
            for job in jobs:
                if not job["metadata"].get("deletionTimestamp"):
                    self.cluster.delete(self.cluster.path("jobs", name_of(job), JOBS))
            alive = [name_of(pod) for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
            state = self._state(run_id)
            if not jobs and not alive and state in OVER:
                _forget(heartbeats)
                if not ended_before:
                    self._write_note(run_id)
                return
            if time.monotonic() > looks_at_controller:
                if fault := self._controller_fault():
                    raise InfrastructureError(f"run {run_id}: its end was asked for, and cannot come. {fault}.")
                looks_at_controller = math.inf
            if time.monotonic() > deadline:
                remaining = ", ".join([*alive, *map(name_of, jobs)]) or f"the run, which says {state}"
                raise TransientError(
                    f"run {run_id}: does not end within {_GONE_SECONDS} s: {remaining}. Give the command again."
                )
            time.sleep(_POLL_SECONDS)

    def _terminate(self, run_id: str) -> bool:
        """Ask for the run's end and return whether it had ended by itself.

        Kubeflow refuses to end a run that is over or was asked before.
        """
        if (state := self._state(run_id)) not in _ENDING:
            try:
                self.server.terminate(run_id)
            except ConfigurationError:
                if (state := self._state(run_id)) not in _ENDING:
                    raise
        return state in OVER

    def _write_note(self, run_id: str) -> None:
        """Note that the run was cancelled, unless its storage is out of reach, as a volume of the cluster is."""
        root = self.environment.storage
        with suppress(TrainyardError, OSError), storage.deadline(_NOTE_SECONDS):
            if storage.is_bucket(root) or Path(root).is_dir():
                storage.write_text(self._note(self.server.run(run_id)), datetime.now(UTC).isoformat())

    def _state(self, run_id: str) -> str:
        return str(self.server.run(run_id).state)

    def watch(self, run_id: str, on_silence: Callable[[str], None] = lambda _: None) -> Iterator[RunView]:
        """Yield the run until it has ended, including its end. If the server is silent, wait for it.

        A server that has answered and then refuses is asked again with new credentials, because tokens expire.
        on_silence: called with the reason when an answer fails to come after others.
        """
        silent_since: float | None = None
        answered = False
        while True:
            try:
                view = self.view(run_id)
            except (TransientError, InfrastructureError) as error:
                if not answered and isinstance(error, InfrastructureError):
                    raise
                if silent_since is None:
                    silent_since = time.monotonic()
                    on_silence(str(error))
                if time.monotonic() - silent_since > _SILENT_SECONDS:
                    raise
                time.sleep(_POLL_SECONDS)
                self._connect()
                continue
            silent_since, answered = None, True
            yield view
            if view.over:
                return
            time.sleep(_POLL_SECONDS)

    def _without_steps(self, run: Any) -> RunView:
        metadata = compilation.metadata_from_run(run)
        created = run.created_at.astimezone(UTC).isoformat(timespec="seconds") if run.created_at else ""
        last = _end(run)
        return RunView(
            run_id=str(run.run_id),
            name=str(run.display_name),
            state=self._outcome(run),
            recipe=metadata.recipe,
            environment=metadata.environment,
            created=created,
            seconds=round((last - run.created_at).total_seconds(), 1) if run.created_at else None,
            error=str(run.error.message) if run.error and run.error.message else "",
            expected=metadata.expected,
            uploads=metadata.uploads,
        )

    def _priced(self, run: Any, views: tuple[StepView, ...], by_task: tuple[StepView, ...]) -> tuple[StepView, ...]:
        """Add the costs of the steps, unless the run belongs to another environment, which has other pools.

        by_task: the steps that Kubeflow knows, for their durations.
        """
        metadata, environment = compilation.metadata_from_run(run), self.environment
        ours = metadata != compilation.UNKNOWN_METADATA
        if ours and metadata.environment != compilation.metadata_for("", environment).environment:
            return views
        if metadata.trains_on in environment.pools:
            environment = environment.model_copy(
                update={"placement": environment.placement | {TRAIN: metadata.trains_on}}
            )
        lasted = {step.task: step.machine_seconds for step in by_task}
        over = str(run.state) in OVER
        costs = [
            step_cost(step, environment, ours, lasted.get(step.task, 0.0), gang_pods(step, views)) for step in views
        ]
        return tuple(
            replace(step, cost=replace(cost, so_far=cost.so_far and not over) if cost else None)
            for step, cost in zip(views, costs, strict=True)
        )

    def _outcome(self, run: Any) -> str:
        """Return the run's state. Kubeflow has FAILED for a run that was cancelled in a step with retries.

        The cancellation is in the run's history, unless the run ended before Kubeflow looked; then it is in its
        Workflow, while Argo keeps that, and in the note of `cancel`.
        """
        state = str(run.state)
        if state != "FAILED" or any(str(status.state) == "CANCELING" for status in run.state_history or []):
            return "CANCELED" if state == "FAILED" else state
        with suppress(TrainyardError, OSError):
            if any(argo.cancelled(workflow) for workflow in workflows(self.cluster, str(run.run_id))):
                return "CANCELED"
        with suppress(TrainyardError, OSError), storage.deadline(_NOTE_SECONDS):
            return "CANCELED" if storage.read_text(self._note(run)) is not None else state
        return state

    def _note(self, run: Any) -> str:
        """Return the path of the note that `cancel` writes."""
        return keys.cancellation(self._folder(compilation.metadata_from_run(run).recipe, str(run.run_id)))

    def _folder(self, recipe: str, run_id: str) -> str:
        return keys.run_folder(self.environment.storage, recipe, run_id)

    def _attempts(self, folder: str, record: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Return the attempts of the steps that note them, from the run's record or the notes of the steps."""
        noted = (step for step in LISTED if notes_attempts(self.environment, step))
        known = [record] if record else [self._json(folder, step) or {} for step in noted]
        return [attempt for one in known for attempt in one.get("attempts", [])]

    def _json(self, folder: str, name: str) -> dict[str, Any] | None:
        """Read a JSON file in a run's folder, None if it does not exist or cannot be read from here."""
        with suppress(TrainyardError, OSError, ValueError):
            return storage.read_json(storage.join(folder, f"{name}.json")) or None
        return None


def _end(run: Any) -> datetime:
    """Return the run's end, now if it has none; Kubeflow writes the first second of 1970 for none."""
    finished: datetime | None = run.finished_at
    return finished if finished and finished.year > 1970 else datetime.now(UTC)


def _by_task(run: Any) -> tuple[StepView, ...]:
    """Return the steps that Kubeflow knows. A task without an end ended with the run."""
    return steps_of_tasks((run.run_details and run.run_details.task_details) or [], _end(run))


def _forget(heartbeats: set[str]) -> None:
    """Delete the heartbeats of ended launchers, if the storage can be reached from here."""
    for uri in heartbeats:
        with suppress(TrainyardError, OSError):
            storage.remove(uri.rpartition("/")[0])


def changes(views: Iterator[RunView], report: Callable[[StepView], None]) -> Iterator[RunView]:
    """Yield `views`, and call `report` with every step whose sentence is new.

    For a running step, only another cause or another speed compared with the plan is new.
    """
    reported: dict[str, tuple[str, ...]] = {}
    for view in views:
        for step in view.steps:
            running = step.state == "running"
            news = (step.pod, step.cause, step.against_plan) if running else (step.pod, step.sentence)
            if reported.get(step.name) != news:
                reported[step.name] = news
                report(step)
        yield view


def longest_wait(view: RunView, now: datetime) -> tuple[float, StepView] | None:
    """Return the step that waits longest to start, with its seconds. A wait in a queue does not count."""
    waiting = [
        ((now - datetime.fromisoformat(step.since.replace("Z", "+00:00"))).total_seconds(), step)
        for step in view.steps
        if step.state == "waiting" and step.since and step.cause != QUEUED
    ]
    return max(waiting, key=lambda wait: wait[0], default=None)


def workflows(cluster: Cluster, run_id: str) -> list[Manifest]:
    """Return the Workflow of the run, while Argo keeps it."""
    return cluster.items("workflows", selector=f"{labels.KUBEFLOW_RUN}={run_id}", group=_WORKFLOWS)


def gangs(cluster: Cluster, owners: list[Manifest]) -> list[Manifest]:
    """Return the Jobs that belong to any of `owners`, and the Jobs of their input workers."""
    jobs = cluster.items("jobs", selector=f"{labels.APPLICATION}=trainyard", group=JOBS)
    own = _owned(jobs, owners)
    return own + _owned(jobs, own)


def run_objects(cluster: Cluster, run_id: str) -> tuple[list[Manifest], list[Manifest], list[Manifest]]:
    """Return the run's pods (gangs included, oldest first), the Jobs of its gangs, and its Workflow."""
    flows, pods = workflows(cluster, run_id), cluster.items("pods", selector=f"{labels.KUBEFLOW_RUN}={run_id}")
    jobs = gangs(cluster, [*flows, *pods])
    for job in jobs:
        pods += pods_of_job(cluster, name_of(job))
    return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])), jobs, flows


def _owned(jobs: list[Manifest], owners: list[Manifest]) -> list[Manifest]:
    uids = {owner["metadata"]["uid"] for owner in owners}
    return [job for job in jobs if uids & owner_uids(job)]


def pods_of_job(cluster: Cluster, job: str) -> list[Manifest]:
    """Return the pods of one Job."""
    return cluster.items("pods", selector=f"{labels.JOB}={job}")


def launcher_heartbeat(job: Manifest) -> str:
    """Return the URI of the launcher's heartbeat, '' if it has none."""
    return variable(job["spec"]["template"]["spec"], settings.LAUNCHER_HEARTBEAT)


def evidence(
    cluster: Cluster,
    pods: list[Manifest],
    expected: Expectation | None = None,
    workflows: Sequence[Manifest] = (),
    jobs: Sequence[Manifest] = (),
) -> list[Evidence]:
    """Collect the evidence on each of `pods`, as far as the caller may read it."""
    ends = next((text for workflow in workflows if (text := argo.run_ends(workflow))), "")
    stop_reasons = argo.stop_reasons(workflows)
    replacing = {name_of(job): job for job in jobs if _replaces(job)}
    retried, cancelled = argo.retried(workflows), argo.cancelled_nodes(workflows)
    unscheduled = any(not pod["spec"].get("nodeName") for pod in pods)
    nodes = _allowed(cluster, "/api/v1/nodes")
    silent_nodes = {name_of(node) for node in nodes or () if "Ready" not in conditions(node)}
    everything = _allowed(cluster, "/api/v1/pods") if unscheduled else None
    happened, obstacles = _pod_events(cluster, pods), dict[str, Obstacle | None]()
    with ThreadPoolExecutor(_READERS) as readers:
        logs = readers.map(lambda pod: _log(cluster, pod, silent_nodes), pods)
    return [
        Evidence(
            pod=pod,
            events=happened[pod["metadata"]["uid"]],
            nodes=nodes,
            pods=everything,
            log=log,
            expected=expected,
            run_ends=ends,
            stop_reason=stop_reasons.get(argo.node_id(pod), ""),
            again=_again(pod, replacing, retried),
            cancelled=_ended_with_run(pod, workflows, cancelled),
            queue=_admission(cluster, pod) if kueue.is_queued(pod) else "",
            obstacles=obstacles,
        )
        for pod, log in zip(pods, logs, strict=True)
    ]


def findings(
    cluster: Cluster,
    pods: list[Manifest],
    jobs: list[Manifest],
    expected: Expectation | None = None,
    workflows: Sequence[Manifest] = (),
) -> list[Finding]:
    """Explain every pod, and every Job of `jobs` that lacks pods."""
    explained = [explain(pod_evidence) for pod_evidence in evidence(cluster, pods, expected, workflows, jobs)]
    for job in jobs:
        name = name_of(job)
        own = sum(name == pod["metadata"]["labels"].get(labels.JOB) for pod in pods)
        if own < int(job["spec"].get("parallelism", 1)):
            missing = refused(task_of(job), name, _events(cluster, job["metadata"]["uid"]))
            explained += [missing] if missing else []
    return explained


def uncreated_steps(workflows: list[Manifest]) -> list[Finding]:
    """Explain steps whose pods Argo could not create, such as by an exceeded quota."""
    uncreated = []
    for workflow in workflows:
        for node in (workflow.get("status", {}).get("nodes") or {}).values():
            if node.get("type") == "Pod" and node.get("phase") == "Pending" and node.get("message"):
                name = str(node.get("displayName", node.get("templateName", "step")))
                finding = refused(PodTask(name), name, (), str(node["message"]))
                uncreated += [finding] if finding and finding.cause in ("quota", "pod-security") else []
    return uncreated


def _again(pod: Manifest, jobs: dict[str, Manifest], nodes: set[str]) -> str:
    """Return a sentence on what restarts the work of a failed pod: its gang's Job, or Argo."""
    job = jobs.get(pod["metadata"].get("labels", {}).get(labels.JOB))
    if job and not _ends_job(job, pod):
        resumes = ", and training resumes from its last checkpoint" if task_of(pod).step == TRAIN else ""
        return f"Its Job replaces it{resumes}"
    return "It is retried" if argo.node_id(pod) in nodes else ""


def _ends_job(job: Manifest, pod: Manifest) -> bool:
    """Return True if the Job's podFailurePolicy fails the Job at this exit code. The first matching rule decides.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    disrupted, end = "DisruptionTarget" in conditions(pod), diagnose(pod).exit
    for rule in job["spec"].get("podFailurePolicy", {}).get("rules", []):
        if "onPodConditions" in rule and disrupted:
            return bool(rule["action"] == "FailJob")
        codes = rule.get("onExitCodes")
        if codes and end and (end.code in codes["values"]) == (codes["operator"] == "In"):
            return bool(rule["action"] == "FailJob")
    return False


def _ended_with_run(pod: Manifest, workflows: Sequence[Manifest], nodes: set[str]) -> bool:
    """Return True if the pod ended because its run was cancelled: it is one of `nodes`, or a failed driver.

    A killed driver has no message: Argo's executor in it ends with exit code 64.
    """
    failed_driver = task_of(pod).step == DRIVER and pod.get("status", {}).get("phase") == "Failed"
    return argo.node_id(pod) in nodes or (failed_driver and any(argo.cancelled(workflow) for workflow in workflows))


def _replaces(job: Manifest) -> bool:
    """Return True if the Job replaces a failed pod, which it does until it has ended."""
    ended = conditions(job).keys() & {"Failed", "FailureTarget", "Complete"}
    return not job["metadata"].get("deletionTimestamp") and not ended


def _pod_events(cluster: Cluster, pods: list[Manifest]) -> dict[str, list[Manifest]]:
    """Return the events of each of `pods` by its uid; those of many in one call, because each reads all events."""
    uids = [str(pod["metadata"]["uid"]) for pod in pods]
    if len(uids) <= _FEW_PODS:
        return {uid: _events(cluster, uid) for uid in uids}
    happened: dict[str, list[Manifest]] = {uid: [] for uid in uids}
    for event in _in_order(cluster.items("events", fields="involvedObject.kind=Pod")):
        if (uid := event.get("involvedObject", {}).get("uid")) in happened:
            happened[uid].append(event)
    return happened


def _admission(cluster: Cluster, pod: Manifest) -> str:
    """Return Kueue's reason not to admit `pod`, '' if it is unknown or may not be read."""
    try:
        return kueue.why_waiting(cluster, pod["metadata"]["uid"])
    except InfrastructureError:
        return ""


def _events(cluster: Cluster, uid: str) -> list[Manifest]:
    return _in_order(cluster.items("events", fields=f"involvedObject.uid={uid}"))


def _in_order(events: list[Manifest]) -> list[Manifest]:
    return sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


def _log(cluster: Cluster, pod: Manifest, silent_nodes: set[str]) -> str:
    """Return the end of the log of a pod that trains or failed, '' for any other.

    silent_nodes: nodes that do not answer, so that their logs cannot be read.
    """
    states = [status.get("state", {}) for status in pod.get("status", {}).get("containerStatuses", [])]
    trains = task_of(pod).step == TRAIN and any("running" in state for state in states)
    if not trains and not any((state.get("terminated") or {}).get("exitCode") for state in states):
        return ""
    if pod["spec"].get("nodeName") in silent_nodes:
        return ""
    ended = diagnose(pod).exit
    container = WAIT if ended and ended.container == WAIT else main_container(pod)
    try:
        return cluster.log(name_of(pod), container, _LOG_LINES)
    except TransientError:  # Kubernetes takes 40 s to notice that a node is silent
        return ""


def _allowed(cluster: Cluster, path: str) -> list[Manifest] | None:
    try:
        listed = cluster.get(path)
    except InfrastructureError:  # a user of one namespace may not read the whole cluster
        return None
    return list(listed["items"]) if listed else None
