"""What cannot be provoked on a test cluster is explained from the objects that Kubernetes documents."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kfp_server_api
import pytest

from trainyard import events
from trainyard.errors import ExitCode, InfrastructureError, TransientError
from trainyard.kubernetes.client import Cluster
from trainyard.spec import environment as environments
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.train.gang.pods.job import Gang, worker_job
from trainyard_control.cluster import argo, explanation
from trainyard_control.cluster.explanation import Evidence, Finding, explain
from trainyard_control.cluster.scheduling import find_obstacle, requests
from trainyard_control.compiler.compilation import RunMetadata
from trainyard_control.kubeflow import run_view
from trainyard_control.kubeflow.run_view import RunView, steps, steps_of_tasks
from trainyard_control.kubeflow.runs import KubeflowRuns, changes, evidence, longest_wait
from trainyard_control.planning.expectation import Expectation
from trainyard_control.planning.plan import Estimate

ROOM = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
POOL = Pool.model_validate({"kind": "cpu", "resources": ROOM})
GANG = Gang(run="digits", image="image:1", command=("train",), workers=2, pool=POOL, platform="kubernetes")


def pod(name: str = "p", step: str = "train", created: str = "2026-01-01T00:00:00Z", **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": step, "trainyard/pool": "gpu-l4"}
    return {
        "metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels, "creationTimestamp": created},
        "spec": {"nodeName": "gpu-0", "containers": [{"name": "wait"}, {"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "containerStatuses": []} | status,
    }


def node(name: str, ready: str = "True", **labels: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:05:00Z"}]
    allocatable = {"cpu": "7900m", "memory": "16Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"conditions": conditions, "allocatable": allocatable},
    }


def ended(code: int, log: str = "", reason: str = "Error") -> Finding:
    end = {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:01:00Z"}
    statuses = [{"name": "main", "state": {"terminated": end}}]
    return explain(Evidence(pod(phase="Failed", containerStatuses=statuses), log=log))


class Silent(Cluster):
    """A cluster with nothing in it but what a test hands over."""

    def __init__(self) -> None: ...

    def get(self, path: str, metadata_only: bool = False) -> dict[str, Any] | None:
        return None

    def items(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        return []

    def log(self, *_: Any) -> str:
        return ""


ARGOS_DEADLINE = "2026-01-01T00:10:00Z"


def ended_by_argo(node: str) -> dict[str, Any]:
    """A pod as Argo 4.0.5 left one: its own container ended the step's at ARGO_DEADLINE, and the step said nothing."""
    pulled = pod(phase="Failed")
    pulled["metadata"]["annotations"] = {"workflows.argoproj.io/node-name": node}
    pulled["spec"]["containers"][0]["env"] = [{"name": "ARGO_DEADLINE", "value": ARGOS_DEADLINE}]
    wait = {"exitCode": 0, "reason": "Completed", "message": "Step exceeded its deadline"}
    ends = {"wait": wait, "main": {"exitCode": 143, "reason": "Error"}}
    pulled["status"]["containerStatuses"] = [{"name": name, "state": {"terminated": end}} for name, end in ends.items()]
    return pulled


@pytest.mark.parametrize(
    ("node", "run_ends", "phrase"),
    [
        ("run.root.train.executor(1)", "", "all attempts of a step must end within the backoffMaxDuration"),
        ("run.root.train.executor(1)", "2026-01-02T00:00:00Z", "all attempts of a step must end within the backoffMax"),
        ("run.root.train.executor(1)", ARGOS_DEADLINE, "the deadline of its run. Raise deadline_seconds"),
        ("run.root.train.executor(0)", "", "the deadline of its run. Raise deadline_seconds"),
        ("run.root.train", "", "the deadline of its run. Raise deadline_seconds"),
    ],
)
def test_a_pod_that_argo_ended_says_at_which_deadline(node: str, run_ends: str, phrase: str) -> None:
    finding = explain(Evidence(ended_by_argo(node), run_ends=run_ends))
    assert (finding.cause, finding.code) == ("deadline", ExitCode.INFRASTRUCTURE)
    assert f"at {ARGOS_DEADLINE}" in finding.sentence and phrase in finding.sentence


