"""Explains why a pod of a run waits, failed or was deleted, or what its training waits for, and the next thing to do.

Pure functions over logs and objects of the Kubernetes API, for the pods of Kubeflow's runs and of gangs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard import events
from trainyard.contract.artifacts.train import Straggler
from trainyard.contract.gang import input_workers_needed
from trainyard.errors import ExitCode, known_code
from trainyard.kubernetes import kueue, labels
from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.diagnosis import (
    DRIVER,
    WAIT,
    Diagnosis,
    Exit,
    PodTask,
    State,
    conditions,
    diagnose,
    disruption,
    has_run,
    main_container,
    name_of,
    one_line,
    task_of,
)
from trainyard.measured import duration_text
from trainyard.process import memory
from trainyard_control.cluster import argo
from trainyard_control.cluster.scheduling import Obstacle, find_obstacle, placement_key
from trainyard_control.planning.expectation import Expectation

_ADVICE = {
    ExitCode.USAGE: "This is a fault of Trainyard: report it with the log",
    ExitCode.DATA: "Fix the data or its description in the recipe, and {again}",
    ExitCode.CONFIGURATION: "Correct the recipe or the environment, and {again}",
    ExitCode.TRANSIENT: "{Again}: finished steps are reused",
    ExitCode.INFRASTRUCTURE: "Provide what is missing (disk, permission or device), and {again}",
    ExitCode.BUG: "Read the log (trainyard runs logs); it is a fault of Trainyard or of the recipe's module",
    ExitCode.REFUSED: "The gate refused the model: see the report",
    ExitCode.PEER_LOST: "{Again}: training resumes from its last checkpoint",
    ExitCode.PREEMPTED: "{Again}: training resumes from its last checkpoint",
}
# Chosen: shares of the time above which something needs attention. The input's share comes from a pair of steps, which
# vary.
_INPUT = 0.25
_ALL_REDUCE = 0.3
_SAVE = 0.1
_EVAL = 0.3
# Required fields of a pace event; events of other versions are ignored.
_FIELDS = ("step", "steps", "examples_per_second", "step_ms", "prefetched_step_ms", "all_reduce_ms")
_TIMES = ("save_seconds", "eval_seconds")
QUEUED = "queued"
"""The cause of a pod that waits in a queue of Kueue."""
_KUBEFLOWS_OWN = (
    "This container is Kubeflow's, and neither recipe nor environment names it: show this to the administrators of "
    "Kubeflow"
)
# Events after which an earlier pace says nothing: the training starts again, or is done.
_STARTS = ("launched", "pool_passed_over", "restarting", "started_together", "training", "resumed", "trained")
# Events of a team that trains or is about to.
_TRAINS = ("pace", "progress", "started_together", "training", "resumed")


def advice(code: ExitCode, again: str = "submit again") -> str:
    """Return the advice for exit code `code`, without a full stop. again: how to repeat the run."""
    return _ADVICE.get(code, "").format(again=again, Again=again.capitalize())


@dataclass(frozen=True)
class Evidence:
    """The evidence about one pod. nodes and pods are None if they may not be listed, expected without a
    plan.

    run_ends: the run's deadline, '' without one. stop_reason: Argo's reason to start no further attempt. again: a
    sentence on what restarts the work of a failed pod, '' if nothing does. cancelled: it ended because its run was
    cancelled. queue: why Kueue does not admit it, '' if that is unknown. obstacles: those found before between `nodes`
    and other pods, by their `placement_key`.
    """

    pod: Manifest
    events: Sequence[Manifest] = ()
    nodes: list[Manifest] | None = None
    pods: list[Manifest] | None = None
    log: str = ""
    expected: Expectation | None = None
    run_ends: str = ""
    stop_reason: str = ""
    again: str = ""
    cancelled: bool = False
    queue: str = ""
    obstacles: dict[str, Obstacle | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """The explanation of one pod. code: its exit code, None while it waits, runs or is done.

    cause is for programs, sentence for people. permanent: waiting does not help. against_plan: slower or faster than
    the plan expected, '' for neither. since: creation of the pod. started: when a node took it, '' if none did.
    """

    task: PodTask
    pod: str
    state: State
    cause: str
    sentence: str
    since: str = ""
    started: str = ""
    until: str = ""
    node: str = ""
    pool: str = ""
    code: ExitCode | None = None
    permanent: bool = False
    against_plan: str = ""

    @property
    def name(self) -> str:
        """The name of the pod's task, such as `train worker 1`."""
        return self.task.name


