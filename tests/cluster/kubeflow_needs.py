"""Says what the tests on Kubeflow miss, a line each, and ends with 1 for anything: `make test-kubeflow` asks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

SPACE = os.environ.get("TRAINYARD_KFP_NAMESPACE", "kubeflow")
PROFILE = os.environ.get("TRAINYARD_KFP_PROFILE", "")
IMAGE = os.environ.get("TRAINYARD_IMAGE", "trainyard/cpu:0.1.0")
VERSION = "2.17.0"
STORAGE = "standard-rwx"


def got(*arguments: str) -> tuple[Any, str]:
    """Return what kubectl gives as JSON, or None and why it does not."""
    done = subprocess.run(["kubectl", *arguments, "-o", "json"], capture_output=True, text=True)
    return (json.loads(done.stdout), "") if not done.returncode else (None, done.stderr.strip().rpartition("\n")[2])


def missing() -> list[str]:
    if not os.environ.get("KUBECONFIG"):
        return ["KUBECONFIG names no cluster. Set it to the kubeconfig of one that has Kubeflow Pipelines."]
    if not shutil.which("kubectl"):
        return ["kubectl is not on the PATH. Install it."]
    nodes, why = got("get", "nodes")
    if nodes is None:
        return [f"The cluster of KUBECONFIG does not answer: {why}. Start it, or name another."]
    lines = []
    for deployment in (
        "ml-pipeline",
        "ml-pipeline-persistenceagent",
        "ml-pipeline-scheduledworkflow",
        "workflow-controller",
    ):
        there, why = got("-n", SPACE, "get", "deployment", deployment)
        if there is None or not there["status"].get("readyReplicas"):
            lines.append(
                f"Deployment {deployment} in namespace {SPACE} (TRAINYARD_KFP_NAMESPACE) has no ready pod"
                f"{': ' + why if why else ''}. Install Kubeflow Pipelines {VERSION} as docs/how-to/cluster.md says."
            )
    lines += missing_profile()
    images = [image for node in nodes["items"] for image in node["status"].get("images", [])]
    names = {name for image in images for name in image.get("names") or []}
    if not any(name.endswith(f"/{IMAGE}") or name == IMAGE for name in names):
        lines.append(f"No node has the image {IMAGE} (TRAINYARD_IMAGE). Build it of this checkout, and load it.")
    if got("get", "storageclass", STORAGE)[0] is None:
        lines.append(
            f"There is no StorageClass {STORAGE}, of which the tests take a volume. Make one of ReadWriteMany."
        )
    return lines


def missing_profile() -> list[str]:
    """Say what the tests miss of the profile that a multi-user Kubeflow needs."""
    path = f"/api/v1/namespaces/{SPACE}/services/ml-pipeline:8888/proxy/apis/v2beta1/healthz"
    done = subprocess.run(["kubectl", "get", "--raw", path], capture_output=True, text=True)
    multi_user = not done.returncode and json.loads(done.stdout).get("multi_user")
    if multi_user and not PROFILE:
        return ["This Kubeflow is for many users. Name the namespace of a profile in TRAINYARD_KFP_PROFILE."]
    if PROFILE and not multi_user:
        return ["TRAINYARD_KFP_PROFILE names a profile, and this Kubeflow is for one user. Leave the variable out."]
    space, why = got("get", "namespace", PROFILE) if PROFILE else ({}, "")
    if PROFILE and "owner" not in ((space or {}).get("metadata", {}).get("annotations") or {}):
        return [
            f"Namespace {PROFILE} (TRAINYARD_KFP_PROFILE) has no annotation owner{why and f': {why}'}. Name another."
        ]
    return []


if __name__ == "__main__":
    lines = missing()
    print("\n".join(lines), file=sys.stderr)
    sys.exit(bool(lines))
