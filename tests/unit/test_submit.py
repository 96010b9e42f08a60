"""What is sent to a cluster: named by its content, in the servers' own published types, and refused in one sentence."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import kfp_server_api
import kubernetes
import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.cloud.aiplatform_v1 import PipelineJob
from google.protobuf import json_format
from tests.pushed_versions import push_versions
from typer.testing import CliRunner

from trainyard.contract.artifacts.predict import Predicted
from trainyard.errors import ConfigurationError, TransientError
from trainyard.kubernetes import client
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard.storage import storage
from trainyard.storage.buckets.objects import KMS_VARIABLE
from trainyard_control.api.forecast import plan
from trainyard_control.api.packages import prepare_prediction
from trainyard_control.api.uploads import with_uploads
from trainyard_control.cli.main import app
from trainyard_control.cli.verbs.predict import _answers
from trainyard_control.compiler.compilation import (
    RunMetadata,
    Submission,
    _read_metadata,
    compiled,
    gang_objects,
    request,
    submission,
)
from trainyard_control.kubeflow.kubeflow_api import KubeflowServer
from trainyard_control.planning.expectation import expect
from trainyard_control.targets.vertex import job


def made(environment: str | Environment = "kind", name: str = "nightly-1", *changes: str) -> Submission:
    target = environments.load(environment) if isinstance(environment, str) else environment
    recipe = recipes.load("digits", changes)
    return submission(recipe.name, target, compiled(recipe, target), name)


def own(tmp_path: Path, base: str, **sections: Any) -> Environment:
    document = yaml.safe_load((environments.BUNDLED / f"{base}.yaml").read_text())
    file = tmp_path / "Own cluster.yaml"
    file.write_text(yaml.safe_dump(document | sections))
    return environments.load(str(file))


VOLUME: dict[str, Any] = {"storage": "/mnt/trainyard/runs", "volume": {"claim": "runs", "path": "/mnt/trainyard"}}


def test_equal_content_has_one_version_and_other_content_another() -> None:
    assert made().version == made(name="another").version
    assert made().version != made("kind", "nightly-1", "train.epochs=3").version
    assert made().version.startswith("kind-")
    assert made().metadata == RunMetadata("digits", "kind")


def test_local_files_are_named_by_their_content_in_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    environment, places = environments.load("kind"), []
    for folder in ("one", "two"):
        data = tmp_path / folder / "digits"
        (data / "cat").mkdir(parents=True)
        (data / "cat/1.png").write_text("cat")
        weights = tmp_path / "w.keras"
        weights.write_text("weights")
        set_ = [
            f"data={{format: image_folder, path: {data}}}",
            f"model={{name: cnn_small, weights: {weights}}}",
        ]
        recipe, sent = with_uploads(recipes.load("digits", set_), environment)
        assert {key: upload.path for key, upload in sent.items()} == {
            "data.path": str(data),
            "model.weights": str(weights),
        }
        assert recipe.model.weights == sent["model.weights"].uri and recipe.data.path == sent["data.path"].uri
        places.append((recipe.data.path, recipe.model.weights))
        assert str(recipe.data.path) in str(compiled(recipe, environment).documents)
    assert places[0] == places[1] and places[0][0].startswith("s3://mlpipeline/trainyard/uploads/")
    assert places[0][0].endswith("/digits")


def test_a_prediction_is_sent_with_places_that_its_pod_sees_alone(tmp_path: Path) -> None:
    environment = own(tmp_path, "kind", **VOLUME)
    places = ("digits", "s3://lake/2026-*.parquet", str(tmp_path / "Own cluster.yaml"))
    prediction = prepare_prediction(*places, "/mnt/trainyard/answers/", "id", "nightly")
    assert (prediction.pipeline, prediction.run, prediction.metadata) == (
        "trainyard-predict",
        "nightly",
        RunMetadata("predict", "own-cluster"),
    )
    spec = next(yaml.safe_load_all(prediction.package))
    parameters = {
        name: parameter["defaultValue"] for name, parameter in spec["root"]["inputDefinitions"]["parameters"].items()
    }
    assert parameters["model"] == "/mnt/trainyard/runs/digits/models"
    assert (parameters["inputs"], parameters["predictions"], parameters["key"]) == (
        places[1],
        "/mnt/trainyard/answers",
        "id",
    )
    assert parameters["beam_options"] == environment.beam_options
    with pytest.raises(ConfigurationError) as refused:
        prepare_prediction("gs://b/models", "photos", places[2], "predictions.parquet", None)
    assert [line.split(" is on this machine")[0] for line in str(refused.value).splitlines()] == [
        "INPUT 'photos'",
        "--out 'predictions.parquet'",
    ]
    with pytest.raises(ConfigurationError, match=r"its target is local\. Leave --submit out"):
        prepare_prediction("digits", "gs://b/x", "local", "gs://b/y", None)


def test_a_prediction_takes_the_names_of_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = push_versions().parents[1]
    (root / "digits").rename(root / "shop")
    own(tmp_path, "kind", storage=str(root), volume={"claim": "runs", "path": str(root)})
    for name, folder in (("shop", "models"), ("shop@canary", "models@canary")):
        sent = prepare_prediction(name, "s3://lake/x", str(tmp_path / "Own cluster.yaml"), "s3://lake/y", None)
        assert f"{root}/shop/{folder}\n" in sent.package
    with pytest.raises(ConfigurationError, match=r"no model 'shops'.*Did you mean 'shop'"):
        prepare_prediction("shops", "s3://lake/x", str(tmp_path / "Own cluster.yaml"), "s3://lake/y", None)


def test_the_last_line_of_a_prediction_says_how_many_answers_are_where(tmp_path: Path) -> None:
    folder, counts = str(tmp_path / "answers"), {"predicted": 12345, "rejected": 2, "reasons": {}, "classes": {}}
    assert _answers(folder) == f"the answers are in {folder}, which this machine cannot read"
    with storage.stage(folder, "trainyard.predict") as staging:
        Predicted(model="m", inputs="i", kind="csv", files=3, ignored=[], parts=["a", "b"], **counts).write(staging)
    found = f"12,345 answers in {folder}/part-*.parquet (2 files), 2 rejected: {folder}/rejected.csv"
    assert _answers(folder) == found


def test_the_request_is_one_of_kubeflows_published_types(tmp_path: Path) -> None:
    environment = own(tmp_path, "kind", service_accounts={"run": "trainer"})
    body = request(made(environment), "e1", "p1", "v1")
    api = kfp_server_api.ApiClient()
    sent = json.dumps(api.sanitize_for_serialization(body))
    answer = api.deserialize(type("Response", (), {"data": sent}), "V2beta1Run")
    assert answer == body
    assert _read_metadata(answer.runtime_config.parameters) == RunMetadata("digits", "own-cluster")
    assert json.loads(sent) == {
        "display_name": "nightly-1",
        "description": f"trainyard-digits {made(environment).version}",
        "experiment_id": "e1",
        "pipeline_version_reference": {"pipeline_id": "p1", "pipeline_version_id": "v1"},
        "runtime_config": {"parameters": {"about": '{"recipe": "digits", "environment": "own-cluster"}'}},
        "service_account": "trainer",
    }


def test_a_dry_run_prints_the_objects_of_the_gang_in_kubernetes_published_types(tmp_path: Path) -> None:
    pools = yaml.safe_load((environments.BUNDLED / "kind.yaml").read_text())["pools"]
    pools["gang"] |= {"queue": "research"}
    workers = {"count": 2, "pool": "cpu"}
    own(tmp_path, "kind", **VOLUME, pools=pools, placement={"default": "cpu", "train": "gang"}, input_workers=workers)
    command = ["submit", "digits", "-e", str(tmp_path / "Own cluster.yaml"), "--name", "nightly", "--dry-run"]
    output = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    pipeline, _, _, *objects = documents = list(yaml.safe_load_all(output))
    assert json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).stdout) == documents
    assert [found["kind"] for found in objects] == ["Job", "NetworkPolicy", "Service"] * 2
    api = kubernetes.client.ApiClient()
    for found in objects:
        answer = type("Response", (), {"data": json.dumps(found)})
        assert api.sanitize_for_serialization(api.deserialize(answer, f"V1{found['kind']}")) == found
    job, input_job = objects[0], objects[3]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research" and job["spec"]["suspend"]
    container, input_container = (made["spec"]["template"]["spec"]["containers"][0] for made in (job, input_job))
    assert "--output=/mnt/trainyard/runs/digits/train/<key>" in container["command"]
    parameters = pipeline["root"]["inputDefinitions"]["parameters"]
    recipe = next(variable["value"] for variable in container["env"] if variable["name"] == "TRAINYARD_RECIPE")
    assert yaml.safe_load(recipe) == yaml.safe_load(parameters["recipe"]["defaultValue"])
    assert f"--code={parameters['code']['defaultValue']}" in container["command"]
    assert {"name": "TRAINYARD_GANG_TOKEN", "value": "<job uid>"} in input_container["env"]
    assert gang_objects(made().package) == []


def test_what_the_plan_expects_is_a_parameter_of_the_run_and_makes_no_other_version(tmp_path: Path) -> None:
    environment = own(tmp_path, "kind", **VOLUME, placement={"default": "cpu", "train": "gang"})
    expected = expect(recipes.load("digits"), environment)
    assert expected and expected.pool == "gang" and expected.speed.low < expected.speed.expected < expected.speed.high
    plain = made(environment)
    forecast = replace(plain, metadata=replace(plain.metadata, expected=expected))
    body = request(forecast, "e1", "p1", "v1")
    assert _read_metadata(body.runtime_config.parameters) == forecast.metadata
    assert body.description == f"trainyard-digits {plain.version}; the plan expects {expected}"


def test_what_the_plan_says_that_the_training_costs_goes_with_the_run(tmp_path: Path) -> None:
    pools = yaml.safe_load((environments.BUNDLED / "kind.yaml").read_text())["pools"]
    pools["gang"]["price_per_hour"] = 3.6
    environment = own(tmp_path, "kind", **VOLUME, pools=pools, placement={"default": "cpu", "train": "gang"})
    planned = plan("digits", environment=str(tmp_path / "Own cluster.yaml")).candidates
    cost = next(candidate.cost_usd for candidate in planned if candidate.pool == "gang")
    expected = expect(recipes.load("digits"), environment)
    assert cost and expected and expected.cost_usd == pytest.approx(cost, rel=1e-3)
    assert _read_metadata(RunMetadata("digits", "own-cluster", expected).parameters()).expected == expected
    older = json.dumps(
        {"recipe": "digits", "environment": "kind", "expected": {"pool": "l4", "speed": vars(expected.speed)}}
    )
    assert _read_metadata({"about": older}).expected == replace(expected, pool="l4", cost_usd=None)


def test_a_package_says_what_its_runs_are_for_and_a_run_of_another_tool_does_not() -> None:
    package = next(iter(yaml.safe_load_all(made().package)))
    parameter = package["root"]["inputDefinitions"]["parameters"]["about"]
    assert _read_metadata({"about": parameter["defaultValue"]}) == RunMetadata("digits", "kind")
    for parameters in (None, {}, {"about": ""}, {"about": "[]"}, {"about": '{"recipe": "x", "other": 1}'}):
        assert _read_metadata(parameters) == RunMetadata("–", "–")


def test_nothing_is_expected_where_nobody_knows_the_data(tmp_path: Path) -> None:
    environment = own(tmp_path, "kind", **VOLUME)
    recipe = tmp_path / "pets.yaml"
    recipe.write_text(
        "name: pets\ndata: {format: image_folder, path: s3://pets/images, image_size: [64, 64]}\n"
        "model: {name: cnn_small}\n"
    )
    assert expect(recipes.load(str(recipe)), environment) is None


def test_vertex_gets_the_same_pipeline_as_a_job_of_that_name(tmp_path: Path) -> None:
    sent_run = made(own(tmp_path, "vertex", vertex={"project": "my-project", "location": "europe-west4"}))
    sent = job(sent_run, AnonymousCredentials())
    document = json_format.MessageToDict(sent._gca_resource._pb)
    assert json_format.ParseDict(document, PipelineJob()._pb)
    assert sent.job_id == "nightly-1"
    assert document["pipelineSpec"] == yaml.safe_load(sent_run.package)
    assert document["runtimeConfig"]["gcsOutputDirectory"] == "gs://example-trainyard/runs/pipeline-root"
    assert document["labels"] == {"pipeline": "trainyard-digits", "version": sent_run.version}
    assert sent_run.version.startswith("own-cluster-")


def test_vertex_encrypts_a_job_by_the_environments_key(tmp_path: Path) -> None:
    key = "projects/my-project/locations/europe-west4/keyRings/data/cryptoKeys/runs"
    sections = {"vertex": {"project": "my-project", "location": "europe-west4"}}
    encrypted = made(own(tmp_path, "vertex", **sections, storage_encryption={"kms_key": key}))
    document = json_format.MessageToDict(job(encrypted, AnonymousCredentials())._gca_resource._pb)
    assert document["encryptionSpec"] == {"kmsKeyName": key}
    executors = document["pipelineSpec"]["deploymentSpec"]["executors"].values()
    variables = [{one["name"]: one["value"] for one in executor["container"]["env"]} for executor in executors]
    assert variables and all(each[KMS_VARIABLE] == key for each in variables)
    plain = job(made(own(tmp_path, "vertex", **sections)), AnonymousCredentials())
    assert "encryptionSpec" not in json_format.MessageToDict(plain._gca_resource._pb)


def test_vertex_without_a_project_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigurationError, match=r"vertex.yaml: vertex: is required"):
        job(made("vertex"))


@pytest.mark.parametrize("name", ["Nightly", "a b", "-a", "a" * 64, ""])
def test_a_run_name_that_a_server_would_refuse_is_refused_here(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a name"):
        made(name=name)


def test_a_server_that_does_not_answer_is_named_with_exit_code_30(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE_SECONDS", 0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        server = KubeflowServer(own(tmp_path, "kind", kubeflow={"endpoint": endpoint}))
        with pytest.raises(TransientError, match=rf"kubeflow: {endpoint} cannot be reached \(.*refused"):
            server.version()


def test_a_token_is_read_from_its_file_for_every_request_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    environment = own(tmp_path, "kind", kubeflow={"endpoint": "http://kfp.example", "token_file": str(token)})
    server = KubeflowServer(environment)
    token.write_text("the-2nd-token\n")
    assert server.login.headers() == {"Authorization": "Bearer the-2nd-token"}
    assert "the-2nd-token" not in made(environment).package
    token.unlink()
    with pytest.raises(ConfigurationError, match=r"kubeflow.token_file: .*token: cannot be read"):
        server.version()