def test_a_step_that_argo_did_not_try_again_for_the_time_it_took_says_so() -> None:
    nodes = {
        "n": {"type": "Retry", "phase": "Failed", "message": "Max duration limit exceeded", "children": ["n-0", "n-1"]},
        "m": {"type": "Retry", "phase": "Failed", "message": "No more retries left", "children": ["m-0"]},
        "n-1": {"type": "Pod", "phase": "Failed", "message": "Error (exit code 1)"},
    }
    stop_reasons = argo.stop_reasons([{"spec": {}, "status": {"nodes": nodes}}])
    assert stop_reasons == {"n-1": "Max duration limit exceeded", "m-0": "No more retries left"}
    end = {"exitCode": 30, "reason": "Error"}
    failed = pod(phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": end}}])
    bound, limit = (explain(Evidence(failed, stop_reason=message)).sentence for message in stop_reasons.values())
    assert "ended with exit code 30" in bound and "It was not retried: all attempts of a step must" in bound
    assert "ended with exit code 30" in limit and "not tried again" not in limit


@pytest.mark.parametrize(
    ("history", "deadline", "noted", "state"),
    [
        (["RUNNING", "CANCELING", "FAILED"], None, False, "CANCELED"),
        (["RUNNING", "FAILED"], 0, False, "CANCELED"),  # over before Kubeflow looked
        (["RUNNING", "FAILED"], None, True, "CANCELED"),  # and Argo keeps it no more
        (["RUNNING", "FAILED"], 600, False, "FAILED"),
    ],
)
def test_a_cancelled_run_that_kubeflow_calls_failed_is_told_from_one_that_failed(
    history: list[str], deadline: int | None, noted: bool, state: str, tmp_path: Path
) -> None:
    kind = environments.load("kind").model_copy(update={"storage": str(tmp_path), "secrets": {}, "variables": {}})
    runs = KubeflowRuns(kind.model_copy(update={"kubeflow": environments.Kubeflow(endpoint="http://127.0.0.1:1")}))
    runs.cluster = Silent()
    workflows = [{"spec": {"activeDeadlineSeconds": deadline}}]
    runs.cluster.items = lambda *_, **__: workflows  # type: ignore[method-assign]
    if noted:
        note = tmp_path / "digits/runs/r/cancelled"
        note.parent.mkdir(parents=True)
        note.touch()
    config = kfp_server_api.V2beta1RuntimeConfig(parameters=RunMetadata("digits", "kind").parameters())
    states = [kfp_server_api.V2beta1RuntimeStatus(state=history_state) for history_state in history]
    run = kfp_server_api.V2beta1Run(run_id="r", state=history[-1], state_history=states, runtime_config=config)
    assert runs._outcome(run) == state


@pytest.mark.parametrize(("state", "here"), [("CANCELING", True), ("FAILED", True), ("CANCELING", False)])
def test_cancel_notes_the_end_that_it_asked_for_and_only_in_a_storage_that_is_here(
    state: str, here: bool, tmp_path: Path
) -> None:
    """A run that had failed stays failed, and a volume of the cluster is no folder of this machine."""
    root = tmp_path if here else tmp_path / "volume"
    kind = environments.load("kind").model_copy(update={"storage": str(root), "secrets": {}, "variables": {}})
    runs = KubeflowRuns(kind.model_copy(update={"kubeflow": environments.Kubeflow(endpoint="http://127.0.0.1:1")}))
    runs.cluster = Silent()
    config = kfp_server_api.V2beta1RuntimeConfig(parameters=RunMetadata("digits", "kind").parameters())
    states = iter([state, "FAILED", "FAILED"])
    runs.server.run = lambda _: kfp_server_api.V2beta1Run(  # type: ignore[method-assign]
        run_id="r", state=next(states), runtime_config=config
    )
    runs.cancel("r")
    written = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert written == (["cancelled"] if here and state == "CANCELING" else [])


def test_a_step_that_ended_with_its_cancelled_run_is_not_done_though_its_pod_ended_with_0() -> None:
    node = {"type": "Pod", "phase": "Failed", "message": "Step exceeded its deadline"}
    workflow = {"spec": {"activeDeadlineSeconds": 0}, "status": {"nodes": {"n-1": node, "n-0": {"phase": "Succeeded"}}}}
    assert argo.cancelled_nodes([workflow]) == {"n-1"}
    assert argo.cancelled_nodes([workflow | {"spec": {"activeDeadlineSeconds": 60}}]) == set()
    ended = explain(Evidence(pod(phase="Succeeded"), cancelled=True))
    assert (ended.state, ended.sentence) == ("failed", "was ended with its run")


def test_a_worker_that_its_job_replaces_and_an_attempt_that_argo_follows_by_another_ask_nobody_to_submit() -> None:
    end = {"exitCode": 75, "reason": "Error"}
    failed = pod(phase="Failed", containerStatuses=[{"name": "worker", "state": {"terminated": end}}])
    failed["spec"]["containers"] = [{"name": "worker"}]
    failed["metadata"]["labels"] |= {"batch.kubernetes.io/job-name": "gang"}
    failed["metadata"]["annotations"] = {"workflows.argoproj.io/node-id": "n-0"}
    nodes = {"n": {"type": "Retry", "phase": "Running", "children": ["n-0"]}, "n-0": {"phase": "Failed"}}
    workflow = {"spec": {}, "metadata": {"name": "w"}, "status": {"nodes": nodes}}
    job = {
        "metadata": {"name": "gang"},
        "spec": {},
        "status": {"conditions": [{"type": "Suspended", "status": "False"}]},
    }
    over = job | {"status": {"conditions": [{"type": "FailureTarget", "status": "True"}]}}

    def sentence(jobs: list[dict[str, Any]], workflows: list[dict[str, Any]]) -> str:
        (pod_evidence,) = evidence(Silent(), [failed], None, workflows, jobs)
        return explain(pod_evidence).sentence

    assert sentence([job], []).endswith("Its Job replaces it, and training resumes from its last checkpoint")
    rules = worker_job(GANG)["spec"]["podFailurePolicy"]
    lasting = job | {"spec": {"podFailurePolicy": rules}}
    assert "Its Job replaces it" in sentence([lasting], [])
    end["exitCode"] = 20  # which ends the gang
    assert sentence([lasting], []).endswith("Correct the recipe or the environment, and submit again")
    end["exitCode"] = 75
    assert sentence([over], [workflow]).endswith("It is retried")
    nodes["n"]["phase"] = "Failed"
    assert "Submit again" in sentence([over], [workflow])
    nodes |= {"n": {"type": "Retry", "phase": "Running", "children": ["n-0"]}, "n-0": {"phase": "Running"}}
    assert "Submit again" in sentence([], [workflow])  # Argo has not looked yet


def container_ends(**ends: dict[str, Any]) -> dict[str, Any]:
    """Return a failed pod whose containers ended so."""
    statuses = [{"name": name, "state": {"terminated": {"reason": "Error", **end}}} for name, end in ends.items()]
    return pod(phase="Failed", containerStatuses=statuses)


def test_a_step_whose_results_argo_could_not_store_is_not_said_to_have_ended_with_0() -> None:
    message = "Error (exit code 1): failed to put file: connection refused"
    finding = explain(Evidence(container_ends(main={"exitCode": 0}, wait={"exitCode": 64, "message": message})))
    assert (finding.cause, finding.code) == ("not-stored", ExitCode.TRANSIENT)
    assert (
        "container wait, exit code 64: Error (exit code 1): failed to put file: connection refused" in finding.sentence
    )
    failed = explain(Evidence(container_ends(main={"exitCode": 10}, wait={"exitCode": 64, "message": message})))
    assert failed.code == ExitCode.DATA


def test_a_driver_that_failed_is_no_fault_of_trainyard_and_one_of_a_cancelled_run_ended_with_it() -> None:
    driver = container_ends(main={"exitCode": 64, "message": "the metadata server does not answer"})
    del driver["metadata"]["labels"]["app.kubernetes.io/component"]
    driver["metadata"]["name"] = "trainyard-train-x-system-container-driver-1"
    finding = explain(Evidence(driver))
    assert finding.code == ExitCode.TRANSIENT and "fault of Trainyard" not in finding.sentence
    assert finding.sentence.startswith(
        "ended with exit code 64: the metadata server does not answer. Kubeflow prepares"
    )
    cancelled = {"spec": {"activeDeadlineSeconds": 0}, "metadata": {"name": "w"}, "status": {}}
    (pod_evidence,) = evidence(Silent(), [driver], None, [cancelled])
    assert explain(pod_evidence).sentence == "was ended with its run"


# As Kubeflow Pipelines 2.17.0 and Argo 4.0.5 wrote it, cut to its kinds of lines.
LAUNCHER_LOG = """\
time=2026-11-26T01:40:17.085Z level=INFO msg="capturing logs" argo=true
I1126 01:40:17.149428      15 cache.go:89] Connecting to cache endpoint ml-pipeline.kubeflow.svc.cluster.local:8887
[KFP Executor 2026-11-26 01:40:23,277 INFO]: Got executor_input:
{
    "inputs": {
        "parameterValues": {"gang": ""}
    }
}
[KFP Executor 2026-11-26 01:40:28,701 INFO]: Found credentials in environment variables.
{"event": "done", "step": "train"}
the step's own last line
[KFP Executor 2026-11-26 01:42:38,601 INFO]: Wrote executor output file to /minio/output_metadata.json.
I1126 01:42:42.036756      15 launcher_v2.go:1230] ExecutorOutput: {
  "parameterValues": {
    "model": "s3://mlpipeline/digits/train/9a1546319bc03546"
  }
}
W1126 01:42:42.645184      15 launcher_v2.go:827] Local filepath "/minio/metrics" does not exist
I1126 01:42:46.503002      15 launcher_v2.go:206] publish success.
time=2026-11-26T01:42:47.892Z level=INFO msg="sub-process exited" argo=true error=<nil>
"""


def test_the_last_lines_of_a_log_are_those_of_the_step() -> None:
    lines = argo.step_lines(LAUNCHER_LOG)
    assert lines == ['{"event": "done", "step": "train"}', "the step's own last line"]
    failed = container_ends(main={"exitCode": 1})
    assert "(bug): the step's own last line" in explain(Evidence(failed, log=LAUNCHER_LOG)).sentence


JSON_TAIL = """\
      "defaultValue": {"a": 1}
    }
  }
}
"""
DRIVER_END = (
    "F1128 22:14:03.512345      15 main.go:79] KFP driver: driver.RootDAG(pipelineName=digits, runID=r, runtimeConfig, "
    "componentSpec) failed: failed to get run: rpc error: code = Unavailable\n"
    'time=2026-11-28T22:14:04.1Z level=INFO msg="sub-process exited" argo=true error="exit status 1"\n'
    "Error: exit status 1\n"
)


def test_the_tail_of_a_json_block_at_the_cut_of_a_log_is_no_reason() -> None:
    assert argo.step_lines(JSON_TAIL + "own line\n") == ["own line"]
    assert argo.step_lines("  own indented line\nown\n}\n") == ["  own indented line", "own", "}"]
    driver = container_ends(main={"exitCode": 1})
    del driver["metadata"]["labels"]["app.kubernetes.io/component"]
    driver["metadata"]["name"] = "trainyard-train-x-system-dag-driver-1"
    for log in (JSON_TAIL + DRIVER_END, DRIVER_END):
        finding = explain(Evidence(driver, log=log))
        assert (finding.cause, finding.code) == ("driver", ExitCode.TRANSIENT)
        assert finding.sentence.startswith(
            "ended with exit code 1: failed to get run: rpc error: code = Unavailable. Kubeflow prepares a step in it."
        )


def test_a_launcher_of_kubeflow_that_gives_up_is_no_fault_of_the_step() -> None:
    line = "F1126 01:42:46.503002      15 main.go:59] failed to execute component: failed to upload model: no bucket\n"
    finding = explain(Evidence(container_ends(main={"exitCode": 1}), log=LAUNCHER_LOG + line))
    assert (finding.cause, finding.code) == ("launcher", ExitCode.TRANSIENT)
    assert "exit code 1: failed to execute component: failed to upload model: no bucket. Kubeflow's" in finding.sentence

    cause = "NoSuchBucket: there is no bucket"
    line = line.replace("no bucket", f"s3://{'bucket/' * 90}: {'closing the writer: ' * 20}{cause}")
    finding = explain(Evidence(container_ends(main={"exitCode": 1}), log=LAUNCHER_LOG + line))
    assert "failed to upload model: s3://bucket" in finding.sentence and f"{cause}. " in finding.sentence


def test_a_runs_deadline_reads_as_argo_writes_it_into_pods() -> None:
    workflow = {"spec": {"activeDeadlineSeconds": 600}, "status": {"startedAt": "2026-01-01T00:00:00Z"}}
    assert argo.run_ends(workflow) == ARGOS_DEADLINE
    assert argo.run_ends({"spec": {}, "status": workflow["status"]}) == ""


def test_a_preemption_by_a_higher_priority_is_told_and_worth_another_try() -> None:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "preempting",
    }
    finding = explain(Evidence(pod(phase="Failed", conditions=[condition])))
    assert finding.sentence.startswith("was preempted by a pod of higher priority on gpu-0 (preempting).")
    assert (finding.cause, finding.code, finding.state) == ("preempted", ExitCode.TRANSIENT, "failed")


