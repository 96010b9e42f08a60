"""Kubeflow with a login: behind a proxy that asks for one, as oauth2-proxy, Dex and Istio do."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from kubernetes.config import kube_config
from tests.login_proxy import USER, Answers, Proxy, serve, token

from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.spec import environment as environments
from trainyard_control.cluster.login import Login
from trainyard_control.kubeflow import doctor
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer

ANA = "ana@example.com"


class Kubeflow(Answers):
    """A multi-user server that knows users by the header that the proxy sets; each runs in a namespace of that name.

    Its refusals are those of Kubeflow Pipelines 2.17.0. viewers: who may look but not run. dashboard: it has one.
    """

    experiments: list[str]
    viewers: set[str]
    dashboard: bool

    def do_GET(self) -> None:
        user = self.headers.get(USER, "")
        own = user.partition("@")[0]
        url = urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if url.path.endswith("/healthz"):
            return self.answer(200, {"tag_name": "2.17.0", "multi_user": True})
        if url.path == "/api/workgroup/env-info":
            spaces = [{"namespace": own, "role": "viewer" if user in self.viewers else "owner", "user": own}]
            return self.answer(200 if self.dashboard else 404, {"user": user, "namespaces": spaces})
        if not user:
            told = "Failed to check authorization. User identity is empty in the request header"
            return self.refuse(401, f"List experiments failed: Unauthenticated: {told}: there is no header", told)
        verb, kind = "create" if self.command == "POST" else "list", url.path.rpartition("/")[2]
        named = body.get("namespace") or parse_qs(url.query).get("namespace", [""])[0] or own
        if named != own or (verb == "create" and user in self.viewers):
            asked = f"Namespace:{named},Verb:{verb},Group:pipelines.kubeflow.org,Version:v1beta1,Resource:{kind},"
            told = (
                f"User '{user}' is not authorized with reason:  (request: &ResourceAttributes{{{asked}Subresource:,}})"
            )
            return self.refuse(403, f"{kind} failed: Failed to authorize with API: {told}: Unauthorized access", told)
        if verb == "list":
            there = [{"experiment_id": "1", "display_name": name} for name in self.experiments]
            return self.answer(200, {"experiments": there})
        if kind == "runs":
            return self.refuse(
                500, "Failed to create a new run: PipelineVersion none not found", "Internal Server Error"
            )
        self.experiments.append(named)
        self.answer(200, {"experiment_id": "1"})

    do_POST = do_GET

    def refuse(self, status: int, text: str, told: str) -> None:
        self.answer(status, {"message": text, "details": [{"@type": "google.rpc.Status", "message": told}]})


@pytest.fixture
def proxy() -> Iterator[Any]:
    with serve(Kubeflow, experiments=[], viewers=set(), dashboard=True) as kubeflow:
        upstream = f"http://127.0.0.1:{kubeflow.server_port}"
        with serve(Proxy, sessions={"session=1": ANA}, istio=set(), pages=302, upstream=upstream) as server:
            yield SimpleNamespace(server_port=server.server_port, door=server.RequestHandlerClass, kubeflow=kubeflow)


def guard(proxy: Any) -> Any:
    return proxy.door


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
    guard(proxy).sessions = {"session=2": ANA}
    ended = r"login page: the session of kubeflow\.cookie_file \(.*proof\) has expired or is unknown there\. Log in"
    with pytest.raises(InfrastructureError, match=ended):
        server.version()
    written(tmp_path, "session=2")
    assert server.version() == "2.17.0"


def test_a_token_that_expires_during_a_run_is_asked_for_again(
    proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = token(ANA, 3600), token(ANA, 8 * 3600)
    guard(proxy).sessions = {first: ANA, second: ANA}
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
    guard(proxy).sessions = {"a": ANA, "b": ANA}
    server = KubeflowServer(environment(tmp_path, proxy, token_command=printing(tmp_path, json.dumps(credential))))
    assert server.version() == "2.17.0"
    guard(proxy).sessions = {"b": ANA}
    written(tmp_path, "b")
    assert server.experiment() == "1" and runs(tmp_path) == 2
    guard(proxy).sessions = {}
    with pytest.raises(InfrastructureError, match=r"the session of kubeflow\.token_command has expired or is unknown"):
        server.version()
    assert runs(tmp_path) == 3


def test_an_expired_token_of_a_file_says_since_when(proxy: Any, tmp_path: Path) -> None:
    server = KubeflowServer(environment(tmp_path, proxy, token_file=written(tmp_path, token(ANA, -60))))
    with pytest.raises(InfrastructureError, match=r"token_file \(.*\) has expired at 20\d\d-\d\d-\d\d \d\d:\d\d UTC\."):
        server.version()
    written(tmp_path, token(ANA, 600))
    with pytest.raises(InfrastructureError, match=r"it does not accept the login of kubeflow\.token_file"):
        server.version()


def test_istio_and_kubeflow_refuse_in_their_own_sentences(proxy: Any, tmp_path: Path) -> None:
    login = {"cookie_file": written(tmp_path, "session=1")}
    refused = r"you are ana@example\.com, and may not list experiments in namespace 'ben'\. Name a namespace of yours"
    with pytest.raises(InfrastructureError, match=refused):
        KubeflowServer(environment(tmp_path, proxy, "ben", **login)).find_experiment()
    guard(proxy).istio = {ANA}
    sentence = r"Istio refuses the request \(RBAC: access denied\): your account may not .* namespace 'ana'\. Have"
    with pytest.raises(InfrastructureError, match=sentence):
        KubeflowServer(environment(tmp_path, proxy, **login)).version()


def test_a_person_runs_in_the_namespace_of_the_profile(proxy: Any, tmp_path: Path) -> None:
    server = KubeflowServer(environment(tmp_path, proxy, cookie_file=written(tmp_path, "session=1")))
    assert server.experiment() == "1"


@pytest.mark.parametrize("namespace", ["ana", "ben"])
def test_doctor_says_who_you_are_and_where_you_may_run(namespace: str, proxy: Any, tmp_path: Path) -> None:
    own = environment(tmp_path, proxy, namespace, token_command=printing(tmp_path, token := "t"))
    guard(proxy).sessions = {token: ANA}
    lines = {check.name: check.sentence for check in doctor._kubeflow(own)}
    assert lines["kubeflow login"] == "you are ana@example.com, by kubeflow.token_command"
    told = {
        "ana": "you may run in 'ana' (owner)",
        "ben": "you may not run in 'ben'. You may in: ana (owner). Set namespace, or be added as a contributor",
    }
    assert lines["your namespace"] == told[namespace]


def test_doctor_does_not_promise_a_viewer_a_run(proxy: Any, tmp_path: Path) -> None:
    own = environment(tmp_path, proxy, cookie_file=written(tmp_path, "session=1"))
    kubeflow = proxy.kubeflow.RequestHandlerClass
    kubeflow.viewers, experiments = {ANA}, kubeflow.experiments

    def told() -> tuple[str, str]:
        (line,) = (check for check in doctor._kubeflow(own) if check.name == "your namespace")
        return line.verdict, line.sentence

    assert told() == ("bad", "you may only look at runs in 'ana' (viewer). Be added as a contributor")
    kubeflow.dashboard = False
    assert told()[0] == "unknown", "without an experiment nothing can be tried"
    experiments.append("trainyard")
    assert told()[0] == "bad" and "you are ana@example.com, and may not create runs in namespace 'ana'" in told()[1]
    kubeflow.viewers = set()
    assert told() == ("good", "you may run in 'ana'")


def test_kubernetes_proxy_tells_a_multi_user_server_nobody(
    proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{proxy.kubeflow.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    user = {"name": "c", "user": {"token": "kubernetes"}}
    config = {"current-context": "c", "clusters": [cluster], "contexts": [context], "users": [user]}
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    own = environment(tmp_path, proxy)
    settings = own.kubeflow.model_copy(update={"endpoint": "", "token_file": written(tmp_path, "not for Kubernetes")})
    server = KubeflowServer(own.model_copy(update={"kubeflow": settings}))
    with pytest.raises(InfrastructureError, match=r"is for many users, and the Kubernetes API server does not tell"):
        server.find_experiment()
    assert not server.login.headers()


def test_a_notebook_without_its_token_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    login = Login(environments.Kubeflow())
    refused = str(login._refused("http://ml-pipeline.kubeflow:8888", "ana", "401: User identity is empty"))
    assert "because the request has no login. Give the pod a token for pipelines.kubeflow.org at /var/run/" in refused


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
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        environments.load(str(tmp_path / "own.yaml"))
