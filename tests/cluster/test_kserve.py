"""`trainyard publish kserve` on a real API server with the schema of KServe's InferenceService, without KServe.

The schema is the part of KServe 0.20.0's that Trainyard writes, or the file TRAINYARD_KSERVE_CRD.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from namespaces import Namespace, until

from trainyard.errors import InfrastructureError
from trainyard.storage import storage
from trainyard_control.targets import kserve

pytestmark = pytest.mark.cluster

PROGRAM = str(Path(sys.executable).parent / "trainyard")
CRD = Path(os.environ.get("TRAINYARD_KSERVE_CRD") or Path(__file__).with_name("kserve_crd.yaml"))


@pytest.fixture
def crd(namespace: Namespace) -> Iterator[None]:
    """Install the schema, unless the cluster has KServe."""
    name = yaml.safe_load(CRD.read_text())["metadata"]["name"]
    if "NotFound" not in namespace.kubectl("get", "crd", name, check=False):
        yield
        return
    namespace.kubectl("create", "-f", str(CRD))
    try:
        namespace.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=300s")
        until(lambda: namespace.cluster.get(f"/{kserve.GROUP}"))
        yield
    finally:
        namespace.kubectl("delete", "crd", name, "--wait=false")


def environment(namespace: str, folder: Path) -> str:
    """Leave versions 1 and 2 of churn on the volume of an environment, and return its file."""
    for number in ("1", "2"):
        with storage.stage(str(folder / "churn/models" / number), "trainyard.push") as staging:
            (staging / "saved_model.pb").write_text(number)
            (staging / "assets.extra").mkdir()
            (staging / "assets.extra/preprocessing.json").write_text('{"transform": "columns", "raw_features": []}')
    file = folder / "environment.yaml"
    pool = {"kind": "cpu", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}}
    document = {
        "target": "kubeflow",
        "storage": str(folder),
        "namespace": namespace,
        "volume": {"claim": "models", "path": str(folder)},
        "images": {"cpu": "registry.example/trainyard/cpu:1"},
        "pools": {"cpu": pool},
        "placement": {"default": "cpu"},
    }
    file.write_text(yaml.safe_dump(document))
    return str(file)


def test_a_cluster_without_kserve_is_refused(namespace: Namespace) -> None:
    if "NotFound" not in namespace.kubectl("get", "crd", "inferenceservices.serving.kserve.io", check=False):
        pytest.skip("the cluster has KServe")
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "churn"},
        "spec": {"predictor": {}},
    }
    with pytest.raises(InfrastructureError, match="Install KServe"):
        kserve.apply(service, namespace.cluster)


def test_a_version_becomes_an_inference_service_and_a_canary_of_it(namespace: Namespace, crd: None) -> None:
    folder = namespace.folder / "storage"
    file = environment(namespace.name, folder)

    def publish(version: int, *options: str) -> str:
        model = f"{folder}/churn/models@{version}"
        command = [PROGRAM, "publish", "kserve", model, "-e", file, "--model-name", "churn", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        return f"{done.returncode} {done.stdout}{done.stderr}"

    def predictor() -> dict[str, Any]:
        service = namespace.cluster.get(namespace.cluster.path(kserve.KIND, "churn", kserve.GROUP))
        assert service is not None
        return dict(service["spec"]["predictor"])

    assert "Publish without --canary-percent first" in publish(1, "--canary-percent", "10")
    printed = publish(1, "--dry-run").removeprefix("0 ").partition("·")[0]
    assert publish(1).startswith("0 ")
    assert predictor() == yaml.safe_load(printed)["spec"]["predictor"]

    assert "with 10 % of the requests, after version 1" in publish(2, "--canary-percent", "10")
    assert predictor()["canaryTrafficPercent"] == 10
    assert predictor()["containers"][0]["env"] == [{"name": "STORAGE_URI", "value": "pvc://models/churn/models/2"}]
    assert publish(2).startswith("0 ") and "canaryTrafficPercent" not in predictor()

    with pytest.raises(InfrastructureError, match="canaryTraffic: field not declared in schema"):
        service = yaml.safe_load(printed)
        service["spec"]["predictor"]["canaryTraffic"] = 10
        kserve.apply(service, namespace.cluster)
    other = '{"spec": {"predictor": {"serviceAccountName": "other", "canaryTrafficPercent": 7}}}'
    namespace.kubectl("patch", "inferenceservice", "churn", "--type=merge", "-p", other)
    assert "--force-conflicts" in publish(2, "--canary-percent", "20")
    mode = '{"status": {"deploymentMode": "Standard"}}'
    namespace.kubectl("patch", "inferenceservice", "churn", "--type=merge", "--subresource=status", "-p", mode)
    reset = '{"spec": {"predictor": {"serviceAccountName": null, "canaryTrafficPercent": null}}}'
    namespace.kubectl("patch", "inferenceservice", "churn", "--type=merge", "-p", reset)
    assert "version 2 serves already" in publish(2, "--canary-percent", "20")
    assert "as the canary v1 with trafficPercent 20, after version 2" in publish(1, "--canary-percent", "20")
    service = namespace.cluster.get(namespace.cluster.path(kserve.KIND, "churn", kserve.GROUP))
    assert service is not None and service["spec"]["canary"][0]["predictor"]["name"] == "v1"
    assert service["spec"]["canary"][0]["trafficPercent"] == 20
    assert predictor()["containers"][0]["env"] == [{"name": "STORAGE_URI", "value": "pvc://models/churn/models/2"}]
    assert publish(1).startswith("0 ") and predictor()["name"] == "v1"
    service = namespace.cluster.get(namespace.cluster.path(kserve.KIND, "churn", kserve.GROUP))
    assert service is not None and "canary" not in service["spec"]
    assert service["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"