def test_a_pod_on_a_node_that_is_silent_or_gone_says_so() -> None:
    silent = explain(Evidence(pod(), nodes=[node("gpu-0", ready="Unknown")]))
    assert "is on gpu-0, which does not answer since 2026-01-01T00:05:00Z" in silent.sentence
    gone = explain(Evidence(pod(), nodes=[node("gpu-1")]))
    assert "was on gpu-0, and that node is gone" in gone.sentence
    assert {silent.cause, gone.cause} == {"node-lost"}


def test_nothing_takes_the_place_of_a_pod_that_is_deleted_before_its_silent_node_is() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    deleted = pod(conditions=[target])
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:00Z"
    held = explain(Evidence(deleted, nodes=[node("gpu-0", ready="Unknown")]))
    assert (held.state, held.cause) == ("running", "node-lost")
    assert held.sentence == (
        "is on gpu-0, which does not answer since 2026-01-01T00:05:00Z. Nothing takes its place before gpu-0 answers "
        "again or is deleted: kubectl delete node gpu-0"
    )
    assert "got a taint that it does not tolerate" in explain(Evidence(deleted, nodes=[node("gpu-0")])).sentence


@pytest.mark.parametrize("ready", ["True", "Unknown"])
def test_a_log_that_its_node_does_not_give_keeps_nobody_from_the_rest(ready: str) -> None:
    class LostNode(Silent):
        asked = 0

        def get(self, path: str, metadata_only: bool = False) -> dict[str, Any] | None:
            return {"items": [node("gpu-0", ready)]} if path == "/api/v1/nodes" else None

        def log(self, *_: Any) -> str:
            self.asked += 1
            raise TransientError("kubernetes: GET log: 500 (dial tcp 10.0.0.1:10250: connection refused).")

    cluster = LostNode()
    (found,) = map(explain, evidence(cluster, [pod(containerStatuses=[{"name": "main", "state": {"running": {}}}])]))
    assert found.sentence.startswith("is running on" if ready == "True" else "is on gpu-0, which does not answer")
    assert cluster.asked == (ready == "True")


