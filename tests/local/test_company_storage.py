"""Buckets of companies: certificates of a private authority, keys of one's own, and public data without credentials."""

from __future__ import annotations

import base64
import gzip
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from certificates import Authority, private_authority
from object_stores import STORES, Store, forget_clients
from test_preprocess_buckets import put_compressed
from tests.api_server import connect
from tests.login_proxy import Answers

from trainyard.errors import ConfigurationError, DataError, InfrastructureError
from trainyard.kubernetes import client
from trainyard.quality.inspect import inspect
from trainyard.spec import documents
from trainyard.spec.environment import CA_VARIABLES
from trainyard.storage import storage, uploads
from trainyard.storage.buckets import objects, s3, stores
from trainyard_control.cluster import environments
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

KEYS = {"s3": "arn:aws:kms:eu-west-1:1:key/a", "gs": "projects/p/locations/eu/keyRings/r/cryptoKeys/k"}


def environment(folder: Path, **settings: object) -> str:
    amounts = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    document = {
        "target": "kubeflow",
        "namespace": "ml",
        "images": {"cpu": "trainyard/cpu:1"},
        "pools": {"cpu": {"resources": amounts}},
        "placement": {"default": "cpu"},
        **settings,
    }
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.fixture(autouse=True)
def no_bundle() -> None:
    """Have each test ask its own cluster for certificates."""
    environments._bundle_file.cache_clear()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return private_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["s3", "gs"])
def secured(
    request: pytest.FixtureRequest, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Store]:
    """A bucket behind TLS, whose certificate only `authority` vouches for."""
    with STORES[request.param](tls=authority.server) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            monkeypatch.setenv(name, "")  # restores what the test sets
            monkeypatch.delenv(name)
        monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
        forget_clients()
        yield store
    forget_clients()


