"""The few calls of the Kubernetes API that a launcher makes, in one namespace.

They are what the Role in k8s/base/gang-rbac.yaml allows, and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from trainyard import events
from trainyard.errors import InfrastructureError, TransientError
from trainyard.steps.train.gang.pods.job import JOB_LABEL, Manifest

CALL_SECONDS = 20  # chosen: no single call hangs longer than this
PATIENCE_SECONDS = 120  # chosen: an API server that is restarted or replaced is back by then

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_BUSY = frozenset({429, 500, 502, 503, 504})

T = TypeVar("T")


def connect() -> Cluster:
    """Return the cluster of the pod that this process runs in, else the one that KUBECONFIG names.

    Raises `InfrastructureError` where there is neither.
    """
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config()
            return Cluster(_NAMESPACE.read_text(encoding="utf-8").strip())
        config.load_kube_config()
        _, context = config.list_kube_config_contexts()
    except (config.ConfigException, OSError) as error:
        raise InfrastructureError(
            f"kubernetes: no cluster to run the gang on ({error}). "
            "Run the step as a pod with a service account, or set KUBECONFIG."
        ) from error
    return Cluster(context["context"].get("namespace", "default"))


class Cluster:
    """One namespace. Every call is tried again for PATIENCE_SECONDS while the API server is unreachable or busy.

    Raises `TransientError` after that, and is `silent`; `InfrastructureError` where a call is refused.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.silent = False
        self._api = client.ApiClient()
        self._core = client.CoreV1Api(self._api)
        self._batch = client.BatchV1Api(self._api)
        self._networking = client.NetworkingV1Api(self._api)

    def create_job(self, job: Manifest) -> Manifest | None:
        """Return the Job as created, or None where one of its name exists."""
        created: Manifest | None = self._call("create jobs", self._batch.create_namespaced_job, body=job, absent=(409,))
        return created

    def create_service(self, service: Manifest) -> None:
        """Leave the Service in the namespace: created, or as it was."""
        self._call("create services", self._core.create_namespaced_service, body=service, absent=(409,))

    def create_network_policy(self, policy: Manifest) -> None:
        """Leave the NetworkPolicy in the namespace: created, or as it was."""
        create = self._networking.create_namespaced_network_policy
        self._call("create networkpolicies", create, body=policy, absent=(409,))

    def job(self, name: str) -> Manifest | None:
        """Return the Job, or None where there is none."""
        found: Manifest | None = self._call("get jobs", self._batch.read_namespaced_job, name=name, absent=(404,))
        return found

    def delete_job(self, name: str, uid: str) -> None:
        """Ask for the end of the Job with `uid`, and of none made after it; its pods get SIGTERM."""
        options = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        self._call("delete jobs", self._batch.delete_namespaced_job, name=name, body=options, absent=(404, 409))

    def pod(self, name: str) -> Manifest | None:
        """Return one pod, or None where there is none."""
        found: Manifest | None = self._call("get pods", self._core.read_namespaced_pod, name=name, absent=(404,))
        return found

    def pods(self, job: str) -> list[Manifest]:
        """Return the pods of the Job, ended ones included."""
        found = self._call("list pods", self._core.list_namespaced_pod, label_selector=f"{JOB_LABEL}={job}")
        return list(found["items"]) if found else []

    def warnings(self, job: str) -> list[str]:
        """Return what went wrong with the Job itself, such as pods that were refused, oldest first."""
        selector = f"involvedObject.kind=Job,involvedObject.name={job},type=Warning"
        found = self._call("list events", self._core.list_namespaced_event, field_selector=selector)
        items = sorted(found["items"] if found else [], key=lambda each: str(each.get("lastTimestamp")))
        return [str(each.get("message")) for each in items]

    def log(self, pod: str, container: str, since_seconds: int | None) -> Iterator[bytes]:
        """Yield the container's log in pieces as it is written, each line after its time, until it ends or breaks off."""
        response = self._core.read_namespaced_pod_log(
            name=pod,
            namespace=self.namespace,
            container=container,
            follow=True,
            timestamps=True,
            since_seconds=since_seconds,
            _preload_content=False,
            _request_timeout=(CALL_SECONDS, None),
        )
        try:
            yield from response.stream(decode_content=False)
        finally:
            response.close()

    def _call(self, what: str, call: Callable[..., Any], absent: tuple[int, ...] = (), **arguments: Any) -> Any:
        """Return the answer as a plain dict, or None where its status is one of `absent`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                found = call(namespace=self.namespace, _request_timeout=CALL_SECONDS, **arguments)
                return self._api.sanitize_for_serialization(found)
            except client.ApiException as error:
                if error.status in absent:
                    return None
                if error.status not in _BUSY:
                    raise self._refused(what, error) from error
                problem = f"{error.status} {error.reason}"
            except (HTTPError, OSError) as error:
                problem = str(error)
            if time.monotonic() > deadline:
                self.silent = True
                raise TransientError(
                    f"kubernetes: {what}: the API server gave no answer for {PATIENCE_SECONDS} s ({problem}). "
                    "Run the same command again when it is back."
                )
            events.emit("unreachable", call=what, problem=problem)
            time.sleep(2)

    def _refused(self, what: str, error: client.ApiException) -> InfrastructureError:
        detail = error.body or error.reason
        if error.status in (401, 403):
            return InfrastructureError(
                f"kubernetes: {what} in namespace '{self.namespace}': refused ({detail}). "
                "Bind the Role of k8s/base/gang-rbac.yaml to the service account that the step runs as."
            )
        return InfrastructureError(f"kubernetes: {what} in namespace '{self.namespace}': {error.status} ({detail}).")
