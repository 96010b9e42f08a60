"""MLflow's server gets the epochs of a training, and a version by `trainyard publish mlflow`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from tests.pushed_versions import RUN, push_versions
from typer.testing import CliRunner, Result

import trainyard as ty
from trainyard.contract.artifacts.train import Epoch
from trainyard.contract.pushed_versions import set_alias
from trainyard.errors import Preempted
from trainyard.report import mlflow_epochs
from trainyard.spec import recipe as recipes
from trainyard.storage import storage
from trainyard_control.cli.main import app
from trainyard_control.targets import mlflow


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["publish", "mlflow", *arguments], catch_exceptions=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server with an empty database. Flask serves it: `mlflow server` starts three processes."""
    from mlflow.server import constants

    settings = {
        constants.BACKEND_STORE_URI_ENV_VAR: f"sqlite:///{tmp_path}/mlflow.db",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: str(tmp_path / "artifacts"),
        constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    port = free_port()
    command = [sys.executable, "-m", "flask", "--app", "mlflow.server:app", "run", "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()


def epoch(number: int) -> Epoch:
    """An epoch of ten steps; 60 of them with four metrics are more than one request to the server may have."""
    return Epoch(
        epoch=number,
        step=10 * number,
        learning_rate=0.1,
        train_loss=1 / number,
        eval_loss=2 / number,
        metric=0.9,
        examples_per_second=100,
        seconds=1,
    )


def train(models: Path, epochs: range) -> str:
    """Log a training with `epochs` and a resume in their middle, note it as that of version 1, and return its key."""
    model = models.parent / "train" / "0123456789abcdef"
    model.parent.mkdir(exist_ok=True)
    Path(f"{model}.maker").write_text(RUN)
    recipe = recipes.load("digits", ["train.epochs=1"])
    middle = epochs[len(epochs) // 2]
    with pytest.raises(Preempted), mlflow_epochs.logged(recipe, f"{model}.checkpoints") as note:
        assert note
        for number in range(epochs[0], middle):
            note(epoch(number))
        raise Preempted
    with mlflow_epochs.logged(recipe, f"{model}.checkpoints") as note:
        assert note
        for number in epochs:  # the loop passes those before a resume again
            note(epoch(number))
    record = models.parent / "runs" / RUN / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"folders": {"train": str(model)}}))
    return model.name


def test_a_training_and_its_version_are_one_run_and_a_registered_version_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    models = push_versions()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    planned = json.loads(invoke("digits@canary", "--dry-run", "-o", "json").stdout)["request"]
    client = MlflowClient(server)
    assert client.search_registered_models() == []
    for name in ("_END_SECONDS", "_KILLED_SECONDS"):
        monkeypatch.setattr(mlflow_epochs, name, 300)  # a busy machine
    monkeypatch.setattr(mlflow_epochs, "_CALL_SECONDS", 100)
    key = train(models, range(1, 251))
    (experiment,) = client.search_experiments(filter_string="name = 'digits'")
    (trained,) = client.search_runs([experiment.experiment_id])
    assert (trained.info.status, trained.info.run_name) == ("FINISHED", RUN)
    assert trained.data.tags[mlflow_epochs.TRAINING] == key
    assert trained.data.tags["trainyard.report"] == str(models.parent / "runs" / RUN / "report.html")
    curve = client.get_metric_history(trained.info.run_id, "eval_loss")
    assert [(point.step, point.value) for point in curve] == [(10 * n, 2 / n) for n in range(1, 251)]
    assert trained.data.params["train.epochs"] == "1" and "push.keep" not in trained.data.params

    done = invoke("digits@canary")
    assert (done.stdout, done.stderr) == ("", "✓ digits@1 is published to models:/digits/1\n")
    registered = client.get_model_version("digits", "1")
    assert registered.tags == planned["model_version"]["tags"] and registered.tags["trainyard.run"] == RUN
    assert client.get_model_version_by_alias("digits", "canary").version == registered.version
    run = client.get_run(registered.run_id or "")
    assert run.info.run_id == trained.info.run_id and run.info.status == "FINISHED"
    assert run.data.metrics == trained.data.metrics | {"accuracy": 0.95, "log_loss": 0.1}
    assert planned["run"]["metrics"] == {"accuracy": 0.95, "log_loss": 0.1}
    assert run.data.params == planned["run"]["params"] and run.data.params["train.epochs"] == "1"
    assert "null" not in run.data.params.values()
    (tmp_path / "downloaded").mkdir()
    fetched = client.download_artifacts(run.info.run_id, "model", str(tmp_path / "downloaded"))
    assert storage.require(fetched).digest == storage.require(str(models / "1")).digest
    assert storage.local(fetched) == Path(fetched)  # verifies each file
    assert (Path(fetched) / "MLmodel").read_text() == mlflow.model_file()

    set_alias(str(models), "production", 1)
    assert invoke("digits@1").stderr.endswith("models:/digits/1\n"), "it is registered already"
    assert client.get_model_version_by_alias("digits", "production").version == registered.version
    assert invoke("digits").stderr.endswith("models:/digits/2\n")
    other = client.get_run(client.get_model_version("digits", "2").run_id or "")
    assert (other.info.status, other.info.run_name) == ("FINISHED", "digits@2"), "no epochs of its training are known"
    assert invoke("digits", "--model-name", "it's other").stderr.endswith("models:/it's other/1\n")
    with pytest.raises(ty.TrainyardError) as error:
        invoke("digits", "--model-name", "..")
    assert str(error.value).startswith("mlflow: refused (") and int(error.value.exit_code) == 40
    assert client.search_runs([experiment.experiment_id])[0].info.status == "FAILED"

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(ty.TrainyardError, match=r"mlflow: http://127.0.0.1:1 cannot be used \(") as error:
        invoke("digits")
    assert int(error.value.exit_code) == 30