def test_of_hundreds_of_waiting_pods_each_has_its_events_by_one_call_and_nodes_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    waiting = [pod(str(number), phase="Pending", conditions=[unscheduled]) for number in range(200)]
    for one in waiting:
        del one["spec"]["nodeName"]
        one["spec"]["hostname"] = one["metadata"]["name"]  # in which a gang's pods differ
        one["spec"]["containers"][1]["resources"] = ROOM
    waiting[7]["spec"]["nodeSelector"] = {"disk": "large"}
    happened = [{"involvedObject": {"uid": str(number)}, "message": str(number)} for number in reversed(range(300))]
    calls: list[str] = []

    class Full(Silent):
        def get(self, path: str, metadata_only: bool = False) -> dict[str, Any] | None:
            return {"items": [node("gpu-0")] if path.endswith("nodes") else []}

        def items(self, kind: str, selector: str = "", fields: str = "", group: str = "") -> list[dict[str, Any]]:
            calls.append(kind)
            return happened

    def counted(*arguments: Any) -> Any:
        calls.append("obstacle")
        return find_obstacle(*arguments)

    monkeypatch.setattr(explanation, "find_obstacle", counted)
    collected = evidence(Full(), waiting)
    assert [[event["message"] for event in one.events] for one in collected] == [[str(n)] for n in range(200)]
    sentences = [explain(one).sentence for one in collected]
    assert "disk=large" in sentences[7] and not any("disk" in text for text in sentences[:7] + sentences[8:])
    assert calls == ["events", "obstacle", "obstacle"]


