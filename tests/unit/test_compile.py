"""Compiling: what stock KFP takes, what a cluster could not run, and how little it loads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainyard_control.catalog.train
from trainyard.contract.keys import code_digest
from trainyard.errors import ConfigurationError
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.documents import parse
from trainyard.spec.environment import Volume
from trainyard.spec.recipe import Push, Recipe
from trainyard.spec.schedule import When
from trainyard_control.cli.verbs import cluster
from trainyard_control.compiler.compilation import compiled


def test_stock_kfp_compiles_the_catalog(tmp_path: Path) -> None:
    package = tmp_path / "train.yaml"
    command = [
        Path(sys.executable).with_name("kfp"),
        "dsl",
        "compile",
        "--py",
        trainyard_control.catalog.train.__file__,
    ]
    subprocess.run([*command, "--output", str(package)], check=True, capture_output=True)
    spec = yaml.safe_load(package.read_text())
    assert set(spec["deploymentSpec"]["executors"]) == {
        "exec-preprocess", "exec-train", "exec-evaluate", "exec-export", "exec-push",
    }  # fmt: skip


def test_what_comes_from_outside_the_pipeline_is_never_reused_by_kfp() -> None:
    spec = compiled(recipes.load("digits"), environments.load("local")).pipeline
    cached = {
        name: task["cachingOptions"].get("enableCache", False)
        for dag in [spec["root"]["dag"], *(part["dag"] for part in spec["components"].values() if "dag" in part)]
        for name, task in dag["tasks"].items()
        if "cachingOptions" in task
    }
    assert cached == {"preprocess": False, "train": True, "evaluate": False, "export": True, "push": False}


def test_what_kfp_reuses_is_told_whether_it_is_still_there() -> None:
    """By preprocess in its plan, and by evaluate: both look at the storage in every run."""
    spec = compiled(recipes.load("digits"), environments.load("local")).pipeline
    tasks = {
        name: task["inputs"]["parameters"]
        for dag in [spec["root"]["dag"], *(part["dag"] for part in spec["components"].values() if "dag" in part)]
        for name, task in dag["tasks"].items()
    }
    reference = {"producerTask": "preprocess", "outputParameterKey": "plan"}
    assert tasks["train"]["plan"] == {"taskOutputParameter": reference}
    assert tasks["export"]["maker"] == {"componentInputParameter": "pipelinechannel--evaluate-maker"}


def test_a_package_says_from_which_step_on_all_is_done_again() -> None:
    digits, local = recipes.load("digits"), environments.load("local")

    def again(package: Any) -> Any:
        return package.pipeline["root"]["inputDefinitions"]["parameters"]["again"]["defaultValue"]

    assert (again(compiled(digits, local)), again(compiled(digits, local, again="train"))) == ("", "train")


def test_a_run_that_waits_for_drift_asks_for_no_accelerator_before_it_is_decided() -> None:
    gke = environments.load("gke")
    spec = compiled(recipes.load("digits"), gke, When(drift=True)).pipeline
    executors, tasks = spec["deploymentSpec"]["executors"], spec["root"]["dag"]["tasks"]
    asking = [name for name in tasks if "accelerator" in executors[f"exec-{name}"]["container"]["resources"]]
    assert asking == ["train"]

    def conditions(name: str) -> set[str]:
        """Return the answers that `name` waits for, its own and those of the tasks that it reads."""
        task = tasks[name]
        own = task.get("triggerPolicy", {}).get("condition")
        return {own, *(answer for other in task.get("dependentTasks", []) for answer in conditions(other))} - {None}

    assert conditions("check-2") == {"inputs.parameter_values['pipelinechannel--check-Output'] == 'due'"}
    assert conditions("train") == conditions("check-2") | {
        "inputs.parameter_values['pipelinechannel--check-2-Output'] == 'due'"
    }


def test_kubeflows_page_shows_every_step_of_every_pipeline_at_once() -> None:
    digits, kind = recipes.load("digits"), environments.load("kind")
    steps = {"preprocess", "train", "evaluate", "export", "push"}
    for when, more in ((None, set()), (When(new_data=True), {"check"}), (When(drift=True), {"check", "check-2"})):
        spec = compiled(digits, kind, when).pipeline
        assert spec["root"]["dag"]["tasks"].keys() == steps | more
        assert not [name for name, component in spec["components"].items() if "dag" in component]
    nested = compiled(digits, environments.load("vertex")).pipeline
    assert "condition-1" in nested["root"]["dag"]["tasks"]


def test_what_a_condition_reads_is_an_input_of_the_task_that_has_it() -> None:
    spec = compiled(recipes.load("digits"), environments.load("kind")).pipeline
    tasks = spec["root"]["dag"]["tasks"]
    for name, producer in (("export", "evaluate"), ("push", "export")):
        read = f"pipelinechannel--{producer}-Output"
        assert tasks[name]["triggerPolicy"] == {"condition": f"inputs.parameter_values['{read}'] == 'blessed'"}
        answer = {"outputParameterKey": "Output", "producerTask": producer}
        assert tasks[name]["inputs"]["parameters"][read] == {"taskOutputParameter": answer}
        assert spec["components"][f"comp-{name}"]["inputDefinitions"]["parameters"][read] == {"parameterType": "STRING"}
        assert producer in tasks[name]["dependentTasks"]


def test_a_run_for_another_day_carries_it_and_only_a_window_of_days_takes_one() -> None:
    data = (
        "{format: csv, path: 's3://clicks/%Y-%m-%d', window_days: 3, label: sold, features: {price: {type: numeric}}}"
    )
    text = f"name: clicks\ndata: {data}\nmodel: {{name: mlp}}\n"
    recipe, gke = parse(text, Recipe, name="clicks"), environments.load("gke")

    def scheduled(day: str) -> Any:
        spec = compiled(recipe, gke, day=day).pipeline
        return spec["root"]["dag"]["tasks"]["preprocess"]["inputs"]["parameters"]["scheduled"]["runtimeValue"][
            "constant"
        ]

    assert scheduled("2026-11-21") == "2026-11-21"
    assert scheduled("") == "{{$.pipeline_job_schedule_time_utc}}"
    with pytest.raises(ConfigurationError, match=r"'21.11.' is no day. Write it as YYYY-MM-DD"):
        scheduled("21.11.")
    with pytest.raises(ConfigurationError, match="--day 2026-11-21: digits reads no window of days"):
        compiled(recipes.load("digits"), gke, day="2026-11-21")


def test_the_package_carries_the_whole_recipe_and_the_code_it_was_made_with() -> None:
    recipe = recipes.load("digits", ["train.epochs=7"])
    spec = compiled(recipe, environments.load("gke")).pipeline
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    assert parse(parameters["recipe"]["defaultValue"], Recipe, name="recipe") == recipe
    assert parameters["code"]["defaultValue"] == code_digest()
    assert parameters["storage"]["defaultValue"] == "gs://example-trainyard/runs"
    assert parameters["beam_options"]["defaultValue"] == "--runner=DirectRunner"


def test_a_recipe_of_thousands_of_features_travels_without_its_defaults_or_is_refused() -> None:
    def wide(count: int) -> Recipe:
        features = {f"gene_{number:05d}": {"type": "numeric", "indicator": True} for number in range(count)}
        data = {"format": "csv", "path": "s3://bucket/genes.csv", "label": "kind", "features": features}
        return Recipe.model_validate({"name": "wide", "data": data, "model": {"name": "mlp"}})

    recipe, gke = wide(1_000), environments.load("gke")
    text = compiled(recipe, gke).pipeline["root"]["inputDefinitions"]["parameters"]["recipe"]["defaultValue"]
    assert parse(text, Recipe, name="recipe") == recipe and len(json.dumps(text)) < 120_000
    with pytest.raises(ConfigurationError, match=r"of 4,000 about 2,\d\d\d fit"):
        compiled(wide(4_000), gke)


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        ({"push": {"path": "/models"}}, "digits: push.path: '/models' is on this machine"),
        (
            {"model": {"name": "cnn_small", "weights": "/w.keras"}},
            "digits: model.weights: '/w.keras' is on this machine. Upload it by",
        ),
        ({"data": {"format": "image_folder", "path": "/data"}}, "digits: data.path: '/data' is on this machine"),
    ],
)
def test_a_recipe_that_names_this_machine_is_refused_for_a_cluster(update: dict[str, object], sentence: str) -> None:
    recipe = Recipe.model_validate(recipes.load("digits").model_dump() | update)
    with pytest.raises(ConfigurationError) as error:
        compiled(recipe, environments.load("gke"))
    assert str(error.value).startswith(sentence)
    assert "(gke.yaml: the steps of target kubeflow run elsewhere)" in str(error.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.workers=2", "digits: train.workers: 2 processes were asked for, and kind.yaml trains in 3 pods"),
        ("train.batch_size=64", "digits: train.batch_size: 64 examples make no 3 equal parts"),
    ],
)
def test_a_recipe_that_does_not_suit_the_gang_is_refused(override: str, sentence: str) -> None:
    kind = environments.load("kind")
    pools = {"training": kind.pools["training"].model_copy(update={"workers": 3})}
    with pytest.raises(ConfigurationError) as error:
        compiled(recipes.load("digits", [override]), kind.model_copy(update={"pools": kind.pools | pools}))
    assert str(error.value).startswith(sentence)


def test_a_recipe_that_asks_for_as_many_workers_as_the_pool_has_is_compiled() -> None:
    kind = environments.load("kind")
    on_gang = kind.model_copy(update={"placement": kind.placement | {"train": "gang"}})
    assert compiled(recipes.load("digits", ["train.workers=2"]), on_gang)


def test_compile_and_place_load_neither_tensorflow_nor_beam_nor_the_report(tmp_path: Path) -> None:
    package = tmp_path / "gke.yaml"
    program = f"""
