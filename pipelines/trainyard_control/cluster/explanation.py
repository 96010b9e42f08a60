"""Why a pod of a run waits, failed or was taken away: one sentence with the next thing to do.

Pure functions over the objects of the Kubernetes API, for the pods of Kubeflow's runs and those of training gangs alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainyard import memory
from trainyard.errors import ExitCode
from trainyard_control.cluster.pace import last_event, verdict
from trainyard_control.cluster.scheduling import misfit
from trainyard_control.kubeflow import argo
from trainyard_control.planning.expectation import Expectation

Manifest = dict[str, Any]
State = Literal["waiting", "running", "done", "failed"]

STEP_LABEL = "app.kubernetes.io/component"
POOL_LABEL = "trainyard/pool"
USE_LABEL = "trainyard/use"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
JOB_LABEL = "batch.kubernetes.io/job-name"
_HELPERS = ("wait", "init", "argoexec-init")  # Argo's own containers beside the step's
_LONGEST = 500  # characters of anybody else's words in a sentence

ADVICE = {
    ExitCode.USAGE: "This is a fault of Trainyard: report it with the log.",
    ExitCode.DATA: "Mend the data or what the recipe says of them, and submit again.",
    ExitCode.CONFIGURATION: "Correct the recipe or the environment, and submit again.",
    ExitCode.TRANSIENT: "Submit again: what is finished is used again.",
    ExitCode.INFRASTRUCTURE: "Provide what is missing (disk, permission or device), and submit again.",
    ExitCode.BUG: "Read the log (trainyard runs logs); it is a fault of Trainyard or of the recipe's module.",
    ExitCode.REFUSED: "The gate refused the model: see the report.",
    ExitCode.PEER_LOST: "Submit again: training goes on from its last checkpoint.",
    ExitCode.PREEMPTED: "Submit again: training goes on from its last checkpoint.",
}


@dataclass(frozen=True)
class Evidence:
    """All that is known of one pod. nodes and pods are None where they may not be listed, expected where no plan was.

    run_ends: when its run's own deadline is, '' without one. given_up: Argo's reason to start no further attempt. again: what
    starts the pod's work again if it has failed, as a sentence, '' where nothing does. cancelled: it ended with its run.
    """

    pod: Manifest
    events: Sequence[Manifest] = ()
    nodes: list[Manifest] | None = None
    pods: list[Manifest] | None = None
    log: str = ""
    expected: Expectation | None = None
    run_ends: str = ""
    given_up: str = ""
    again: str = ""
    cancelled: bool = False


@dataclass(frozen=True)
class Finding:
    """What is to be said of one pod. code is its exit code in the one table, None while it waits, runs or is done.

    cause is a word for programs, sentence is for people. permanent: waiting does not help. against_plan: slower or
    faster than the plan expected, '' for neither.
    """

    step: str
    pod: str
    state: State
    cause: str
    sentence: str
    since: str = ""
    until: str = ""
    node: str = ""
    pool: str = ""
    code: ExitCode | None = None
    permanent: bool = False
    against_plan: str = ""
    facts: dict[str, str] = field(default_factory=dict)


def explain(evidence: Evidence) -> Finding:
    """Return what is to be said of the pod."""
    pod, status = evidence.pod, evidence.pod.get("status", {})
    labels = pod["metadata"].get("labels", {})
    finding = Finding(
        step=step_of(pod),
        pod=pod["metadata"]["name"],
        state="running",
        cause="running",
        sentence="",
        since=str(pod["metadata"].get("creationTimestamp") or ""),
        until=_until(pod),
        node=pod["spec"].get("nodeName", ""),
        pool=labels.get(POOL_LABEL, ""),
    )
    phase = status.get("phase", "Pending")
    if evidence.cancelled and phase in ("Succeeded", "Failed"):
        return replace(finding, state="failed", cause="cancelled", sentence="was ended with its run")
    if phase == "Succeeded":
        return replace(finding, state="done", cause="done", sentence="done")
    if taken := _taken_away(finding, pod):
        return taken
    if phase == "Failed":
        return _failed(finding, evidence)
    if (lost := _node_lost(finding, evidence)) is not None:
        return lost
    if (ended := _ended(pod)) is not None and ended[1].get("exitCode"):
        return _failed(finding, evidence)
    if phase == "Pending":
        return _waiting(finding, evidence)
    if pod["metadata"].get("deletionTimestamp"):
        return replace(finding, cause="ending", sentence=f"is ending on {finding.node}")
    pace = verdict(evidence.log, evidence.expected)
    if pace.cause:
        sentence = f"is running on {finding.node}: {pace.sentence}"
        return replace(finding, cause=pace.cause, sentence=sentence, against_plan=pace.against_plan)
    return replace(finding, sentence=f"is running on {finding.node}")


def refused(step: str, name: str, events: Sequence[Manifest], message: str = "") -> Finding | None:
    """Return why a Job or a Workflow has no pod, from its warnings or its own `message`; None where they say nothing."""
    said = [str(each.get("message", "")) for each in events if each.get("reason") == "FailedCreate"]
    text = _one_line(said[-1] if said else message)
    finding = Finding(step=step, pod=name, state="waiting", cause="refused", sentence="")
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


def step_of(pod: Manifest) -> str:
    """Return the step that the pod works for, such as `train`, `train worker 1` of a gang, or `check 2` for its second task.

    A driver of Kubeflow is `driver`.
    """
    labels = pod["metadata"].get("labels", {})
    step = labels.get(STEP_LABEL)
    if step is None:
        return "driver" if "driver" in pod["metadata"]["name"] else str(pod["metadata"]["name"])
    if INDEX_LABEL in labels:
        return f"{step} worker {labels[INDEX_LABEL]}"
    return f"{step} {labels[USE_LABEL]}" if USE_LABEL in labels else str(step)


def main_container(pod: Manifest) -> str:
    """Return the name of the container that does the step's work."""
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    return next((name for name in names if name not in _HELPERS), names[0])