KUEUES_GATES = [{"name": "kueue.x-k8s.io/admission"}, {"name": "kueue.x-k8s.io/topology"}]  # of Kueue 0.19.2


@pytest.mark.parametrize("readable", [True, False])
def test_a_step_in_a_queue_says_why_it_is_not_admitted_and_its_wait_has_no_limit(readable: bool) -> None:
    queued = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": ""}
    waiting = pod(phase="Pending", conditions=[queued])
    waiting["spec"] = {**waiting["spec"], "nodeName": "", "schedulingGates": KUEUES_GATES}
    waiting["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    reserved = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota for cpu"}
    workload = {"metadata": {"name": "pod-p"}, "spec": {"active": False}, "status": {"conditions": [reserved]}}

    class Queue(Silent):
        def items(self, kind: str, selector: str = "", fields: str = "", group: str = "") -> list[dict[str, Any]]:
            if kind != "workloads":
                return []
            if not readable:
                raise InfrastructureError("refused")
            assert selector == "kueue.x-k8s.io/job-uid=p"
            return [workload]

    (found,) = map(explain, evidence(Queue(), [waiting]))
    why = (
        ": insufficient quota for cpu. It is deactivated: kubectl patch workload pod-p --type=merge -p "
        """'{"spec":{"active":true}}'"""
    )
    assert (found.state, found.cause) == ("waiting", "queued")
    assert found.sentence == f"waits to be admitted by queue 'team'{why if readable else ''}"
    now = datetime(2026, 1, 9, tzinfo=UTC)
    assert (
        longest_wait(RunView("id", "nightly", "RUNNING", "digits", "kind", "", 180.0, steps([found], now)), now) is None
    )


def test_a_pod_that_wrote_more_than_its_disk_share_is_not_worth_another_try() -> None:
    text = "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi."
    finding = explain(Evidence(pod(phase="Failed", reason="Evicted", message=text)))
    assert (finding.cause, finding.code) == ("evicted", ExitCode.INFRASTRUCTURE)
    assert "raise its ephemeral-storage limit" in finding.sentence


FAILED = '{"event": "failed", "step": "train", "code": %d, "error": "E", "message": "%s"}'


def test_a_program_that_was_killed_under_kubeflows_launcher_was_killed_and_did_not_end_with_1() -> None:
    """The end of a real step's log, of Kubeflow Pipelines 2.17.0 and Argo 4.0.5, whose program got SIGKILL."""
    log = """{"event": "progress", "done": 4531, "total": 69000, "unit": "steps", "peak_mib": 893}
E1126 05:25:22.933026      17 launcher_v2.go:449] Component failed to execute successfully: exit status 137
I1126 05:25:22.933111      17 launcher_v2.go:867] Executing uploadOutputArtifacts attempt: 1
Killed
F1126 05:25:23.275202      17 main.go:59] failed to execute component: exit status 137
time=2026-11-26T05:25:23.929Z level=INFO msg="sub-process exited" argo=true error="exit status 1"
Error: exit status 1
"""
    finding = ended(1, log)
    assert finding.sentence.startswith("was killed (exit code 137), perhaps by its node, for memory. ")
    assert finding.code is ExitCode.TRANSIENT
    other = ended(1, log.replace("Killed", "no such table").replace("137", "3"))
    assert other.sentence.startswith("ended with exit code 3 (bug): no such table. ")


def test_the_steps_own_code_stands_above_the_launchers() -> None:
    finding = ended(1, f"story\n{FAILED % (40, 'no GPU: 1 was promised.')}\n[KFP] exit status 40\n")
    assert finding.code == ExitCode.INFRASTRUCTURE
    assert "exit code 40 (infrastructure): no GPU: 1 was promised. Provide what is missing" in finding.sentence


