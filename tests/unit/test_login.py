"""Kubeflow with a login: behind a proxy that asks for one, as oauth2-proxy, Dex and Istio do."""

from __future__ import annotations

import base64
import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.spec import environment as environments
from trainyard_control.cluster.login import Login
from trainyard_control.kubeflow import doctor
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

PAGE = b"<!doctype html><title>Log in to Your Account</title>"


class Kubeflow(BaseHTTPRequestHandler):
    """A multi-user server that knows users by the header that the proxy sets; each runs in a namespace of that name."""

    protocol_version = "HTTP/1.1"
    experiments: list[str]

    def do_GET(self) -> None:
        user = self.headers.get("kubeflow-userid", "").partition("@")[0]
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if url.path.endswith("/healthz"):
            return self.answer(200, {"tag_name": "2.17.0", "multi_user": True})
        if url.path == "/api/workgroup/env-info":
            spaces = [{"namespace": user, "role": "owner", "user": user}]
            return self.answer(200, {"user": f"{user}@example.com", "namespaces": spaces})
        named = json.loads(body)["namespace"] if body else parse_qs(url.query).get("namespace", [""])[0]
        if named != user:
            return self.answer(403, {"message": f"User '{user}' is not authorized to list in namespace '{named}'"})
        if self.command == "POST":
            self.experiments.append(named)
            return self.answer(200, {"experiment_id": "1"})
        self.answer(200, {"experiments": []})

    do_POST = do_GET

    def answer(self, status: int, content: Any, kind: str = "application/json") -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Proxy(Kubeflow):
    """Forwards the requests of `sessions`, a user by what proves it; answers others by a page to log in.

    istio: who has no policy. pages: the status of the page, or 302 for a redirection to it.
    """

    sessions: dict[str, str]
    istio: set[str]
    pages: int
    upstream: int

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proof = self.headers.get("Cookie") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        user = self.sessions.get(proof, "")
        if self.path == "/dex/auth":
            return self.answer(200, PAGE, "text/html; charset=utf-8")
        if not user and self.pages == 302:
            self.send_response(302)
            self.send_header("Location", "/dex/auth")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if not user:
            return self.answer(self.pages, PAGE, "text/html")
        if user in self.istio:
            return self.answer(403, b"RBAC: access denied", "text/plain")
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=20)
        connection.request(self.command, self.path, body, {"kubeflow-userid": f"{user}@example.com"})
        answer = connection.getresponse()
        self.answer(answer.status, answer.read(), answer.headers["Content-Type"])
        connection.close()

    do_POST = do_GET


def serve(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def proxy() -> Iterator[Any]:
    kubeflow = serve(type("Multi", (Kubeflow,), {"experiments": []}))
    settings = {"sessions": {"session=1": "ana"}, "istio": set(), "pages": 302, "upstream": kubeflow.server_port}
    server = serve(type("Guard", (Proxy,), settings))
    yield server
    for each in (server, kubeflow):
        each.shutdown()
        each.server_close()


def guard(proxy: Any) -> Any:
    return proxy.RequestHandlerClass


def environment(folder: Path, proxy: Any, namespace: str = "ana", **login: object) -> environments.Environment:
    document = yaml.safe_load((environments.BUNDLED / "kind.yaml").read_text())
    endpoint = f"http://127.0.0.1:{proxy.server_port}/pipeline"
    document |= {"namespace": namespace, "kubeflow": {"endpoint": endpoint, **login}}
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(document))
    return environments.load(str(path))


def written(folder: Path, text: str) -> str:
    (folder / "proof").write_text(f"{text}\n")
    return str(folder / "proof")


