"""The view of a run: its state, its steps with their pods, causes and sentences, and their cost.

A step holds a machine from when a node takes its pod until the pod's last container ends, in all attempts that
Kubernetes still knows, including the pull of its image. Prices are the current ones of environment and catalog. A step
pays for its whole node, even if it shares it.

A running gang costs the time that its pods have had nodes. An ended one, whose pods are gone, costs what its launcher
noted, otherwise at most all of its workers for as long as its launcher ran.

Not counted: nodes that start or stand idle, storage, network, a Beam runner elsewhere, Kubeflow's own pods, and the pod
that waits for a gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from trainyard.contract import gang
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.gate import REFUSED, recorded_refusal
from trainyard.errors import ExitCode, TrainyardError, from_code, known_code
from trainyard.graph import STEPS, readers
from trainyard.kubernetes import labels
from trainyard.kubernetes.diagnosis import DRIVER, PodTask, State
from trainyard.measured import seconds_between
from trainyard.spec.environment import Environment
from trainyard.spec.hardware import machines
from trainyard_control.cluster.explanation import Finding
from trainyard_control.planning.expectation import Expectation
from trainyard_control.planning.plan import usd

CACHED = "cached"
"""The cause of a step that needed no pod, because an earlier output was reused."""

OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"})
STATES = ("pending", "running", "paused", "canceling", *sorted(state.lower() for state in OVER))
"""Of runs, by which they are listed."""
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
    """Cost in USD at list price, None if one of its pools has no price: see `unpriced`.

    at_most: the time may include waiting for a node. so_far: it still grows.
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
    """A step (or worker of a gang) by its newest pod. attempts: number of its pods.

    earlier: pod and sentence of each earlier failed attempt. seconds: from the creation of its first pod, or the start
    of its task at Kubeflow, to the end of the newest. machine_seconds: how long all of its pods had a node; if only
    Kubeflow knows the step, how long its task took. cost: None if it is not known, or part of another step's.
    """

    seconds: float | None = None
    attempts: int = 1
    earlier: tuple[tuple[str, str], ...] = ()
    output: str = ""
    machine_seconds: float = 0.0
    cost: Cost | None = None

    @property
    def active(self) -> bool:
        """True if it runs or waits."""
        return self.state in ("running", "waiting")

    def document(self) -> dict[str, Any]:
        """Return the JSON fields of the step."""
        fields = asdict(self) | {"earlier": [f"{pod} {sentence}" for pod, sentence in self.earlier]}
        return {"name": self.name} | {name: fields[name] for name in fields if name not in ("task", "started", "until")}


