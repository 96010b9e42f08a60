"""What a launcher asks of the API server for a gang whose batches others prepare."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiException
from tests.unit.test_outcome import pending, pod

from trainyard.errors import InfrastructureError, TransientError
from trainyard.kubernetes.client import JOBS, Cluster
from trainyard.kubernetes.diagnosis import CONTAINER
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.train.gang.pods import outcome
from trainyard.steps.train.gang.pods.job import (
    Gang,
    gang_objects,
    headless_service,
    network_policy,
    owner_reference,
    worker_job,
)
from trainyard.steps.train.gang.pods.launch import PassedOver, clear, launch

RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
POOL = Pool.model_validate({"kind": "cpu", "resources": RESOURCES})
TRAINING = Gang(run="digits", image="image:1", command=("train",), workers=1, pool=POOL, platform="kubernetes")
INPUT = replace(TRAINING, command=("feed",), workers=2, feeds=TRAINING.name)


def workload(pending: str, evicted: str = "") -> dict[str, Any]:
    """Return what Kueue keeps of a Job that it does not admit."""
    conditions = [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": pending}]
    if evicted:
        conditions.append({"type": "Evicted", "status": "True", "reason": "Preempted", "message": evicted})
    return {"metadata": {"name": "job-gang-12345"}, "spec": {"active": True}, "status": {"conditions": conditions}}


SCENE_SECONDS = 90  # longer than the pool's replace_seconds
ENDING_READS = 3  # of a Job whose pods still end


class Server:
    """An API server without nodes. A deletion takes what the object owns along, and the object after some reads.

    Source: https://kubernetes.io/docs/concepts/architecture/garbage-collection/#foreground-deletion.
    """

    configuration = SimpleNamespace(host="https://api.example")

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self._reads_left: dict[str, int] = {}
        self._uids = 0
        self.pods: list[dict[str, Any]] = []

    def call_api(self, path: str, method: str, *, body: Any, **_: Any) -> SimpleNamespace:
        answer = {"POST": self._create, "GET": self._get, "PATCH": self._patch, "DELETE": self._delete}[method](
            path, body
        )
        return SimpleNamespace(data=json.dumps(answer).encode())

    def owners(self, path: str) -> list[str]:
        """Return the uids of those that own the object."""
        return [owner["uid"] for owner in self.objects[path]["metadata"].get("ownerReferences", [])]

    def uid(self, path: str) -> str:
        return str(self.objects[path]["metadata"]["uid"])

    def _create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{path}/{body['metadata']['name']}"
        if name in self.objects:
            raise ApiException(status=409)
        self._uids += 1
        metadata = {**body["metadata"], "uid": str(self._uids), "creationTimestamp": "2026-11-25T03:00:00Z"}
        self.objects[name] = {**body, "metadata": metadata}
        return self.objects[name]

    def _get(self, path: str, _: object) -> dict[str, Any]:
        if path.endswith("/pods"):
            return {"items": self.pods}
        if path not in self.objects:
            raise ApiException(status=404)
        manifest = self.objects[path]
        if "deletionTimestamp" in manifest["metadata"]:
            self._reads_left[path] -= 1
            if not self._reads_left[path]:
                del self.objects[path]
        return manifest

    def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path not in self.objects:
            raise ApiException(status=404)
        if body["metadata"]["uid"] != self.uid(path):
            raise ApiException(status=409)
        self.objects[path]["spec"] |= body["spec"]
        return self.objects[path]

    def _delete(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path not in self.objects:
            raise ApiException(status=404)
        uid = self.uid(path)
        if body["preconditions"]["uid"] != uid:
            raise ApiException(status=409)
        if "deletionTimestamp" not in self.objects[path]["metadata"]:
            self.objects[path]["metadata"]["deletionTimestamp"] = "2026-11-25T03:01:00Z"
            self._reads_left[path] = ENDING_READS
            self._collect(uid)
        return self.objects[path]

    def _collect(self, uid: str) -> None:
        """Remove what the object with `uid` owns, and what that owns."""
        for path in [path for path in self.objects if uid in self.owners(path)]:
            self._collect(str(self.objects.pop(path)["metadata"]["uid"]))


@pytest.mark.parametrize("kind", ["networkpolicies", "services"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_gang_that_cannot_be_completed_leaves_no_pods(
    monkeypatch: pytest.MonkeyPatch, kind: str, existing: bool
) -> None:
    """As without the right to create NetworkPolicies, also after a launcher that was killed between both."""
    server = Server()
    cluster = Cluster(server, "runs")
    if existing:
        cluster.create("jobs", worker_job(TRAINING, None))
    create = server._create

    def forbid(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith(kind):
            raise ApiException(status=403, reason="Forbidden")
        return create(path, body)

    monkeypatch.setattr(server, "_create", forbid)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(InfrastructureError):
        launch(TRAINING, cluster)
    assert server.objects == {}


def test_a_worker_whose_node_lost_power_and_stays_listed_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes leaves the pod: running, disrupted by the taint, and under deletion for as long as the node is."""
    server, now = Server(), 0.0
    (lost,) = server.pods = [running(0)]
    lost["spec"]["nodeName"] = "node-7"

    def at_rest(_: float) -> None:
        nonlocal now
        now += 1.0
        if now > 300 and "deletionTimestamp" not in lost["metadata"]:
            lost["metadata"]["deletionTimestamp"] = "2026-11-25T03:05:00Z"
            taint = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
            lost["status"]["conditions"] = [taint]

    monkeypatch.setattr(time, "sleep", at_rest)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with pytest.raises(
        TransientError, match=r"and has not ended\) for 901 s\. Delete node node-7, or run kubectl taint"
    ):
        launch(TRAINING, Cluster(server, "runs"))
    job = Cluster(server, "runs").create("jobs", worker_job(TRAINING, None))
    assert job
    server.objects[Cluster(server, "runs").path("jobs", TRAINING.name, JOBS)]["metadata"]["deletionTimestamp"] = "now"
    server._reads_left = defaultdict(lambda: 10**9)  # as long as the node is listed
    with pytest.raises(TransientError, match=r"earlier gang of this run does not end\. Delete node node-7, or run"):
        launch(TRAINING, Cluster(server, "runs"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"items": []}, ""),
        (403, ": Kueue's reason may not be read; apply k8s/base/gang-rbac.yaml again"),
        ({"items": [workload(pending="insufficient quota")]}, ": insufficient quota"),
        (
            {"items": [workload(pending="insufficient quota", evicted="Preempted (UID: 1, JobUID: 2).")]},
            ": Preempted. insufficient quota",
        ),
    ],
)
def test_a_gang_that_waits_in_a_queue_says_why_its_queue_does_not_admit_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], answer: Any, why: str
) -> None:
    server, now = Server(), 0.0
    get, asked = server._get, []

    def answered(path: str, body: object) -> dict[str, Any]:
        if not path.endswith("/workloads"):
            return get(path, body)
        asked.append(path)
        if isinstance(answer, int):
            raise ApiException(status=answer)
        return dict(answer)

    def at_rest(_: float) -> None:
        nonlocal now
        now += 1.0
        if now > 60 and (job := server.objects.get(Cluster(server, "runs").path("jobs", TRAINING.name, JOBS))):
            job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    monkeypatch.setattr(server, "_get", answered)
    monkeypatch.setattr(time, "sleep", at_rest)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    launch(replace(TRAINING, pool=POOL.model_copy(update={"queue": "team"})), Cluster(server, "runs"))
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"event": "gang"' in line]
    assert {each["waiting"] for each in said} == {f"waiting to be admitted by queue 'team'{why}"}
    assert len(asked) < 60 / 10 * 2 + 3  # two versions of the API


