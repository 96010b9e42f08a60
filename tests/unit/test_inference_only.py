"""Hardware that only infers is refused for training, with the reason and the nearest pool that trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainyard.errors import ConfigurationError
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.hardware.catalog import catalog
from trainyard.spec.hardware.pools import placement
from trainyard_control.cli.main import app
from trainyard_control.compiler.compilation import compiled, compiled_prediction
from trainyard_control.planning import cost, data
from trainyard_control.planning.plan import candidates, choose

ROOM = "resources: {requests: {cpu: 2, memory: 4Gi}, limits: {memory: 4Gi}}"
ENVIRONMENT = f"""
target: kubeflow
platform: gke
storage: gs://bucket/runs
images: {{cpu: "example/cpu:1", gpu: "example/gpu:1", tpu: "example/tpu:1"}}
pools:
  cpu: {{kind: cpu, {ROOM}}}
  inf2: {{kind: npu, accelerator: inferentia2, count: 1, {ROOM}}}
  coral: {{kind: npu, accelerator: edge-tpu, count: 1, {ROOM}}}
  serving: {{kind: gpu, accelerator: nvidia-tesla-t4, count: 1, trains: false, {ROOM}}}
  l4: {{kind: gpu, accelerator: nvidia-l4, count: 1, {ROOM}}}
  v2: {{kind: tpu, accelerator: tpu-v2, topology: 2x2, count: 4, {ROOM}}}
placement: {{default: cpu, train: l4}}
"""


def load(tmp_path: Path, placed: str) -> environments.Environment:
    file = tmp_path / "own.yaml"
    file.write_text(ENVIRONMENT.replace("{default: cpu, train: l4}", placed))
    return environments.load(str(file))


@pytest.mark.parametrize(
    ("placed", "sentence"),
    [
        ("{default: cpu, train: inf2}", "placement.train: 'inf2' cannot train: inferentia2 infers only (AWS' compiler"),
        ("{default: cpu, train: coral}", "edge-tpu infers only (it computes 8-bit integers for TensorFlow Lite"),
        ("{default: cpu, train: serving}", "'serving' cannot train: its pool says trains: false. The nearest"),
        ("{default: inf2}", "placement.default: 'inf2' cannot train"),
        (
            "{default: cpu, train: v2}",
            "train: 'v2': no platform has nodes with tpu-v2, it can only be planned",
        ),
        ("{default: cpu, evaluate: v2}", "placement.evaluate: 'v2': no platform has nodes"),
    ],
)
def test_a_training_where_none_can_run_is_refused_with_the_nearest_that_trains(
    tmp_path: Path, placed: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, placed)
    assert sentence in str(refused.value) and "The nearest that trains is 'l4'" in str(refused.value)


def test_what_infers_only_may_evaluate_and_predict(tmp_path: Path) -> None:
    environment = load(tmp_path, "{default: cpu, train: l4, evaluate: inf2, export: serving, predict: serving}")
    assert environment.pool_of("evaluate").variant == "cpu"
    assert environment.pool_of("predict") == environment.pool_of("export") == environment.pools["serving"]
    neuron = placement(environment.pools["inf2"], "eks")
    assert (neuron.resource, neuron.count) == ("aws.amazon.com/neuron", 1)
    assert placement(environment.pools["coral"], "kubernetes").resource is None


def test_steps_that_do_not_train_are_placed_on_a_pool_that_infers_only(tmp_path: Path) -> None:
    environment = load(tmp_path, "{default: cpu, train: l4, evaluate: serving, export: serving, predict: serving}")
    _, platform = compiled(recipes.load("digits"), environment).documents
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    predicted = compiled_prediction(
        "gs://bucket/runs/digits/models/1", "gs://bucket/new/*.jpg", "gs://bucket/out", "", environment
    )
    executors |= predicted.documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    labels = {name: rows["nodeSelector"]["labels"] for name, rows in executors.items() if "nodeSelector" in rows}
    on_t4 = {name for name, label in labels.items() if "nvidia-tesla-t4" in label.values()}
    assert on_t4 == {"exec-evaluate", "exec-export", "exec-predict"}


@pytest.mark.parametrize("command", [["compile", "digits"], ["plan", "digits"], ["doctor"], ["pools"]])
def test_every_command_that_reads_the_pools_refuses_it_before_anything_else(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(ENVIRONMENT.replace("train: l4", "train: coral"))
    result = CliRunner().invoke(app, [*command, "-e", str(file)])
    assert isinstance(result.exception, ConfigurationError) and result.stdout == ""
    assert "'coral' cannot train" in str(result.exception)


def test_the_plan_shows_them_with_the_reason_and_never_chooses_one(tmp_path: Path) -> None:
    environment, recipe = load(tmp_path, "{default: cpu, train: l4}"), recipes.load("digits")
    known = data.find(recipe, None, None)
    choices = choose(candidates(recipe, environment, known, cost.from_recipe(recipe, known), []), None, None)
    by_name = {candidate.pool: candidate for candidate in choices}
    assert by_name["serving"].why.startswith(
        "cannot train: its pool says trains: false. The nearest that trains is 'l4'"
    )
    assert not any(by_name[name].feasible for name in ("inf2", "coral", "serving", "v2"))
    assert by_name["v2"].hours is not None and by_name["inf2"].hours is None
    assert by_name["v2"].why.startswith("no platform has nodes with tpu-v2") and not by_name["v2"].selector


def test_the_catalog_says_why_of_each_that_infers_only() -> None:
    only = {name: entry.why_not for name, entry in catalog().accelerators.items() if not entry.trains}
    assert set(only) == {"inferentia2", "edge-tpu"} and all(only.values())