@dataclass(frozen=True)
class RunView:
    """A run. record: its run.json, None if it does not exist yet or cannot be read from here.

    overdue: the deadline in seconds that ended it, None if none did. expected: the plan's forecast of its training.
    stuck: why the run makes no progress although no step says so, '' if unknown. uploads: the paths that were uploaded
    for it, by recipe key.
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
    uploads: dict[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """True if the run has ended."""
        return self.state in OVER

    @property
    def idle(self) -> bool:
        """True if no step runs, waits or failed before the run's end: Kubeflow should start the next one."""
        return not self.over and all(step.state == "done" for step in self.steps)

    @property
    def cost(self) -> Cost | None:
        """The cost of all steps, None if nothing is known."""
        return total_cost(step.cost for step in self.steps)

    @property
    def exit_code(self) -> ExitCode:
        """The run's exit code: that of its first failed step."""
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
    def failure(self) -> TrainyardError | None:
        """The error of an ended run, with its exit code; None if it succeeded."""
        code = self.exit_code
        return from_code(code, f"{self.reason.rstrip('.')}.") if self.over and code else None

    @property
    def refused(self) -> str:
        """The reason of the gate's refusal of an ended run; '' if it did not refuse."""
        if self.state != "SUCCEEDED":
            return ""
        if self.record:
            return recorded_refusal(self.record)
        ran = {step.name for step in self.steps}
        if Evaluation.made_by in ran and not ran & readers(Evaluation.made_by):
            return "its record cannot be read from here; the log of evaluate and the report say why"
        return ""

    @property
    def reason(self) -> str:
        """One sentence on why the run is not done, or how it ended."""
        if self.state == "SUCCEEDED" and self.record and self.record.get("not_due"):
            return f"{self.name} had nothing to train: {self.record['not_due']}"
        if self.refused:
            return f"{self.name} has ended: {REFUSED} ({self.refused})"
        if self.state in ("SUCCEEDED", "CANCELED"):
            return f"{self.name} {'has succeeded' if self.state == 'SUCCEEDED' else 'was cancelled'}"
        if self.overdue:
            begun = ", ".join(step.name for step in self.steps if step.state != "done") or "none"
            return (
                f"{self.name}: took more than the {self.overdue} s that a run may (unfinished: {begun}). Raise "
                "deadline_seconds in the environment, and submit again: finished steps are reused"
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
        """Return the JSON fields of a run whose pods were not read."""
        names = ("run_id", "name", "state", "recipe", "environment", "created", "seconds", "error")
        return {name: getattr(self, name) for name in names} | {"cost": self.cost and asdict(self.cost)}

    def document(self) -> dict[str, Any]:
        """Return the JSON fields of the run."""
        code = int(self.exit_code) if self.over else None
        return asdict(self) | {
            "cost": self.cost and asdict(self.cost),
            "steps": [step.document() for step in self.steps],
            "reason": self.reason,
            "refused": bool(self.refused),
            "exit_code": code,
        }


def steps(findings: Iterable[Finding], now: datetime) -> tuple[StepView, ...]:
    """Convert `findings` to steps in the pipeline's order. Drivers are left out unless they hold the run up."""
    by_task: dict[PodTask, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.since):
        if finding.task.step != DRIVER or finding.state == "failed" or finding.cause not in _ROUTINE:
            by_task.setdefault(finding.task, []).append(finding)
    views = [_step(task_findings, now) for task_findings in by_task.values()]
    return tuple(sorted(views, key=_order))


def steps_of_tasks(tasks: Iterable[Any], now: datetime) -> tuple[StepView, ...]:
    """Convert Kubeflow's tasks to steps, for callers that may not read pods: states without reasons.

    Steps that a condition skipped, or whose upstream failed, are left out.
    """
    views = {}
    for task in tasks:
        known = _parse_task(str(task.display_name))
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
            sentence=message or f"is {str(task.state).lower()} according to Kubeflow, which gives no reason",
            since=start,
            seconds=seconds,
            machine_seconds=seconds or 0.0,
        )
    return tuple(views[known] for known in sorted(views, key=_TASKS.index))


def with_podless(
    by_pod: tuple[StepView, ...], by_task: tuple[StepView, ...], cached: Iterable[str] = ()
) -> tuple[StepView, ...]:
    """Merge the steps `by_pod` with those of Kubeflow's `by_task` that are done without a pod.

    If no pod is left, all tasks count. cached: the tasks that needed no pod, by their names at Kubeflow.
    """
    cached_tasks = {_parse_task(name) for name in cached}
    known = {replace(view.task, worker="") for view in by_pod}
    views = list(by_pod)
    for view in by_task:
        if view.task in cached_tasks - known:
            sentence = "done without a pod: an earlier run's output was reused"
            views.append(replace(view, cause=CACHED, sentence=sentence, machine_seconds=0.0))
        elif not by_pod:
            views.append(view)
        elif view.cause == "succeeded" and view.task not in known:
            sentence = "done, and has no pod: an earlier run's output was reused, or the pod is gone"
            views.append(replace(view, sentence=sentence))
    return tuple(sorted(views, key=_order))


def with_lost_attempts(views: tuple[StepView, ...], by_task: tuple[StepView, ...]) -> tuple[StepView, ...]:
    """Extend the durations of `views` by attempts whose pods are gone, as Kubeflow's tasks have them."""
    lasted = {view.task: view.seconds for view in by_task if view.seconds is not None}
    return tuple(
        replace(view, seconds=max(view.seconds, lasted.get(view.task, 0.0))) if view.seconds is not None else view
        for view in views
    )