def token(user: str, seconds: float) -> str:
    claims = json.dumps({"email": f"{user}@example.com", "exp": time.time() + seconds}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x"


def printing(folder: Path, text: str) -> list[str]:
    """Return a command that prints the content of a file, which holds `text` at first, and counts its runs."""
    program = "import sys; print(open(sys.argv[1]).read()); open(sys.argv[1] + '.runs', 'a').write('x')"
    return [sys.executable, "-c", program, written(folder, text)]


def runs(folder: Path) -> int:
    return len((folder / "proof.runs").read_text())


@pytest.mark.parametrize("status", [302, 200, 401, 403])
def test_a_page_to_log_in_has_its_own_sentence(status: int, proxy: Any, tmp_path: Path) -> None:
    guard(proxy).pages = status
    with pytest.raises(InfrastructureError, match=r"login page, because the request has no login\. Name kubeflow\.tok"):
        KubeflowServer(environment(tmp_path, proxy)).version()


def test_a_cookie_is_read_for_every_request_and_an_expired_session_is_told(proxy: Any, tmp_path: Path) -> None:
    server = KubeflowServer(environment(tmp_path, proxy, cookie_file=written(tmp_path, "session=1")))
    assert server.version() == "2.17.0" and server.find_experiment() is None
    guard(proxy).sessions = {"session=2": "ana"}
    ended = r"login page: the session of kubeflow\.cookie_file \(.*proof\) has expired or is unknown there\. Log in"
    with pytest.raises(InfrastructureError, match=ended):
        server.version()
    written(tmp_path, "session=2")
    assert server.version() == "2.17.0"


def test_a_token_that_expires_during_a_run_is_asked_for_again(
    proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = token("ana", 3600), token("ana", 8 * 3600)
    guard(proxy).sessions = {first: "ana", second: "ana"}
    server = KubeflowServer(environment(tmp_path, proxy, token_command=printing(tmp_path, first)))
    for _ in range(3):
        assert server.version() == "2.17.0"
    assert runs(tmp_path) == 1, "a token is kept while it is valid"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 4 * 3600)
    written(tmp_path, second)
    del guard(proxy).sessions[first]
    assert server.version() == "2.17.0" and runs(tmp_path) == 2


def test_a_token_that_the_server_ends_early_is_asked_for_again_once(proxy: Any, tmp_path: Path) -> None:
    credential = {"kind": "ExecCredential", "status": {"token": "a", "expirationTimestamp": "2099-01-01T00:00:00Z"}}
    guard(proxy).sessions = {"a": "ana", "b": "ana"}
    server = KubeflowServer(environment(tmp_path, proxy, token_command=printing(tmp_path, json.dumps(credential))))
    assert server.version() == "2.17.0"
    guard(proxy).sessions = {"b": "ana"}
    written(tmp_path, "b")
    assert server.experiment() == "1" and runs(tmp_path) == 2
    guard(proxy).sessions = {}
    with pytest.raises(InfrastructureError, match=r"the session of kubeflow\.token_command has expired or is unknown"):
        server.version()
    assert runs(tmp_path) == 3


def test_an_expired_token_of_a_file_says_since_when(proxy: Any, tmp_path: Path) -> None:
    server = KubeflowServer(environment(tmp_path, proxy, token_file=written(tmp_path, token("ana", -60))))
    with pytest.raises(InfrastructureError, match=r"token_file \(.*\) has expired at 20\d\d-\d\d-\d\d \d\d:\d\d UTC\."):
        server.version()
    written(tmp_path, token("ana", 600))
    with pytest.raises(InfrastructureError, match=r"it does not accept the login of kubeflow\.token_file"):
        server.version()


def test_istio_and_kubeflow_refuse_in_their_own_sentences(proxy: Any, tmp_path: Path) -> None:
    login = {"cookie_file": written(tmp_path, "session=1")}
    with pytest.raises(
        InfrastructureError, match=r"User 'ana' is not authorized .* Ask for the permission in namespac"
    ):
        KubeflowServer(environment(tmp_path, proxy, "ben", **login)).find_experiment()
    guard(proxy).istio = {"ana"}
    sentence = r"Istio refuses the request \(RBAC: access denied\): your account may not .* namespace 'ana'\. Have"
    with pytest.raises(InfrastructureError, match=sentence):
        KubeflowServer(environment(tmp_path, proxy, **login)).version()


def test_a_person_runs_in_the_namespace_of_the_profile(proxy: Any, tmp_path: Path) -> None:
    server = KubeflowServer(environment(tmp_path, proxy, cookie_file=written(tmp_path, "session=1")))
    assert server.experiment() == "1"


@pytest.mark.parametrize("namespace", ["ana", "ben"])
def test_doctor_says_who_you_are_and_where_you_may_run(namespace: str, proxy: Any, tmp_path: Path) -> None:
    own = environment(tmp_path, proxy, namespace, token_command=printing(tmp_path, token := "t"))
    guard(proxy).sessions = {token: "ana"}
    lines = {check.name: check.sentence for check in doctor._kubeflow(own)}
    assert lines["kubeflow login"] == "you are ana@example.com, by kubeflow.token_command"
    told = {
        "ana": "you may run in 'ana' (owner)",
        "ben": "you may not run in 'ben'. You may in: ana (owner). Set namespace, or be added as a contributor",
    }
    assert lines["your namespace"] == told[namespace]


def test_a_notebook_has_the_token_of_its_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", written(tmp_path, "projected"))
    assert Login(environments.Kubeflow()).headers() == {}, "outside of a cluster"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert Login(environments.Kubeflow()).headers() == {"Authorization": "Bearer projected"}
    written(tmp_path, "rotated")
    assert Login(environments.Kubeflow()).token() == "rotated"
    assert Login(environments.Kubeflow(endpoint="http://kfp.example")).headers() == {}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["no-such-program"], r"token_command: no-such-program: cannot be run \(No such file or directory\)"),
        (["false"], r"token_command: false: ended with exit code 1\. Run it alone"),
        (["true"], r"token_command: true: printed no token\."),
        (["echo", "{}"], r"printed JSON without status\.token"),
    ],
)
def test_a_command_that_gives_no_token_is_told(command: list[str], sentence: str) -> None:
    with pytest.raises((ConfigurationError, InfrastructureError), match=sentence):
        Login(environments.Kubeflow(endpoint="http://kfp.example", token_command=command)).headers()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("{token_command: [a]}", "kubeflow.token_command: is for the server at kubeflow.endpoint. Give its URL"),
        (
            "{endpoint: 'http://a', token_command: [a], cookie_file: b}",
            "kubeflow.cookie_file: is a second login beside",
        ),
        ("{endpoint: 'http://a', token_command: a}", "kubeflow.token_command"),
    ],
)
def test_a_login_that_has_no_meaning_is_refused(settings: str, sentence: str, tmp_path: Path) -> None:
    text = (environments.BUNDLED / "kind.yaml").read_text().replace("\nkubeflow:", "\n#")
    (tmp_path / "own.yaml").write_text(f"{text}\nkubeflow: {settings}\n")
    with pytest.raises(ConfigurationError) as error:
        environments.load(str(tmp_path / "own.yaml"))
    assert sentence in str(error.value)
