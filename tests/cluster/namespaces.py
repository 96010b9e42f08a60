"""A namespace for a test, and launchers that run in it under the service account of the Role."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from trainyard.kubernetes.client import Cluster, connect

RBAC = Path(__file__).parents[2] / "k8s/base/gang-rbac.yaml"
SECONDS = 300  # generous: the nodes may be slow

_GROUPS = {
    "jobs": "apis/batch/v1",
    "endpointslices": "apis/discovery.k8s.io/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
}


def until(ready: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Return the first true answer of `ready`."""
    deadline = time.monotonic() + seconds
    while not (answer := ready()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)
    return answer


@dataclass(frozen=True)
class End:
    """How a container ended, and how long it ran, in the whole seconds that Kubernetes tells."""

    code: int
    seconds: float

    @classmethod
    def parse(cls, state: dict[str, Any]) -> End:
        ran = datetime.fromisoformat(state["finishedAt"]) - datetime.fromisoformat(state["startedAt"])
        return cls(int(state["exitCode"]), ran.total_seconds())


class Namespace:
    """One namespace that enforces Pod Security restricted, and launchers that run under the Role's service account."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.account = f"system:serviceaccount:{name}:trainyard-launcher"

    def create(self, **labels: str) -> None:
        """Create it, with the gang's Role and service account."""
        labels |= {"pod-security.kubernetes.io/enforce": "restricted"}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}}
        self.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        until(lambda: "NotFound" not in self.kubectl("get", "serviceaccount", "default", check=False))
        self.kubectl("apply", "-f", str(RBAC))

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        command = ["kubectl", "-n", self.name, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        assert not check or not done.returncode, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @cached_property
    def cluster(self) -> Cluster:
        """What is asked again and again: a process of kubectl takes a tenth of a second of a core for each answer."""
        return connect(self.name)

    def get(self, kind: str) -> list[dict[str, Any]]:
        return self.cluster.items(kind, group=_GROUPS.get(kind, "api/v1"))

    def phase(self, pod: str) -> str:
        """Return '' if there is no such pod."""
        answer = self.cluster.get(self.cluster.path("pods", pod))
        return str(answer["status"]["phase"]) if answer else ""

    def pods(self, gang: str) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.get("pods")
            if pod["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == gang
        ]

    def left_of(self, gang: str) -> list[str]:
        """Name all that the cluster still holds of `gang`."""
        kinds = ("jobs", "services", "pods", "configmaps", "secrets", "endpointslices", "networkpolicies")
        names = [(kind, item["metadata"]["name"]) for kind in kinds for item in self.get(kind)]
        return [f"{kind}/{name}" for kind, name in names if name.startswith(gang)]

    def evict(self, pod: str) -> None:
        """Take a pod off its node as a drain does."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{self.name}/pods/{pod}/eviction"
        self.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    @contextmanager
    def ends_of_containers(self) -> Iterator[Callable[[], list[End]]]:
        """Watch containers of training pods end, those that are deleted at once too; yield what lists them."""
        path = self.folder / f"ends-{time.monotonic_ns()}"
        template = "jsonpath={.status.containerStatuses[0].state.terminated}{'\\n'}"
        labels = "app.kubernetes.io/component=train"
        with path.open("w") as out:
            command = ["kubectl", "-n", self.name, "get", "pods", "-l", labels, "--watch", "-o", template]
            watch = subprocess.Popen(command, stdout=out)
        try:
            yield lambda: [End.parse(json.loads(line)) for line in path.read_text().splitlines() if line]
        finally:
            time.sleep(1)
            watch.terminate()
            watch.wait()

    def launch(self, plan: dict[str, Any], *own_pod: str) -> Launcher:
        return Launcher(self, plan, *own_pod)

    def launcher_config(self) -> Path:
        """Write a kubeconfig that may do what the Role allows, and no more."""
        config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        token = self.kubectl("create", "token", "trainyard-launcher", "--duration=2h").strip()
        config["users"] = [{"name": "launcher", "user": {"token": token}}]
        config["contexts"] = [
            {
                "name": "launcher",
                "context": {"cluster": config["clusters"][0]["name"], "user": "launcher", "namespace": self.name},
            }
        ]
        config["current-context"] = "launcher"
        path = self.folder / "launcher.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


class Launcher:
    """A running launcher process and what it said."""

    def __init__(self, namespace: Namespace, plan: dict[str, Any], *own_pod: str) -> None:
        self._log = namespace.folder / f"launcher-{time.monotonic_ns()}.log"
        command = [sys.executable, str(Path(__file__).with_name("launcher.py")), json.dumps(plan), *own_pod]
        with self._log.open("w") as log:
            environment = os.environ | {"KUBECONFIG": str(namespace.launcher_config())}
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def says(self, text: str, seconds: float = SECONDS) -> None:
        until(lambda: text in self.log or self.process.poll() is not None, seconds)
        assert text in self.log, self.log

    def code(self, seconds: float = SECONDS) -> int:
        return self.process.wait(seconds)