def explain(evidence: Evidence) -> Finding:
    """Explain a pod: its state, cause and sentence."""
    pod, diagnosis = evidence.pod, diagnose(evidence.pod)
    over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    finding = Finding(
        task=task_of(pod),
        pod=pod["metadata"]["name"],
        state=diagnosis.state,
        cause=diagnosis.cause,
        sentence="",
        since=str(pod["metadata"].get("creationTimestamp") or ""),
        started=str(pod.get("status", {}).get("startTime") or ""),
        until=_until(pod, over),
        node=pod["spec"].get("nodeName", ""),
        pool=pod["metadata"].get("labels", {}).get(labels.POOL, ""),
    )
    if evidence.cancelled and over:
        return replace(finding, state="failed", cause="cancelled", sentence="was ended with its run")
    if diagnosis.state == "done":
        return replace(finding, sentence="done")
    if not over and (lost := _node_lost(finding, evidence)) is not None:
        return replace(lost, state="running")
    if diagnosis.disrupted:
        return _disrupted(finding, diagnosis)
    if diagnosis.state == "failed":
        return _failed(finding, diagnosis, evidence)
    if diagnosis.state == "waiting":
        return _waiting(finding, diagnosis, evidence)
    if diagnosis.ending:
        return replace(finding, sentence=f"is ending on {finding.node}")
    pace = verdict(evidence.log, evidence.expected)
    if pace.cause:
        sentence = f"is running on {finding.node}: {pace.sentence}"
        return replace(finding, cause=pace.cause, sentence=sentence, against_plan=pace.against_plan)
    return replace(finding, sentence=f"is running on {finding.node}")


def refused(task: PodTask, name: str, warnings: Sequence[Manifest], message: str = "") -> Finding | None:
    """Explain why a Job or a Workflow has no pod, from its warnings or its `message`; None if they say nothing."""
    failures = [str(event.get("message", "")) for event in warnings if event.get("reason") == "FailedCreate"]
    text = one_line(failures[-1] if failures else message)
    finding = Finding(task=task, pod=name, state="waiting", cause="refused", sentence="")
    if "exceeded quota" in text:
        quota = re.search(r"exceeded quota: (\S+?), (.*)", text)
        detail = f"the ResourceQuota '{quota[1]}' ({quota[2]})" if quota else text
        sentence = (
            f"has no pod: it would exceed {detail}. It starts when others end; or have the quota raised, "
            "or ask for less in the pool's resources"
        )
        return replace(finding, cause="quota", sentence=sentence)
    if "violates PodSecurity" in text:
        sentence = (
            f"has no pod: the namespace's Pod Security forbids it ({text}). Run the step in a namespace that allows it"
        )
        return replace(finding, cause="pod-security", sentence=sentence, permanent=True)
    if not text:
        return None
    return replace(finding, sentence=f"has no pod: {text}")


