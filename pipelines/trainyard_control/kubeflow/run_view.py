"""A run as a person looks at it: its state, its steps with their pods, causes and sentences, and what they cost.

A step holds a machine from when a node takes its pod until the pod's last container ends, in all attempts that
Kubernetes still knows, including the pull of its image. Prices are those that environment and catalog have now. A step
pays for its whole node, whoever else is on it.

Not counted: nodes that start or stand idle, storage, network, a Beam runner elsewhere, Kubeflow's own pods, and the pod
that waits for a gang.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from trainyard.contract import refusal
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.training import gang
from trainyard.contract.training.input_workers import usd_per_hour
from trainyard.errors import ExitCode, known_code
from trainyard.graph import STEPS, readers
from trainyard.kubernetes.diagnosis import DRIVER, PodTask, State
from trainyard.spec.environment import Environment
from trainyard.spec.hardware import machines
from trainyard_control.cluster.durations import seconds_between
from trainyard_control.cluster.explanation import Finding
from trainyard_control.planning.choice import usd
from trainyard_control.planning.expectation import Expectation

CACHED = "cached"
"""The cause of a step that needed no pod, for an earlier output was taken."""

OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"})
_ROUTINE = ("done", "running", "starting", "pulling", "scheduling", "ending")
_STATES: dict[str, State] = {
    "PENDING": "waiting",
    "PAUSED": "waiting",
    "CANCELING": "running",
    "RUNNING": "running",
    "SUCCEEDED": "done",
    "FAILED": "failed",
    "CANCELED": "failed",
}
_TASKS = tuple(
    task
    for name in STEPS
    for task in (PodTask(name), *(PodTask(other, use="2") for other, step in STEPS.items() if step.again_after == name))
)


@dataclass(frozen=True)
class Cost:
    """USD at list price, None if a pool has no price: those are `unpriced`.

    at_most: some of the time may have gone by before a node was there. so_far: it grows on.
    """

    usd: float | None
    at_most: bool = False
    so_far: bool = False
    unpriced: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.usd is None:
            return "no price"
        return f"{'at most ' if self.at_most else ''}{usd(self.usd)}{' so far' if self.so_far else ''}"


@dataclass(frozen=True)
class StepView(Finding):
    """One step (or worker of a gang) by what its newest pod shows; attempts counts its pods.

    earlier: pod and sentence of each attempt that failed before.
    seconds: from when its first pod was made, or its task began at Kubeflow, until the newest one ended.
    machine_seconds: how long all of them had a node, or if Kubeflow alone tells of the step, how long that took.
    cost: None if it is not known, or another step's.
    """

    seconds: float | None = None
    attempts: int = 1
    earlier: tuple[tuple[str, str], ...] = ()
    output: str = ""
    machine_seconds: float = 0.0
    cost: Cost | None = None

    @property
    def going_on(self) -> bool:
        """Whether it may take a node, or has one."""
        return self.state in ("running", "waiting")

    def document(self) -> dict[str, Any]:
        """Return the step as JSON has it."""
        fields = asdict(self) | {"earlier": [f"{pod} {sentence}" for pod, sentence in self.earlier]}
        return {"name": self.name} | {name: fields[name] for name in fields if name not in ("task", "started", "until")}


@dataclass(frozen=True)
class RunView:
    """One run. record is its run.json, None if that is not written yet or not readable from here.

    overdue: the deadline in seconds that ended it, None if none did. expected: of its training, by the plan.
    stuck: why the run makes no progress although no step says so, '' if unknown.
    """

    run_id: str
    name: str
    state: str
    recipe: str
    environment: str
    created: str
    seconds: float | None
    steps: tuple[StepView, ...] = ()
    record: dict[str, Any] | None = None
    error: str = ""
    overdue: int | None = None
    stuck: str = ""
    expected: Expectation | None = None
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in OVER

    @property
    def idle(self) -> bool:
        """Whether it is not over, and no step runs, waits or failed: Kubeflow is to start the next one."""
        return not self.over and all(step.state == "done" for step in self.steps)

    @property
    def cost(self) -> Cost | None:
        """What all its steps cost, None if nothing is known of any."""
        return total_cost(step.cost for step in self.steps)

    @property
    def exit_code(self) -> ExitCode:
        """The run's code in the one table: the one that its first failed step ended with."""
        if self.state in ("SUCCEEDED", "SKIPPED"):
            return ExitCode.DONE
        if self.state == "CANCELED":
            return ExitCode.INTERRUPTED
        if self.overdue:
            return ExitCode.INFRASTRUCTURE
        if (code := known_code((self.record or {}).get("exit_code"), None)) is not None:
            return code
        failed = [step for step in self.steps if step.state == "failed" and step.code is not None]
        return min(failed, key=lambda step: step.since).code or ExitCode.BUG if failed else ExitCode.TRANSIENT

    @property
    def refused(self) -> str:
        """Why the gate refused the model of a run that has ended; '' if it did not."""
        if self.state != "SUCCEEDED":
            return ""
        if self.record:
            return refusal.of_record(self.record)
        ran = {step.name for step in self.steps}
        if Evaluation.made_by in ran and not ran & readers(Evaluation.made_by):
            return "its record cannot be read from here; the log of evaluate and the report say why"
        return ""

    @property
    def reason(self) -> str:
        """One sentence: why the run is not done, or how it ended."""
        if self.state == "SUCCEEDED" and self.record and self.record.get("not_due"):
            return f"{self.name} had nothing to train: {self.record['not_due']}"
        if self.refused:
            return f"{self.name} has ended: {refusal.SENTENCE} ({self.refused})"
        if self.state in ("SUCCEEDED", "CANCELED"):
            return f"{self.name} {'has succeeded' if self.state == 'SUCCEEDED' else 'was cancelled'}"
        if self.overdue:
            begun = ", ".join(step.name for step in self.steps if step.state != "done") or "none"
            return (
                f"{self.name}: took more than the {self.overdue} s that a run may (unfinished: {begun}). Raise "
                "deadline_seconds in the environment, and submit again: what is finished is used again"
            )
        if self.over and self.record and self.record.get("failure"):
            return f"{self.name}: {str(self.record['failure']).rstrip('.')}"
        troubled = [step for step in self.steps if step.state in ("failed", "waiting")]
        if troubled:
            first = min(troubled, key=lambda step: step.since)
            return f"{first.name} {first.sentence}"
        if running := [step for step in self.steps if step.state == "running"]:
            return "; ".join(_running(running))
        if self.stuck:
            return f"{self.name}: {self.stuck}"
        done = [step.name for step in self.steps]
        if done and not self.over:
            return f"{self.name}: {done[-1]} is done, and Kubeflow prepares what comes next"
        return f"{self.name}: {self.error or f'{self.state.lower()}, and it has no pods'}"

    def summary(self) -> dict[str, Any]:
        """Return what is known of a run whose pods were not looked at, as JSON has it."""
        names = ("run_id", "name", "state", "recipe", "environment", "created", "seconds", "error")
        return {name: getattr(self, name) for name in names} | self._cost()

    def document(self) -> dict[str, Any]:
        """Return the run as JSON has it."""
        code = int(self.exit_code) if self.over else None
        return asdict(self) | {
            **self._cost(),
            "steps": [step.document() for step in self.steps],
            "reason": self.reason,
            "refused": bool(self.refused),
            "exit_code": code,
        }

    def _cost(self) -> dict[str, Any]:
        return {"cost": asdict(self.cost) if self.cost else None}


