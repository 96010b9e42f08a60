"""A real multi-user Kubeflow behind a proxy that asks for a login: who runs where, and what strangers are told.

`make test-kubeflow` runs them if TRAINYARD_KFP_PROFILE names a profile; see `real_kubeflow`.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_kubeflow import (
    ACCOUNT,
    IMAGE,
    MARKS,
    PROFILE,
    QUICK,
    RUN,
    SPACE,
    Door,
    changed,
    document,
    door,
    environment_file,
    kubectl,
    trainyard,
)
from tests.login_proxy import token

pytestmark = [*MARKS, pytest.mark.skipif(not PROFILE, reason="TRAINYARD_KFP_PROFILE names no profile")]


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with door(tmp_path_factory.mktemp("kfp")) as opened:
        yield opened


@pytest.fixture(scope="module")
def environment(way: Door, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_file(tmp_path_factory.mktemp("environment"), way.settings)


@pytest.fixture(scope="module")
def submitted(environment: Path) -> Iterator[str]:
    """The name of a run of the person's whose first step waits."""
    name = f"{RUN}-own"
    nowhere = changed(environment, placement={"default": "none"})
    sent = document("submit", "digits", "-e", str(nowhere), "--name", name, *QUICK)
    yield sent["run_id"]
    assert trainyard("runs", "cancel", name, "-e", str(nowhere)).returncode == 0


def refusal(environment: Path, *verb: str) -> str:
    """Return the only line of a command that is refused."""
    done = trainyard(*(verb or ("runs", "list")), "-e", str(environment))
    assert done.returncode == 40 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def logged_in(environment: Path, way: Door, **login: str) -> Path:
    """Return the environment with another login."""
    kubeflow = json.loads(environment.read_text())["kubeflow"]
    kept = {key: value for key, value in kubeflow.items() if key != "cookie_file"}
    return changed(environment, kubeflow=kept | login)


def test_runs_are_in_the_namespace_of_the_profile(submitted: str, environment: Path) -> None:
    assert submitted in [run["run_id"] for run in document("runs", "list", "-e", str(environment))]
    assert submitted in kubectl("get", "workflows.argoproj.io", "-o", "jsonpath={.items[*].metadata.labels}")


def test_the_namespace_of_others_is_refused_in_one_sentence(submitted: str, environment: Path, way: Door) -> None:
    theirs = changed(environment, namespace=SPACE)
    for verb, right in (
        (("runs", "list"), "list experiments"),
        (("runs", "show", f"{RUN}-own"), "list runs"),
        (("submit", "digits"), "list pipelines"),
    ):
        said = f"you are {way.user}, and may not {right} in namespace '{SPACE}'. Name a namespace of yours"
        assert said in refusal(theirs, *verb)
    checks = {check["name"]: check for check in document("doctor", "-e", str(theirs))["checks"]}
    assert checks["your namespace"]["verdict"] == "bad" and way.user in checks["your namespace"]["sentence"]


def test_a_run_of_others_is_refused_in_one_sentence(submitted: str, environment: Path, way: Door) -> None:
    assert way.proxy
    way.proxy.sessions |= {"session=2": "stranger@example.com"}
    (way.cookie.with_name("stranger")).write_text("session=2\n")
    strange = logged_in(environment, way, cookie_file=str(way.cookie.with_name("stranger")))
    for verb in (("runs", "report"), ("runs", "cancel"), ("runs", "watch")):
        assert "you are stranger@example.com, and may not " in refusal(strange, *verb, submitted)


def test_doctor_says_who_you_are_and_that_you_may_run(submitted: str, environment: Path, way: Door) -> None:
    assert way.proxy
    proof = token(way.user, 3600)
    way.proxy.sessions |= {proof: way.user}
    (way.cookie.with_name("token")).write_text(proof)
    own = logged_in(environment, way, token_file=str(way.cookie.with_name("token")))
    checks = {check["name"]: check for check in document("doctor", "digits", "-e", str(own))["checks"]}
    assert checks["kubeflow login"]["sentence"].startswith(f"you are {way.user}, by kubeflow.token_file")
    assert checks["your namespace"]["sentence"] == f"you may run in '{PROFILE}'"
    assert checks["recipe"]["verdict"] == checks["kubeflow"]["verdict"] == "good"
    known = [run["display_name"] for run in kubeflow_runs(way)]
    assert "doctor" not in known, "nothing is created to try the right"