def _failed(failed: Finding, diagnosis: Diagnosis, evidence: Evidence) -> Finding:
    why, message, end = diagnosis.reason, diagnosis.message, diagnosis.exit
    if diagnosis.cause == "deadline":
        seconds = evidence.pod["spec"].get("activeDeadlineSeconds", "?")
        key = f"timeout_seconds.{failed.task.step}"
        if not has_run(evidence.pod):
            return _never_started(failed, seconds, key, evidence)
        return _with_deadline(failed, f"ran for more than the {seconds} s that it may. Raise {key} in the environment")
    if diagnosis.cause == "turned-away":
        next_step = evidence.again or "Submit again; if it happens again, look at the node"
        sentence = f"was turned away by {failed.node} ({why}: {message}). {next_step}"
        return replace(failed, sentence=sentence, code=ExitCode.TRANSIENT)
    if end is None:
        sentence = f"failed ({why or 'no reason given'}: {message}). {evidence.again or 'Submit again'}"
        return replace(failed, sentence=sentence, code=ExitCode.TRANSIENT)
    if end.out_of_memory:
        return _out_of_memory(failed, evidence, end.container)
    if argo.ended_at_deadline(evidence.pod):
        sentence = argo.deadline_sentence(evidence.pod, evidence.run_ends)
        return replace(failed, cause="deadline", sentence=sentence, code=ExitCode.INFRASTRUCTURE)
    if end.container == WAIT:
        return _not_stored(failed, end, evidence)
    if failed.task.step == DRIVER:
        return _driver_failed(failed, end, evidence)
    exited = _exited(failed, end, evidence)
    if evidence.stop_reason in argo.OUT_OF_TIME:
        return replace(exited, sentence=f"{exited.sentence.rstrip('.')}. It was not retried: {argo.BOUND}")
    return exited


def _never_started(finding: Finding, seconds: object, key: str, evidence: Evidence) -> Finding:
    """Explain a pod whose time was over before its container ran, by the last warning that says more than its state."""
    warnings = [event for event in evidence.events if event.get("type") == "Warning"]
    telling = [event for event in warnings if not str(event.get("message", "")).startswith("Error: ")]
    if not (last := next(reversed(telling or warnings), None)):
        remedy = f"Raise {key} in the environment if its image takes so long to pull, or look at {finding.node}"
        return _with_deadline(finding, f"never ran: it did not start in the {seconds} s that it may take. {remedy}")
    named = re.search(r"\{(.+)\}", str(last.get("involvedObject", {}).get("fieldPath", "")))
    own = named is None or named[1] == main_container(evidence.pod)
    remedy = f"Correct that, or raise {key} in the environment" if own else _KUBEFLOWS_OWN
    why = f"{last.get('reason')}: {one_line(str(last.get('message', '')))}".rstrip(".")
    return _with_deadline(finding, f"never ran: it did not start in the {seconds} s that it may take ({why}). {remedy}")


def _with_deadline(finding: Finding, sentence: str) -> Finding:
    return replace(finding, sentence=sentence, code=ExitCode.INFRASTRUCTURE)


def _exited(finding: Finding, end: Exit, evidence: Evidence) -> Finding:
    """Explain an exit. The step's own sentence and code come first, because Kubeflow's launcher turns every code into
    1.
    """
    log = evidence.log
    failure = events.failure(log) or events.failure(end.message)
    if not failure and (fault := argo.fatal(log)):
        return _kubeflow_failed(finding, end, evidence, fault, "Kubeflow's launcher, which surrounds the step, gave up")
    number, message, _ = failure or events.Failure(argo.program_exit(log) or end.code, "")
    code = known_code(number, ExitCode.BUG)
    if not message and number in (128 + 9, 128 + 15):
        next_step = evidence.again or advice(ExitCode.TRANSIENT)
        still = any(str(event.get("message", "")).startswith("Liveness probe failed") for event in evidence.events)
        # If the launcher lived on, the program alone was killed, as the kernel does for memory.
        why = "perhaps by its node" if number == end.code else "perhaps by its node, for memory"
        how = "stood still, and its node killed it" if still else f"was killed (exit code {number}), {why}"
        sentence = f"{how}. {next_step}"
        return replace(finding, cause="killed", sentence=sentence, code=ExitCode.TRANSIENT)
    cause = code.name.lower().replace("_", "-")
    text = one_line(message) or _last_line(log or end.message) or "it said nothing"
    sentence = f"ended with exit code {number} ({cause}): {text.rstrip('.')}. {evidence.again or advice(code)}"
    permanent = code not in (ExitCode.TRANSIENT, ExitCode.PEER_LOST, ExitCode.PREEMPTED)
    return replace(finding, cause=cause, sentence=sentence.rstrip("."), code=code, permanent=permanent)