import json, sys
from pathlib import Path
from trainyard_control.cli.main import cluster
before = sorted(name for name in ("kfp", "pydantic", "yaml") if name in sys.modules)
cluster.compile("digits", "gke", to={str(package)!r})
cluster.place(Path({str(package)!r}), "kind", to={str(tmp_path / "kind.yaml")!r})
heavy = ("tensorflow", "apache_beam", "tensorflow_transform", "keras", "numpy", "plotly", "trainyard.report.report")
print(json.dumps([before, [name for name in heavy if name in sys.modules]]))
"""
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert json.loads(answer) == [[], []]


def test_placing_loads_no_kfp(tmp_path: Path) -> None:
    package = tmp_path / "local.yaml"
    cluster.compile("digits", "local", to=str(package))
    program = f"""
import sys
from pathlib import Path
from trainyard_control.cli.verbs import cluster
cluster.place(Path({str(package)!r}), "gke", to={str(tmp_path / "gke.yaml")!r})
print("kfp" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert answer.strip() == "False"


@pytest.mark.parametrize("content", ["", "[1, 2]", "a: {b", "apiVersion: v1\nkind: Pod\n"])
def test_a_file_that_is_no_pipeline_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"own\.yaml: (not a compiled pipeline|cannot be read|not valid YAML)"):
        cluster.place(file, "gke")


def test_an_existing_package_is_replaced_whole(tmp_path: Path) -> None:
    package = tmp_path / "package.yaml"
    package.write_text("old")
    cluster.compile("digits", "vertex", to=str(package))
    assert yaml.safe_load(package.read_text())["pipelineInfo"]["name"] == "trainyard-train"
    assert [path.name for path in tmp_path.iterdir()] == ["package.yaml"]


def test_a_pipe_or_a_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    cluster.write(str(pipe), "text")
    assert reader.communicate(timeout=60)[0] == "text"
    assert pipe.is_fifo()


def test_a_folder_as_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder"):
        cluster.write(str(tmp_path), "text")


def test_data_on_the_volume_that_the_steps_mount_are_reachable() -> None:
    recipe = recipes.load("digits").model_copy(update={"push": Push(path="/mnt/runs/models")})
    volume = Volume(claim="runs", path="/mnt/runs")
    kind = environments.load("kind").model_copy(update={"volume": volume, "storage": "/mnt/runs/out"})
    assert "/mnt/runs/models" in str(compiled(recipe, kind).pipeline)
    with pytest.raises(ConfigurationError, match="is on this machine"):
        compiled(recipe.model_copy(update={"push": Push(path="/mnt/runsaway")}), kind)