def kubeflow_runs(way: Door) -> list[dict[str, str]]:
    """Return the runs in the person's namespace, as the server's API lists them."""
    path = f"/api/v1/namespaces/{SPACE}/services/ml-pipeline:8888/proxy/apis/v2beta1/runs?namespace={PROFILE}"
    assert way.proxy
    address = way.proxy.upstream.partition("/api/")[0]
    request = urllib.request.Request(f"{address}{path}&page_size=200", headers={"kubeflow-userid": way.user})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return list(json.loads(answer.read()).get("runs", []))


def test_strangers_and_the_expired_are_told_so(environment: Path, way: Door, tmp_path: Path) -> None:
    assert way.proxy
    assert "login page, because the request has no login. Name kubeflow.token_command" in refusal(
        logged_in(environment, way)
    )
    (tmp_path / "cookie").write_text("session=0\n")
    gone = logged_in(environment, way, cookie_file=str(tmp_path / "cookie"))
    assert "the session of kubeflow.cookie_file" in (said := refusal(gone)) and "has expired or is unknown" in said
    (tmp_path / "token").write_text(token(way.user, -60))
    assert "has expired at 20" in refusal(logged_in(environment, way, token_file=str(tmp_path / "token")))
    way.proxy.istio = {way.user}
    try:
        assert "Istio refuses the request (RBAC: access denied)" in refusal(environment)
    finally:
        way.proxy.istio = set()


def test_the_proxy_of_kubernetes_is_no_way_for_a_person(environment: Path) -> None:
    without = changed(environment, kubeflow={"namespace": SPACE})
    assert "is for many users, and the Kubernetes API server does not tell it who you are" in refusal(without)


def test_a_notebook_runs_with_the_token_of_its_account(environment: Path, submitted: str) -> None:
    own = json.loads(environment.read_text())
    own["kubeflow"] = {key: own["kubeflow"][key] for key in ("namespace", "experiment")}
    kubectl("create", "configmap", f"{RUN}-notebook", f"--from-literal=own.yaml={json.dumps(own)}")
    source = {"serviceAccountToken": {"path": "token", "audience": "pipelines.kubeflow.org"}}
    volumes = [
        {"name": "token", "projected": {"sources": [source]}},
        {"name": "environment", "configMap": {"name": f"{RUN}-notebook"}},
    ]
    program = "set -e; trainyard runs list -e /environment/own.yaml -o json; trainyard doctor -e /environment/own.yaml"
    container = {
        "name": "notebook",
        "image": IMAGE,
        "command": ["sh", "-c", program],
        "volumeMounts": [
            {"name": "token", "mountPath": "/var/run/secrets/kubeflow/pipelines"},
            {"name": "environment", "mountPath": "/environment"},
        ],
    }
    spec = {"serviceAccountName": ACCOUNT, "restartPolicy": "Never", "containers": [container], "volumes": volumes}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{RUN}-notebook"}, "spec": spec}
    kubectl("create", "-f", "-", stdin=json.dumps(pod))
    kubectl(
        "wait",
        "--for=jsonpath={.status.containerStatuses[0].state.terminated}",
        "--timeout=300s",
        f"pod/{RUN}-notebook",
    )
    log = kubectl("logs", f"{RUN}-notebook")
    kubectl("delete", "pod", f"{RUN}-notebook")
    kubectl("delete", "configmap", f"{RUN}-notebook")
    assert submitted in log, log
    assert f"✓ kubeflow login: you are system:serviceaccount:{PROFILE}:{ACCOUNT}, by kubeflow.token_file" in log
    assert f"✓ your namespace: you may run in '{PROFILE}'" in log