def _not_stored(finding: Finding, end: Exit, evidence: Evidence) -> Finding:
    """Explain a pod whose step succeeded, but whose outputs or log Argo could not store."""
    text = one_line(end.message) or _last_line(evidence.log) or "it said nothing"
    sentence = (
        "ended well, but Argo could not store what it left (container wait, exit code "
        f"{end.code}: {text.rstrip('.')}). {evidence.again or advice(ExitCode.TRANSIENT)}; if it happens again, "
        "see that the pods reach the bucket of Kubeflow's artifacts, and with which credentials"
    )
    return replace(finding, cause="not-stored", sentence=sentence, code=ExitCode.TRANSIENT)


def _driver_failed(finding: Finding, end: Exit, evidence: Evidence) -> Finding:
    """Explain a failed pod of Kubeflow itself, whose exit codes are not in Trainyard's table."""
    fault = argo.fatal(evidence.log) or argo.fatal(end.message)
    text = fault or one_line(end.message) or _last_line(evidence.log) or "it said nothing"
    return _kubeflow_failed(finding, end, evidence, text, "Kubeflow prepares a step in it")


def _kubeflow_failed(finding: Finding, end: Exit, evidence: Evidence, text: str, role: str) -> Finding:
    sentence = (
        f"ended with exit code {end.code}: {one_line(text).rstrip('.')}. {role}. "
        f"{evidence.again or 'Submit again; if it happens again, show this to the administrators of Kubeflow'}"
    )
    cause = DRIVER if finding.task.step == DRIVER else "launcher"
    return replace(finding, cause=cause, sentence=sentence, code=ExitCode.TRANSIENT)


def _out_of_memory(finding: Finding, evidence: Evidence, container: str) -> Finding:
    spec = next(spec for spec in evidence.pod["spec"]["containers"] if spec["name"] == container)
    limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory", "that of the node")
    pool = f"pools.{finding.pool}.resources" if finding.pool else "the pool's resources"
    progress = events.last(evidence.log, "progress", "peak_mib", "done", "total", "unit")
    last = ""
    if progress:
        done = f"{progress['done']} of {progress['total']} {progress['unit']}"
        last = f", and it last told of {progress['peak_mib']} MiB ({done})"
    sentence = (
        f"was killed for memory: its limit is {limit}{last}. "
        f"Raise {pool}.limits.memory (and requests){memory.less_memory_advice(finding.task.step)}"
    )
    return replace(finding, cause="out-of-memory", sentence=sentence, code=ExitCode.INFRASTRUCTURE, permanent=True)


def _disrupted(finding: Finding, diagnosis: Diagnosis) -> Finding:
    """Explain a pod that was preempted, evicted, or lost with its node."""
    on = f" on {finding.node}" if finding.node else ""
    if diagnosis.cause == "disk":
        sentence = (
            f"was evicted{on}: {diagnosis.message}. Write less to its own disk, or raise its ephemeral-storage limit"
        )
        return replace(finding, cause="evicted", sentence=sentence, code=ExitCode.INFRASTRUCTURE)
    detail = f" ({diagnosis.message.rstrip('.')})" if diagnosis.message else ""
    sentence = (
        f"{disruption(diagnosis.reason)}{on}{detail}. "
        "It is started again if retries are left; training resumes from its last checkpoint"
    )
    return replace(finding, sentence=sentence, code=ExitCode.TRANSIENT)


def _node_lost(finding: Finding, evidence: Evidence) -> Finding | None:
    if not finding.node or evidence.nodes is None:
        return None
    node = next((candidate for candidate in evidence.nodes if name_of(candidate) == finding.node), None)
    if node is None:
        sentence = f"was on {finding.node}, and that node is gone. It is started again if retries are left"
        return replace(finding, cause="node-lost", sentence=sentence)
    ready = {**conditions(node, "False"), **conditions(node, "Unknown")}.get("Ready")
    if ready is None:
        return None
    since = ready.get("lastTransitionTime", "?")
    sentence = (
        f"is on {finding.node}, which does not answer since {since}. Nothing takes its place before {finding.node} "
        f"answers again or is deleted: kubectl delete node {finding.node}"
    )
    return replace(finding, cause="node-lost", sentence=sentence)


