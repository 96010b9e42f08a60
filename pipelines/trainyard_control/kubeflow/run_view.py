"""A run as a person looks at it: its state, its steps with their pods, and what is to be said of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from trainyard.contract import refusal
from trainyard.errors import ExitCode
from trainyard.graph import CHECK, OUTPUTS, SUMMARY
from trainyard_control.cluster.durations import seconds_between
from trainyard_control.cluster.explanation import Finding

OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"})
_ROUTINE = ("done", "running", "starting", "pulling", "scheduling", "ending")
_STATES = {"RUNNING": "running", "SUCCEEDED": "done", "SKIPPED": "done", "FAILED": "failed", "CANCELED": "failed"}
# A run for drift checks a second time, what it has preprocessed.
_ORDER = {name: index for index, name in enumerate([CHECK, OUTPUTS[0], f"{CHECK} 2", *OUTPUTS[1:], SUMMARY])}


@dataclass(frozen=True)
class StepView:
    """One step (or worker of a gang) by its newest pod; attempts counts its pods."""

    name: str
    state: str
    sentence: str
    cause: str
    pod: str
    node: str
    pool: str
    since: str
    seconds: float | None
    attempts: int
    code: ExitCode | None
    permanent: bool
    earlier: tuple[str, ...] = ()
    output: str = ""
    against_plan: str = ""


@dataclass(frozen=True)
class RunView:
    """One run. record is its run.json, None where that is not written yet or not readable from here.

    overdue: the deadline in seconds that ended it, None where none did.
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
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in OVER

    @property
    def exit_code(self) -> ExitCode:
        """The run's code in the one table: the one that its first failed step ended with."""
        if self.state in ("SUCCEEDED", "SKIPPED"):
            return ExitCode.DONE
        if self.state == "CANCELED":
            return ExitCode.INTERRUPTED
        if self.overdue:
            return ExitCode.INFRASTRUCTURE
        if self.record and self.record.get("exit_code") in set(ExitCode):
            return ExitCode(self.record["exit_code"])
        failed = [step for step in self.steps if step.state == "failed" and step.code is not None]
        return min(failed, key=_began).code or ExitCode.BUG if failed else ExitCode.TRANSIENT

    @property
    def refused(self) -> str:
        """Why the gate refused the model of a run that has ended; '' where it did not."""
        if self.state != "SUCCEEDED":
            return ""
        if self.record:
            return refusal.of_record(self.record)
        ran = {step.name for step in self.steps}
        if "evaluate" in ran and "push" not in ran:
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
        telling = [step for step in self.steps if step.state in ("failed", "waiting")]
        if telling:
            first = min(telling, key=_began)
            return f"{first.name} {first.sentence}"
        running = [step for step in self.steps if step.state == "running"]
        if running:
            return "; ".join(f"{step.name} {step.sentence}" for step in running)
        done = [step.name for step in self.steps]
        if done and not self.over:
            return f"{self.name}: {done[-1]} is done, and Kubeflow prepares what comes next"
        return f"{self.name}: {self.error or f'{self.state.lower()}, and it has no pods'}"

    def summary(self) -> dict[str, Any]:
        """Return what is known of a run whose steps were not looked at, as JSON has it."""
        names = ("run_id", "name", "state", "recipe", "environment", "created", "seconds", "error")
        return {name: getattr(self, name) for name in names}

    def document(self) -> dict[str, Any]:
        """Return the run as JSON has it."""
        code = int(self.exit_code) if self.over else None
        return asdict(self) | {"reason": self.reason, "refused": bool(self.refused), "exit_code": code}


def steps(findings: Iterable[Finding], now: datetime) -> tuple[StepView, ...]:
    """Return the steps that `findings` tell of, in the pipeline's order; drivers are left out unless they hold it up."""
    by_step: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda each: each.since):
        if finding.step != "driver" or finding.state == "failed" or finding.cause not in _ROUTINE:
            by_step.setdefault(finding.step, []).append(finding)
    views = [_step(name, found, now) for name, found in by_step.items()]
    return tuple(sorted(views, key=_place))


def steps_of_tasks(tasks: Iterable[Any], now: datetime) -> tuple[StepView, ...]:
    """Return the steps as Kubeflow's own API tells of them, for who may not read the pods: states without reasons."""
    found = {}
    for task in tasks:
        name = re.sub(r"-(\d+)$", r" \1", str(task.display_name))
        state = _STATES.get(str(task.state), "waiting")
        if name not in _ORDER:
            continue
        start, end = _text(task.start_time), _text(task.end_time)
        said = " ".join(str(task.error.message).split()) if task.error and task.error.message else ""
        found[name] = StepView(
            name=name,
            state=state,
            sentence=said or f"is {str(task.state).lower()} by Kubeflow, which says no more",
            cause=str(task.state).lower(),
            pod="",
            node="",
            pool="",
            since=start,
            seconds=seconds_between(start, end or now.isoformat()),
            attempts=1,
            code=None,
            permanent=False,
        )
    return tuple(found[name] for name in sorted(found, key=lambda each: _ORDER[each]))


def with_podless(found: tuple[StepView, ...], told: tuple[StepView, ...]) -> tuple[StepView, ...]:
    """Return the steps `found` by their pods, and of those that Kubeflow told of the ones that are done without any.

    All that Kubeflow told of where no pod was found.
    """
    if not found:
        return told
    known = {view.name.partition(" worker")[0] for view in found}
    sentence = "done, and has no pod: an earlier run's output was taken, or the pod is gone"
    rest = [replace(view, sentence=sentence) for view in told if view.cause == "succeeded" and view.name not in known]
    return tuple(sorted([*found, *rest], key=_place))


def _step(name: str, found: list[Finding], now: datetime) -> StepView:
    newest = found[-1]
    return StepView(
        name=name,
        state=newest.state,
        sentence=newest.sentence,
        cause=newest.cause,
        pod=newest.pod,
        node=newest.node,
        pool=newest.pool,
        since=newest.since,
        seconds=seconds_between(newest.since, newest.until or now.isoformat()),
        attempts=len(found),
        code=newest.code,
        permanent=newest.permanent,
        against_plan=newest.against_plan,
        earlier=tuple(f"{each.pod} {each.sentence}" for each in found[:-1] if each.state == "failed"),
    )


def with_outputs(views: tuple[StepView, ...], folders: dict[str, str]) -> tuple[StepView, ...]:
    """Return the steps with the folders of their outputs."""
    return tuple(replace(view, output=folders.get(view.name, "")) for view in views)


def _place(step: StepView) -> tuple[int, str]:
    return _ORDER.get(step.name.partition(" worker")[0], len(_ORDER)), step.name


def _began(step: StepView) -> str:
    return step.since


def _text(moment: datetime | None) -> str:
    """Return a time of Kubeflow's API, which writes the first second of 1970 for none."""
    return moment.isoformat() if moment and moment.year > 1970 else ""
