"""What doctor learns from a real registry (Debian's docker-registry): is the image there, and for which processors?"""

import base64
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.x509.oid import NameOID

from trainyard.spec import environment as environments
from trainyard_control.cluster import registry
from trainyard_control.cluster.checks import in_registry
from trainyard_control.cluster.doctor import examine
from trainyard_control.cluster.registry import Unanswered, look_up

needs_registry = pytest.mark.skipif(
    shutil.which("docker-registry") is None,
    reason="docker-registry is not on the PATH (apt-get install docker-registry)",
)
OCI = "application/vnd.oci.image"
NOW = datetime.now(UTC)
USER = "trainer:correct-horse"
HTPASSWD = "trainer:$2y$05$abcdefghijklmnopqrstuuZ0Fx87Pb/Aqb0E90lfvCwzXnaFKUHpS\n"  # as htpasswd -B writes it


@contextmanager
def served(folder: Path, **sections: Any) -> Iterator[str]:
    """Yield the address of a registry with its files in `folder`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{taken.getsockname()[1]}"
    config = {"version": 0.1, "storage": {"filesystem": {"rootdirectory": str(folder)}}, "http": {"addr": host}}
    file = folder / "config.yml"
    file.write_text(yaml.safe_dump(config | sections))
    process = subprocess.Popen(["docker-registry", "serve", str(file)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield host
    finally:
        process.kill()
        process.wait()


def push(host: str, tag: str, *platforms: str) -> None:
    """Leave an image of no layers at `host`/trainyard/cpu:`tag`: for one platform a manifest, for several an index."""

    def sent(method: str, url: str, content: bytes, kind: str) -> Any:
        request = urllib.request.Request(url, content, {"Content-Type": kind}, method=method)
        return urllib.request.urlopen(request)

    def described(content: bytes, kind: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def put(document: dict[str, Any], kind: str, name: str = "") -> dict[str, Any]:
        content = json.dumps(document).encode()
        told = described(content, kind)
        sent("PUT", f"http://{host}/v2/trainyard/cpu/manifests/{name or told['digest']}", content, kind)
        return told

    found = []
    for platform in platforms:
        system, architecture = platform.split("/")
        config = json.dumps({"os": system, "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": []}})
        where = sent("POST", f"http://{host}/v2/trainyard/cpu/blobs/uploads/", b"", "application/octet-stream")
        told = described(config.encode(), f"{OCI}.config.v1+json")
        place = f"{where.headers['Location']}&digest={told['digest']}"
        sent("PUT", place, config.encode(), "application/octet-stream")
        manifest = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": told, "layers": []}
        alone = len(platforms) == 1
        one = put(manifest, f"{OCI}.manifest.v1+json", tag if alone else "")
        found.append(one | {"platform": {"os": system, "architecture": architecture}})
    if len(platforms) > 1:
        attestation = found[0] | {"platform": {"os": "unknown", "architecture": "unknown"}}
        index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [*found, attestation]}
        put(index, f"{OCI}.index.v1+json", tag)


@needs_registry
def test_an_image_is_found_with_its_platforms_and_a_missing_one_is_told(tmp_path: Path) -> None:
    with served(tmp_path) as host:
        push(host, "1", "linux/amd64")
        push(host, "2", "linux/amd64", "linux/arm64")
        assert look_up(f"{host}/trainyard/cpu:1") == ["linux/amd64"]
        assert look_up(f"{host}/trainyard/cpu:2") == ["linux/amd64", "linux/arm64"]
        assert look_up(f"{host}/trainyard/cpu:3") is None
        assert look_up(f"{host}/trainyard/gpu:1") is None
        assert look_up(f"{host}/trainyard/cpu:1@sha256:{'0' * 64}") is None


@needs_registry
def test_doctor_says_what_the_nodes_would_find(tmp_path: Path) -> None:
    with served(tmp_path) as host:
        push(host, "1", "linux/arm64")
        document = yaml.safe_load((environments.BUNDLED / "local.yaml").read_text())
        images = {"cpu": f"{host}/trainyard/cpu:1", "gpu": f"{host}/trainyard/gpu:1", "tpu": "trainyard/tpu"}
        file = tmp_path / "own.yaml"
        file.write_text(yaml.safe_dump(document | {"images": images, "storage": str(tmp_path / "runs")}))
        found = {check.name: check for check in examine(environments.load(str(file)), None)}
    assert found["image cpu"].sentence == (
        f"{host}/trainyard/cpu:1: is there for linux/arm64, and nodes are linux/amd64. Build and push it for them"
    )
    assert found["image gpu"].sentence.endswith(
        "is not in its registry. Push it, or correct images.gpu in the environment"
    )
    assert "has no tag of its own" in found["image tpu"].sentence
    assert [found[f"image {kind}"].verdict for kind in ("cpu", "gpu", "tpu")] == ["bad"] * 3


@needs_registry
def test_a_private_registry_is_shown_what_docker_was_told_and_is_not_known_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "trainyard", "path": str(tmp_path / "htpasswd")}}
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with served(tmp_path) as host:
        push(host, "1", "linux/amd64")
    with served(tmp_path, auth=auth) as host:
        with pytest.raises(Unanswered, match=r"does not show it to you \(401\)"):
            look_up(f"{host}/trainyard/cpu:1")
        encoded = base64.b64encode(USER.encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": encoded}}}))
        assert look_up(f"{host}/trainyard/cpu:1") == ["linux/amd64"]
        helper = tmp_path / "docker-credential-vault"
        name, _, password = USER.partition(":")
        told = json.dumps({"Username": name, "Secret": password})
        helper.write_text(f"#!/bin/sh\n[ $(cat) = {host} ] && echo '{told}'\n")
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {host: "vault"}}))
        assert look_up(f"{host}/trainyard/cpu:1") == ["linux/amd64"]


class Tokens(BaseHTTPRequestHandler):
    """The token service of a registry, as those of docker.io and ghcr.io: it gives anybody the right to pull one repository."""

    key = ec.generate_private_key(ec.SECP256R1())
    asked: ClassVar[list[str]] = []

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - timedelta(days=1), NOW + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        query = dict(parse_qsl(urlsplit(self.path).query))
        kind, name, actions = query["scope"].split(":")
        access = [{"type": kind, "name": name, "actions": [actions]}]
        times = {"exp": int(time.time()) + 300, "nbf": int(time.time()) - 10, "iat": int(time.time())}
        claims = {"iss": "tokens", "sub": "", "aud": query["service"], "jti": "1", "access": access, **times}
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(self.certificate).decode()]}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        signature = utils.decode_dss_signature(self.key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        token = f"{text}.{_encoded(b''.join(number.to_bytes(32, 'big') for number in signature))}"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": token}).encode())

    def log_message(self, *_: object) -> None:
        pass


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


@needs_registry
def test_a_registry_that_wants_a_token_gets_one_from_the_service_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "tokens.pem").write_text(ssl.DER_cert_to_PEM_cert(Tokens.certificate))
    with served(tmp_path) as host:
        push(host, "1", "linux/amd64", "linux/arm64")
    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as tokens:
        threading.Thread(target=tokens.serve_forever, daemon=True).start()
        realm = f"http://127.0.0.1:{tokens.server_port}/token"
        given = {"service": "here", "issuer": "tokens", "rootcertbundle": str(tmp_path / "tokens.pem")}
        with served(tmp_path, auth={"token": {"realm": realm, **given}}) as host:
            assert look_up(f"{host}/trainyard/cpu:1") == ["linux/amd64", "linux/arm64"]
            assert look_up(f"{host}/trainyard/cpu:2") is None
        tokens.shutdown()
    assert all("scope=repository%3Atrainyard%2Fcpu%3Apull" in path for path in Tokens.asked)


def test_a_registry_that_is_silent_or_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and says nothing
        name = f"127.0.0.1:{silent.getsockname()[1]}/trainyard/cpu:1"
        began = time.monotonic()
        with pytest.raises(Unanswered, match=r"did not answer|timed out") as unanswered:
            look_up(name)
        assert time.monotonic() - began < 2
    place = environments.load("gke").model_copy(update={"images": {"cpu": name}})
    check = in_registry(place, "cpu", unanswered.value)
    assert check.verdict == "unknown" and check.sentence.endswith("so whether it is there is not known")
    with pytest.raises(Unanswered, match=r"cannot be reached from here \(.*refused"):
        look_up(name)
    with pytest.raises(Unanswered, match=r"registry.invalid cannot be reached from here|did not answer"):
        look_up("registry.invalid/trainyard/cpu:1")
