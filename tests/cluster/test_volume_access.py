"""A person's machine reads a volume of the cluster, and uploads to it, through pods that live as long as the command.

The namespace enforces Pod Security restricted. The volume's StorageClass is standard-rwx.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Namespace, until
from tests.kubeflow_server import Kubeflow, leave_run, serve
from tests.pushed_versions import push_versions
from tests.unit.report_folders import training_with
from train_step import CLAIM

from trainyard.contract.artifacts.train import Epoch
from trainyard.spec import recipe as recipes
from trainyard.storage import storage

pytestmark = pytest.mark.cluster

RUN = "0b9f4c1e-0000-4000-8000-000000000009"
IMAGE = "python:3.11-slim-bookworm"
TRAINYARD_IMAGE = os.environ.get("TRAINYARD_IMAGE", "trainyard/cpu:0.1.0")


def epoch(number: int) -> Epoch:
    return Epoch(
        epoch=number, step=number, learning_rate=0.1, train_loss=1, eval_loss=1, metric=0.5,
        examples_per_second=100, seconds=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def environment(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment whose volume holds two versions of digits, a measured training, and the report of an ended run."""
    folder = tmp_path_factory.mktemp("volume")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        root = push_versions().parents[1]
    with storage.stage(f"{root}/digits/train/0123456789abcdef.speed-cpu", producer="trainyard.train") as output:
        training_with(history=[epoch(number) for number in (1, 2, 3)], seconds={"import": 1.0}).write(output)
    kubeflow = Kubeflow()
    about = {"about": json.dumps({"recipe": "digits", "environment": "mine"})}
    created = {"run_id": RUN, "display_name": "digits-9", "created_at": "2026-01-01T00:00:00+00:00"}
    kubeflow.runs[RUN] = created | {"state": "RUNNING", "tasks": [], "runtime_config": {"parameters": about}}
    leave_run(kubeflow, RUN, recipes.load("digits"), str(root))
    record = root / "digits/runs" / RUN / "run.json"
    record.write_text(record.read_text().replace(str(root), "/mnt/runs/x"))
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sleep", "600"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "runs", "mountPath": "/mnt/runs"}],
    }
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    spec = {"containers": [container], "volumes": [volume], "securityContext": security}
    spec["terminationGracePeriodSeconds"] = 0
    filler = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "filler"}, "spec": spec}
    for manifest in (CLAIM, filler):
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    until(lambda: "true" in namespace.kubectl("get", "pod", "filler", "-o", "jsonpath={..ready}"))
    namespace.kubectl("cp", str(root), "filler:/mnt/runs/x")
    amounts = {"cpu": "1", "memory": "2Gi"}
    with serve(kubeflow):
        document = {
            "target": "kubeflow",
            "namespace": namespace.name,
            "kubeflow": {"endpoint": kubeflow.address},
            "volume": {"claim": "runs", "path": "/mnt/runs"},
            "storage": "/mnt/runs/x",
            "images": {"cpu": TRAINYARD_IMAGE},
            "pools": {"cpu": {"kind": "cpu", "resources": {kind: amounts for kind in ("requests", "limits")}}},
            "placement": {"default": "cpu"},
        }
        file = tmp_path_factory.mktemp("environment") / "mine.yaml"
        file.write_text(json.dumps(document))
        yield file


def trainyard(environment: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainyard_control.cli.main", *arguments, "-e", str(environment)]
    folder = environment.parent
    return subprocess.run(command, env=os.environ | variables, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_report_and_a_version_are_read_and_the_pod_is_gone(
    environment: Path, namespace: Namespace, tmp_path: Path
) -> None:
    done = trainyard(environment, "runs", "watch", "digits-9")
    assert done.returncode == 0 and "metric (test split)" in done.stdout and "digits-9.html" in done.stdout, done.stderr
    assert environment.with_name("digits-9.html").read_text().startswith("<!doctype html>")
    model = tmp_path / "model"
    done = trainyard(environment, "models", "export", "digits@1", str(model))
    assert done.returncode == 0 and (model / "assets.extra/vocabularies/city").read_text() == "Bern\n", done.stderr
    until(lambda: "trainyard-read" not in namespace.kubectl("get", "pods", "-o", "name"), 30)


def test_what_a_benchmark_has_measured_is_read(environment: Path) -> None:
    done = trainyard(environment, "bench", "digits", "--pools", "cpu", "--name", "speed", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert [speed["pool"] for speed in json.loads(done.stdout)["speeds"]] == ["cpu"]


def test_data_are_uploaded_once_and_the_pods_are_gone(environment: Path, namespace: Namespace, tmp_path: Path) -> None:
    rows = "".join(f"{number},{number % 7}\n" for number in range(300_000))
    (tmp_path / "tables/deep").mkdir(parents=True)
    for name in ("a.csv", "deep/b.csv"):
        (tmp_path / "tables" / name).write_text(f"a,{name}\n{rows}")
    first, again = (trainyard(environment, "data", "upload", str(tmp_path / "tables")) for _ in range(2))
    assert first.returncode == 0 and "2 files, 4.9 MiB uploaded to /mnt/runs/x/uploads/" in first.stderr, first.stderr
    assert again.returncode == 0 and again.stderr.rstrip().endswith("already"), again.stderr
    assert again.stdout == first.stdout
    folder = first.stdout.strip()
    there = namespace.kubectl("exec", "filler", "--", "sh", "-c", f"cd {folder} && md5sum a.csv deep/b.csv")
    sums = [hashlib.md5((tmp_path / "tables" / name).read_bytes()).hexdigest() for name in ("a.csv", "deep/b.csv")]
    assert [line.split()[0] for line in there.splitlines()] == sums
    assert not namespace.kubectl("exec", "filler", "--", "ls", f"{folder}/../../.staging").split(), "nothing is left"
    until(lambda: "trainyard-" not in namespace.kubectl("get", "pods", "-o", "name"), 30)


def test_a_version_is_named_and_rolled_back_by_a_pod(environment: Path, namespace: Namespace) -> None:
    done = trainyard(environment, "models", "alias", "night", "digits@2", LOGNAME="ana")
    assert (done.returncode, done.stderr) == (0, "alias night names digits@2\n")
    done = trainyard(environment, "models", "rollback", "digits@1", LOGNAME="ana")
    assert done.returncode == 0 and "version 3 serves in /mnt/runs/x/digits/models, a copy of" in done.stderr
    models = "/mnt/runs/x/digits/models"
    champion = json.loads(namespace.kubectl("exec", "filler", "--", "cat", f"{models}/champion.json"))
    assert champion["version"] == 3
    shown = json.loads(trainyard(environment, "models", "show", "digits@3", "-o", "json").stdout)
    assert (shown["by"], shown["restored"], shown["serves"]) == ("ana", 1, True)
    done = trainyard(environment, "models", "rollback", "digits@9")
    assert done.returncode == 20 and f"{models}: no version '9'." in done.stderr and done.stderr.count("\n") == 1
    done = trainyard(environment, "runs", "note", "digits-9", "good")
    assert done.returncode and done.stderr.count("\n") == 1


def test_a_missing_right_is_named(environment: Path, namespace: Namespace) -> None:
    done = trainyard(environment, "models", "list", KUBECONFIG=str(namespace.launcher_config()))
    assert done.returncode == 40
    assert f"is on the volume 'runs', and you may not create pods in namespace {namespace.name}" in done.stderr
    assert done.stderr.count("\n") == 1
