"""`trainyard publish`: what each system is sent for a pushed version, and the sentence about what cannot be sent."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import google.auth
import huggingface_hub
import jsonschema
import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.aiplatform_v1.types import UploadModelRequest
from jsonschema import Draft202012Validator
from kubernetes.client import ApiException
from tests.login_proxy import Answers, serve
from tests.pushed_versions import push_versions
from typer.testing import CliRunner, Result

import trainyard as ty
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.pushed_versions import PushedVersion
from trainyard.errors import ConfigurationError
from trainyard.kubernetes import client
from trainyard.kubernetes.client import Cluster
from trainyard.serving.options import LogOptions
from trainyard.spec import environment as environments
from trainyard.spec.environment import SecretKey
from trainyard.storage import storage
from trainyard_control.api import publish
from trainyard_control.api.versions import find_one
from trainyard_control.cli.main import app
from trainyard_control.targets import kserve, mlflow, vertex


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return push_versions()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["publish", *arguments], catch_exceptions=False)


def refused(*arguments: str) -> str:
    with pytest.raises(ty.TrainyardError) as error:
        invoke(*arguments)
    return f"{int(error.value.exit_code)} {error.value}"


def test_a_hub_folder_has_the_card_the_files_beside_it_and_the_keras_model_unpacked() -> None:
    done = invoke("huggingface", "digits@canary", "--folder", "out/hub")
    assert done.stderr == "✓ digits@1 is published to out/hub\n" and done.stdout == ""
    hub = Path("out/hub")
    card = "[saved_model.pb](saved_model/saved_model.pb) [predict.py](predict.py)"
    assert card in (hub / "README.md").read_text() and (hub / "saved_model/saved_model.pb").read_text() == "1"
    assert (hub / "config.json").read_text() == "{}" and (hub / "vocabularies/city").read_text() == "Bern\n"
    listed = json.loads(invoke("huggingface", "digits@1", "--folder", "x", "--dry-run", "-o", "json").stdout)
    files = {path.relative_to(hub).as_posix(): path.stat().st_size for path in hub.rglob("*") if path.is_file()}
    assert listed["request"] == {"files": files} and list(Path("out").iterdir()) == [hub] and not Path("x").exists()
    assert "out/hub: already exists" in refused("huggingface", "digits", "--folder", "out/hub")


def test_a_hub_folder_may_be_an_empty_one_such_as_the_working_folder_or_a_link(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("linked").mkdir()
    Path("link").symlink_to("linked")
    long = "x" * 255
    for folder in ("link", long):
        invoke("huggingface", "digits", "--folder", folder)
    Path("work").mkdir()
    monkeypatch.chdir("work")
    invoke("huggingface", str(models.absolute()), "--folder", ".")
    places = [Path(), Path("../linked"), Path("..", long)]
    written = [sorted(path.relative_to(place) for path in place.rglob("*")) for place in places]
    assert written[0] == written[1] == written[2] and Path("README.md") in written[0]
    assert not [path for path in written[0] if path.name.startswith(".")]


def test_the_files_of_a_custom_program_stay_as_they_are_and_need_that_programs_server(cluster: str) -> None:
    version = Path("runs/own/models/1")
    with storage.stage(str(version), "trainyard.push") as staging:
        for name in ("weights.pt", "README.md", "assets.extra/metrics.json"):
            (staging / name).parent.mkdir(exist_ok=True)
            (staging / name).write_text(f"{name} of assets.extra/")
    invoke("huggingface", str(version), "--folder", "hub")
    for name in ("weights.pt", "README.md", "assets.extra/metrics.json"):
        assert Path("hub", name).read_bytes() == (version / name).read_bytes()
    said = refused("kserve", str(version.absolute()), "-e", cluster, "--model-name", "own", "--dry-run")
    assert "a custom program trained it, and its files are for that program's server" in said
    planned = yaml.safe_load(invoke("mlflow", str(version), "--dry-run").stdout)  # it records no recipe
    assert planned["model_version"]["name"] == planned["experiment"] == "own"


def test_an_upload_to_the_hub_says_its_request_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    upload = ("huggingface", "digits", "--repository", "ada/digits")
    planned = json.loads(invoke(*upload, "--dry-run", "-o", "json").stdout)["request"]
    assert planned["create_repo"] == {"repo_id": "ada/digits", "private": True, "exist_ok": True}
    assert planned["upload_folder"]["commit_message"] == "Upload digits@2 with Trainyard"
    for call in ("create_repo", "upload_folder"):
        known = inspect.signature(getattr(huggingface_hub.HfApi, call)).parameters
        assert planned[call].keys() <= known.keys()
    assert 'create_repo {"repo_id": "ada/digits"' in invoke(*upload, "--dry-run").stdout
    assert refused(*upload) == "20 huggingface: no token. Log in by `hf auth login`, or set HF_TOKEN."
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_none")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert refused(*upload).startswith("30 huggingface: http://127.0.0.1:1 cannot be reached")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "Install trainyard[huggingface]" in refused(*upload)
    for name in ("digits", "a/b/c", "ada/../x", "-a/b", "ada/a--b", "ada/b-", "ada/b.git", "ada/é"):
        assert "Write OWNER/NAME" in refused("huggingface", "digits", "--repository", name, "--dry-run")


def test_a_version_that_is_unknown_damaged_or_names_no_target_is_refused(models: Path) -> None:
    assert "names no target. Give --folder" in refused("huggingface", "digits")
    assert "no version '7'. Versions: 1, 2" in refused("huggingface", "digits@7", "--folder", "out")
    (models / "2/saved_model.pb").write_text("other")
    assert refused("huggingface", "digits", "--folder", "out").startswith("10 ") and not Path("out").exists()
    (models / "2/manifest.json").unlink()
    assert "no manifest" in refused("huggingface", "digits", "--folder", "out")


CLUSTER = """
target: kubeflow
storage: {storage}
namespace: models
service_accounts: {{run: launcher, server: reader}}
image_pull_secrets: [login]
volume: {{claim: disk, path: {storage}}}
images: {{cpu: "registry.example/cpu:1"}}
pools: {{cpu: {{kind: cpu, resources: {{requests: {{cpu: "1", memory: 1Gi}}, limits: {{memory: 1Gi}}}}}}}}
placement: {{default: cpu}}
"""


@pytest.fixture
def cluster(models: Path) -> str:
    """The environment of a cluster whose volume holds the versions."""
    Path("cluster.yaml").write_text(CLUSTER.format(storage=models.parents[1]))
    return "cluster.yaml"


def closed(schema: Any) -> Any:
    """A schema that allows no other fields, as the API server does if it validates strictly."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if "properties" in schema and schema.get("type") == "object" else {}
    return {key: closed(part) for key, part in schema.items()} | more


