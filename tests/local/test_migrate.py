"""The how-to on pipelines that move: its files and its commands, run as they stand there."""

import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.usefixtures("warm_processes")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "migrate.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
FILES = ROOT / "docs" / "how-to" / "migrate"
BLOCKS = {path.name: path.read_text(encoding="utf-8") for path in FILES.iterdir() if path.suffix == ".py"} | dict(
    re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL)
)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SHORT = ["--set", "export.formats=[saved_model]", "-o", "json"]
COMPANIES = ["Blue Cab", "City Service", "Yellow"]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(BLOCKS[name], encoding="utf-8")


def write_environment(folder: Path, name: str) -> None:
    """Write the bundled environment for GKE with the page's keys."""
    bundled = yaml.safe_load((ROOT / "k8s" / "environments" / "gke.yaml").read_text())
    keys = yaml.safe_load(BLOCKS[f"{name}, these keys"])
    pools = bundled["pools"] | keys.pop("pools", {})
    (folder / name).write_text(yaml.safe_dump(bundled | keys | {"pools": pools}))


def run(folder: Path, start: str, *more: str) -> str:
    """Run the one command of the page that begins with `start`, and return what it prints."""
    (command,) = [line for line in COMMANDS if line.startswith(start)]
    program, *arguments = command.split()
    done = subprocess.run([BIN / program, *arguments, *more], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def documents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    pipeline, platform = yaml.safe_load_all(path.read_text())
    return pipeline, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


def without_additions(placed: Any, old: Any) -> Any:
    """Return `placed` without what `old` has not, at any depth."""
    if isinstance(old, dict):
        return {name: without_additions(placed.get(name), value) for name, value in old.items()}
    return placed


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write(folder, "old.py", "my_train.py", "digits.yaml", "my_train.diff")
    return folder


def test_a_pipeline_by_hand_is_placed_and_keeps_what_its_author_set(old_folder: Path) -> None:
    run(old_folder, "kfp dsl compile")
    write_environment(old_folder, "mine.yaml")
    run(old_folder, "trainyard place")
    (old, old_platform), (placed, platform) = documents(old_folder / "old.yaml"), documents(old_folder / "placed.yaml")
    assert without_additions(placed, old) == old
    assert without_additions(platform, old_platform) == old_platform

    containers = {name: executor["container"] for name, executor in placed["deploymentSpec"]["executors"].items()}
    resources = {name: container["resources"] for name, container in containers.items()}
    assert resources["exec-prepare"]["resourceCpuRequest"] == "4"
    assert resources["exec-prepare"]["resourceMemoryLimit"] == "16Gi"
    assert resources["exec-run-tfjob"] == old["deploymentSpec"]["executors"]["exec-run-tfjob"]["container"]["resources"]
    assert resources["exec-evaluate"]["accelerator"]["resourceType"] == "nvidia.com/gpu"
    selector = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"}
    assert platform["exec-evaluate"]["nodeSelector"]["labels"] == selector
    assert [one["key"] for one in platform["exec-evaluate"]["tolerations"]] == [
        "nvidia.com/gpu",
        "cloud.google.com/gke-spot",
    ]
    assert {name: one["activeDeadlineSeconds"] for name, one in platform.items()} == {
        "exec-prepare": "7200",
        "exec-run-tfjob": "90000",
        "exec-evaluate": "7200",
    }
    retries = {name: task["retryPolicy"]["maxRetryCount"] for name, task in placed["root"]["dag"]["tasks"].items()}
    assert retries == {"prepare": 2, "run-tfjob": 2, "evaluate": 2}


def test_the_old_steps_and_their_script_work_as_they_stand(old_folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("old", old_folder / "old.py")
    assert spec and spec.loader
    old = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(old)
    folder = old_folder / "data"
    folder.mkdir()
    old.prepare.python_func(str(folder))
    command = [sys.executable, "my_train.py", "--data", str(folder), "--checkpoints", str(folder / "checkpoints")]
    subprocess.run(command, cwd=old_folder, check=True)
    assert old.evaluate.python_func(str(folder), least_accuracy=0.8) > 0.8


def test_the_script_moves_by_the_pages_diff_and_trains_in_two_workers(old_folder: Path) -> None:
    moved = old_folder / "moved"
    moved.mkdir()
    write(moved, "my_train.py", "digits.yaml", "my_train.diff")
    subprocess.run(["git", "apply", "-p0", "my_train.diff"], cwd=moved, check=True, env={**os.environ, "GIT_DIR": "x"})
    record = json.loads(run(moved, "trainyard run digits.yaml", *SHORT))
    assert record["gate"]["verdict"] == "blessed" and record["metrics"]["accuracy"] > 0.8, record["metrics"]

    write_environment(moved, "gang.yaml")
    run(moved, "trainyard compile")
    compiled, _ = documents(moved / "digits-moved.yaml")
    parameters = compiled["root"]["inputDefinitions"]["parameters"]
    assert json.loads(parameters["gang"]["defaultValue"])["pool"]["workers"] == 2
    assert "TRAINYARD_EXAMPLES" in parameters["recipe"]["defaultValue"]


def write_trips(path: Path, rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = ["trip_miles", "trip_seconds", "fare", "pickup_latitude", "pickup_longitude", "trip_start_hour"]
        writer.writerow([*names, "payment_type", "company", "tips"])
        for _ in range(rows):
            miles, card, company = draw.gamma(1.5, 2), draw.random() < 0.5, draw.integers(3)
            fare = round(3.25 + 2.25 * miles, 2)
            tips = round(fare * max(0, draw.normal(0.26, 0.05)), 2) if card else 0
            pickup = [round(41.9 + draw.normal(0, 0.05), 4), round(-87.65 + draw.normal(0, 0.03), 4)]
            numbers = [round(miles, 1), int(miles * 240), fare, *pickup, draw.integers(24)]
            writer.writerow([*numbers, "Credit Card" if card else "Cash", [*COMPANIES, ""][company], tips])


def test_a_tfx_module_file_is_taken_as_it_is_and_its_model_answers_raw_rows(tmp_path: Path) -> None:
    import tensorflow as tf

    write(tmp_path, "trips_module.py", "trips.yaml")
    write_trips(tmp_path / "trips.csv", 1500, seed=1)
    write_trips(tmp_path / "new.csv", 50, seed=2)
    run(tmp_path, "trainyard data schema")
    record = json.loads(run(tmp_path, "trainyard run trips.yaml", *SHORT))
    assert record["gate"]["verdict"] == "blessed", (record["gate"], record["metrics"])
    run(tmp_path, "trainyard predict")
    with (tmp_path / "tips.csv").open() as file:
        predicted = [row["prediction"] for row in csv.DictReader(file)]
    assert len(predicted) == 50 and set(predicted) == {"true", "false"}

    (served,) = (tmp_path / "served" / "trips").glob("*/saved_model.pb")
    answer = tf.saved_model.load(str(served.parent)).signatures["serving_default"]
    with (tmp_path / "new.csv").open() as file:
        rows = list(csv.DictReader(file))
    texts = ("payment_type", "company")
    columns = {
        name: tf.constant([row[name] if name in texts else float(row[name]) for row in rows])
        for name in answer.structured_input_signature[1]
    }
    assert "tips" not in columns and len(columns) == 8
    chosen = answer(**columns)["probabilities"].numpy().argmax(axis=1)
    assert [["false", "true"][index] for index in chosen] == predicted