def failure_event(log: str) -> Manifest | None:
    """Return the last `failed` event in a log, as the step said it: its code, error and message."""
    for line in reversed(log.splitlines()):
        at = line.find('{"event": "failed"')
        if at >= 0:
            try:
                return dict(json.loads(line[at:]))
            except ValueError:
                continue
        if found := re.search(r"(?:^|\s)failed step=\S+ code=(\d+) error=(\S+) message=(.*)", line):
            return {"code": int(found[1]), "error": found[2], "message": found[3]}
    return None


def _failed(finding: Finding, evidence: Evidence) -> Finding:
    status = evidence.pod["status"]
    why, said = status.get("reason", ""), _one_line(status.get("message") or "")
    failed = replace(finding, state="failed")
    if why == "DeadlineExceeded":
        seconds = evidence.pod["spec"].get("activeDeadlineSeconds", "?")
        sentence = (
            f"ran for more than the {seconds} s that it may. Raise timeout_seconds.{_key(finding)} in the environment"
        )
        return replace(failed, cause="deadline", sentence=sentence, code=ExitCode.INFRASTRUCTURE)
    if why.startswith("OutOf") or why in ("UnexpectedAdmissionError", "NodeAffinity", "Allocate failed"):
        advice = evidence.again or "Submit again; if it happens again, look at the node"
        sentence = f"was turned away by {finding.node} ({why}: {said}). {advice}"
        return replace(failed, cause="turned-away", sentence=sentence, code=ExitCode.TRANSIENT)
    ended = _ended(evidence.pod)
    if ended is None:
        sentence = f"failed ({why or 'no reason given'}: {said}). {evidence.again or 'Submit again'}"
        return replace(failed, cause="unknown", sentence=sentence, code=ExitCode.TRANSIENT)
    name, end = ended
    if end.get("reason") == "OOMKilled":
        return _out_of_memory(failed, evidence, name)
    if argo.ended_at_deadline(evidence.pod):
        sentence = argo.deadline_sentence(evidence.pod, evidence.run_ends)
        return replace(failed, cause="deadline", sentence=sentence, code=ExitCode.INFRASTRUCTURE)
    exited = _exited(failed, end, evidence)
    if argo.ran_out_of_time(evidence.given_up):
        return replace(exited, sentence=f"{exited.sentence.rstrip('.')}. It was not tried again: {argo.BOUND}")
    return exited