def test_input_workers_of_an_earlier_gang_are_deleted_and_made_again_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    cluster = Cluster(server, "runs")
    training, input_job = (cluster.path("jobs", gang.name, JOBS) for gang in (TRAINING, INPUT))
    policy = cluster.path("networkpolicies", INPUT.name, "apis/networking.k8s.io/v1")
    earlier = cluster.create("jobs", worker_job(INPUT, owner_reference("batch/v1", "Job", "t", "gone")))
    assert earlier
    cluster.create("networkpolicies", network_policy(INPUT, server.uid(input_job)))
    server.objects[input_job]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    seen: list[str] = []

    def at_rest(_: float) -> None:
        """The training ends as soon as it has input workers of its own."""
        job = server.objects.get(input_job)
        if job is None or server.owners(input_job) != [server.uid(training)]:
            assert len(seen) < 100, "they are never made again"
            seen.append("gone" if job is None else "earlier")
            return
        container = job["spec"]["template"]["spec"]["containers"][0]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables["TRAINYARD_GANG_TOKEN"] == server.uid(training)
        assert server.owners(policy) == [server.uid(input_job)] and server.uid(input_job) != earlier["metadata"]["uid"]
        server.objects[training]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    monkeypatch.setattr(time, "sleep", at_rest)
    launch(replace(TRAINING, input=INPUT), cluster)
    assert "earlier" in seen and not server.objects


