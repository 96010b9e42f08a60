"""How the laptop reaches the S3 store of an environment: by whose endpoint and whose keys."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from tests.api_server import Api, connect
from tests.login_proxy import Answers, serve

from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.kubernetes import client
from trainyard.storage.buckets import s3
from trainyard_control.cluster import environments

_SECRET = {"data": {name: base64.b64encode(name.upper().encode()).decode() for name in ("id", "secret")}}
_FORBIDDEN = 'User "jane" cannot get resource "secrets" in API group "" in the namespace "ml"'


@pytest.fixture(autouse=True)
def own_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3._made_client.cache_clear()
    yield
    s3._made_client.cache_clear()
    s3.access_by(s3.Access)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    answers = {"/secrets/key": _SECRET}
    monkeypatch.setattr(client, "connect", connect(answers))
    return answers


def environment(folder: Path, endpoint: str, storage: str = "s3://bucket/runs", name: str = "ml.yaml") -> str:
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    amounts = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    document = {
        "target": "kubeflow",
        "storage": storage,
        "namespace": "ml",
        "variables": {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_REGION": "eu-west-1"},
        "secrets": {variable: {"secret": "key", "key": key} for variable, key in keys.items()},
        "images": {"cpu": "trainyard/cpu:1"},
        "pools": {"cpu": {"kind": "cpu", "resources": amounts}},
        "placement": {"default": "cpu"},
    }
    (folder / name).write_text(json.dumps(document))
    return str(folder / name)


def access() -> s3.Access:
    return s3._find_access()


def test_a_store_outside_the_cluster_is_reached_directly_with_the_secrets_keys(
    tmp_path: Path, answers: dict[str, Any]
) -> None:
    environments.load(environment(tmp_path, "https://s3.example.com:9000"))
    assert access() == s3.Access("https://s3.example.com:9000", "eu-west-1", "ID", "SECRET")
    assert "SECRET" not in repr(access())


def test_a_person_with_keys_keeps_them_for_a_store_outside_the_cluster(
    tmp_path: Path, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers.clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    environments.load(environment(tmp_path, "https://s3.example.com"))
    assert access() == s3.Access("https://s3.example.com", "eu-west-1")


def test_an_endpoint_of_the_shell_is_used_instead_of_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    environments.load(environment(tmp_path, "http://seaweedfs.kubeflow:9000"))
    assert access() == s3.Access()


@pytest.mark.parametrize("host", ["10.0.0.7", "localhost", "store.ml", "[::1]"])
def test_an_address_or_a_name_that_is_no_service_is_reached_directly(
    host: str, tmp_path: Path, answers: dict[str, Any]
) -> None:
    environments.load(environment(tmp_path, f"http://{host}:9000"))
    assert access().endpoint == f"http://{host}:9000"


@pytest.mark.parametrize("host", ["store", "store.ml", "store.ml.svc", "store.ml.svc.cluster.local"])
def test_a_service_that_may_not_be_seen_names_the_right(host: str, tmp_path: Path, answers: dict[str, Any]) -> None:
    answers["/namespaces/ml/services/store"] = _FORBIDDEN.replace("secrets", "services")
    environments.load(environment(tmp_path, f"http://{host}:9000"))
    with pytest.raises(InfrastructureError, match=r"ml.yaml: storage: .* may not get services in namespace ml\. Have"):
        access()


class _Refusing(Answers):
    def do_GET(self) -> None:
        self.answer(403, {"message": _FORBIDDEN.replace("secrets", "pods/portforward")})


def test_a_port_forward_that_is_refused_names_the_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = {"metadata": {"name": "store"}, "spec": {"selector": {"app": "store"}, "ports": [{"port": 9000}]}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = {"metadata": {}, "items": [{"metadata": {"name": "store-0"}, "status": ready}]}
    with serve(_Refusing) as server:
        api = ApiClient(Configuration(host=f"http://127.0.0.1:{server.server_port}"))
        monkeypatch.setattr(api, "call_api", Api({"/services/store": service, "/ml/pods": pods}).call_api)
        monkeypatch.setattr(client, "connect", lambda namespace: client.Cluster(api, namespace, 0))
        environments.load(environment(tmp_path, "http://store:9000"))
        with pytest.raises(
            InfrastructureError, match=r"may not get pods/portforward in namespace ml\. Have that right"
        ):
            access()


def test_a_secret_that_may_not_be_read_names_the_right(
    tmp_path: Path, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers["/secrets/key"] = _FORBIDDEN
    environments.load(environment(tmp_path, "http://10.0.0.7:9000"))
    with pytest.raises(InfrastructureError, match=r"you may not get secrets in namespace ml\. .* AWS_ACCESS_KEY_ID"):
        access()


def test_a_secret_or_key_that_is_missing_is_named(tmp_path: Path, answers: dict[str, Any]) -> None:
    environments.load(environment(tmp_path, "http://10.0.0.7:9000"))
    answers["/secrets/key"] = {"data": {"other": ""}}
    with pytest.raises(ConfigurationError, match=r"has no key 'id'\. It has: other"):
        access()
    answers.clear()
    with pytest.raises(ConfigurationError, match="namespace ml has no Secret 'key'"):
        access()


def test_a_process_reaches_one_store(tmp_path: Path, answers: dict[str, Any]) -> None:
    environments.load(environment(tmp_path, "http://10.0.0.7:9000"))
    s3.connect()
    environments.load(environment(tmp_path, "http://10.0.0.7:9000"))
    with pytest.raises(ConfigurationError, match="by another environment already"):
        environments.load(environment(tmp_path, "http://10.0.0.8:9000", name="other.yaml"))


def test_a_volume_that_is_not_mounted_here_is_named(tmp_path: Path) -> None:
    file = Path(environment(tmp_path, "http://10.0.0.7:9000", "/nowhere/runs"))
    document = json.loads(file.read_text()) | {"volume": {"claim": "runs", "path": "/nowhere"}}
    file.write_text(json.dumps(document))
    with pytest.raises(
        ConfigurationError, match=r"ml.yaml: storage: /nowhere/runs is on the volume 'runs', which is not"
    ):
        environments.writable_storage(environments.load(str(file)))
