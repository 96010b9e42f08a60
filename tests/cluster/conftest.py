"""Namespaces of these tests on the cluster that KUBECONFIG names: a module's own, and one of all train steps.

They need: nodes labeled and tainted like GKE's pools cpu (2), gpu (2, one nvidia.com/gpu each) and tpu (1, four
google.com/tpu), kubectl, and the image python:3.11-slim-bookworm on every node. Each costs seconds.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import Namespace
from train_step import PREPARE, Desk, Run
from xdist.scheduler import LoadScopeScheduling

# The processes of one session inherit it.
SESSION = os.environ.setdefault("CLUSTER_TEST_SESSION", uuid.uuid4().hex[:8])

# These count what is free on the GPU nodes or need every CPU node, so they are one after the other.
_NODES = ("test_explain.py", "test_gang_nodes.py", "test_pools.py", "test_train_step_nodes.py")
# The tests of these share one namespace over all processes, so each goes to whichever process is free.
_SHARED = ("test_train_step.py", "test_train_step_faults.py", "test_train_step_bucket.py")
# What takes longest comes first, and what waits beside what computes.
_ORDER = ("test_flink.py", *_NODES, "test_train_step_faults.py", *_SHARED, "test_gang_image.py", "test_gang_pods.py")


class _Scopes(LoadScopeScheduling):
    """A module's tests, which share a namespace, in one process; xdist's own groups do not work with pytest 9."""

    def _split_scope(self, nodeid: str) -> str:
        module = str(super()._split_scope(nodeid))
        return "nodes" if module.endswith(_NODES) else nodeid if module.endswith(_SHARED) else module


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scopes:
    return _Scopes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "" if os.environ.get("KUBECONFIG") else "KUBECONFIG names no cluster"
    reason = reason or ("" if shutil.which("kubectl") else "kubectl is not on the PATH")
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: _ORDER.index(item.path.name) if item.path.name in _ORDER else len(_ORDER))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove what the processes shared, once all have ended."""
    if not hasattr(session.config, "workerinput") and os.environ.get("KUBECONFIG") and shutil.which("kubectl"):
        label = f"trainyard-test-session={SESSION}"
        subprocess.run(["kubectl", "delete", "namespace", "-l", label, "--wait=false"], check=False)


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    name = f"{request.module.__name__.rpartition('.')[2].replace('_', '-')}-{os.getpid()}"
    space = Namespace(name, tmp_path_factory.mktemp(name))
    try:
        space.create()
        yield space
    finally:
        space.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """The desk of all processes, in their one namespace: there are its examples, and the calm run has begun."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    desk = Desk(Namespace(f"train-step-{SESSION}", tmp_path_factory.mktemp("train-step")))
    with (shared / "desk.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "desk.ready").exists():
            desk.namespace.create(**{"trainyard-test-session": SESSION})
            desk.start().python(PREPARE)
            _calm(desk).start()
            (shared / "desk.ready").touch()
    return desk


@pytest.fixture(scope="session")
def calm(desk: Desk) -> Run:
    """A run that nothing happens to; it may still go on."""
    run = _calm(desk)
    run.attempt = 1
    return run


def _calm(desk: Desk) -> Run:
    return Run(desk.namespace, "calm", label="speed-train")


@pytest.fixture
def run(request: pytest.FixtureRequest, desk: Desk) -> Iterator[Run]:
    """A run of the test's own."""
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
    run = Run(desk.namespace, f"{slug[:18].strip('-')}-{zlib.crc32(slug.encode()):08x}")
    yield run
    print(run.log)