def test_a_launcher_creates_the_objects_that_a_dry_run_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    server, gang = Server(), replace(TRAINING, input=INPUT)
    cluster = Cluster(server, "runs")
    created: list[dict[str, Any]] = []

    def at_rest(_: float) -> None:
        if not created:
            created.extend(deepcopy(list(server.objects.values())))
            training = server.objects[cluster.path("jobs", gang.name, JOBS)]
            training["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    monkeypatch.setattr(time, "sleep", at_rest)
    launch(gang, cluster)
    job, *_, input_job, _, _ = created
    printed = gang_objects(gang, None, job["metadata"]["uid"], input_job["metadata"]["uid"])
    for manifest in created:
        del manifest["metadata"]["uid"], manifest["metadata"]["creationTimestamp"]
    assert created == printed
    assert [manifest["kind"] for manifest in created] == ["Job", "NetworkPolicy", "Service"] * 2


def test_a_retry_that_finds_the_output_removes_the_gang_that_a_killed_launcher_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    cluster = Cluster(server, "runs")
    training = cluster.create("jobs", worker_job(TRAINING))
    assert training
    owner = owner_reference("batch/v1", "Job", TRAINING.name, training["metadata"]["uid"])
    assert cluster.create("jobs", worker_job(INPUT, owner))
    cluster.create("services", headless_service(TRAINING, training["metadata"]["uid"]))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    clear(replace(TRAINING, input=INPUT), cluster)
    assert not server.objects
    clear(replace(TRAINING, input=INPUT), cluster)


def running(index: int) -> dict[str, Any]:
    return pod(index, "Running", containerStatuses=[{"name": CONTAINER, "state": {"running": {}}}])


def succeeded(index: int) -> dict[str, Any]:
    terminated = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-21T02:01:00Z"}
    return pod(index, "Succeeded", containerStatuses=[{"name": CONTAINER, "state": {"terminated": terminated}}])


def sizes_of(monkeypatch: pytest.MonkeyPatch, *scenes: list[dict[str, Any]]) -> list[int]:
    """Launch a gang of three, of which two can train, whose pods are those of each scene for 90 s.

    Returns the completions of its Job at the end of each scene that it outlived.
    """
    server, sizes, now = Server(), [], 0.0
    cluster = Cluster(server, "runs")
    gang = replace(TRAINING, workers=3, min_workers=2)

    def at_rest(_: float) -> None:
        nonlocal now
        now += 1.0
        job = server.objects.get(cluster.path("jobs", gang.name, JOBS), {"metadata": {"deletionTimestamp": ""}})
        if now % SCENE_SECONDS == 0 and "deletionTimestamp" not in job["metadata"]:
            sizes.append(job["spec"]["completions"])
            server.pods = scenes[len(sizes)]

    server.pods = scenes[0]
    monkeypatch.setattr(time, "sleep", at_rest)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    launch(gang, cluster)
    assert not server.objects
    return sizes


def test_an_elastic_gang_gives_a_lost_worker_0_the_node_of_its_last_worker_and_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = [pending(0, "no node"), running(1), running(2)]
    one_is_missing = [running(0), running(1), pending(2, "no node")]
    ends = [[succeeded(0), running(1), pending(2, "no node")], [succeeded(0), succeeded(1), pending(2, "no node")]]
    longer_than_the_deadline = [one_is_missing] * (POOL.start_deadline_seconds // SCENE_SECONDS + 2)
    whole = [running(0), running(1), running(2)]
    sizes = sizes_of(monkeypatch, whole, lost, one_is_missing[:2], *longer_than_the_deadline, *ends)
    assert sizes == [3, 2, 3, *[3] * len(longer_than_the_deadline), 3]


def test_an_elastic_gang_without_its_fewest_workers_or_worker_0_ends_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    too_few = [[running(0), pending(1, "no node"), pending(2, "no node")]] * 20
    with pytest.raises(TransientError, match=r"waiting for worker 1 of 3 .* for 90[01] s"):
        sizes_of(monkeypatch, *too_few)
    without_chief = [[pending(0, "no node"), running(1), running(2)]] * 20
    with pytest.raises(TransientError, match=r"waiting for worker 0 of 3 .* for 90[01] s"):
        sizes_of(monkeypatch, *without_chief)


def disrupted(index: int, name: str, reason: str = "PreemptionByScheduler") -> dict[str, Any]:
    lost = pod(index, "Failed", conditions=[{"type": "DisruptionTarget", "status": "True", "reason": reason}])
    lost["metadata"]["name"] = name
    return lost


def watched(monkeypatch: pytest.MonkeyPatch, gang: Gang, *scenes: list[dict[str, Any]]) -> float:
    """Launch a gang whose pods are those of each scene for 10 s, and return the seconds until it ends.

    Raises as `launch`.
    """
    server, now = Server(), 0.0

    def at_rest(_: float) -> None:
        nonlocal now
        now += 1.0
        server.pods = scenes[min(int(now // 10), len(scenes) - 1)]

    server.pods = scenes[0]
    monkeypatch.setattr(time, "sleep", at_rest)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: now)
    try:
        launch(gang, Cluster(server, "runs"))
    finally:
        assert not server.objects
    return now


def test_workers_give_up_their_nodes_for_worker_0_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that ends takes some seconds, in which fewer run than the Job has completions."""
    lost, ending = [pending(0, "no node"), running(1), running(2)], [pending(0, "no node"), running(1)]
    back, done = [running(0), running(1), pending(2, "no node")], [succeeded(0), succeeded(1), pending(2, "no node")]
    gang = replace(TRAINING, workers=3, min_workers=1)
    watched(monkeypatch, gang, *[lost] * 8, *[ending] * 3, back, done)
    resized = [line for line in capsys.readouterr().err.splitlines() if '"gang_resized"' in line]
    assert [json.loads(line)["workers"] for line in resized] == [2, 3]


def test_no_worker_gives_up_its_node_for_a_worker_0_that_kubernetes_does_not_replace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its node has lost power and is listed still, so that its pod never ends."""
    stuck = running(0)
    stuck["metadata"]["deletionTimestamp"] = "2026-11-25T03:01:00Z"
    gang = replace(TRAINING, workers=2, min_workers=1)
    with pytest.raises(TransientError, match=r"waiting for worker 0 of 2 \(pod is ending\) for 90[01] s"):
        watched(monkeypatch, gang, [stuck, running(1)])
    assert "gang_resized" not in capsys.readouterr().err


NO_NODE, STARTING = [pending(0, "no node")], [pod(0, "Pending")]


def test_a_pool_without_nodes_is_passed_over_if_another_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = replace(TRAINING, pending_seconds=25)
    with pytest.raises(PassedOver, match=r"^waiting for worker 0 of 1 \(pod pending: no node\) for 26 s$"):
        watched(monkeypatch, gang, NO_NODE)
    # A lost node counts from its loss, and a worker that pulls its image has a node.
    with pytest.raises(PassedOver, match=r"for 26 s$"):
        watched(monkeypatch, gang, NO_NODE, STARTING, STARTING, STARTING, [running(0)], NO_NODE)
    with pytest.raises(TransientError, match=r"no node\) for 901 s\. Free or add nodes") as last:
        watched(monkeypatch, TRAINING, NO_NODE)
    assert not isinstance(last.value, PassedOver)


def test_a_pool_whose_queue_does_not_admit_the_job_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = POOL.model_copy(update={"queue": "research"})
    with pytest.raises(PassedOver, match=r"^waiting to be admitted by queue 'research' for 26 s$"):
        watched(monkeypatch, replace(TRAINING, pool=pool, pending_seconds=25), [])


def test_preemptions_have_a_budget_of_their_own_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = replace(TRAINING, workers=2, preemptions=2, pending_seconds=100)
    lost = [disrupted(index % 2, f"lost-{index}") for index in range(5)]
    whole = [running(0), running(1)]
    scenes = [[*lost[:count], *whole] for count in range(6)]
    with pytest.raises(PassedOver, match=r"^preempted 5 times, and 2 for each of 2 workers are allowed$"):
        watched(monkeypatch, gang, *scenes)
    with pytest.raises(InfrastructureError, match=r"Raise preemptions of the pool, or name a pool without Spot nodes"):
        watched(monkeypatch, replace(gang, pending_seconds=None), *scenes)
    out_of_disk = pod(0, "Failed", reason="Evicted", message="Usage of EmptyDir volume exceeds the total limit")
    names = outcome.preempted([*lost, running(0), out_of_disk, disrupted(1, "gone", "DeletionByTaintManager")])
    assert names == {*(f"lost-{index}" for index in range(5)), "gone"}
