"""A pushed version as a run of MLflow's tracking server and a version of its model registry."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from trainyard.contract import keys
from trainyard.contract.pushed_versions import PushedVersion
from trainyard.contract.version import SERVED
from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.graph import remedy
from trainyard.report import local_runs
from trainyard.report.mlflow_epochs import ADDRESS, BATCH, RUN, TRAINING, key, parameters
from trainyard.spec import plain_yaml
from trainyard.storage import storage

_FOLDER = "model"
_MODEL_FILE = f"{_FOLDER}/MLmodel"
_DIGEST, _VERSION = "trainyard.digest", "trainyard.version"
_NOT_ALLOWED = ("CUSTOMER_UNAUTHORIZED", "PERMISSION_DENIED", "UNAUTHENTICATED")
_BUSY = (
    "DEADLINE_EXCEEDED",
    "INTERNAL_ERROR",
    "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "TEMPORARILY_UNAVAILABLE",
)
# Source: _validate_model_alias_name and _validate_model_alias_name_reserved in mlflow/utils/validation.py.
_ALIAS = re.compile(r"(?!(latest|v\d+)$)[\w-]+", re.ASCII | re.IGNORECASE)
# By default the client retries for minutes, reports its use to MLflow's authors, and prints on stdout.
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def registration(version: PushedVersion, name: str) -> dict[str, Any]:
    """Return the run and the registered version for `version` of the model `name`.

    Raises `ConfigurationError` if MLflow takes no such name or alias.
    """
    if not name.strip() or {*"/:"} & {*name}:
        raise ConfigurationError(f"--model-name {name[:100]!r}: not a name in MLflow. Leave '/' and ':' out.")
    if refused := [alias for alias in version.aliases if not _ALIAS.fullmatch(alias)]:
        raise ConfigurationError(
            f"alias '{refused[0]}': MLflow allows letters, digits, '_' and '-', but neither 'latest' nor 'v1'. Name "
            "another by `models alias`."
        )
    record, manifest = version.record, storage.require(version.folder, remedy("push"))
    tags = {
        _VERSION: str(version.number),
        _DIGEST: manifest.digest,
        RUN: record.run.rpartition("/")[2],
        "trainyard.fingerprint": record.fingerprint,
        "trainyard.pushed": record.pushed,
        "trainyard.pushed_by": record.by,
    }
    tags = {tag: text for tag, text in tags.items() if text}
    return {
        "experiment": version.recipe or name,
        "run": {
            "run_name": version.name,
            "tags": tags,
            "params": parameters(record.recipe),
            "metrics": {key(name): value for name, value in record.metrics.items()},
        },
        "artifacts": {f"{_FOLDER}/{path}": file.bytes for path, file in sorted(manifest.files.items())}
        | ({_MODEL_FILE: len(model_file())} if SERVED in manifest.files else {}),  # not of a custom program
        "model_version": {"name": name, "tags": dict(tags)},  # YAML marks one object in two places
        "aliases": list(version.aliases),
    }


def model_file() -> str:
    """Return the file MLmodel by which MLflow loads a version.

    Source: https://mlflow.org/docs/latest/ml/model/, "Storage Format".
    """
    flavor = {"loader_module": "trainyard.steps.predict.mlflow_flavor", "python_version": platform.python_version()}
    return plain_yaml.dump({"flavors": {"python_function": flavor}})


def register(version: PushedVersion, request: dict[str, Any]) -> str:
    """Log and register `version` as `registration` says, and return its URI. Registered before, only aliases are set.

    Raises `ConfigurationError` without mlflow or a server's address, `InfrastructureError` if the server refuses,
    `TransientError` if it cannot be reached.
    """
    address = os.environ.get(ADDRESS, "")
    if not address:
        raise ConfigurationError(f"mlflow: {ADDRESS} is not set. Set it to the address of the MLflow server.")
    for variable, value in _DEFAULTS.items():
        os.environ.setdefault(variable, value)
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise ConfigurationError("mlflow: the package mlflow-skinny is missing. Install trainyard[mlflow].") from error
    with _errors(address):
        client = MlflowClient(address)
        number = _registered(client, request) or _register(client, version, request)
        name = request["model_version"]["name"]
        for alias in request["aliases"]:
            client.set_registered_model_alias(name, alias, number)
    return f"models:/{name}/{number}"


def _register(client: Any, version: PushedVersion, request: dict[str, Any]) -> str:
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException

    local = storage.local(version.folder, remedy("push"))
    content, model = request["run"], request["model_version"]
    known = client.get_experiment_by_name(request["experiment"])
    experiment = known.experiment_id if known else client.create_experiment(request["experiment"])
    joined = _training_run(client, experiment, version)
    run = joined or client.create_run(experiment, run_name=content["run_name"])
    run, known_params = run.info, run.data.params
    try:
        pushed = version.record.pushed
        time = int(datetime.fromisoformat(pushed).timestamp() * 1000) if pushed else run.start_time
        tags = [RunTag(tag, text) for tag, text in content["tags"].items()]
        metrics = [Metric(name, value, time, 0) for name, value in content["metrics"].items()]
        client.log_batch(run.run_id, metrics, tags=tags)
        params = [Param(name, text) for name, text in content["params"].items() if name not in known_params]
        for start in range(0, len(params), BATCH):
            client.log_batch(run.run_id, params=params[start : start + BATCH])
        client.log_artifacts(run.run_id, str(local), _FOLDER)
        if _MODEL_FILE in request["artifacts"]:
            client.log_text(run.run_id, model_file(), _MODEL_FILE)
        try:
            client.create_registered_model(model["name"])
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        source = f"{run.artifact_uri}/{_FOLDER}"
        made = client.create_model_version(model["name"], source, run.run_id, tags=model["tags"], await_creation_for=0)
    except BaseException:
        if not joined:
            client.set_terminated(run.run_id, "FAILED")
        raise
    if not joined:
        client.set_terminated(run.run_id)
    return str(made.version)


def _training_run(client: Any, experiment: str, version: PushedVersion) -> Any:
    """Return the run with the epochs of the version's training, None without one or if it has another version."""
    record = local_runs.read_record(version.run_folder) if version.run_folder else None
    model = (record or {}).get("folders", {}).get("train")
    if not model:
        return None
    query = f"tags.`{TRAINING}` = '{keys.split(model)[1]}' and attributes.status = 'FINISHED'"
    runs = client.search_runs([experiment], query, max_results=1)
    digest = storage.require(version.folder, remedy("push")).digest
    return runs[0] if runs and runs[0].data.tags.get(_DIGEST, digest) == digest else None


def _registered(client: Any, request: dict[str, Any]) -> str:
    """Return the number in the registry of the very same version, '' if it is new."""
    model = request["model_version"]
    quoted = model["name"].replace("'", "''")
    for known in client.search_model_versions(f"name = '{quoted}'"):
        if all(known.tags.get(tag) == model["tags"][tag] for tag in (_VERSION, _DIGEST)):
            return str(known.version)
    return ""


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """Translate the errors of MLflow's client in the block."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        sentence = " ".join(str(error).split())[:400]
        if error.error_code in _NOT_ALLOWED:
            raise InfrastructureError(
                f"mlflow: refused ({sentence}). Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
                "MLFLOW_TRACKING_TOKEN."
            ) from error
        if error.error_code not in _BUSY:
            raise InfrastructureError(f"mlflow: refused ({sentence}).") from error
        raise TransientError(f"mlflow: {address} cannot be used ({sentence}). Run the same command again.") from error
    except OSError as error:  # of an upload, by requests
        raise TransientError(f"mlflow: {address} cannot be used ({error}). Run the same command again.") from error
