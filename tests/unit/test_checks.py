"""What doctor makes of what it reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.test_explanation import Silent

from trainyard.contract import keys
from trainyard.errors import ExitCode, InfrastructureError
from trainyard.spec import environment as environments
from trainyard.spec.environment import Environment, Kubeflow, Volume
from trainyard.spec.hardware.pools import Pool
from trainyard_control.cluster import checks, image_pods, image_program
from trainyard_control.kubeflow import doctor
from trainyard_control.planning.python_packages import PYTHON, image_versions


def gke(**pool: Any) -> Environment:
    environment = environments.load("gke")
    resources = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    own = Pool.model_validate({"kind": "cpu", "nodeSelector": {"pool": "cpu"}, "resources": resources} | pool)
    return environment.model_copy(update={"pools": {"cpu": own}, "placement": {"default": "cpu"}})


def node(**labels: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}, "conditions": []}
    return {"metadata": {"name": "n", "labels": labels}, "spec": {}, "status": status}


def pod(cpu: str) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": "p", "namespace": "x"},
        "spec": {"nodeName": "n", "containers": [container]},
        "status": {"phase": "Running"},
    }


def test_the_gravest_fault_gives_the_exit_code() -> None:
    one, two = checks.bad("a", "", ExitCode.TRANSIENT), checks.bad("b", "", ExitCode.CONFIGURATION)
    assert checks.worst([checks.good("c", ""), checks.unknown("d", "")]) == ExitCode.DONE
    assert checks.worst([one]) == ExitCode.TRANSIENT
    assert checks.worst([one, two]) == ExitCode.CONFIGURATION
    assert checks.worst([checks.bad("e", ""), one, two]) == ExitCode.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("server", "verdict"),
    [("2.17.0", "good"), ("v2.18.1", "good"), ("2.4.0", "unknown"), ("1.8.5", "bad"), ("?", "unknown")],
)
def test_an_older_server_is_a_doubt_and_another_generation_a_fault(server: str, verdict: str) -> None:
    assert checks.version(server, "2.17.0").verdict == verdict


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("trainyard/cpu:0.1.0", "good"),
        ("registry.example.com:5000/trainyard/cpu@sha256:" + "0" * 64, "good"),
        ("trainyard/cpu", "bad"),
        ("trainyard/cpu:latest", "bad"),
        ("Trainyard cpu", "bad"),
    ],
)
def test_an_image_without_a_tag_of_its_own_is_a_fault(name: str, verdict: str) -> None:
    assert checks.image("cpu", name).verdict == verdict


def test_the_room_is_what_running_pods_leave() -> None:
    assert (
        checks.pool_capacity(gke(), "cpu", [node(pool="cpu")], [pod("3")]).sentence
        == "1 nodes, room for 2 pods now, 1 needed"
    )
    full = checks.pool_capacity(gke(), "cpu", [node(pool="cpu")], [pod("7")])
    assert (full.verdict, full.sentence[:28]) == ("unknown", "1 nodes, room for 0 of 1 pod")
    assert "free capacity may not be read" in checks.pool_capacity(gke(), "cpu", [node(pool="cpu")], None).sentence


def test_a_pool_without_nodes_may_grow_where_platforms_do_and_is_a_fault_elsewhere() -> None:
    assert checks.pool_capacity(gke(), "cpu", [node()], []).verdict == "unknown"
    bare = gke().model_copy(update={"platform": "kubernetes"})
    check = checks.pool_capacity(bare, "cpu", [node()], [])
    assert (check.verdict, check.code) == ("bad", ExitCode.CONFIGURATION)
    assert "no node has a label pool, and pool=cpu is asked for. Correct the pool's" in check.sentence


def test_a_volume_that_one_node_alone_can_mount_is_a_fault() -> None:
    environment = gke().model_copy(update={"volume": Volume(claim="runs", path="/mnt/runs")})
    bound = {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
    assert checks.claim(environment, bound).verdict == "good"
    assert checks.claim(environment, bound | {"spec": {"accessModes": ["ReadWriteOnce"]}}).verdict == "bad"
    assert (
        checks.claim(environment, None).sentence == "no PersistentVolumeClaim 'runs' in namespace trainyard. Create it"
    )


@pytest.mark.parametrize(
    ("multi_user", "namespace", "endpoint", "verdict"),
    [
        (True, "team", "", "good"),
        (False, "kubeflow", "", "good"),
        (False, "team", "", "bad"),
        (False, "team", "https://kfp.example.com", "unknown"),
    ],
)
def test_a_kubeflow_for_one_user_runs_nothing_in_another_namespace(
    multi_user: bool, namespace: str, endpoint: str, verdict: str
) -> None:
    environment = gke().model_copy(update={"namespace": namespace, "kubeflow": Kubeflow(endpoint=endpoint)})
    check = checks.space(environment, multi_user)
    assert check.verdict == verdict
    if check.verdict == "bad":
        assert check.sentence.endswith("Set namespace: kubeflow") and check.code == ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("strategy", "verdict"),
    [
        ("{limit: '0', retryPolicy: Always}", "good"),
        ("{limit: '2', retryPolicy: OnError}", "unknown"),
        ("{}", "unknown"),
    ],
)
def test_the_controllers_own_retries_are_a_doubt(strategy: str, verdict: str) -> None:
    text = f"spec:\n  templateDefaults:\n    retryStrategy: {strategy}\n"
    assert checks.retries({"data": {"workflowDefaults": text}}, "kubeflow").verdict == verdict
    assert checks.retries(None, "kubeflow").verdict == "unknown"


def test_a_condition_on_the_controllers_retries_is_a_doubt() -> None:
    text = "spec: {templateDefaults: {retryStrategy: {limit: '0', retryPolicy: Always, expression: 'false'}}}"
    assert checks.retries({"data": {"workflowDefaults": text}}, "kubeflow").verdict == "unknown"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("{templateDefaults: {timeout: 600s}}", "templateDefaults.timeout of 600s"),
        ("{templateDefaults: {activeDeadlineSeconds: 600}}", "templateDefaults.activeDeadlineSeconds of 600"),
        ("{activeDeadlineSeconds: 7200}", "have activeDeadlineSeconds of 7200"),
    ],
)
def test_a_deadline_of_the_controllers_own_is_a_doubt(spec: str, sentence: str) -> None:
    check = checks.deadlines({"data": {"workflowDefaults": f"spec: {spec}"}}, "kubeflow")
    assert check.verdict == "unknown" and sentence in check.sentence


def test_our_own_defaults_of_the_controller_have_no_deadline_and_mean_retries() -> None:
    root = Path(__file__).parents[2] / "k8s/third-party/kubeflow-pipelines/workflow-defaults.yaml"
    config = yaml.safe_load(root.read_text())
    assert checks.deadlines(config, "kubeflow").verdict == checks.retries(config, "kubeflow").verdict == "good"
    assert checks.deadlines(None, "kubeflow").verdict == "unknown"


class Settings(Silent):
    """A cluster with Kubeflow's API server, and an account that may do nothing. asked: the users that were checked."""

    def __init__(self, container: dict[str, Any] | None, **maps: str) -> None:
        self.namespace, self.asked = "kubeflow", set[str]()
        spec = {"template": {"spec": {"containers": [container]}}}
        self.objects: dict[str, Any] = {"deployments/ml-pipeline": {"spec": spec}} if container is not None else {}
        key = "DEFAULTPIPELINERUNNERSERVICEACCOUNT"
        self.objects |= {f"configmaps/{name}": {"data": {key: value}} for name, value in maps.items()}

    def get(self, path: str, metadata_only: bool = False) -> dict[str, Any] | None:
        name = "/".join(path.split("/")[-2:])
        if name == "configmaps/secret":
            raise InfrastructureError("forbidden")
        return self.objects.get(name)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked |= {body["spec"]["user"]} if "user" in body["spec"] else set()
        return {"status": {"allowed": "user" not in body["spec"]}}