def steps(findings: Iterable[Finding], now: datetime) -> tuple[StepView, ...]:
    """Return the steps of `findings` in the pipeline's order; drivers are left out unless they hold it up."""
    by_task: dict[PodTask, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.since):
        if finding.task.step != DRIVER or finding.state == "failed" or finding.cause not in _ROUTINE:
            by_task.setdefault(finding.task, []).append(finding)
    views = [_step(task_findings, now) for task_findings in by_task.values()]
    return tuple(sorted(views, key=_order))


def steps_of_tasks(tasks: Iterable[Any], now: datetime) -> tuple[StepView, ...]:
    """Return the steps as Kubeflow's own API has them, for those who may not read pods: states without reasons.

    A step that a condition left out is none, nor is one whose upstream failed.
    """
    views = {}
    for task in tasks:
        known = _task_of(str(task.display_name))
        if known not in _TASKS or str(task.state) not in _STATES:  # a task that Argo omitted has no state
            continue
        start, end = _text(task.start_time), _text(task.end_time)
        seconds = seconds_between(start, end or now.isoformat())
        message = " ".join(str(task.error.message).split()) if task.error and task.error.message else ""
        views[known] = StepView(
            task=known,
            pod="",
            state=_STATES[str(task.state)],
            cause=str(task.state).lower(),
            sentence=message or f"is {str(task.state).lower()} by Kubeflow, which says no more",
            since=start,
            seconds=seconds,
            machine_seconds=seconds or 0.0,
        )
    return tuple(views[known] for known in sorted(views, key=_TASKS.index))


def with_podless(
    by_pod: tuple[StepView, ...], by_task: tuple[StepView, ...], cached: Iterable[str] = ()
) -> tuple[StepView, ...]:
    """Return the steps `by_pod` by their pods, and of Kubeflow's `by_task` those that are done without a pod.

    If no pod is left, all of Kubeflow's. cached: the tasks that needed none, by their names at Kubeflow.
    """
    taken = {_task_of(name) for name in cached}
    known = {replace(view.task, worker="") for view in by_pod}
    views = list(by_pod)
    for view in by_task:
        if view.task in taken - known:
            sentence = "done, and nothing ran: an earlier run's output was taken"
            views.append(replace(view, cause=CACHED, sentence=sentence, machine_seconds=0.0))
        elif not by_pod:
            views.append(view)
        elif view.cause == "succeeded" and view.task not in known:
            sentence = "done, and has no pod: an earlier run's output was taken, or the pod is gone"
            views.append(replace(view, sentence=sentence))
    return tuple(sorted(views, key=_order))