PACE = {
    **{"step": 340, "steps": 1000, "examples_per_second": 1200, "step_ms": 50.0, "prefetched_step_ms": 48.0},
    **{"all_reduce_ms": 0.0, "step_seconds": 80.0, "compile_seconds": 5.0, "input_seconds": 0.1},
    **{"eval_seconds": 5.0, "save_seconds": 2.0},
}


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        ({}, "compute-bound", "340 of 1,000, 1,200 examples/s, about 33 s of steps left; it computes most of the time"),
        (
            {"prefetched_step_ms": 30.0},
            "input-bound",
            "it waits for its input 40% of each step (50.0 ms; 30.0 after a pause). With its input there it would take "
            "2,000 examples/s: 2 input workers, each with the cores of one that prepares its batches now "
            "(input_workers.count), would feed it, or give it 1.7 times the cores",
        ),
        ({"prefetched_step_ms": 30.0, "workers": 3}, "input-bound", "2,000 examples/s: 5 input workers, each"),
        (
            {"prefetched_step_ms": 25.0, "workers": 3, "input_workers": 4},
            "input-bound",
            ": 8 input workers instead of 4, ",
        ),
        ({"prefetched_step_ms": 0.5}, "input-bound", "120,000 examples/s: give it 100.0 times the cores (resources"),
        (
            {"all_reduce_ms": 25.0},
            "all-reduce-bound",
            "its workers sum gradients 50% of each step (25.0 of 50.0 ms). Raise",
        ),
        ({"save_seconds": 30.0}, "checkpoint-bound", "25% of the time. Raise train.checkpoints.every_steps"),
        ({"eval_seconds": 80.0}, "eval-bound", "it evaluates 48% of the time. Lower data.split.eval"),
    ],
)
def test_a_training_that_goes_on_says_what_bounds_it_and_what_to_change(
    change: dict[str, float], cause: str, words: str
) -> None:
    pace = PACE | change
    log = f'story\n{json.dumps({"event": "pace", **pace})}\n{{"event": "progress", "done": 341}}\n'
    finding = explain(Evidence(pod(), log=log))
    assert (finding.state, finding.cause) == ("running", cause)
    assert finding.sentence.startswith("is running on gpu-0: step 340") and words in finding.sentence
    assert explain(Evidence(pod(), log='{"event": "pace", "step": 1}\n')).sentence == "is running on gpu-0"