@pytest.fixture(scope="module")
def kserves_schema() -> Draft202012Validator:
    """KServe's schema of a `spec`, as far as Trainyard writes it, or that of the file TRAINYARD_KSERVE_CRD."""
    excerpt = Path(__file__).parents[1] / "cluster/kserve_crd.yaml"
    file = Path(os.environ.get("TRAINYARD_KSERVE_CRD") or excerpt)
    schema = yaml.safe_load(file.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return Draft202012Validator(closed(schema["properties"]["spec"]))


def test_an_inference_service_fits_kserves_schema_and_names_the_version(
    cluster: str, kserves_schema: Draft202012Validator
) -> None:
    printed = invoke("kserve", "digits@1", "-e", cluster, "--dry-run").stdout
    service = yaml.safe_load(printed)
    assert (
        json.loads(invoke("kserve", "digits@1", "-e", cluster, "--dry-run", "-o", "json").stdout)["request"] == service
    )
    assert (service["metadata"]["name"], service["metadata"]["namespace"]) == ("digits", "models")
    assert service["metadata"]["annotations"]["trainyard/version"] == "1"
    predictor = service["spec"]["predictor"]
    assert predictor["serviceAccountName"] == "reader" and "canaryTrafficPercent" not in predictor
    assert predictor["automountServiceAccountToken"] is False and predictor["imagePullSecrets"] == [{"name": "login"}]
    (container,) = predictor["containers"]
    assert container["env"] == [{"name": "STORAGE_URI", "value": "pvc://disk/digits/models/1"}]
    assert container["args"][-2:] == ["--model-name", "digits"]
    canary = invoke("kserve", "digits@1", "-e", cluster, "--canary-percent", "0", "--model-name", "other", "--dry-run")
    canary_service = yaml.safe_load(canary.stdout)
    assert canary_service["metadata"]["name"] == "other"
    assert canary_service["spec"]["predictor"]["canaryTrafficPercent"] == 0
    for spec in (service["spec"], canary_service["spec"]):
        kserves_schema.validate(spec)
    container["securityContext"]["capabilities"]["drops"] = []
    with pytest.raises(jsonschema.ValidationError, match="'drops' was unexpected"):
        kserves_schema.validate(service["spec"])


def test_every_inference_service_fits_kserves_schema(cluster: str, kserves_schema: Draft202012Validator) -> None:
    environment = environments.load(cluster)
    none = environment.service_accounts.model_copy(update={"run": "", "server": ""})
    changes: list[dict[str, Any]] = [{}, {"service_accounts": none}, {"image_pull_secrets": []}, {"volume": None}]
    changes += [{"ca_bundle": environments.CaBundle(secret="company-ca", key="ca.crt")}]
    for change, canary, folder in product(changes, (None, 0, 100), ("gs://b/digits/1", "s3://b/digits/1", "digits/1")):
        version = PushedVersion(1, folder, True, (), VersionRecord())
        service = kserve.inference_service(version, environment.model_copy(update=change), "digits", canary)
        kserves_schema.validate(service["spec"])
        assert service.keys() == {"apiVersion", "kind", "metadata", "spec"}


def test_a_log_of_answers_is_in_a_bucket_and_its_keys_reach_the_server(
    cluster: str, kserves_schema: Draft202012Validator
) -> None:
    environment = environments.load(cluster).model_copy(
        update={
            "variables": {"AWS_ENDPOINT_URL_S3": "http://store", "OTHER": "x"},
            "secrets": {name: SecretKey(secret="keys", key="key") for name in ("AWS_SECRET_ACCESS_KEY", "TOKEN")},
        }
    )
    version = PushedVersion(1, "s3://b/digits/1", True, (), VersionRecord())

    def container(folder: str) -> dict[str, Any]:
        service = kserve.inference_service(version, environment, "digits", None, LogOptions(folder, 0.01))
        kserves_schema.validate(service["spec"])
        return service["spec"]["predictor"]["containers"][0]

    found = container("s3://b/answers")
    assert found["args"][-4:] == ["--log", "s3://b/answers", "--sample", "0.01"]
    assert [each["name"] for each in found["env"]][1:] == ["AWS_ENDPOINT_URL_S3", "AWS_SECRET_ACCESS_KEY"]
    assert [each["name"] for each in container("gs://b/answers")["env"]] == ["STORAGE_URI"]
    for folder in ("answers", "/mnt/answers"):
        with pytest.raises(ConfigurationError, match="Name a gs:// or s3:// folder"):
            container(folder)
    said = refused("kserve", "digits@1", "-e", cluster, "--sample", "0.5", "--dry-run")
    assert "--sample: is the share of the requests in --log" in said


class Api:
    """An API server that has `service` and answers an apply with `status`."""

    configuration = SimpleNamespace(host="https://api.example")

    def __init__(self, service: dict[str, Any] | None = None, status: int = 200) -> None:
        self.service, self.status = service, status
        self.applied: list[tuple[str, Any, dict[str, str]]] = []

    def call_api(self, path: str, method: str, *, body: Any, query_params: Any, **options: Any) -> SimpleNamespace:
        status = self.status if method == "PATCH" else 200 if self.service else 404
        if status != 200:
            error = ApiException(status=status, reason="Refused")
            error.body = json.dumps({"message": f"said {status}"})
            raise error
        if method == "PATCH":
            self.applied.append((path, body, dict(query_params) | options["header_params"]))
        return SimpleNamespace(data=json.dumps(self.service or {}).encode())


def test_a_service_is_applied_strictly_and_says_what_it_served_before(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(api: Api, *options: str) -> str:
        monkeypatch.setattr(kserve, "connect", lambda environment: Cluster(api, environment.namespace))
        return invoke("kserve", "digits", "-e", cluster, *options).stderr

    ours = {"labels": {"app.kubernetes.io/managed-by": "trainyard"}, "annotations": {"trainyard/version": "1"}}
    api = Api({"metadata": ours})
    assert publish(Api()) == "✓ digits@2 is published to InferenceService models/digits\n"
    said = publish(api, "--canary-percent", "10")
    assert said.endswith("to InferenceService models/digits with 10 % of the requests, after version 1\n")
    ((path, body, asked),) = api.applied
    assert path == "/apis/serving.kserve.io/v1beta1/namespaces/models/inferenceservices/digits"
    assert body["spec"]["predictor"]["canaryTrafficPercent"] == 10
    assert (asked["fieldManager"], asked["fieldValidation"]) == ("trainyard", "Strict")
    assert asked["Content-Type"] == "application/apply-patch+yaml"
    for answers, options, sentence in (
        (Api(), ("--canary-percent", "10"), "20 .*does not exist, so no version serves the other requests"),
        (Api({"metadata": {}}), (), "20 .*Trainyard did not create it. Give another --model-name"),
        (
            Api({"metadata": ours, "status": {"deploymentMode": "RawDeployment"}}),
            ("--canary-percent", "10"),
            "20 .*before 0.20 has no canary",
        ),
        (Api(status=404), (), "40 .*Install KServe in the cluster, or correct .*said 404"),
        (Api(status=409), (), "40 .*--force-conflicts .*said 409"),
        (Api(status=403), (), "40 .*said 403"),
    ):
        with pytest.raises(ty.TrainyardError) as error:
            publish(answers, *options)
        assert re.match(sentence, f"{int(error.value.exit_code)} {error.value}", re.DOTALL), error.value
        assert not answers.applied


def test_in_standard_mode_a_canary_is_an_entry_beside_the_predictor_until_it_is_promoted(
    cluster: str, kserves_schema: Draft202012Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server merges what is applied; `live` follows it with a field of another program."""

    def publish(live: dict[str, Any], version: int, *options: str) -> tuple[dict[str, Any], str]:
        api = Api(live)
        monkeypatch.setattr(kserve, "connect", lambda environment: Cluster(api, environment.namespace))
        said = invoke("kserve", f"digits@{version}", "-e", cluster, *options).stderr
        ((_, applied, _),) = api.applied
        kserves_schema.validate(applied["spec"])
        owned: dict[str, Any] = {f"f:{field}": {} for field in applied["spec"]["predictor"]}
        entry = {"manager": "trainyard", "operation": "Apply", "fieldsV1": {"f:spec": {"f:predictor": owned}}}
        other = {"manager": "kubectl-edit", "operation": "Update"}
        metadata = {**applied["metadata"], "managedFields": [other, entry]}
        spec = {**applied["spec"], "predictor": {**applied["spec"]["predictor"], "minReplicas": 2}}
        return {"metadata": metadata, "spec": spec, "status": {"deploymentMode": "Standard"}}, said

    def names(live: dict[str, Any]) -> tuple[str, str, list[tuple[str, str, int]]]:
        def folder(predictor: dict[str, Any]) -> str:
            return predictor["containers"][0]["env"][0]["value"].rpartition("/")[2]

        spec = live["spec"]
        canaries = [
            (each["predictor"]["name"], folder(each["predictor"]), each["trafficPercent"])
            for each in spec.get("canary", [])
        ]
        assert "canaryTrafficPercent" not in str(spec)
        return spec["predictor"].get("name", ""), folder(spec["predictor"]), canaries

    first = publish({"metadata": {"labels": {"app.kubernetes.io/managed-by": "trainyard"}}}, 1)[0]
    assert names(first) == ("", "1", []) and "serving.kserve.io/deploymentMode" not in first["metadata"]["annotations"]
    beside, said = publish(first, 2, "--canary-percent", "10")
    assert said.endswith("InferenceService models/digits as the canary v2 with trafficPercent 10, after version 1\n")
    assert names(beside) == ("", "1", [("v2", "2", 10)])
    assert beside["spec"]["predictor"] == first["spec"]["predictor"]
    assert beside["metadata"]["annotations"] == {
        **first["metadata"]["annotations"],
        "serving.kserve.io/deploymentMode": "Standard",
    }
    assert names(publish(beside, 2, "--canary-percent", "60")[0]) == ("", "1", [("v2", "2", 60)])
    assert names(publish(beside, 1)[0]) == ("", "1", [])
    promoted, said = publish(beside, 2)
    assert names(promoted) == ("v2", "2", []) and said.endswith("models/digits, after version 1\n")
    assert promoted["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"
    again = publish(promoted, 1)[0]
    assert names(again) == ("v2", "1", [])
    assert names(publish(again, 2, "--canary-percent", "0")[0]) == ("v2", "1", [("v2-2", "2", 0)])
    with pytest.raises(ConfigurationError, match="version 2 serves already, so it is no canary"):
        publish(promoted, 2, "--canary-percent", "10")
    with pytest.raises(ConfigurationError, match=r"the canary's host .*-v2-predictor-models has 64 characters"):
        publish(beside, 2, "--canary-percent", "10", "--model-name", "a" * 44)


def test_what_no_cluster_can_serve_is_refused_before_it_is_asked(
    cluster: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "its target is local. KServe runs on Kubernetes" in refused("kserve", "digits", "-e", "local")
    for name in ("Digits", "-", "a" * 54, "a-", "a.b", ""):
        assert "--model-name" in refused("kserve", "digits", "-e", cluster, f"--model-name={name}")
    said = refused("kserve", "digits", "-e", cluster, "--model-name", "a" * 47, "--dry-run")
    assert f"host {'a' * 47}-predictor-models has 64 characters" in said
    assert invoke("kserve", "digits", "-e", cluster, "--model-name", "a" * 46, "--dry-run").stdout
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert "no cluster is known here" in refused("kserve", "digits", "-e", cluster)
    shutil.rmtree(models / "2")
    assert "champion.json" in refused("kserve", "digits", "-e", cluster)


def test_mlflow_without_a_server_its_address_or_its_package_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    text = invoke("mlflow", "digits@1", "--dry-run").stdout
    planned = yaml.safe_load(text)
    assert "*id001" not in text and planned["model_version"]["tags"] == planned["run"]["tags"]
    assert planned["run"]["params"]["train.epochs"] == "1" and planned["aliases"] == ["canary"]
    assert planned["artifacts"]["model/saved_model.pb"] == 1
    assert "not a name in MLflow" in refused("mlflow", "digits", "--dry-run", "--model-name", "team/digits")
    for alias in ("latest", "v2", "a.b"):
        version = PushedVersion(3, "", True, (alias,), VersionRecord())
        with pytest.raises(ty.TrainyardError, match=f"alias '{alias}': MLflow allows letters"):
            mlflow.registration(version, "digits")
    assert "MLFLOW_TRACKING_URI is not set. Set it" in refused("mlflow", "digits")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert "Install trainyard[mlflow]" in refused("mlflow", "digits")


@contextmanager
def replayed(answers: list[tuple[int, Any]]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Answer requests by `answers`, one after the other; yield the address, and the paths and bodies that came."""
    asked: list[tuple[str, Any]] = []

    class Handler(Answers):
        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append((unquote(self.path.partition("?")[0]), json.loads(content or "null")))
            self.answer(*answers.pop(0))

        do_POST = do_PATCH = do_GET

    with serve(Handler) as server:
        yield f"127.0.0.1:{server.server_port}", asked


def test_the_model_registry_gets_a_version_once_and_then_its_new_aliases_and_place(models: Path, cluster: str) -> None:
    """The answers are those of the server at commit bd07139 of kubeflow/hub, without times."""
    planned = yaml.safe_load(invoke("kubeflow", "digits@1", "-e", cluster, "--dry-run").stdout)
    digest = planned["model_version"]["customProperties"]["trainyard.digest"]["string_value"]
    theirs = {"metadataType": "MetadataStringValue", "string_value": "theirs"}
    none = (404, {"code": "Not Found", "message": "no registered models found for name=digits, externalId=: not found"})
    model = {"customProperties": {}, "id": "1", "name": "digits", "owner": "ada", "state": "LIVE"}
    version = planned["model_version"] | {"id": "2", "registeredModelId": "1", "state": "LIVE"}
    version["customProperties"] = {"trainyard.aliases": theirs, "team": theirs} | version["customProperties"]
    files = planned["artifact"] | {"customProperties": {}, "id": "1"}
    several = {"nextPageToken": "", "pageSize": 0}
    v1 = (200, several | {"items": [], "size": 0})
    first = [none, none, (201, model), none, (201, version), (200, several | {"items": [], "size": 0}), (201, files)]
    again = [v1, (200, model), (200, version), (200, version), (200, several | {"items": [files], "size": 1})]
    moved = [*again[:-1], (200, several | {"items": [files | {"uri": "gs://old/1"}], "size": 1}), (200, files)]
    other = {**version, "customProperties": {"trainyard.digest": theirs}}
    refusal = {"code": "Bad Request", "message": 'json: unknown field "bogus"'}
    with replayed([*first, *again, *moved, v1, (200, model), (200, other), v1, none, (400, refusal)]) as (host, asked):
        Path(cluster).write_text(f"{Path(cluster).read_text()}\nkubeflow: {{model_registry: 'http://{host}/'}}\n")
        for _ in range(3):
            done = invoke("kubeflow", "digits@1", "-e", cluster)
            assert done.stderr == "✓ digits@1 is published to model-registry://digits/1\n"
        said = refused("kubeflow", "digits@1", "-e", cluster)
        assert said == (
            "20 Model Registry: version 1 of digits is registered with other files. Give another --model-name."
        )
        said = refused("kubeflow", "digits@1", "-e", cluster)
        assert said.startswith(f'40 Model Registry: http://{host} refused (json: unknown field "bogus"). Correct')
    api = "/api/model_registry/"
    assert [path.removeprefix(api) for path, _ in asked[:7]] == [
        "v1/registered_models",
        "v1alpha3/registered_model",
        "v1alpha3/registered_models",
        "v1alpha3/model_version",
        "v1alpha3/model_versions",
        "v1alpha3/model_versions/2/artifacts",
        "v1alpha3/model_versions/2/artifacts",
    ]
    sent = {path.removeprefix(api): body for path, body in asked if body}
    assert sent["v1alpha3/registered_models"] == planned["registered_model"]
    assert sent["v1alpha3/model_versions"] == planned["model_version"] | {"registeredModelId": "1"}
    assert sent["v1alpha3/model_versions/2/artifacts"] == planned["artifact"]
    assert planned["artifact"]["uri"] == "pvc://disk/digits/models/1" == sent["v1/model_artifacts/1"]["uri"]
    updated = sent["v1/model_versions/2"]["customProperties"]
    assert updated["team"] == theirs and updated["trainyard.aliases"]["string_value"] == "canary"
    assert updated["trainyard.digest"]["string_value"] == digest
    schemas = closed(yaml.safe_load(Path(__file__).with_name("model_registry_schema.yaml").read_text()))
    for path, kind in (
        ("v1alpha3/registered_models", "RegisteredModelCreate"),
        ("v1alpha3/model_versions", "ModelVersionCreate"),
        ("v1alpha3/model_versions/2/artifacts", "ModelArtifact"),
        ("v1/model_versions/2", "ModelVersionUpdate"),
        ("v1/model_artifacts/1", "ModelArtifact"),
    ):
        jsonschema.validate(sent[path], {**schemas, "$ref": f"#/{kind}"})


def test_the_model_registry_without_an_address_is_asked_through_the_kubernetes_api(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "connect", lambda namespace, **options: Cluster(Api(), namespace, 0))
    said = refused("kubeflow", "digits", "-e", cluster)
    assert said.startswith("40 Model Registry: https://api.example refused (said 404). Correct what it names")
    assert '--model-name "it\'s": not a name' in refused("kubeflow", "digits", "-e", cluster, "--model-name", "it's")
    text = Path(cluster).read_text()
    Path(cluster).write_text(f"{text}\nkubeflow: {{model_registry: 'http://127.0.0.1:1', token_file: nowhere}}\n")
    assert "token_file: nowhere: cannot be read" in refused("kubeflow", "digits", "-e", cluster)


@pytest.fixture
def project() -> str:
    """An environment of Vertex AI."""
    text = (environments.BUNDLED / "vertex.yaml").read_text()
    Path("project.yaml").write_text(f"{text}\nvertex: {{project: example, location: europe-west4}}\n")
    return "project.yaml"


def rest(address: str) -> vertex.Connect:
    """Return clients of Vertex AI that send to `address`."""
    return lambda kind: kind(
        transport=kind.get_transport_class("rest")(host=address, credentials=AnonymousCredentials(), url_scheme="http")
    )


def finished(name: str, kind: str, /, **response: Any) -> tuple[int, Any]:
    """The answer to a request that takes long, with the result in it."""
    kind = f"type.googleapis.com/google.cloud.aiplatform.v1.{kind}"
    return 200, {"name": f"{name}/operations/1", "done": True, "response": {"@type": kind, **response}}


PARENT = "projects/example/locations/europe-west4"


def test_vertex_gets_a_new_model_or_the_next_version_or_only_aliases(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers as the reference of the REST API shows; nothing was ever sent to Google."""
    environment = environments.load(project)
    assert environment.vertex is not None
    model = f"{PARENT}/models/digits"
    version = PushedVersion(3, "gs://bucket/digits/models/3", True, ("canary",), VersionRecord())
    body = vertex.upload_request(version, environment, environment.vertex, "digits")
    uploaded = finished(model, "UploadModelResponse", model=model, modelVersionId="2")
    older = {**body["model"], "versionId": "1", "artifactUri": "gs://bucket/digits/models/2"}
    image = {**body["model"], "versionId": "2", "containerSpec": {"imageUri": "older"}}
    same = {**body["model"], "versionId": "4", "versionAliases": ["default"]}
    answers: list[tuple[int, Any]] = [(404, {}), uploaded, (200, {"models": [older, image]}), uploaded]
    answers += [(200, {"models": [older, same]}), (200, {}), (200, {"models": [same | {"versionAliases": ["canary"]}]})]
    answers += [(404, {}), (403, {"error": {"code": 403, "message": "said so"}}), (503, {})]
    with replayed(answers) as (address, asked):
        assert [vertex.upload(body, environment.vertex, rest(address)) for _ in range(4)] == [
            f"{model}@{number}" for number in (2, 2, 4, 4)
        ]
        for sentence in ("refused .* have the role", "cannot be reached"):
            with pytest.raises(ty.TrainyardError, match=f"vertex: {sentence}"):
                vertex.upload(body, environment.vertex, rest(address))
    sent = {key: value for key, value in body.items() if key not in ("parent", "modelId")}
    upload, versions = f"/v1/{PARENT}/models:upload", (f"/v1/{model}:listVersions", None)
    assert asked[:2] == [versions, (upload, {**sent, "modelId": "digits"})]
    assert asked[2:4] == [versions, (upload, {**sent, "parentModel": model})]
    alias = (f"/v1/{model}@4:mergeVersionAliases", {"versionAliases": ["canary"]})
    assert asked[4:7] == [versions, alias, versions]

    def no_account(**_: object) -> None:
        raise DefaultCredentialsError("no account")

    monkeypatch.setattr(google.auth, "default", no_account)
    with pytest.raises(ty.TrainyardError, match=r"vertex: refused \(no account\). Log in by"):
        vertex.upload(body, environment.vertex)


def test_vertex_encrypts_a_model_and_its_endpoint_by_the_environments_key(project: str) -> None:
    key = "projects/my-project/locations/europe-west4/keyRings/data/cryptoKeys/runs"
    plain = environments.load(project)
    environment = plain.model_copy(update={"storage_encryption": environments.StorageEncryption(kms_key=key)})
    assert environment.vertex is not None
    version = PushedVersion(3, "gs://bucket/digits/models/3", True, (), VersionRecord())
    body = vertex.upload_request(version, environment, environment.vertex, "digits")
    endpoint = vertex.deploy_requests(environment.vertex, "digits", "live", "n1-standard-4", None, key)
    sent = (body["model"], endpoint["endpoints.create"]["endpoint"])
    assert [each["encryptionSpec"] for each in sent] == [{"kmsKeyName": key}] * 2
    assert UploadModelRequest.from_json(json.dumps(body)).model.encryption_spec.kms_key_name == key
    assert "encryptionSpec" not in vertex.upload_request(version, plain, environment.vertex, "digits")["model"]


def test_vertex_deploys_to_a_new_endpoint_as_a_canary_and_then_moves_the_requests(project: str) -> None:
    """The server answers as the reference of the REST API shows; nothing was ever sent to Google."""
    settings = environments.load(project).vertex
    assert settings is not None
    endpoint = {"name": f"{PARENT}/endpoints/live"}

    def deployed(id_: str, version: str) -> dict[str, str]:  # Vertex AI has the project's number in paths
        path = "projects/1234/locations/europe-west4/models/digits"
        return {"id": id_, "model": path, "modelVersionId": version}

    done = finished(f"{PARENT}/endpoints/live", "DeployModelResponse", deployedModel={"id": "9"})
    one = {**endpoint, "deployedModels": [deployed("7", "1")], "trafficSplit": {"7": 100}}
    two = {**endpoint, "deployedModels": [deployed("7", "1"), deployed("9", "2")], "trafficSplit": {"7": 90, "9": 10}}
    answers = [(404, {}), finished(f"{PARENT}/endpoints/live", "Endpoint", **endpoint), done, (200, one), done]
    answers += [(200, two), (200, two), (404, {}), (200, endpoint)]
    with replayed(answers) as (address, asked):

        def deploy(version: int, percent: int | None) -> str:
            requests = vertex.deploy_requests(settings, "digits", "live", "n1-standard-4", percent)
            return vertex.deploy(requests, f"{PARENT}/models/digits@{version}", settings, rest(address))

        assert deploy(1, None) == f"{PARENT}/endpoints/live with 100 % of the requests"
        assert deploy(2, 10) == f"{PARENT}/endpoints/live with 10 % of the requests"
        deploy(2, None)
        for percent in (10, 0):  # the endpoint does not exist, or serves nothing
            with pytest.raises(ty.TrainyardError, match="no other version at the endpoint gets requests"):
                deploy(3, percent)
    bodies = [(path.removeprefix(f"/v1/{PARENT}/endpoints"), sent) for path, sent in asked]
    labels = {"trainyard-model": "digits"}
    assert bodies[:2] == [("/live", None), ("", {"displayName": "live", "labels": labels})]
    path, sent = bodies[2]
    assert path == "/live:deployModel" and sent["trafficSplit"] == {"0": 100}
    machine = {"machineSpec": {"machineType": "n1-standard-4"}, "minReplicaCount": 1, "maxReplicaCount": 1}
    model = f"{PARENT}/models/digits@1"
    assert sent["deployedModel"] == {"model": model, "displayName": "digits", "dedicatedResources": machine}
    assert bodies[4][1]["trafficSplit"] == {"0": 10, "7": 90}
    assert bodies[6] == ("/live", {"trafficSplit": {"9": 100}})


@pytest.mark.parametrize("target", ["kserve", "kubeflow", "vertex"])
def test_a_dry_run_of_what_is_on_this_machine_alone_prints_the_request_and_what_is_missing(
    target: str, models: Path, cluster: str, project: str
) -> None:
    shutil.copytree(models, "copy/models")
    options = (target, "copy/models", "-e", project if target == "vertex" else cluster, "--model-name", "digits")
    done = invoke(*options, "--dry-run")
    said = done.stderr.removeprefix("✗ digits@2 would not be published: ")
    assert re.match(
        r"copy/models/2: (a cluster cannot read this folder|Vertex AI reads gs:// only)\. Push to a gs://", said
    )
    assert Path("copy/models/2").absolute().as_uri() in done.stdout
    assert json.loads(invoke(*options, "--dry-run", "-o", "json").stdout)["remark"] == said.strip()
    assert refused(*options) == f"20 {said.strip()}"


def test_the_command_lines_of_the_page_print_their_requests(
    cluster: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/publish.md").read_text(encoding="utf-8")
    version = find_one("digits", "local")
    monkeypatch.setattr(publish, "_version", lambda model, environment: version)
    Path(cluster).rename("gke.yaml")
    Path(project).rename("vertex.yaml")
    lines = re.findall(r"^trainyard publish (.*?)(?: +#.*)?$", page, re.MULTILINE)
    assert len(lines) > 15
    for line in lines:
        shutil.rmtree("hub", ignore_errors=True)
        done = invoke(*line.split(), *([] if "--folder" in line or "--dry-run" in line else ["--dry-run"]))
        assert done.exit_code == 0 and (done.stdout or "--folder" in line), line


def test_a_dry_run_of_an_endpoint_prints_its_three_requests(project: str) -> None:
    models = "runs/digits/models"
    options = (models, "-e", project, "--endpoint", "live", "--canary-percent", "10", "--dry-run")
    printed = yaml.safe_load(invoke("vertex", *options).stdout)
    assert list(printed) == ["models.upload", "endpoints.create", "endpoints.deployModel"]
    assert printed["models.upload"] == yaml.safe_load(invoke("vertex", models, "-e", project, "--dry-run").stdout)
    assert printed["endpoints.deployModel"]["trafficSplit"] == {"0": 10, "DEPLOYED_MODEL": 90}
    assert printed["endpoints.create"]["endpointId"] == "live"
    assert "not an id of an endpoint" in refused("vertex", models, "-e", project, "--endpoint", "Live")
    machine = refused("vertex", models, "-e", project, "--endpoint", "live", "--machine-type", "n1 2", "--dry-run")
    assert "--machine-type 'n1 2': not a machine type" in machine
    assert "Name it by --endpoint" in refused("vertex", models, "-e", project, "--canary-percent", "10")


def test_vertex_refuses_what_it_cannot_read_or_name(project: str) -> None:
    assert "reads gs:// only. Push to a gs:// storage" in refused("vertex", "runs/digits/models", "-e", project)
    assert "not an id of a model" in refused("vertex", "runs/digits/models", "-e", project, "--model-name", "A")
    assert "vertex: is required" in refused("vertex", "runs/digits/models", "-e", "gke")
    environment = environments.load(project)
    assert environment.vertex is not None
    version = PushedVersion(3, "gs://bucket/digits/models/3", True, ("a_b",), VersionRecord())
    with pytest.raises(ty.TrainyardError, match="alias 'a_b': Vertex AI allows letters"):
        vertex.upload_request(version, environment, environment.vertex, "digits")
