"""What a launcher asks of the API server for a gang whose batches others prepare."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiException

from trainyard.kubernetes.client import JOBS, Cluster
from trainyard.spec.hardware.pools import Pool
from trainyard.steps.train.gang.pods.job import Gang, headless_service, network_policy, owner_reference, worker_job
from trainyard.steps.train.gang.pods.launch import clear, launch

RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
POOL = Pool.model_validate({"kind": "cpu", "resources": RESOURCES})
TRAINING = Gang(run="digits", image="image:1", command=("train",), workers=1, pool=POOL, platform="kubernetes")
INPUT = replace(TRAINING, command=("feed",), workers=2, feeds=TRAINING.name)
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

    def call_api(self, path: str, method: str, *, body: Any, **_: Any) -> SimpleNamespace:
        answer = {"POST": self._create, "GET": self._get, "DELETE": self._delete}[method](path, body)
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
            return {"items": []}
        if path not in self.objects:
            raise ApiException(status=404)
        manifest = self.objects[path]
        if "deletionTimestamp" in manifest["metadata"]:
            self._reads_left[path] -= 1
            if not self._reads_left[path]:
                del self.objects[path]
        return manifest

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
