"""A namespace of its own for every module of these tests, on the cluster that KUBECONFIG names.

They need: nodes labelled and tainted like GKE's pools cpu (2), gpu (2, one nvidia.com/gpu each) and tpu (1, four
google.com/tpu), kubectl, and the image python:3.11-slim-bookworm on every node. Each costs seconds.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import RBAC, Namespace, until
from xdist.scheduler import LoadScopeScheduling

# These count what is free on the GPU nodes, so they are one after the other.
_NODES = ("test_explain.py", "test_gang_pods.py", "test_pools.py")


class _Scopes(LoadScopeScheduling):
    """A module's tests, which share a namespace, in one process; xdist's own groups do not work with pytest 9."""

    def _split_scope(self, nodeid: str) -> str:
        module = str(super()._split_scope(nodeid))
        return "nodes" if module.endswith(_NODES) else module


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scopes:
    return _Scopes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "" if os.environ.get("KUBECONFIG") else "KUBECONFIG names no cluster"
    reason = reason or ("" if shutil.which("kubectl") else "kubectl is not on the PATH")
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    name = f"{request.module.__name__.rpartition('.')[2].replace('_', '-')}-{os.getpid()}"
    space = Namespace(name, tmp_path_factory.mktemp(name))
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    space.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    try:
        until(lambda: "NotFound" not in space.kubectl("get", "serviceaccount", "default", check=False))
        space.kubectl("apply", "-f", str(RBAC))
        yield space
    finally:
        space.kubectl("delete", "namespace", name, "--wait=false")