def _running(steps: list[StepView]) -> list[str]:
    """Return a sentence for each step; workers of a gang are only named, because the launcher reports for them."""
    launchers = {step.task.step for step in steps if not step.task.worker}
    sentences = []
    for step in steps:
        if step.task.worker and step.task.step in launchers:
            continue
        workers = [other for other in steps if other.task.worker and other.task.step == step.task.step]
        nodes = ", ".join(f"{worker.name} on {worker.node}" for worker in workers if worker is not step)
        sentences.append(f"{step.name} {step.sentence}" + (f" ({nodes})" if nodes and not step.task.worker else ""))
    return sentences


def _parse_task(name: str) -> PodTask:
    """Parse the task name of KFP, such as `check-2` for the second task of one component."""
    step, _, use = name.partition("-")
    return PodTask(step, use)


def _step(findings: list[Finding], now: datetime) -> StepView:
    newest = findings[-1]
    held = (seconds_between(finding.started, finding.until or now.isoformat()) or 0.0 for finding in findings)
    return StepView(
        **vars(newest),
        seconds=seconds_between(findings[0].since, newest.until or now.isoformat()),
        attempts=len(findings),
        machine_seconds=round(sum(max(0.0, seconds) for seconds in held), 1),  # clocks differ
        earlier=tuple((finding.pod, finding.sentence) for finding in findings[:-1] if finding.state == "failed"),
    )


def _order(step: StepView) -> tuple[int, str]:
    task = replace(step.task, worker="")
    if task not in _TASKS:  # input workers are listed with their step
        task = replace(task, use="")
    return _TASKS.index(task) if task in _TASKS else len(_TASKS), step.name


def _text(moment: datetime | None) -> str:
    """Format a time of Kubeflow's API, '' for the first second of 1970, which stands for none."""
    return moment.isoformat() if moment and moment.year > 1970 else ""


def with_attempts(
    step: StepView,
    attempts: Sequence[dict[str, Any]],
    environment: Environment,
    pods: Sequence[StepView],
    now: datetime,
) -> StepView:
    """Return a step of a run with steps on lists of pools.

    The pod that launches such a step has the earlier pools and their cost; a waiting worker has the next pool.
    attempts: those of all steps, each as `StepTask.note_attempts`. A pool costs the time of its running workers at the
    price when the run was submitted. pods: those of its gang, for what it costs until `now` since the last note.
    """
    attempts = [each for each in attempts if each.get("step", gang.STEP) == step.task.step]
    if not attempts or (step.task.worker and step.state != "waiting"):
        return step
    if step.task.worker:
        pool, names = attempts[-1]["pool"], environment.pool_names(step.task.step)
        if pool not in names[:-1]:
            return step
        after = f"{environment.pools[pool].pending_seconds} s without a node"
        sentence = f"{step.sentence.rstrip('.')}. After {after} the pool {names[names.index(pool) + 1]} is tried"
        return replace(step, sentence=sentence)
    passed = tuple((f"pool {each['pool']}", each["why"]) for each in attempts if each["why"])
    unpriced = tuple(each["pool"] for each in attempts if each["cost_usd"] is None)
    costs = [each["cost_usd"] or 0.0 for each in attempts]
    if step.active and pods:
        since = attempts[-1].get("seen")
        whole, later = (_pods_cost(each, environment) for each in (pods, _since(pods, since, now)))
        unpriced = tuple(dict.fromkeys((*unpriced, *whole.unpriced)))
        costs[-1] = max(whole.usd or 0.0, costs[-1] + (later.usd or 0.0))  # lost pods are in the note alone
    dollars = None if unpriced else _rounded(sum(costs))
    return replace(step, earlier=(*step.earlier, *passed), cost=Cost(dollars, so_far=step.active, unpriced=unpriced))


def gang_pods(step: StepView, views: Iterable[StepView]) -> list[StepView]:
    """Return the pods of the gang of `step`, with its input workers."""
    return [view for view in views if view.task.worker and view.task.step == step.task.step]


def _since(pods: Sequence[StepView], seen: float | None, now: datetime) -> list[StepView]:
    """Return `pods` with the time that each has had a node since `seen`, in Unix time; none if it is not known."""
    if seen is None:
        return []
    start = datetime.fromtimestamp(seen, UTC).isoformat()

    def seconds(pod: StepView) -> float:
        later = max(pod.started, start, key=datetime.fromisoformat)
        return max(0.0, seconds_between(later, pod.until or now.isoformat()) or 0.0)

    return [replace(pod, machine_seconds=seconds(pod)) for pod in pods if pod.started]


