"""A person's machine reaches an object store that is a Service of the cluster, with the key in a Secret.

The Service's pod passes connections on to a real S3 server on this machine. The commands of docs/how-to/laptop.md run
against it, and against a server of Kubeflow's API whose runs do their steps on this machine. TRAINYARD_HOST is as in
test_train_step_bucket.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from namespaces import Namespace, until
from tests.kubeflow_server import Kubeflow, serve

sys.path.insert(0, str(Path(__file__).parents[1] / "local"))

import object_stores

from trainyard.graph import OUTPUTS

HOST = os.environ.get("TRAINYARD_HOST", "")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not HOST, reason="TRAINYARD_HOST names no address that pods reach"),
]

_RELAY = """
import asyncio, os, ssl, sys
async def copy(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def serve(reader, writer):
    other = await asyncio.open_connection(sys.argv[1], int(sys.argv[2]))
    await asyncio.gather(copy(reader, other[1]), copy(other[0], writer))
async def main():
    await asyncio.start_server(serve, "0.0.0.0", 9000)
    open("/tmp/pem", "w").write(os.environ["PEM"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain("/tmp/pem")
    server = await asyncio.start_server(serve, "0.0.0.0", 9443, ssl=context)
    await server.serve_forever()
asyncio.run(main())
"""
# Does the steps of the run argv[1], whose package is on stdin, in little time.
_STEPS = """
import sys, yaml
from trainyard.spec import documents, environment
from trainyard.spec.recipe import Recipe
from trainyard_control.api.run import Screen, _executed
from trainyard_control.local.local_run import LocalRun
parameters = next(yaml.safe_load_all(sys.stdin))["root"]["inputDefinitions"]["parameters"]
known = {name: parameter.get("defaultValue") for name, parameter in parameters.items()}
quick = ["evaluate.bootstrap=20", "evaluate.gates=[{metric: r2, min: -99}]"]
quick.append("export.formats=[saved_model]")
recipe = documents.parse(known["recipe"], Recipe, name="recipe", overrides=quick)
here = environment.load("local").model_copy(update={"storage": known["storage"]})
screen = Screen()
_executed(LocalRun(recipe, here, sys.argv[1], None, screen), screen)
"""
_TABLE = "a,label\n1,x\n2,y\n3,x\n"


@pytest.fixture(scope="module")
def environment(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment whose store only pods reach. Its bucket holds a table and a report."""
    kubeflow = Kubeflow()

    def execute(run_id: str, package: str) -> None:
        kubeflow.tell(run_id, "RUNNING", preprocess="RUNNING")
        variables = os.environ | store.environment
        done = subprocess.run([sys.executable, "-c", _STEPS, run_id], input=package, env=variables, text=True)
        state = "FAILED" if done.returncode else "SUCCEEDED"
        kubeflow.tell(run_id, state, **dict.fromkeys(OUTPUTS, state))

    kubeflow.start = execute
    with object_stores.s3_store(HOST) as store, serve(kubeflow):
        pem = _certificate(f"store.{namespace.name}", tmp_path_factory.mktemp("tls"))
        namespace.kubectl("create", "configmap", "authority", f"--from-literal=ca.crt={pem}")
        host, _, port = store.address.removeprefix("http://").rpartition(":")
        security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
        own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {
            "name": "store",
            "image": "python:3.11-slim-bookworm",
            "command": ["python", "-c", _RELAY, host, port],
            "ports": [{"name": "s3", "containerPort": 9000}],
            "env": [{"name": "PEM", "value": pem}],
            "readinessProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1},
            "securityContext": own,
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "store", "labels": {"app": "store"}},
            "spec": {"containers": [container], "securityContext": security, "terminationGracePeriodSeconds": 0},
        }
        ports = [{"name": "s3", "port": 8333, "targetPort": "s3"}, {"name": "tls", "port": 443, "targetPort": 9443}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store"}}
        service["spec"] = {"selector": {"app": "store"}, "ports": ports}
        for manifest in (pod, service):
            namespace.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        namespace.kubectl("create", "secret", "generic", "key", "--from-literal=id=test", "--from-literal=secret=hush")
        client = boto3.client(
            "s3",
            endpoint_url=store.address,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="hush",
        )
        client.put_object(Bucket=store.bucket, Key="data/table.csv", Body=_TABLE.encode())
        client.put_object(Bucket=store.bucket, Key="data/large.bin", Body=bytes(20 << 20))
        amounts = {"cpu": "1", "memory": "2Gi"}
        document = {
            "target": "kubeflow",
            "storage": f"{store.uri}/runs",
            "namespace": namespace.name,
            "kubeflow": {"endpoint": kubeflow.address},
            "variables": {"AWS_ENDPOINT_URL_S3": f"http://store.{namespace.name}:8333", "AWS_REGION": "us-east-1"},
            "secrets": {
                "AWS_ACCESS_KEY_ID": {"secret": "key", "key": "id"},
                "AWS_SECRET_ACCESS_KEY": {"secret": "key", "key": "secret"},
            },
            "images": {"cpu": "trainyard/cpu:ci"},
            "pools": {"cpu": {"kind": "cpu", "resources": {kind: amounts for kind in ("requests", "limits")}}},
            "placement": {"default": "cpu"},
        }
        file = tmp_path_factory.mktemp("environment") / "inside.yaml"
        file.write_text(json.dumps(document))
        until(lambda: "true" in namespace.kubectl("get", "pod", "store", "-o", "jsonpath={..ready}"))
        yield file


def _certificate(host: str, folder: Path) -> str:
    """Return a key and a certificate for `host` that it signs itself."""
    file = folder / "key.pem"
    names = ["-subj", "/CN=store", "-addext", f"subjectAltName=DNS:{host}"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(file), *names]
    certificate = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return f"{file.read_text()}{certificate}"


def _trainyard(*arguments: str, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    command = [sys.executable, "-m", "trainyard_control.cli.main", *arguments]
    return subprocess.run(command, env=environment | variables, cwd=folder, capture_output=True, text=True, timeout=300)


def test_data_in_the_cluster_is_read_and_the_key_is_not_shown(environment: Path, namespace: Namespace) -> None:
    done = _trainyard("data", "inspect", "s3://trainyard-test/data/table.csv", "-e", str(environment), "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 3
    assert "hush" not in done.stdout + done.stderr


def test_a_file_of_many_parts_arrives_whole(environment: Path) -> None:
    program = (
        "from trainyard_control.cluster import environments\n"
        "from trainyard.storage.buckets.stores import open_store\n"
        f"environments.load({str(environment)!r})\n"
        "store = open_store('s3://trainyard-test')\n"
        "assert store.read_range('data/large.bin', 0, 20 << 20) == bytes(20 << 20)\n"
    )
    without = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run([sys.executable, "-c", program], env=without, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_service_with_tls_is_read_if_its_authority_is_trusted(environment: Path, namespace: Namespace) -> None:
    document = json.loads(environment.read_text())
    secure = environment.with_name("secure.yaml")
    for endpoint, bundle, code, said in (
        (
            "",
            {},
            40,
            f"the certificate of https://store.{namespace.name} is not trusted (self-signed certificate). Name",
        ),
        (":8333", {}, 20, "no TLS is spoken there"),
        ("", {"ca_bundle": {"config_map": "authority", "key": "ca.crt"}}, 0, ""),
    ):
        variables = document["variables"] | {"AWS_ENDPOINT_URL_S3": f"https://store.{namespace.name}{endpoint}"}
        secure.write_text(json.dumps(document | bundle | {"variables": variables}))
        done = _trainyard("models", "list", "-e", str(secure))
        assert done.returncode == code and said in done.stderr, done.stderr


def test_a_missing_right_is_named(environment: Path, namespace: Namespace) -> None:
    config = str(namespace.launcher_config())
    done = _trainyard("models", "list", "-e", str(environment), KUBECONFIG=config)
    assert done.returncode == 40
    assert f"you may not get services in namespace {namespace.name}" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("warm_processes")  # of the last test alone: the others need a Kubernetes client of their own
def test_the_commands_of_the_laptop_page_work(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(environment.read_bytes())
    draw = random.Random(1)
    rows = [f"{area},{draw.choice('abc')},{area * 5000 + draw.randrange(200000)}" for area in range(30, 180)]
    (tmp_path / "houses.csv").write_text("\n".join(["area,town,price", *rows, ""]))
    (tmp_path / "new.csv").write_text("area,town\n60,a\n90,b\n")
    page = (Path(__file__).parents[2] / "docs/how-to/laptop.md").read_text()
    shown = {}
    for command in re.findall(r"^trainyard (.*)$", page, flags=re.MULTILINE):
        done = _trainyard(*shlex.split(command, comments=True), folder=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        shown[command.split(" ")[0]] = done
    run = shown["run"]
    assert "✓ data.path: 1 file, " in run.stderr and "✓ push " in run.stderr and "metric (test split)" in run.stdout
    assert (tmp_path / "houses-1.html").read_text().startswith("<!doctype html>")
    assert shown["data"].stdout.startswith("s3://trainyard-test/runs/uploads/")
    assert (tmp_path / "predictions.parquet").exists() and (tmp_path / "model/manifest.json").exists()