def _waiting(waiting: Finding, diagnosis: Diagnosis, evidence: Evidence) -> Finding:
    if diagnosis.cause in ("gated", "unscheduled", "scheduling"):
        return _unscheduled(waiting, diagnosis, evidence)
    if diagnosis.blocked:
        own = waiting.task.step != DRIVER and diagnosis.container == main_container(evidence.pod)
        code, sentence = ExitCode.INFRASTRUCTURE, _blocked(diagnosis, own)
        cause = "image" if diagnosis.cause == "image" else "configuration"
        return replace(waiting, cause=cause, sentence=sentence, permanent=True, code=code)
    warnings = [event for event in evidence.events if event.get("type") == "Warning"]
    if warnings:
        last = warnings[-1]
        sentence = f"cannot start on {waiting.node} yet: {last.get('reason')}: {one_line(last.get('message', ''))}"
        return replace(waiting, sentence=sentence)
    pulling = [event for event in evidence.events if event.get("reason") == "Pulling"]
    pulled = [event for event in evidence.events if event.get("reason") == "Pulled"]
    if pulling and len(pulled) < len(pulling):
        sentence = f"{waiting.node} is pulling the image ({one_line(pulling[-1].get('message', ''))})"
        return replace(waiting, cause="pulling", sentence=sentence)
    return replace(waiting, sentence=f"is starting on {waiting.node}")


def _unscheduled(finding: Finding, diagnosis: Diagnosis, evidence: Evidence) -> Finding:
    if diagnosis.cause == "gated":
        if not kueue.is_queued(evidence.pod):
            gates = ", ".join(str(gate["name"]) for gate in evidence.pod["spec"].get("schedulingGates", []))
            return replace(finding, sentence=f"waits to be admitted ({gates})")
        queue = evidence.pod["metadata"]["labels"].get(labels.QUEUE, "")
        why = f": {evidence.queue}" if evidence.queue else ""
        return replace(finding, cause=QUEUED, sentence=f"waits to be admitted by queue '{queue}'{why}")
    message = diagnosis.message
    obstacle = _obstacle(evidence)
    if obstacle is None:
        sentence = f"no node takes it: {message}" if message else "is not scheduled yet"
        return replace(finding, cause="unschedulable" if message else "scheduling", sentence=sentence)
    if finding.task.step == DRIVER and obstacle.permanent:
        remedy = "Kubeflow's drivers take no placement: keep a node of CPUs without taints for them"
        obstacle = replace(obstacle, hint="", remedy=remedy)
    return replace(
        finding,
        cause="full" if obstacle.kind == "full" else "unschedulable",
        sentence=f"no node takes it: {obstacle.advice}",
        permanent=obstacle.permanent,
    )


def _obstacle(evidence: Evidence) -> Obstacle | None:
    if evidence.nodes is None:
        return None
    spec = evidence.pod["spec"]
    key = placement_key(spec)
    if key not in evidence.obstacles:
        evidence.obstacles[key] = find_obstacle(spec, evidence.nodes, evidence.pods)
    return evidence.obstacles[key]


def _blocked(diagnosis: Diagnosis, own: bool) -> str:
    """Explain a container that waits for something that is missing. own: the step's, none that Kubeflow adds."""
    reason, message = diagnosis.reason, diagnosis.message
    if diagnosis.cause == "image":
        detail = f": {message}" if message and not message.startswith("Back-off") else ""
        remedy = (
            "Push it, correct images in the environment or train.image in the recipe, or give the node the right to "
            "pull it"
        )
        whose = "its image" if own else f"the image of its container '{diagnosis.container}',"
        problem = f"{whose} {diagnosis.image} cannot be had ({reason}{detail})"
    elif diagnosis.cause == "configuration":
        remedy = "Create the named object, or correct the environment"
        problem = f"its container {'' if own else repr(diagnosis.container) + ' '}cannot be made ({reason}: {message})"
    else:
        remedy = "Read the log (trainyard runs logs)"
        problem = f"its container {'' if own else repr(diagnosis.container) + ' '}ends again and again ({message})"
    return f"{problem}. {remedy if own else _KUBEFLOWS_OWN}"