def _pods_cost(pods: Iterable[StepView], environment: Environment) -> Cost:
    """Compute the cost of a gang's `pods`; at most if the pool of one is not known, and the most expensive is taken."""
    dollars, at_most, unpriced = 0.0, False, dict[str, None]()
    inputs = environment.input_workers
    for pod in (each for each in pods if each.started):
        fed = pod.task.use == labels.INPUT
        listed = [inputs.pool if inputs else ""] if fed else environment.pool_names(pod.task.step)
        names = [pod.pool] if pod.pool else [name for name in listed if name]
        prices = {name: _usd_per_hour(name, environment) for name in names}
        unpriced |= dict.fromkeys(name for name, price in prices.items() if price is None)
        at_most = at_most or len(names) > 1
        dollars += pod.machine_seconds / 3600 * max((price or 0.0 for price in prices.values()), default=0.0)
    return Cost(None if unpriced else _rounded(dollars), at_most, so_far=True, unpriced=tuple(unpriced))


def step_cost(
    step: StepView, environment: Environment, ours: bool, task_seconds: float, pods: Sequence[StepView] = ()
) -> Cost | None:
    """Compute the cost of a step, None if another step pays for the pod or it was never placed.

    ours: the run names `environment`; for other pipelines only the labels of the pods are known. task_seconds: duration
    of Kubeflow's task. pods: those of its gang.

    A gang that runs costs the time of its `pods`. It is deleted with its Job when its launcher ends, and may outlive
    the launcher's pod. So an ended one counts, with its input workers, for the duration of Kubeflow's task: at most,
    because it may wait for nodes. The same holds for earlier attempts of the launcher, and for a step that only
    Kubeflow reports. On a list of pools whose attempts are not known here (`with_attempts`), it counts on the most
    expensive.
    """
    step_name = step.task.step
    launches = ours and step.task == PodTask(step_name) and gang.launches(environment, step_name)
    placed = environment.pool_name(step_name) if ours else ""
    name = step.pool if step.pod and not launches else placed
    if step.task.worker or not name:
        return None
    at_most, so_far = launches or not step.pod, step.active
    seconds = max(step.machine_seconds, task_seconds if launches and step.cause != CACHED else 0.0)
    running = _pods_cost(pods, environment) if launches and step.pod and step.active else None
    if running:
        before = (step.seconds or 0.0) - max((pod.seconds or 0.0 for pod in pods), default=0.0)
        seconds = before if step.attempts > 1 else 0.0
    if running and (running.unpriced or seconds <= 0):
        return running
    if not seconds:
        return Cost(0.0, so_far=so_far)
    inputs = environment.input_workers if launches and step_name == gang.STEP else None
    input_pools = [inputs.pool] if inputs else []
    pools = environment.pool_names(step_name) if launches else [name]
    prices = {pool: _usd_per_hour(pool, environment) for pool in [*pools, *input_pools]}
    if unpriced := tuple(pool for pool, price in prices.items() if price is None):
        return Cost(None, at_most, so_far, unpriced)
    hourly = [
        gang.hourly_price(environment, step_name, environment.pools[pool]) if launches else prices[pool]
        for pool in pools
    ]
    dollars = seconds / 3600 * max(each or 0.0 for each in hourly)
    return Cost(_rounded(dollars + (running.usd or 0.0 if running else 0.0)), at_most, so_far)


def total_cost(costs: Iterable[Cost | None]) -> Cost | None:
    """Sum the known costs, None if there is none."""
    known = [cost for cost in costs if cost]
    if not known:
        return None
    unpriced = tuple(dict.fromkeys(pool for cost in known for pool in cost.unpriced))
    dollars = None if unpriced else _rounded(sum(cost.usd or 0.0 for cost in known))
    return Cost(dollars, any(cost.at_most for cost in known), any(cost.so_far for cost in known), unpriced)


def _usd_per_hour(name: str, environment: Environment) -> float | None:
    """Return the hourly price of a node of the pool, None if it has no price or no longer exists."""
    pool = environment.pools.get(name)
    price = machines.price(pool, environment.platform) if pool else None
    return price.usd_per_hour if price else None


def _rounded(dollars: float) -> float:
    return float(f"{dollars:.4g}")