@pytest.mark.parametrize("kind", ["config_map", "secret"])
def test_a_store_of_a_private_authority_is_read_and_written_with_the_clusters_certificates(
    kind: str, secured: Store, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text, path = authority.certificate, "/configmaps/company-ca"
    if kind == "secret":
        text, path = base64.b64encode(text.encode()).decode(), "/secrets/company-ca"
    monkeypatch.setattr(client, "connect", connect({path: {"data": {"ca.crt": text}}}))
    bundle = {"ca_bundle": {kind: "company-ca", "key": "ca.crt"}}
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    variables = {"variables": {"AWS_ENDPOINT_URL_S3": secured.address}} if secured.scheme == "s3" else {}
    environments.load(environment(tmp_path, storage=f"{secured.uri}/runs", **bundle, **variables))
    storage.write_text(f"{secured.uri}/runs/{kind}", "hello")
    assert storage.read_text(f"{secured.uri}/runs/{kind}") == "hello"


def test_a_step_reads_a_store_of_a_private_authority_by_the_variables_of_its_pod(
    secured: Store, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_text(authority.certificate)
    for name in CA_VARIABLES:
        monkeypatch.setenv(name, str(tmp_path / "ca.crt"))
    program = "import sys; from trainyard.storage import storage; storage.write_text(sys.argv[1], 'hello')"
    subprocess.run([sys.executable, "-c", program, f"{secured.uri}/step"], check=True, timeout=120)


def test_a_certificate_that_is_not_trusted_is_told_at_once_and_names_the_key(secured: Store) -> None:
    name = {"s3": "AWS_CA_BUNDLE", "gs": "REQUESTS_CA_BUNDLE"}[secured.scheme]
    sentence = (
        rf"certificate of its server is not trusted .*ca_bundle in the environment, or a file of them in {name}\."
    )
    for call in (
        lambda: storage.read_text(f"{secured.uri}/a"),
        lambda: storage.write_text(f"{secured.uri}/a", "x"),
        lambda: inspect(f"{secured.uri}/a.csv"),
    ):
        with pytest.raises(InfrastructureError, match=sentence) as refused:
            call()
        assert str(refused.value).count(".\n") == 0 and not secured.requests


def test_a_bundle_without_certificates_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setattr(client, "connect", connect({"/configmaps/none": {"data": {"ca.crt": "hello"}}}))
    bundle = {"config_map": "none", "key": "ca.crt"}
    loaded = environments.load(environment(tmp_path, storage="gs://b/runs", ca_bundle=bundle))
    with pytest.raises(ConfigurationError, match=r"own\.yaml: ca_bundle: key 'ca\.crt' holds no certificate"):
        environments.bundle_file(loaded)


def test_a_machine_that_knows_no_cluster_is_told_how_to_name_the_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    bundle = {"secret": "company-ca", "key": "ca.crt"}
    loaded = environments.load(environment(tmp_path, storage="gs://b/runs", ca_bundle=bundle))
    with pytest.raises(ConfigurationError, match=r"no cluster is known here\. Set KUBECONFIG, or set AWS_CA_BUNDLE "):
        environments.bundle_file(loaded)


def test_every_kind_of_write_names_the_key(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = KEYS[store.scheme]
    monkeypatch.setenv(objects.KMS_VARIABLE, "")
    loaded = environments.load(environment(tmp_path, storage=f"{store.uri}/runs", storage_encryption={"kms_key": key}))
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(objects, "RANGE_BYTES", 5 << 20)
    root = f"{store.uri}/kms"
    storage.write_text(f"{root}/text", "hello")
    with storage.lease(f"{root}/leased"), storage.stage(f"{root}/output", "test") as folder:
        (folder / "small").write_text("small")
        (folder / "large").write_bytes(bytes(12 << 20))  # in parts, or in a session
    with storage.stage(f"{root}/open", "test", last="a") as folder:
        (folder / "a").write_text("last")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large").write_bytes(bytes(12 << 20))
    (tmp_path / "data" / "small").write_text("small")
    upload = uploads.plan(str(tmp_path / "data"), root, "data.path")
    uploads.send(upload, uploads.missing(upload) or [], lambda _: None)

    creating = [request for request in store.requests if creates(request.method, request.path)]
    assert len(creating) >= 11
    unencrypted = [f"{request.method} {request.path}" for request in creating if not encrypts(request, key)]
    assert not unencrypted
    assert loaded.pod_variables[objects.KMS_VARIABLE] == key


def note_key(folder: Path) -> None:
    (folder / "key").write_text(os.environ[objects.KMS_VARIABLE])


@pytest.mark.parametrize("key", ["alias/runs", ""])
def test_a_beam_worker_writes_with_the_key_of_the_step(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from trainyard.beam.tasks import _TaskDoFn

    monkeypatch.setenv(objects.KMS_VARIABLE, key)
    sent = pickle.dumps(_TaskDoFn(note_key, ""))
    monkeypatch.setenv(objects.KMS_VARIABLE, "of another environment")
    assert [*pickle.loads(sent).process((0, [tmp_path]))] == []
    assert (tmp_path / "key").read_text() == key


def creates(method: str, path: str) -> bool:
    """Return True if the request creates an object, or begins to: parts of one follow its beginning."""
    if "upload_id=" in path or "uploadId=" in path or "delete" in path:
        return False
    return method in ("PUT", "POST")


def encrypts(request: Any, key: str) -> bool:
    headers = {name.lower(): value for name, value in request.headers.items()}
    if headers.get("x-amz-server-side-encryption-aws-kms-key-id") == key:
        return headers["x-amz-server-side-encryption"] == "aws:kms"
    return parse_qs(urlsplit(request.path).query).get("kmsKeyName") == [key]


def test_another_environment_forgets_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(objects.KMS_VARIABLE, "")
    environments.load(environment(tmp_path, storage="gs://b/runs", storage_encryption={"kms_key": KEYS["gs"]}))
    assert s3._encryption() == {}, "a key of Google's is for Google's buckets"
    environments.load(environment(tmp_path, storage="s3://b/runs"))
    assert objects.KMS_VARIABLE not in os.environ


@pytest.fixture
def anonymous(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A bucket of S3, and a machine without credentials."""
    with STORES["s3"]() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        rows = {"Bucket": store.bucket, "Key": "rows.csv", "Body": b"visits,bought\n" + b"1,0\n2,1\n" * 50}
        s3._client().put_object(**rows, ACL="public-read")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        forget_clients()
        yield store
    forget_clients()


def test_public_data_in_s3_are_read_without_credentials(anonymous: Store) -> None:
    assert inspect(f"{anonymous.uri}/rows.csv", "bought").rows == 100
    assert all("Authorization" not in request.headers for request in anonymous.requests[-2:])


def test_a_store_that_refuses_an_anonymous_request_says_that_there_are_no_credentials(
    anonymous: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anonymous, "fault", lambda request: "403")
    found = "no AWS credentials were found, so the request was anonymous"
    with pytest.raises(DataError, match=rf"may not be read \(.*{found}\)\. Log in or grant the right"):
        inspect(f"{anonymous.uri}/rows.csv", "bought")
    with pytest.raises(InfrastructureError, match=rf"refused to write it \(.*{found}\)\. Allow s3:GetObject"):
        storage.write_text(f"{anonymous.uri}/a", "x")


def test_a_recipe_with_content_encoding_gzip_is_read(store: Store) -> None:
    put_compressed(f"{store.uri}/own.yaml", b"name: own\n")
    assert documents.read_object(f"{store.uri}/own.yaml") == "name: own\n"
    packed = gzip.compress(b"name: own\n" * 9)[:-9]
    stores.open_store(store.uri).write("cut.yaml", packed)
    with pytest.raises(ConfigurationError, match=r"cut\.yaml: is damaged \(.*\)\. Copy it again from its origin\."):
        documents.read_object(f"{store.uri}/cut.yaml")


def test_a_kubeflow_of_a_private_authority_is_asked_with_the_clusters_certificates(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    server.socket = authority.server.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings: dict[str, Any] = {
        "storage": "s3://b/runs",
        "kubeflow": {"endpoint": f"https://127.0.0.1:{server.server_port}"},
    }
    without = KubeflowServer(environments.load(environment(tmp_path, **settings)))
    with pytest.raises(
        InfrastructureError, match=r"certificate of https://127.* is not trusted .* ca_bundle in the env"
    ):
        without.version()
    objects_by_path = {"/configmaps/company-ca": {"data": {"ca.crt": authority.certificate}}}
    monkeypatch.setattr(client, "connect", connect(objects_by_path))
    settings["ca_bundle"] = {"config_map": "company-ca", "key": "ca.crt"}
    assert KubeflowServer(environments.load(environment(tmp_path, **settings))).version() == "2.17.0"
    server.shutdown()
    server.server_close()


class Healthy(Answers):
    """Kubeflow's answer to a request for its health."""

    def do_GET(self) -> None:
        self.answer(200, {"tag_name": "2.17.0"})
