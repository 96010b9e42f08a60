"""Everything that keeps a pod from its work, provoked for real, and the sentence that is said of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import plans
import pytest
import yaml
from launcher import gang
from namespaces import SECONDS, Namespace, until
from tests.kubeflow_server import Kubeflow, serve

from trainyard.errors import ExitCode
from trainyard.kubernetes import labels
from trainyard.kubernetes.client import connect
from trainyard.spec.environment import BUNDLED
from trainyard.steps.train.gang.pods.job import worker_job
from trainyard_control.cluster.explanation import Finding
from trainyard_control.kubeflow.runs import findings, gangs, pods_of_job, run_objects

pytestmark = pytest.mark.cluster

HOG = "held = []\nwhile True: held.append(bytearray(8 << 20))"
PROGRESS = '{"event": "progress", "done": 3, "total": 9, "unit": "steps", "peak_mib": 31}'
PRINT_PROGRESS = f"import sys; print({PROGRESS!r}, file=sys.stderr, flush=True)\n"
PACE = (
    '{"event": "pace", "step": 340, "steps": 1000, "examples_per_second": 1200, "step_ms": 50.0, '
    '"prefetched_step_ms": 30.0, '
    '"all_reduce_ms": 0.0, "step_seconds": 80, "compile_seconds": 5, "input_seconds": 0, "eval_seconds": 5, '
    '"save_seconds": 2}'
)


def start(namespace: Namespace, name: str, script: str = "import time; time.sleep(600)", **changes: Any) -> None:
    """Create a pod that runs `script` as a step does, with `changes` of its spec; `resources` are its container's."""
    spec = worker_job(gang(plans.plan(name, script)))["spec"]["template"]["spec"] | {"subdomain": None}
    container = spec["containers"][0] | {"name": "main", "env": []}
    for key in ("resources", "image", "envFrom"):
        if key in changes:
            container[key] = changes.pop(key)
    own = {"app.kubernetes.io/component": "train", "trainyard/pool": "cpu", "explain": name}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": own}}
    namespace.kubectl(
        "create", "-f", "-", stdin=json.dumps(pod | {"spec": spec | changes | {"containers": [container]}})
    )


def await_finding(namespace: Namespace, name: str, cause: str, seconds: float = SECONDS) -> Finding:
    """Return the finding of the pod once its cause is `cause`."""
    cluster = connect(namespace.name)
    last: list[Finding] = []

    def look() -> Finding | None:
        last[:] = findings(cluster, cluster.items("pods", selector=f"explain={name}"), [])
        return next((candidate for candidate in last if candidate.cause == cause), None)

    try:
        finding: Finding = until(look, seconds)
    except AssertionError as error:
        raise AssertionError(f"no '{cause}' in {last}") from error
    print(finding.sentence)
    return finding


def test_a_label_that_no_node_has_is_named_with_the_nearest_there_is(namespace: Namespace) -> None:
    start(namespace, "label", nodeSelector={"cloud.google.com/gke-accelerator": "nvidia-l40"})
    finding = await_finding(namespace, "label", "unschedulable")
    assert finding.sentence == (
        "no node takes it: no node has the label cloud.google.com/gke-accelerator=nvidia-l40; there is nvidia-l4. "
        "Did you mean 'nvidia-l4'? Correct the pool's accelerator, topology or nodeSelector, or add such nodes"
    )
    assert (finding.state, finding.permanent, finding.name) == ("waiting", True, "train")


def test_a_taint_is_named_with_the_nodes_that_would_do(namespace: Namespace) -> None:
    start(namespace, "taint", nodeSelector={"cloud.google.com/gke-accelerator": "nvidia-l4"}, tolerations=[])
    sentence = await_finding(namespace, "taint", "unschedulable").sentence
    assert (
        "gpu-0, gpu-1 would do, but the pod does not tolerate the taint nvidia.com/gpu=present:NoSchedule" in sentence
    )


