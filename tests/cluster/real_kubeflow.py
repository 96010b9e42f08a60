"""The Kubeflow of the tests: where it is and where its runs are, and how a person reaches it.

KUBECONFIG is the cluster, TRAINYARD_KFP_NAMESPACE where Kubeflow is installed (without it the tests are skipped), and
TRAINYARD_IMAGE the image (images/Dockerfile, target cpu) that every node has. TRAINYARD_KFP is the address of its API
if that is not reached through the API of Kubernetes. If Kubeflow is for many users, TRAINYARD_KFP_PROFILE is the
namespace of the profile in which its owner runs: through a proxy of the tests, which asks for a login.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.login_proxy import Proxy, serve

ENDPOINT = os.environ.get("TRAINYARD_KFP", "")
SPACE = os.environ.get("TRAINYARD_KFP_NAMESPACE", "")
PROFILE = os.environ.get("TRAINYARD_KFP_PROFILE", "")
IMAGE = os.environ.get("TRAINYARD_IMAGE", "trainyard/cpu:0.1.0")
RUNS = PROFILE or SPACE
ACCOUNT = "default-editor" if PROFILE else "pipeline-runner"
MARKS = [pytest.mark.cluster, pytest.mark.skipif(not SPACE, reason="TRAINYARD_KFP_NAMESPACE names no Kubeflow")]
RUN = f"t{int(time.time()) % 1000000}"  # names of this test run, for a server keeps its runs

MEMORY = {"requests": {"cpu": "200m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
QUICK = ["--set", "train.epochs=2", "--set", "evaluate.bootstrap=20", "--set", "export.formats=[saved_model]"]
QUICK += ["--set", "evaluate.gates=[{metric: accuracy, min: 0.1}]"]

_FOLDER = TemporaryDirectory(prefix="kubeflow-")
REPORTS = Path(_FOLDER.name)  # where the commands leave the reports of runs


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(["kubectl", "-n", RUNS, *arguments], input=stdin, capture_output=True, text=True)
    return done.stdout + done.stderr


def trainyard(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("trainyard"))
    done = subprocess.run([program, *arguments], cwd=_FOLDER.name, capture_output=True, text=True)
    print(" ".join(arguments), "→", done.returncode, done.stdout, done.stderr, sep="\n")
    return done


def document(*arguments: str) -> Any:
    done = trainyard(*arguments, "-o", "json")
    return json.loads(done.stdout)


def changed(environment: Path, **sections: Any) -> Path:
    file = environment.with_name(f"{'-'.join(sections)}.yaml")
    file.write_text(json.dumps(json.loads(environment.read_text()) | sections))
    return file


def until(name: str, environment: Path, ready: Callable[[Any], Any], seconds: float = 600) -> Any:
    """Return the run as soon as `ready` of it is true. Fails if it ends before."""
    deadline = time.monotonic() + seconds
    while not ready(run := document("runs", "show", name, "-e", str(environment))):
        assert time.monotonic() < deadline and not over(run), run["reason"]
        time.sleep(3)  # each command takes seconds of a core that the pods need
    return run


def over(run: Any) -> bool:
    return run["state"] in ("SUCCEEDED", "FAILED", "CANCELED")


@dataclass(frozen=True)
class Door:
    """How a person reaches Kubeflow. settings: of an environment's `kubeflow` section. proxy: in between, if any."""

    settings: dict[str, Any]
    proxy: type[Proxy] | None = None
    user: str = ""
    cookie: Path = Path()


@contextmanager
def door(folder: Path) -> Iterator[Door]:
    """Open the way to Kubeflow's API until the block ends."""
    if not PROFILE:
        yield Door({"endpoint": ENDPOINT} if ENDPOINT else {})
        return
    owner = kubectl("get", "namespace", PROFILE, "-o", "jsonpath={.metadata.annotations.owner}")
    with subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().split()[-1]
            upstream = ENDPOINT or f"http://{address}/api/v1/namespaces/{SPACE}/services/ml-pipeline:8888/proxy"
            cookie = folder / "cookie"
            cookie.write_text("session=1\n")
            sessions = {"session=1": owner}
            with serve(Proxy, sessions=sessions, istio=set(), pages=302, upstream=upstream) as server:
                endpoint = f"http://127.0.0.1:{server.server_port}/pipeline"
                handler: Any = server.RequestHandlerClass
                yield Door({"endpoint": endpoint, "cookie_file": str(cookie)}, handler, owner, cookie)
        finally:
            process.terminate()


def environment_file(folder: Path, settings: dict[str, Any]) -> Path:
    """Return an environment whose runs are on a volume, which is made if it is missing."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "trainyard-runs"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "standard-rwx",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    kubectl("create", "-f", "-", stdin=json.dumps(claim))
    described = {
        "target": "kubeflow",
        "namespace": RUNS,
        "kubeflow": settings | {"namespace": SPACE, "experiment": f"test-{RUN}"},
        "volume": {"claim": "trainyard-runs", "path": "/mnt/runs"},
        "storage": f"/mnt/runs/{RUN}",
        "images": {"cpu": IMAGE},
        "pools": {
            "cpu": {"kind": "cpu", "price_per_hour": 0.5, "resources": MEMORY},
            "none": {"kind": "cpu", "resources": MEMORY, "nodeSelector": {"no": "node"}},
        },
        "placement": {"default": "cpu"},
        "retries": {"default": 0},
    }
    file = folder / "own.yaml"
    file.write_text(json.dumps(described))
    return file
