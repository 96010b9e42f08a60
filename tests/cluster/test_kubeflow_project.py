"""A project with a module, a local helper and a wheel on a real Kubeflow, with a store that only pods reach.

The first test prepares it and pushes a model; the others search, measure and predict with the same code and data, train
it on a schedule, and train on a table without any recipe.
`make test-kubeflow` runs them; see `real_kubeflow`. The store and its key are those of Kubeflow's manifests, as
docs/how-to/laptop.md has them.
"""

import json
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from real_kubeflow import (
    MARKS,
    MEMORY,
    REPORTS,
    RUN,
    SPACE,
    document,
    door,
    environment_file,
    over,
    trainyard,
    until,
)
from tests.wheel_files import wheel

from trainyard.storage import listing
from trainyard_control.cluster import environments

pytestmark = MARKS

PAGE = (Path(__file__).parents[2] / "docs/reference/module.md").read_text()
QUICK = ("--set", "evaluate.bootstrap=20", "--set", "export.formats=[saved_model]")
QUICK += ("--set", "evaluate.gates=[{metric: roc_auc, min: 0.01}]")  # nine steps of training may learn nothing
# Each function of the page's module needs the helper, the wheel or both, so no step succeeds without them.
MODULE = """
import shop_prices
from rules import clipped

_features, _model, _metrics = preprocessing_fn, build_model, metrics


def preprocessing_fn(inputs):
    return _features(inputs | {"price": clipped(inputs["price"], shop_prices.HIGHEST)})


def build_model(features, outputs):
    assert shop_prices.HIGHEST and clipped
    return _model(features, outputs)


def metrics(labels, outputs):
    return _metrics(labels, outputs) | {"highest_price": float(shop_prices.HIGHEST)}
"""
HELPER = """def clipped(prices, highest):
    import tensorflow as tf

    return tf.minimum(prices, float(highest))
"""


@dataclass(frozen=True)
class Project:
    """A recipe with its code beside it, and the environment whose storage only pods reach."""

    recipe: Path
    environment: Path
    storage: str

    @property
    def command(self) -> tuple[str, ...]:
        return (str(self.recipe), "-e", str(self.environment))

    def uploaded(self, name: str) -> str:
        """Return the URI of a file of the project in the storage."""
        done = trainyard("data", "upload", str(self.recipe.with_name(name)), "-e", str(self.environment))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("project")
    with door(folder) as way:
        sections = json.loads(environment_file(folder, way.settings).read_text())
        del sections["volume"]
        secret = {"AWS_ACCESS_KEY_ID": "accesskey", "AWS_SECRET_ACCESS_KEY": "secretkey"}
        sections |= {
            "storage": f"s3://mlpipeline/{RUN}",
            "variables": {"AWS_ENDPOINT_URL_S3": f"http://seaweedfs.{SPACE}:9000", "AWS_REGION": "us-east-1"},
            "secrets": {name: {"secret": "mlpipeline-minio-artifact", "key": key} for name, key in secret.items()},
        }
        sections["pools"]["twin"] = {"kind": "cpu", "price_per_hour": 0.25, "resources": MEMORY}
        (folder / "mine.yaml").write_text(json.dumps(sections))
        recipe, module = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[0] for kind in ("yaml", "python"))
        built = wheel(folder, "shop_prices", {"shop_prices.py": "HIGHEST = 50\n"})
        (folder / "shop.yaml").write_text(f"{recipe}packages: [./{built.name}]\n")
        (folder / "shop.py").write_text(module + MODULE)
        (folder / "rules.py").write_text(HELPER)
        draw = random.Random(1)
        rows = [f"{draw.uniform(1, 99):.2f},{draw.choice(['', 3])},{draw.choice(['Oslo', 'Rome'])}" for _ in range(200)]
        labeled = [f"{row},{'yes' if row < '5' else 'no'}" for row in rows]
        (folder / "shop.csv").write_text("\n".join(["price,visits,city,bought", *labeled]))
        (folder / "new.csv").write_text("\n".join(["price,visits,city", *rows[:20], "50,3,Oslo", "1000,3,Oslo"]))
        yield Project(folder / "shop.yaml", folder / "mine.yaml", str(sections["storage"]))


@pytest.fixture(scope="module")
def pushed(project: Project) -> str:
    name = f"{RUN}-shop"
    done = trainyard("run", *project.command, "--name", name, *QUICK)
    assert done.returncode == 0, done.stderr
    for key in ("data.path", "packages.shop_prices-1.0-py3-none-any.whl"):
        assert f"✓ {key}: 1 file, " in done.stderr
    assert "highest_price" in done.stdout
    return name


def test_code_data_and_packages_of_a_laptop_train_with_a_store_that_only_pods_reach(
    pushed: str, project: Project
) -> None:
    assert (REPORTS / f"{pushed}.html").exists()
    assert [version["serves"] for version in document("models", "list", "-e", str(project.environment))] == [True]