def with_lost_attempts(views: tuple[StepView, ...], by_task: tuple[StepView, ...]) -> tuple[StepView, ...]:
    """Return `views` with the time of attempts whose pods are gone, as Kubeflow's tasks have it."""
    lasted = {view.task: view.seconds for view in by_task if view.seconds is not None}
    return tuple(
        replace(view, seconds=max(view.seconds, lasted.get(view.task, 0.0))) if view.seconds is not None else view
        for view in views
    )


def _running(steps: list[StepView]) -> list[str]:
    """Return a sentence for each step; the workers of a gang say what its launcher says, so they are only named."""
    launchers = {step.task.step for step in steps if not step.task.worker}
    sentences = []
    for step in steps:
        if step.task.worker and step.task.step in launchers:
            continue
        workers = [other for other in steps if other.task.worker and other.task.step == step.task.step]
        nodes = ", ".join(f"{worker.name} on {worker.node}" for worker in workers if worker is not step)
        sentences.append(f"{step.name} {step.sentence}" + (f" ({nodes})" if nodes and not step.task.worker else ""))
    return sentences


def _task_of(name: str) -> PodTask:
    """Return the task that KFP shows as `name`, such as `check-2` for the second of one component."""
    step, _, use = name.partition("-")
    return PodTask(step, use)


def _step(findings: list[Finding], now: datetime) -> StepView:
    newest = findings[-1]
    return StepView(
        **vars(newest),
        seconds=seconds_between(findings[0].since, newest.until or now.isoformat()),
        attempts=len(findings),
        machine_seconds=round(sum(_machine_seconds(finding, now) for finding in findings), 1),
        earlier=tuple((finding.pod, finding.sentence) for finding in findings[:-1] if finding.state == "failed"),
    )


def _machine_seconds(finding: Finding, now: datetime) -> float:
    """Return how long a node had the pod; clocks may differ."""
    return max(0.0, seconds_between(finding.started, finding.until or now.isoformat()) or 0.0)


def _order(step: StepView) -> tuple[int, str]:
    task = replace(step.task, worker="")
    if task not in _TASKS:  # input workers stand beside the step that they feed
        task = replace(task, use="")
    return _TASKS.index(task) if task in _TASKS else len(_TASKS), step.name


def _text(moment: datetime | None) -> str:
    """Return a time of Kubeflow's API, which writes the first second of 1970 for none."""
    return moment.isoformat() if moment and moment.year > 1970 else ""


def step_cost(step: StepView, environment: Environment, ours: bool, task_seconds: float) -> Cost | None:
    """Return what the machines of the step cost, None of a pod that another step pays for, or that was never placed.

    ours: the run says that it is of `environment`; of another's pipeline the labels of its pods alone are known.
    task_seconds: from start to end by Kubeflow.

    A gang is gone with its Job when its launcher ends, and may outlive that launcher's pod. So it is taken to last,
    with its input workers, as long as Kubeflow's task: at most, for it may wait for its nodes. So may a step of which
    Kubeflow alone tells, and not its pods.
    """
    launches = ours and step.task == PodTask(gang.STEP) and gang.launches(environment)
    placed = environment.pool_name(step.task.step) if ours else ""
    name = step.pool if step.pod and not launches else placed
    if step.task.worker or not name:
        return None
    at_most, so_far = launches or not step.pod, step.going_on
    seconds = max(step.machine_seconds, task_seconds if launches and step.cause != CACHED else 0.0)
    if not seconds:
        return Cost(0.0, so_far=so_far)
    feeding = [environment.input_workers.pool] if launches and environment.input_workers else []
    prices = {pool: _usd_per_hour(pool, environment) for pool in [name, *feeding]}
    if unpriced := tuple(pool for pool, price in prices.items() if price is None):
        return Cost(None, at_most, so_far, unpriced)
    hourly = usd_per_hour(environment, environment.pools[name]) if launches else prices[name]
    return Cost(_rounded(seconds / 3600 * (hourly or 0.0)), at_most, so_far)


def total_cost(costs: Iterable[Cost | None]) -> Cost | None:
    """Return the sum of those that are one, None if none is."""
    known = [cost for cost in costs if cost]
    if not known:
        return None
    unpriced = tuple(dict.fromkeys(pool for cost in known for pool in cost.unpriced))
    dollars = None if unpriced else _rounded(sum(cost.usd or 0.0 for cost in known))
    return Cost(dollars, any(cost.at_most for cost in known), any(cost.so_far for cost in known), unpriced)


def _usd_per_hour(name: str, environment: Environment) -> float | None:
    """Return what an hour of one node of the pool costs, None if it has no price, or if it is there no more."""
    pool = environment.pools.get(name)
    price = machines.price(pool, environment.platform) if pool else None
    return price.usd_per_hour if price else None


def _rounded(dollars: float) -> float:
    return float(f"{dollars:.4g}")