def _exited(finding: Finding, end: Manifest, evidence: Evidence) -> Finding:
    """The step's own words and code come first: Kubeflow's launcher turns every exit code into 1."""
    log = evidence.log
    event = failure_event(log) or failure_event(end.get("message") or "")
    number = int(event["code"]) if event else int(end["exitCode"])
    code = ExitCode(number) if number in set(ExitCode) else ExitCode.BUG
    words = _one_line(str(event["message"])) if event else _last_line(log or end.get("message") or "")
    if event is None and number in (128 + 9, 128 + 15):
        advice = evidence.again or ADVICE[ExitCode.TRANSIENT].rstrip(".")
        sentence = f"was killed (exit code {number}), perhaps by its node. {advice}"
        return replace(finding, cause="killed", sentence=sentence, code=ExitCode.TRANSIENT)
    cause = code.name.lower().replace("_", "-")
    sentence = f"ended with exit code {number} ({cause}): {words or 'it said nothing'}"
    sentence = f"{sentence.rstrip('.')}. {evidence.again or ADVICE[code]}".rstrip(".")
    return replace(finding, cause=cause, sentence=sentence, code=code, permanent=code not in _AGAIN)


_AGAIN = (ExitCode.TRANSIENT, ExitCode.PEER_LOST, ExitCode.PREEMPTED)


def _out_of_memory(finding: Finding, evidence: Evidence, container: str) -> Finding:
    spec = next(each for each in evidence.pod["spec"]["containers"] if each["name"] == container)
    limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory", "that of the node")
    pool = f"pools.{finding.pool}.resources" if finding.pool else "the pool's resources"
    told = last_event(evidence.log, "progress") or {}
    peak = told.get("peak_mib", "")
    held = f", and it last told of {peak} MiB ({told['done']} of {told['total']} {told['unit']})" if peak else ""
    sentence = (
        f"was killed for memory: its limit is {limit}{held}. "
        f"Raise {pool}.limits.memory (and requests){memory.or_less(_key(finding))}"
    )
    facts = {"limit": str(limit)} | ({"peak_mib": str(peak)} if peak else {})
    return replace(
        finding, cause="out-of-memory", sentence=sentence, code=ExitCode.INFRASTRUCTURE, permanent=True, facts=facts
    )