def log_of(*lines: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


WAITS = {"event": "gang", "workers": 2, "running": 1, "waiting": "waiting for worker 1 of 2 (no pod)"}
RESTARTS = {"event": "restarting", "generation": 2, "step": 117, "reason": "worker 1 is lost"}
THERE = {"event": "gang", "workers": 2, "running": 2}
TOGETHER = {"event": "started_together", "workers": 2, "generation": 2}
STEPS = {"event": "progress", "done": 341, "total": 1000, "unit": "steps", "peak_mib": 1}
PACED = {"event": "pace"} | PACE


@pytest.mark.parametrize(
    ("later", "cause", "words"),
    [
        ([WAITS], "waiting-for-workers", "waiting for worker 1 of 2 (no pod)"),
        ([WAITS, RESTARTS], "starting", "it starts again after step 117: worker 1 is lost"),
        ([RESTARTS, WAITS], "waiting-for-workers", "waiting for worker 1 of 2 (no pod)"),
        ([WAITS, THERE], "starting", "its training starts"),
        ([RESTARTS, WAITS, THERE, TOGETHER], "starting", "its training starts"),
        (
            [RESTARTS, TOGETHER, {"event": "resumed", "step": 110, "steps": 1000}],
            "starting",
            "it resumes from step 110",
        ),
        ([RESTARTS, TOGETHER, STEPS], "running", "341 of 1,000 steps"),
        ([{"event": "launched", "job": "j", "how": "attached", "workers": 2}], "starting", "its training starts"),
        ([{"event": "trained", "steps": 1000}], "finishing", "it has trained, and writes its output"),
        ([RESTARTS, TOGETHER, PACED], "compute-bound", "step 340 of 1,000"),
        ([THERE], "compute-bound", "step 340 of 1,000"),  # one that comes back to an elastic gang stops nothing
        ([WAITS, STEPS], "compute-bound", "step 340 of 1,000"),  # an elastic gang trains without it
        ([{"event": "warning", "message": "m"}, {"event": "saved", "step": 340}], "compute-bound", "step 340 of 1,000"),
    ],
)
def test_a_pace_from_before_a_restart_is_not_said(later: list[dict[str, Any]], cause: str, words: str) -> None:
    finding = explain(Evidence(pod(), log=log_of({"event": "launched"}, TOGETHER, STEPS, PACED, STEPS, *later)))
    assert (finding.state, finding.cause) == ("running", cause)
    assert finding.sentence.startswith(f"is running on gpu-0: {words}")


def test_a_smaller_team_is_said_while_it_trains_and_not_while_it_waits() -> None:
    why = {"of": 2, "why": "worker 1 is not there"}
    log = log_of(PACED, RESTARTS, TOGETHER | {"workers": 1} | why, PACED)
    assert "it runs with 1 of 2 workers: worker 1" in explain(Evidence(pod(), log=log)).sentence
    small = explain(Evidence(pod(), log=log_of(PACED | {"workers": 1, "max_workers": 2}))).sentence
    assert small.endswith("; it runs with 1 of 2 workers")
    for line in (RESTARTS, WAITS):
        assert "1 of 2 workers:" not in explain(Evidence(pod(), log=log + log_of(line))).sentence


@pytest.mark.parametrize(
    ("speed", "rested", "cause", "phrase"),
    [
        (98, 30.0, "input-bound", "left; the plan expected 182 (103–324) examples/s on pool gpu-l4; it"),
        (98, 48.0, "compute-bound", "gpu-l4; it computes most of each step, so its node"),
        (103, 48.0, "compute-bound", "left; it computes most of the time"),
        (325, 48.0, "compute-bound", "gpu-l4, and learns from this run; it computes most of the time"),
    ],
)
def test_a_pace_outside_what_the_plan_expected_is_held_against_it(
    speed: int, rested: float, cause: str, phrase: str
) -> None:
    pace = {"event": "pace", **PACE, "examples_per_second": speed, "prefetched_step_ms": rested}
    plan = Expectation("gpu-l4", Estimate(103, 182, 324))
    finding = explain(Evidence(pod(), log=f"{json.dumps(pace)}\n", expected=plan))
    assert finding.cause == cause and phrase in finding.sentence


def test_who_waits_hears_that_a_training_has_fallen_behind_the_plan_once() -> None:
    plan, now = Expectation("gpu-l4", Estimate(103, 182, 324)), datetime(2026, 1, 1, 0, 3, tzinfo=UTC)
    views = []
    for speed in (150, 140, 98, 97):
        log = json.dumps({"event": "pace", **PACE, "examples_per_second": speed})
        step_views = steps([explain(Evidence(pod(), log=log, expected=plan))], now)
        views.append(RunView("id", "nightly", "RUNNING", "digits", "kind", "", 180.0, step_views))
    message: list[str] = []
    assert list(changes(iter(views), lambda step: message.append(step.sentence))) == views
    assert [sentence.partition("; ")[2][:17] for sentence in message] == ["it computes most ", "the plan expected"]


def test_a_pod_killed_for_memory_says_what_it_last_told_of() -> None:
    log = '{"event": "progress", "done": 5, "total": 90, "unit": "steps", "loss": 0.1, "peak_mib": 912}\n'
    assert "and it last told of 912 MiB (5 of 90 steps). Raise pools.gpu-l4" in ended(137, log, "OOMKilled").sentence
    assert ended(137, log, "OOMKilled").sentence.endswith("limits.memory (and requests), or lower train.batch_size")


def test_a_preprocess_killed_for_memory_says_so_too_and_names_the_runner() -> None:
    log = '{"event": "progress", "done": 1, "total": 2, "unit": "files", "records": 30798, "peak_mib": 2811}\n'
    end = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:01:00Z"}
    killed = pod(step="preprocess", phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": end}}])
    killed["spec"]["containers"][1]["resources"] = {"limits": {"memory": "3Gi"}}
    message = explain(Evidence(killed, log=log)).sentence
    assert "its limit is 3Gi, and it last told of 2811 MiB (1 of 2 files). Raise pools.gpu-l4" in message
    assert message.endswith("or preprocess on a Beam runner with its own workers (beam.runner)")


def test_a_kill_without_a_word_is_worth_another_try() -> None:
    assert (ended(137).cause, ended(137).code) == ("killed", ExitCode.TRANSIENT)
    assert events.failure("nothing here") is None


def test_two_labels_that_no_single_node_has_are_both_named() -> None:
    spec = {"nodeSelector": {"zone": "a", "disk": "ssd"}, "containers": []}
    obstacle = find_obstacle(spec, [node("one", zone="a"), node("two", disk="ssd")])
    assert obstacle and obstacle.sentence == "no single node has zone=a and disk=ssd"


def test_nodes_that_are_cordoned_or_not_ready_are_named() -> None:
    cordoned = node("one") | {"spec": {"unschedulable": True}}
    obstacle = find_obstacle({"containers": []}, [cordoned, node("two", ready="False")])
    assert obstacle and "(one is cordoned; two is not ready)" in obstacle.sentence and not obstacle.permanent


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("disk-pressure", "one is short of disk space). Free disk on one (crictl rmi --prune"),
        ("memory-pressure", "one is short of memory). End what uses the memory of one"),
        ("pid-pressure", "one is short of process ids). End what starts so many processes on one"),
        ("unreachable", "one does not answer). Start one again, or delete it (kubectl delete node one)"),
        ("not-ready", "one is not ready). Look why (kubectl describe node one)"),
        ("unschedulable", "one is cordoned). Run kubectl uncordon one"),
        ("network-unavailable", "one has no network). Look at the pod of the network plugin on one"),
    ],
)
def test_a_taint_that_names_a_fault_of_its_node_asks_for_no_toleration(key: str, words: str) -> None:
    faulty, other = node("one"), node("two")
    faulty["spec"]["taints"] = [{"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"}]
    other["spec"]["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    obstacle = find_obstacle({"containers": []}, [faulty, other], [])
    assert obstacle and obstacle.kind == "nodes" and not obstacle.permanent and "toleration" not in obstacle.advice
    assert words in obstacle.advice
    tainted = find_obstacle({"containers": []}, [other], [])
    assert tainted and tainted.kind == "taint" and "Add the toleration" in tainted.advice
    faulty["status"]["conditions"][0]["status"] = "False"
    several = find_obstacle({"containers": []}, [faulty], [])
    assert several and several.advice.count("is not ready") == 1


def test_a_driver_that_no_node_takes_is_told_that_it_has_no_placement() -> None:
    driver, tainted = pod("x-driver-1", phase="Pending"), node("one")
    del driver["metadata"]["labels"]["app.kubernetes.io/component"], driver["spec"]["nodeName"]
    tainted["spec"]["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    sentence = explain(Evidence(driver, nodes=[tainted], pods=[])).sentence
    assert "Kubeflow's drivers take no placement" in sentence and "environment" not in sentence


@pytest.mark.parametrize(("name", "own"), [("main", True), ("kfp-launcher", False), ("wait", False)])
def test_an_image_of_kubeflows_own_is_not_looked_for_in_the_environment(name: str, own: bool) -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    status = {"name": name, "image": "ghcr.io/kubeflow/kfp-launcher:2.17.0", "state": state}
    finding = explain(Evidence(pod(phase="Pending", containerStatuses=[status])))
    assert (finding.cause, finding.code) == ("image", ExitCode.INFRASTRUCTURE)
    assert ("correct images in the environment" in finding.sentence) == own
    assert ("administrators of Kubeflow" in finding.sentence and f"'{name}'" in finding.sentence) == (not own)


NEVER = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
PULL = 'Failed to pull image "kfp-launcher:2": not found'


@pytest.mark.parametrize(
    ("events_of_pod", "words"),
    [
        (
            [("kfp-launcher", PULL), ("kfp-launcher", "Error: ImagePullBackOff")],
            f"(Failed: {PULL}). This container is K",
        ),
        ([("main", PULL)], f"(Failed: {PULL}). Correct that, or raise timeout_seconds.push in the environment"),
        ([], "that it may take. Raise timeout_seconds.push in the environment if its image takes so long"),
    ],
)
def test_a_step_whose_pod_stood_in_init_until_its_deadline_never_ran(
    events_of_pod: list[tuple[str, str]], words: str
) -> None:
    """The status is that of a real kubelet 1.34 after activeDeadlineSeconds."""
    statuses = [{"name": name, "state": {"waiting": {"reason": "PodInitializing"}}} for name in ("wait", "main")]
    init = [{"name": "kfp-launcher", "state": {"terminated": NEVER}}]
    stood = pod(step="push", phase="Failed", reason="DeadlineExceeded", containerStatuses=statuses)
    stood["status"]["initContainerStatuses"] = init
    stood["spec"]["activeDeadlineSeconds"] = 1800
    warnings = [
        {"type": "Warning", "reason": "Failed", "message": text, "involvedObject": {"fieldPath": f"spec.x{{{name}}}"}}
        for name, text in events_of_pod
    ]
    finding = explain(Evidence(stood, events=warnings))
    assert finding.sentence.startswith("never ran: it did not start in the 1800 s") and words in finding.sentence
    assert (finding.cause, finding.code) == ("deadline", ExitCode.INFRASTRUCTURE)
    end = {"exitCode": 137, "startedAt": "2026-01-01T00:00:00Z"}
    stood["status"]["containerStatuses"][1]["state"] = {"terminated": end}
    assert explain(Evidence(stood)).sentence.startswith("ran for more than the 1800 s")


def test_a_pod_that_fits_is_no_misfit_and_requests_are_sums_or_the_largest_init() -> None:
    ask = {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}
    spec = {"containers": [ask, ask], "initContainers": [{"resources": {"requests": {"cpu": "3"}}}]}
    assert requests(spec) == {"cpu": 3.0, "memory": 2 * 1024**3}
    assert find_obstacle(spec, [node("one")], []) is None


def test_a_step_is_shown_by_its_newest_pod_with_the_earlier_ones_below() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    first = explain(Evidence(pod("p1", phase="Failed", conditions=[condition])))
    second = explain(Evidence(pod("p2", created="2026-01-01T00:02:00Z")))
    data = explain(Evidence(pod("p0", step="preprocess", phase="Succeeded")))
    views = steps([second, data, first], datetime(2026, 1, 1, 0, 3, tzinfo=UTC))
    assert [(view.name, view.pod, view.attempts, view.seconds) for view in views] == [
        ("preprocess", "p0", 1, 180.0),
        ("train", "p2", 2, 180.0),
    ]
    assert views[1].earlier[0][0] == "p1" and views[1].earlier[0][1].startswith("was evicted")
    assert views[1].document()["earlier"][0].startswith("p1 was evicted")


def test_input_workers_stand_beside_the_step_that_they_feed() -> None:
    input_pod = pod("f", step="train")
    input_pod["metadata"]["labels"] |= {"trainyard/use": "input", "batch.kubernetes.io/job-completion-index": "0"}
    pods = [pod("e", step="evaluate"), input_pod, pod("t", step="train")]
    views = steps([explain(Evidence(own)) for own in pods], datetime(2026, 1, 1, 0, 3, tzinfo=UTC))
    assert [view.name for view in views] == ["train", "train input worker 0", "evaluate"]


def test_the_two_checks_of_a_run_for_drift_are_told_apart_and_in_their_order() -> None:
    now = datetime(2026, 1, 1, 0, 3, tzinfo=UTC)
    second = pod("q", step="check")
    second["metadata"]["labels"]["trainyard/use"] = "2"
    pods = [pod("r", step="preprocess"), second, pod("p", step="check"), pod("s", step="train")]
    step_views = steps([explain(Evidence(manifest)) for manifest in pods], now)
    expected = [("check", "p"), ("preprocess", "r"), ("check 2", "q"), ("train", "s")]
    assert [(view.name, view.pod) for view in step_views] == expected
    assert all(view.attempts == 1 for view in step_views)
    views = [
        kfp_server_api.V2beta1PipelineTaskDetail(display_name=name, state="SUCCEEDED") for name in ("check-2", "check")
    ]
    assert [view.name for view in run_view.with_podless((), steps_of_tasks(views, now))] == ["check", "check 2"]