def test_a_request_that_no_node_can_give_is_named_with_the_largest_there_is(namespace: Namespace) -> None:
    huge = {"requests": {"cpu": "1000", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}
    start(namespace, "huge", resources=huge)
    finding = await_finding(namespace, "huge", "unschedulable")
    assert "it asks for 1,000 cpu, and the largest of the" in finding.sentence and finding.permanent


def test_full_nodes_are_named_with_who_fills_them_and_waiting_helps(namespace: Namespace) -> None:
    gpu = {
        "requests": {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "64Mi", "nvidia.com/gpu": "1"},
    }
    placement = {
        "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "terminationGracePeriodSeconds": 0,
    }
    for index in range(3):
        start(namespace, f"gpu-{index}", resources=gpu, **placement)
    cluster = connect(namespace.name)

    def waiting() -> Finding | None:
        pods = [pod for pod in cluster.items("pods") if pod["metadata"]["name"].startswith("gpu-")]
        return next((candidate for candidate in findings(cluster, pods, []) if candidate.cause == "full"), None)

    finding = until(waiting)
    print(finding.sentence)
    assert "nodes that it may use are full: it needs 1 nvidia.com/gpu, and at most 0" in finding.sentence
    assert f"{namespace.name}/gpu-" in finding.sentence and not finding.permanent
    namespace.kubectl("delete", "pod", "gpu-0", "gpu-1", "gpu-2", "--wait=false")


def test_an_image_that_cannot_be_had_is_named(namespace: Namespace) -> None:
    start(namespace, "image", image="missing.example/image:1")
    finding = await_finding(namespace, "image", "image")
    assert "its image missing.example/image:1 cannot be had (" in finding.sentence
    assert finding.code == ExitCode.INFRASTRUCTURE


def test_a_secret_that_is_not_there_is_named(namespace: Namespace) -> None:
    start(namespace, "secret", envFrom=[{"secretRef": {"name": "store-keys"}}])
    assert 'secret "store-keys" not found' in await_finding(namespace, "secret", "configuration").sentence


def test_a_volume_that_is_not_there_is_named(namespace: Namespace) -> None:
    start(namespace, "claim", volumes=[{"name": "tmp", "persistentVolumeClaim": {"claimName": "runs"}}, _MEMORY])
    assert 'persistentvolumeclaim "runs" not found' in await_finding(namespace, "claim", "unschedulable").sentence


_MEMORY = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}


def test_a_step_killed_for_memory_is_told_its_limit_and_what_to_set(namespace: Namespace) -> None:
    small = {"requests": {"cpu": "100m", "memory": "48Mi"}, "limits": {"memory": "48Mi"}}
    start(namespace, "hog", PRINT_PROGRESS + HOG, resources=small)
    finding = await_finding(namespace, "hog", "out-of-memory")
    assert finding.sentence == (
        "was killed for memory: its limit is 48Mi, and it last told of 31 MiB (3 of 9 steps). "
        "Raise pools.cpu.resources.limits.memory (and requests), or lower train.batch_size"
    )
    assert finding.code == ExitCode.INFRASTRUCTURE


def test_a_slow_training_is_told_what_it_waits_for_while_it_runs(namespace: Namespace) -> None:
    start(namespace, "waits", f"import sys, time; print({PACE!r}, file=sys.stderr, flush=True); time.sleep(600)")
    finding = await_finding(namespace, "waits", "input-bound")
    assert finding.state == "running"
    assert "step 340 of 1,000, 1,200 examples/s" in finding.sentence and "waits for its input 40%" in finding.sentence
    namespace.kubectl("delete", "pod", "waits", "--grace-period=1")


def test_an_eviction_is_told_from_a_failure(namespace: Namespace) -> None:
    start(namespace, "moved", plans.WORK)
    running = await_finding(namespace, "moved", "running")
    assert running.since <= running.started and not running.until
    namespace.evict("moved")
    finding = await_finding(namespace, "moved", "evicted")
    assert finding.started == running.started
    assert finding.sentence.startswith("was evicted, as by a drain of the node on cpu-")
    assert finding.code == ExitCode.TRANSIENT


def test_a_deadline_is_told_with_what_to_raise(namespace: Namespace) -> None:
    start(namespace, "slow", activeDeadlineSeconds=5, terminationGracePeriodSeconds=1)
    finding = await_finding(namespace, "slow", "deadline")
    assert finding.sentence == "ran for more than the 5 s that it may. Raise timeout_seconds.train in the environment"


@pytest.mark.parametrize(
    ("code", "cause", "advice"),
    [
        (10, "data", "Fix the data or its description in the recipe, and submit again"),
        (20, "configuration", "Correct the recipe or the environment, and submit again"),
        (40, "infrastructure", "Provide what is missing (disk, permission or device), and submit again"),
        (50, "bug", "Read the log (trainyard runs logs)"),
    ],
)
def test_a_step_that_failed_speaks_in_its_own_words_though_the_launcher_says_1(
    namespace: Namespace, code: int, cause: str, advice: str
) -> None:
    event = {"event": "failed", "step": "train", "code": code, "error": "SomeError", "message": "row 7: no label."}
    line = json.dumps(event)
    start(namespace, f"code-{code}", f"import sys; print({line!r}, file=sys.stderr); sys.exit(1)")
    finding = await_finding(namespace, f"code-{code}", cause)
    assert finding.sentence.startswith(f"ended with exit code {code} ({cause}): row 7: no label. {advice}")
    assert finding.code == code