def test_a_sweep_trains_its_variants_with_the_code_and_is_resumed_by_name(pushed: str, project: Project) -> None:
    data = ("--set", f"data.path={project.uploaded('shop.csv')}", "--set", "train.epochs=2")
    options = ("--over", "train.batch_size=32,64", "--max-parallel", "2", "--name", f"{RUN}-sweep", *data)
    found = document("sweep", *project.command, *options)
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * 2
    runs = {run["name"] for run in document("runs", "list", "-e", str(project.environment))}
    assert runs >= {f"{RUN}-sweep-1", f"{RUN}-sweep-2"}
    log = trainyard("runs", "logs", f"{RUN}-sweep-1", "preprocess", "-e", str(project.environment)).stdout
    assert '"event": "reused", "step": "preprocess"' in log, "these are the examples of the pushed model"
    assert document("sweep", *project.command, *options) == found
    best = f"{found['folder']}/best.yaml"
    shown = trainyard("submit", best, "-e", str(project.environment), "--dry-run")
    assert shown.returncode == 0 and "rules.py" in shown.stdout, shown.stderr


def test_a_benchmark_measures_each_pool_with_the_code(pushed: str, project: Project) -> None:
    options = ("--pools", "cpu,twin", "--name", f"{RUN}-speed", "--wait")
    data = ("--set", f"data.path={project.uploaded('shop.csv')}")
    report = document("bench", *project.command, *options, *data)
    assert [speed["pool"] for speed in report["speeds"]] == ["cpu", "twin"] and not report["skipped"]
    assert all(speed["examples_per_second"] > 0 for speed in report["speeds"])


def test_a_prediction_in_the_cluster_is_that_of_the_laptop(pushed: str, project: Project) -> None:
    own, answers = ("-e", str(project.environment)), f"{project.storage}/answers"
    send = ("--out", answers, "--submit", "--wait", "--name", f"{RUN}-predict")
    done = trainyard("predict", "shop", project.uploaded("new.csv"), *own, *send)
    assert done.returncode == 0 and f"✓ 22 answers in {answers}/part-" in done.stderr, done.stderr
    here = project.recipe.with_name("here.parquet")
    local = trainyard("predict", "shop", str(project.recipe.with_name("new.csv")), *own, "--out", str(here))
    assert local.returncode == 0, local.stderr
    environments.load(str(project.environment))
    (part,) = [file.name for file in listing.list_files(answers).files if file.name.endswith(".parquet")]
    with listing.open_file(f"{answers}/{part}") as stream:
        there = pyarrow.parquet.read_table(stream)
    rows = there.to_pylist()
    for key, value in rows[-2].items():
        assert key == "key" or rows[-1][key] == value, "the module clips the last price to the one before"
    for row, local_row in zip(rows, pyarrow.parquet.read_table(here).to_pylist(), strict=True):
        assert row["prediction"] == local_row["prediction"]
        assert row["score"] == pytest.approx(local_row["score"], abs=1e-5)


def test_a_schedule_fires_and_trains_with_the_code_and_the_package(project: Project) -> None:
    file, name = project.recipe.with_name("often.yaml"), f"{RUN}-often"
    data = f"data.path={project.uploaded('shop.csv')}"
    described: dict[str, Any] = {"name": name, "recipe": project.recipe.name, "environment": project.environment.name}
    described |= {"cron": "* * * * *", "when": {"new_data": True}, "set": ["name=often", data, *QUICK[1::2]]}
    file.write_text(json.dumps(described))
    own = ("-e", str(project.environment))
    applied = trainyard("schedule", "apply", str(file))
    assert applied.returncode == 0, applied.stderr
    try:
        deadline = time.monotonic() + 200
        while not (fired := [run for run in document("runs", "list", *own) if run["name"].startswith(name)]):
            assert time.monotonic() < deadline
            time.sleep(3)
        run = until(fired[-1]["run_id"], project.environment, over, 900)
    finally:
        assert trainyard("schedule", "remove", str(file)).returncode == 0
    assert run["state"] == "SUCCEEDED", run["reason"]
    assert {step["state"] for step in run["steps"]} == {"done"} and run["steps"][-1]["name"] == "push"
    (version,) = document("models", "list", "often", *own)
    assert version["run_folder"].endswith(run["run_id"]) and version["metrics"]["highest_price"] == 50


def test_a_table_of_the_laptop_is_drafted_sent_trained_and_reported(project: Project) -> None:
    draw, name = random.Random(1), f"{RUN}-houses"
    areas = [draw.randrange(30, 130) for _ in range(200)]  # some are equal, so no id
    rows = [f"{area},{draw.choice('abc')},{area * 5000 + draw.randrange(100000)}" for area in areas]
    (REPORTS / "houses.csv").write_text("\n".join(["area,town,price", *rows, ""]))
    done = trainyard("run", "houses.csv", "--label", "price", "-e", str(project.environment), "--name", name)
    assert done.returncode == 0, done.stderr
    assert "✓ data.path: 1 file, " in done.stderr and f"✓ wrote {name}.html" in done.stderr
    assert "metric (test split)" in done.stdout and "gate (test split)" in done.stdout
    assert (REPORTS / f"{name}.html").read_text().startswith("<!doctype html>")
    run = document("runs", "show", name, "-e", str(project.environment))
    assert (run["state"], run["recipe"], run["steps"][-1]["name"]) == ("SUCCEEDED", "houses", "push")