def _until(pod: Manifest, over: bool) -> str:
    """Return the end of the last of the pod's containers, '' while one runs.

    If a finished pod lacks the end of a container, use the last change of its conditions, or its start if the node
    rejected it.
    """
    status = pod.get("status", {})
    states = [container.get("state", {}) for container in status.get("containerStatuses", [])]
    ends = [str(state["terminated"].get("finishedAt") or "") for state in states if state.get("terminated")]
    last = max(ends, default="") if len(ends) == len(states) else ""
    changes = [str(condition.get("lastTransitionTime") or "") for condition in status.get("conditions") or []]
    return last or (max([*changes, str(status.get("startTime") or "")]) if over else "")


def _last_line(text: str) -> str:
    """Return the last line that the step wrote itself, otherwise Kubeflow's."""
    own = [line for line in argo.step_lines(text) if line.strip()]
    lines = own or [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else ""


@dataclass(frozen=True)
class Bottleneck:
    """The state of a training: a cause for programs and the end of a sentence, both '' if it is not known yet.

    against_plan: slower or faster, if the speed is outside the plan's interval; the sentence then says so.
    """

    cause: str = ""
    sentence: str = ""
    against_plan: str = ""


def verdict(log: str, expected: Expectation | None = None, *, one_machine: bool = False) -> Bottleneck:
    """Say by the newest event of the log what a training does: its bottleneck, compared with the plan, or its start.

    A pace counts until the training starts again. Of an elastic gang, the sentence says why it has fewer workers than
    it asks for.

    one_machine: no other machine could help.
    """
    try:
        newest, pace = _newest(log)
        if pace and newest["event"] in _TRAINS:
            straggler = Straggler.model_validate(pace.pop("straggler")) if "straggler" in pace else None
            numbers = {name: float(value) for name, value in pace.items() if name != "event"}
            found = _verdict(numbers, expected, one_machine, straggler)
        else:
            found = _start(newest)
    except (KeyError, TypeError, ValueError):  # not our line
        return Bottleneck()
    team = _smaller_team(log, pace) if newest.get("event") in _TRAINS else ""
    return replace(found, sentence="; ".join(filter(None, [found.sentence, team])))


def _newest(log: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the newest event that says what a training does, and its pace if it has not started again since."""
    newest: dict[str, Any] = {}
    arrival: dict[str, Any] = {}  # the workers are there
    for event in events.newest_first(log):
        name = event["event"]
        is_pace = name == "pace" and all(event.get(field) not in (None, "") for field in (*_FIELDS, *_TIMES))
        if name == "gang" and "waiting" not in event:
            arrival = event
        elif name in (*_STARTS, "gang", "progress") or is_pace:
            newest = newest or (arrival if name == "gang" else {}) or event
        if is_pace or name in _STARTS:
            return newest, event if is_pace else {}
    return newest, {}


def _start(newest: dict[str, Any]) -> Bottleneck:
    """Describe a training without a pace by its `newest` event."""
    name = newest.get("event")
    if name == "gang" and "waiting" in newest:
        return Bottleneck("waiting-for-workers", one_line(str(newest["waiting"])))
    if name == "restarting":
        return Bottleneck("starting", f"it starts again after step {int(newest['step']):,}: {newest['reason']}")
    if name == "resumed":
        return Bottleneck("starting", f"it resumes from step {int(newest['step']):,}")
    if name == "progress":
        return Bottleneck("running", f"{int(newest['done']):,} of {int(newest['total']):,} {newest['unit']}")
    if name == "trained":
        return Bottleneck("finishing", "it has trained, and writes its output")
    return Bottleneck("starting", "its training starts") if name else Bottleneck()


def _smaller_team(log: str, pace: dict[str, Any]) -> str:
    """Return the reason for a team of a gang that is smaller than it could be, '' if it is not.

    The log's end may hold no start of a team; then its pace has the numbers alone.
    """
    if team := events.last(log, "started_together", "workers"):
        return f"it runs with {team['workers']} of {team['of']} workers: {team.get('why')}" if "of" in team else ""
    workers, asked = pace.get("workers", 1), pace.get("max_workers", 1)
    return f"it runs with {workers} of {asked} workers" if workers < asked else ""


def _verdict(
    pace: dict[str, float], expected: Expectation | None, one_machine: bool, straggler: Straggler | None
) -> Bottleneck:
    speed, left = pace["examples_per_second"], pace["steps"] - pace["step"]
    outside = expected.against(speed) if expected else ""
    cause, why = _bound(pace, outside == "slower", one_machine)
    if straggler:
        cause, why = "straggler-bound", f"{straggler}. {straggler.advice}"
    progress = (
        f"step {pace['step']:,.0f} of {pace['steps']:,.0f}, {speed:,.0f} examples/s, "
        f"about {duration_text(left * pace['step_ms'] / 1000)} of steps left"
    )
    if outside:
        progress += f"; the plan expected {expected}{', and learns from this run' if outside == 'faster' else ''}"
    return Bottleneck(cause, f"{progress}; {why}", outside)


def _bound(pace: dict[str, float], slower: bool, one_machine: bool) -> tuple[str, str]:
    """Return the bottleneck, and the end of a sentence about it. slower: than the plan expected."""
    step = pace["step_ms"]
    waited = 1 - pace["prefetched_step_ms"] / step
    summed = pace["all_reduce_ms"] / step
    total = sum(value for name, value in pace.items() if name.endswith("_seconds"))
    saved, judged = (pace[f"{name}_seconds"] / max(total, 1e-9) for name in ("save", "eval"))
    if waited > _INPUT:
        return "input-bound", (
            f"it waits for its input {waited:.0%} of each step "
            f"({step:,.1f} ms; {pace['prefetched_step_ms']:,.1f} after a pause). "
            f"With its input there it would take {pace['examples_per_second'] / (1 - waited):,.0f} examples/s: "
            f"{'' if one_machine else _input_workers_advice(pace)}give it {1 / (1 - waited):.1f} times the cores"
            f"{'' if one_machine else ' (resources.requests.cpu of the pool)'}, or lower data.image_size or "
            "train.augment as much"
        )
    if summed > _ALL_REDUCE:
        return "all-reduce-bound", (
            f"its workers sum gradients {summed:.0%} of each step ({pace['all_reduce_ms']:,.1f} of {step:,.1f} ms). "
            "Raise train.batch_size (with train.accumulation_steps if that does not fit), take fewer workers, or a "
            "pool with a faster network"
        )
    if slower:
        return "compute-bound", (
            "it computes most of each step, so its node gives less than the plan takes it for. "
            "See what else runs there (kubectl top pods), or correct machine and resources of the pool"
        )
    if saved > _SAVE:
        return "checkpoint-bound", (
            f"it waits for its checkpoints {saved:.0%} of the time. "
            "Raise train.checkpoints.every_steps, or take a faster storage"
        )
    if judged > _EVAL:
        return (
            "eval-bound",
            f"it evaluates {judged:.0%} of the time. Lower data.split.eval, or raise train.batch_size",
        )
    return "compute-bound", (
        "it computes most of the time. What is faster is a larger train.batch_size if devices have room, or "
        "another pool: trainyard plan"
    )


def _input_workers_advice(pace: dict[str, float]) -> str:
    """Advise a number of input workers, as the start of a sentence; '' if it cannot be computed."""
    present = int(pace.get("input_workers", 0))
    hosts = present or int(pace.get("workers", 1))
    needed = input_workers_needed(hosts, pace["step_ms"], pace["prefetched_step_ms"])
    if needed is None:
        return ""
    who = f"{needed} input workers instead of {present}" if present else f"{needed} input workers"
    return f"{who}, each with the cores of one that prepares its batches now (input_workers.count), would feed it, or "