ACCOUNT = "DEFAULTPIPELINERUNNERSERVICEACCOUNT"


@pytest.mark.parametrize(
    ("container", "account"),
    [
        ({}, "pipeline-runner"),
        ({"env": [{"name": ACCOUNT, "value": "own"}]}, "own"),
        ({"envFrom": [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "params"}}]}, "default-editor"),
        ({"env": [{"name": ACCOUNT, "valueFrom": {"configMapKeyRef": {"name": "params", "key": ACCOUNT}}}]},
         "default-editor"),
        ({"envFrom": [{"configMapRef": {"name": "secret"}}]}, ""),
        (None, ""),
    ],
)  # fmt: skip
def test_the_launchers_account_is_kubeflows_own_if_the_environment_names_none(
    container: dict[str, Any] | None, account: str
) -> None:
    kind = environments.load("kind")
    kind = kind.model_copy(update={"placement": kind.placement | {"train": "gang"}})
    cluster = Settings(container, params="default-editor")
    *_, check = doctor._rights(cluster, kind)
    assert cluster.asked == ({f"system:serviceaccount:kubeflow:{account}"} if account else set())
    assert check.verdict == ("bad" if account else "unknown")
    bind = f"create rolebinding trainyard-gang-runs --role=trainyard-gang --serviceaccount=kubeflow:{account}"
    assert (bind in check.sentence) == bool(account)


def image(**changes: Any) -> dict[str, Any]:
    """Return what the cpu image of this Trainyard prints, with `changes`."""
    of_image = {
        "python": list(PYTHON),
        "code": keys.code_digest(),
        "distributions": {**image_versions()["cpu"], "torch": "2.9.1"},
    }
    return {**of_image, "error": "", "libgomp": True, "user": 65532, "unwritable": [], **changes}


@pytest.mark.parametrize(
    ("changes", "verdict", "sentence"),
    [
        ({}, "good", "has Python 3.11, this Trainyard and its"),
        ({"python": [3, 12]}, "bad", "has Python 3.12 instead of 3.11. Build it FROM Trainyard's cpu image"),
        ({"code": "", "error": "No module named 'yaml'"}, "bad", "cannot import Trainyard (No module named 'yaml')."),
        ({"code": 64 * "0"}, "bad", "has another Trainyard than this machine."),
        ({"distributions": {}}, "bad", "packages: absl-py 1.4.0, "),
        ({"unwritable": ["/tmp"]}, "bad", "user 65532 cannot write in /tmp."),
        ({"libgomp": False}, "unknown", "lacks libgomp.so.1, which wheels such as LightGBM's need"),
        ({"distributions": image_versions()["cpu"] | {"numpy": "2.0.0"}}, "unknown", "has numpy 2.0.0 instead of"),
    ],
)
def test_an_image_is_compared_with_what_its_steps_need(changes: dict[str, Any], verdict: str, sentence: str) -> None:
    found = image_pods.verdict("image", "cpu", "team/trainer:3", image(**changes))
    assert found.verdict == verdict and sentence in found.sentence
    assert (found.code == ExitCode.CONFIGURATION) == (verdict == "bad")


def test_the_program_of_an_image_tells_what_this_python_has(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = image_program.contents([str(tmp_path / "new/folder"), str(tmp_path / "file/x")])
    assert found["unwritable"] == [str(tmp_path / "file/x")]
    assert (found["code"], found["error"]) == (keys.code_digest(), "")
    assert found["distributions"]["numpy"]  # type: ignore[index]