def test_a_traceback_that_said_no_class_is_a_bug_with_its_last_line(namespace: Namespace) -> None:
    start(namespace, "crash", "raise KeyError('epoch')")
    finding = await_finding(namespace, "crash", "bug")
    assert "ended with exit code 1 (bug): KeyError: 'epoch'" in finding.sentence
    assert finding.since <= finding.started <= finding.until


def test_a_runs_pods_are_those_with_its_label_and_those_of_the_gang_they_started(namespace: Namespace) -> None:
    start(namespace, "launching", plans.SLEEP)
    namespace.kubectl("label", "pod", "launching", "pipeline/runid=1234")
    launcher = json.loads(namespace.kubectl("get", "pod", "launching", "-o", "json"))
    job = worker_job(gang(plans.plan("gang-of-1234", plans.SLEEP)))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "launching", "uid": launcher["metadata"]["uid"]}
    job["metadata"]["ownerReferences"] = [owner]
    created = json.loads(namespace.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(job)))
    name, uid = created["metadata"]["name"], created["metadata"]["uid"]
    input_job = worker_job(gang(plans.plan("gang-of-1234", plans.SLEEP, workers=1, feeds=name)))
    input_job["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}]
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(input_job))
    cluster = connect(namespace.name)

    def running() -> bool:
        pod_findings = findings(cluster, run_objects(cluster, "1234")[0], [])
        return {finding.name for finding in pod_findings if finding.cause == "running"} == {
            "train",
            "train worker 0",
            "train worker 1",
            "train input worker 0",
        }

    until(running)
    namespace.kubectl("delete", "pod", "launching", "--grace-period=1")


def test_a_quota_is_named_for_the_gang_that_gets_no_pods(namespace: Namespace) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "quota-run"}}
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(owner))
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(quota))
    try:
        until(lambda: namespace.kubectl("get", "resourcequota", "none", "-o", "jsonpath={.status.hard.pods}") == "0")
        run = json.loads(namespace.kubectl("get", "configmap", "quota-run", "-o", "json"))
        job = worker_job(gang(plans.plan("quota", plans.SLEEP)))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "quota-run", "uid": run["metadata"]["uid"]}
        job["metadata"]["ownerReferences"] = [reference]
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(job))
        cluster = connect(namespace.name)

        def waiting() -> Finding | None:
            jobs = gangs(cluster, [run])
            return next(
                (candidate for candidate in findings(cluster, pods_of_job(cluster, jobs[0]["metadata"]["name"]), jobs)),
                None,
            )

        finding = until(waiting)
        print(finding.sentence)
        assert (finding.name, finding.cause) == ("train", "quota")
        assert "it would exceed the ResourceQuota 'none' (requested: pods=1, used: pods=" in finding.sentence
    finally:
        namespace.kubectl("delete", "resourcequota", "none")


def test_who_follows_a_run_sees_its_steps_with_the_warnings_in_their_logs(namespace: Namespace, tmp_path: Path) -> None:
    run_id, kubeflow = "0b9f4c1e-0000-4000-8000-000000000009", Kubeflow()
    about = {"about": json.dumps({"recipe": "digits", "environment": "mine"})}
    created = {"run_id": run_id, "display_name": "digits-9", "created_at": "2026-01-01T00:00:00+00:00"}
    kubeflow.runs[run_id] = created | {"state": "RUNNING", "tasks": [], "runtime_config": {"parameters": about}}
    warning = json.dumps({"event": "warning", "message": "3 rows are odd"})
    container = {"name": "main", "image": "python:3.11-slim-bookworm", "command": ["echo", warning]}
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    spec["securityContext"] = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    own = {labels.KUBEFLOW_RUN: run_id, "app.kubernetes.io/component": "preprocess"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "preprocess", "labels": own}, "spec": spec}
    document = yaml.safe_load((BUNDLED / "kind.yaml").read_text())
    with serve(kubeflow):
        document |= {"namespace": namespace.name, "kubeflow": {"endpoint": kubeflow.address}}
        (tmp_path / "mine.yaml").write_text(json.dumps(document))
        command = [sys.executable, "-m", "trainyard_control.cli.main", "runs", "watch", run_id, "-e", "mine.yaml"]
        following = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(pod))
        until(lambda: namespace.phase("preprocess") == "Succeeded")
        asked = kubeflow.asked
        until(lambda: kubeflow.asked > asked + 1)
        kubeflow.tell(run_id, "CANCELED")
        story = following.communicate(timeout=60)[1]
    assert following.returncode == 130 and story.splitlines()[-1] == "✗ digits-9 was cancelled."
    assert "! preprocess: 3 rows are odd\n✓ preprocess  " in story
