"""The packages that `trainyard compile` writes, reviewed as diffs.

`make goldens` writes them again. Two values are not in them: the code's digest, which changes with every commit, and
the folder of the local environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from page_block import require_committed
from typer.testing import CliRunner

from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.schedule import When
from trainyard_control.cli.main import app
from trainyard_control.compiler.compilation import compiled, compiled_prediction, to_yaml

GOLDENS = Path(__file__).parent


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cli(*arguments: str) -> str:
    """Return what a command line writes. In this process: most of a new one's time is the import of kfp."""
    return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


def assert_committed(package: str, name: str, folder: Path) -> None:
    """Compare with the committed package, without what changes with each commit or folder."""
    package = re.sub(r"(?<=defaultValue: )[0-9a-f]{64}$", "<code>", package, flags=re.MULTILINE)
    package = re.sub(r"gke-[0-9a-f]{12}", "gke-<version>", package.replace(str(folder), "<folder>"))
    require_committed(GOLDENS / f"{name}.yaml", package)


@pytest.mark.parametrize("environment", ["local", "kind", "gke", "vertex"])
def test_the_digits_pipeline_compiles_to_the_committed_package(environment: str, tmp_path: Path) -> None:
    assert_committed(cli("compile", "digits", "-e", environment), f"digits-{environment}", tmp_path)


def test_another_process_compiles_the_same_package() -> None:
    command = [str(Path(sys.executable).with_name("trainyard")), "compile", "digits", "-e", "kind"]
    there = subprocess.run(
        command, env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True
    )
    assert there.stdout == cli(*command[1:])


def test_the_scheduled_pipeline_compiles_to_the_committed_package(tmp_path: Path) -> None:
    when = When(new_data=True, champion_older_than="7d")
    package = compiled(recipes.load("digits"), environments.load("kind"), when)
    assert_committed(to_yaml(package.documents), "retrain-kind", tmp_path)


def test_the_prediction_compiles_to_the_committed_package(tmp_path: Path) -> None:
    places = ("gs://bucket/models", "gs://bucket/photos", "gs://bucket/answers")
    key = "projects/company/locations/europe-west4/keyRings/data/cryptoKeys/runs"
    settings = {
        "ca_bundle": environments.CaBundle(config_map="company-ca", key="ca.crt"),
        "storage_encryption": environments.StorageEncryption(kms_key=key),
    }
    environment = environments.load("gke").model_copy(update=settings)
    package = compiled_prediction(*places, "", environment)
    assert_committed(to_yaml(package.documents), "predict-gke", tmp_path)


@pytest.mark.parametrize(
    ("golden", "command"),
    [
        ("benchmark-gke", ["bench", "digits", "--pools", "gpu-l4", "--name", "speed"]),
        ("sweep-gke", ["sweep", "digits", "--over", "model.dropout=0.1,0.2", "--name", "night"]),
    ],
)
def test_a_run_of_a_benchmark_or_sweep_compiles_to_the_committed_package(
    golden: str, command: list[str], tmp_path: Path
) -> None:
    assert_committed(cli(*command, "-e", "gke", "--dry-run"), golden, tmp_path)


OWN = """
name: own
data: {format: image_folder, bundled: digits}
train: {command: [python, -m, team.train], image: "registry.example/team/trainer:3"}
"""


@pytest.mark.parametrize("recipe", ["digits", "own.yaml"])
def test_place_gives_the_package_that_compile_gives(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    local = tmp_path / "local.yaml"
    cli("compile", recipe, "-e", "local", "--to", str(local))
    done = CliRunner().invoke(app, ["place", str(local), "-e", "gke"], catch_exceptions=False)
    shown = [line.split() for line in done.stderr.splitlines()]
    assert ["task", "step", "pool", "accelerators"] in shown and ["preprocess", "preprocess", "cpu", "none"] in shown
    assert [row[1:] for row in shown if row[:1] == ["train"]] == [["train", "gpu-l4", "1", "x", "nvidia-l4"]]
    placed = list(yaml.safe_load_all(done.stdout))
    compiled = list(yaml.safe_load_all(cli("compile", recipe, "-e", "gke")))
    executors = compiled[0]["deploymentSpec"]["executors"].items()
    own = [name for name, executor in executors if executor["container"]["image"] == "registry.example/team/trainer:3"]
    assert own == ([] if recipe == "digits" else ["exec-train"])
    for package in (placed, compiled):
        for name in ("storage", "code", "about"):
            package[0]["root"]["inputDefinitions"]["parameters"][name].pop("defaultValue")
    assert placed == compiled


def test_no_package_names_a_secret_or_a_value_of_this_machine() -> None:
    for golden in GOLDENS.glob("*.yaml"):
        assert not re.search(r"/(home|root|work|tmp|Users)/", golden.read_text(encoding="utf-8")), golden
