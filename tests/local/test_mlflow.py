"""`trainyard publish mlflow` with MLflow's server."""

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
from trainyard.contract.pushed_versions import set_alias
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


def test_a_version_becomes_a_run_and_a_registered_version_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    models = push_versions()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    planned = json.loads(invoke("digits@canary", "--dry-run", "-o", "json").stdout)["request"]
    client = MlflowClient(server)
    assert client.search_registered_models() == []
    done = invoke("digits@canary")
    assert (done.stdout, done.stderr) == ("", "✓ digits@1 is published to models:/digits/1\n")
    registered = client.get_model_version("digits", "1")
    assert registered.tags == planned["model_version"]["tags"] and registered.tags["trainyard.run"] == RUN
    assert client.get_model_version_by_alias("digits", "canary").version == registered.version
    run = client.get_run(registered.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "digits@1")
    assert run.data.metrics == {"accuracy": 0.95, "log_loss": 0.1} == planned["run"]["metrics"]
    assert run.data.params == planned["run"]["params"] and run.data.params["train.epochs"] == "1"
    assert "null" not in run.data.params.values()
    (tmp_path / "downloaded").mkdir()
    fetched = client.download_artifacts(run.info.run_id, "model", str(tmp_path / "downloaded"))
    assert storage.require(fetched, "push").digest == storage.require(str(models / "1"), "push").digest
    assert storage.local(fetched, "push") == Path(fetched)  # verifies each file
    assert (Path(fetched) / "MLmodel").read_text() == mlflow.model_file()

    set_alias(str(models), "production", 1)
    assert invoke("digits@1").stderr.endswith("models:/digits/1\n"), "it is registered already"
    assert client.get_model_version_by_alias("digits", "production").version == registered.version
    assert invoke("digits").stderr.endswith("models:/digits/2\n")
    assert invoke("digits", "--model-name", "it's other").stderr.endswith("models:/it's other/1\n")
    with pytest.raises(ty.TrainyardError) as error:
        invoke("digits", "--model-name", "..")
    assert str(error.value).startswith("mlflow: refused (") and int(error.value.exit_code) == 40
    (experiment,) = client.search_experiments(filter_string="name = 'digits'")
    assert client.search_runs([experiment.experiment_id])[0].info.status == "FAILED"

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(ty.TrainyardError, match=r"mlflow: http://127.0.0.1:1 cannot be used \(") as error:
        invoke("digits")
    assert int(error.value.exit_code) == 30