_DISRUPTIONS = {
    "PreemptionByScheduler": ("preempted", "was preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": ("evicted", "was evicted, as by a drain of the node"),
    "DeletionByTaintManager": ("node-lost", "was deleted, for its node got a taint that it does not tolerate"),
    "DeletionByPodGC": ("node-lost", "was deleted, for its node is gone"),
    "TerminationByKubelet": ("evicted", "was ended by its node"),
}


def _taken_away(finding: Finding, pod: Manifest) -> Finding | None:
    """Return the finding of a pod that others ended: by preemption, eviction or the loss of its node."""
    status = pod.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions") or [] if each["status"] == "True"}
    disruption = conditions.get("DisruptionTarget")
    on = f" on {finding.node}" if finding.node else ""
    said = _one_line(status.get("message") or (disruption or {}).get("message") or "")
    state: State = "failed" if status.get("phase") == "Failed" else "running"
    if status.get("reason") == "Evicted" and "exceeds the total limit" in said:
        sentence = f"was evicted{on}: {said}. Write less to its own disk, or raise its ephemeral-storage limit"
        return replace(finding, state=state, cause="evicted", sentence=sentence, code=ExitCode.INFRASTRUCTURE)
    if disruption is None and status.get("reason") not in ("Evicted", "Preempting", "NodeLost", "NodeShutdown"):
        return None
    cause, what = _DISRUPTIONS.get(str((disruption or {}).get("reason")), ("evicted", "was evicted"))
    detail = f" ({said.rstrip('.')})" if said else ""
    sentence = (
        f"{what}{on}{detail}. It is started again where retries are left; training goes on from its last checkpoint"
    )
    return replace(finding, state=state, cause=cause, sentence=sentence, code=ExitCode.TRANSIENT)


def _node_lost(finding: Finding, evidence: Evidence) -> Finding | None:
    node = next((each for each in evidence.nodes or [] if each["metadata"]["name"] == finding.node), None)
    if not finding.node or evidence.nodes is None:
        return None
    if node is None:
        sentence = f"was on {finding.node}, and that node is gone. It is started again where retries are left"
        return replace(finding, cause="node-lost", sentence=sentence)
    ready = next((each for each in node["status"].get("conditions", []) if each["type"] == "Ready"), None)
    if ready is None or ready["status"] == "True":
        return None
    since = ready.get("lastTransitionTime", "?")
    sentence = (
        f"is on {finding.node}, which does not answer since {since}. Kubernetes moves its pods after five minutes; "
        f"to do it now: kubectl delete node {finding.node}"
    )
    return replace(finding, cause="node-lost", sentence=sentence)


def _waiting(finding: Finding, evidence: Evidence) -> Finding:
    status = evidence.pod.get("status", {})
    waiting = replace(finding, state="waiting")
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" or not finding.node:
        return _unscheduled(waiting, evidence, scheduled)
    for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        state = each.get("state", {}).get("waiting") or {}
        if sentence := _broken(str(state.get("reason", "")), each["image"], _one_line(state.get("message") or "")):
            cause = "image" if "mage" in state["reason"] else "configuration"
            return replace(
                waiting,
                cause=cause,
                sentence=sentence,
                permanent=True,
                code=ExitCode.INFRASTRUCTURE,
                since=finding.since,
            )
    warnings = [each for each in evidence.events if each.get("type") == "Warning"]
    if warnings:
        last = warnings[-1]
        sentence = f"cannot start on {finding.node} yet: {last.get('reason')}: {_one_line(last.get('message', ''))}"
        return replace(waiting, cause="starting", sentence=sentence)
    pulling = [each for each in evidence.events if each.get("reason") == "Pulling"]
    pulled = [each for each in evidence.events if each.get("reason") == "Pulled"]
    if pulling and len(pulled) < len(pulling):
        sentence = f"{finding.node} is pulling the image ({_one_line(pulling[-1].get('message', ''))})"
        return replace(waiting, cause="pulling", sentence=sentence)
    return replace(waiting, cause="starting", sentence=f"is starting on {finding.node}")


def _unscheduled(finding: Finding, evidence: Evidence, condition: Manifest) -> Finding:
    said = _one_line(condition.get("message") or "").partition(". ")[0]
    if condition.get("reason") == "SchedulingGated":
        gates = ", ".join(str(each["name"]) for each in evidence.pod["spec"].get("schedulingGates", []))
        return replace(finding, cause="gated", sentence=f"waits to be admitted ({gates})")
    found = misfit(evidence.pod["spec"], evidence.nodes, evidence.pods) if evidence.nodes is not None else None
    if found is None:
        sentence = f"no node takes it: {said}" if said else "is not scheduled yet"
        return replace(finding, cause="unschedulable" if said else "scheduling", sentence=sentence)
    sentence = f"no node takes it: {found.whole}".rstrip(".")
    return replace(
        finding,
        cause="full" if found.kind == "full" else "unschedulable",
        sentence=sentence,
        permanent=found.permanent,
        facts={"misfit": found.kind, "scheduler": said},
    )


def _broken(reason: str, image: str, message: str) -> str:
    """Return the sentence of a container that waits for what does not come by itself, '' for one that just starts."""
    if reason in ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"):
        detail = f": {message}" if message and not message.startswith("Back-off") else ""
        return (
            f"its image {image} cannot be had ({reason}{detail}). Push it, correct images in the environment, "
            "or give the node the right to pull it"
        )
    if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"):
        return f"its container cannot be made ({reason}: {message}). Create what is named there, or correct the environment"
    if reason == "CrashLoopBackOff":
        return f"its container ends again and again ({message}). Read the log (trainyard runs logs)"
    return ""


def _ended(pod: Manifest) -> tuple[str, Manifest] | None:
    """Return the name and the end of the step's own container, or of the first other one that failed."""
    statuses = [
        *pod.get("status", {}).get("containerStatuses", []),
        *pod.get("status", {}).get("initContainerStatuses", []),
    ]
    ends = {each["name"]: end for each in statuses if (end := each.get("state", {}).get("terminated"))}
    main = main_container(pod)
    if main in ends:
        return main, ends[main]
    return next(((name, end) for name, end in ends.items() if end.get("exitCode")), None)


def _until(pod: Manifest) -> str:
    """Return when the last of the pod's containers ended, '' while one runs."""
    states = [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", [])]
    ends = [str(state["terminated"].get("finishedAt") or "") for state in states if state.get("terminated")]
    return max(ends, default="") if len(ends) == len(states) else ""


def _key(finding: Finding) -> str:
    return finding.step.partition(" ")[0]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _one_line(lines[-1]) if lines else ""
