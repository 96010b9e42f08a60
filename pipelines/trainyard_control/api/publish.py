"""Publish a pushed version to another system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigurationError, DataError
from trainyard.serving.options import LogOptions
from trainyard.spec.environment import Environment
from trainyard.steps.predict.pushed_model import open_model
from trainyard_control.api.model import default_name
from trainyard_control.api.versions import Version, find_one
from trainyard_control.cluster import environments


@dataclass(frozen=True)
class Published:
    """A version for another system. place: its address there, '' after a dry run.

    request: the exact object, or the arguments of calls of the client. remark: of a dry run, why it would not be sent.
    """

    version: Version
    request: dict[str, Any]
    place: str = ""
    remark: str = ""


def huggingface(
    model: str, *, environment: str, folder: Path | None, repository: str, public: bool, dry_run: bool
) -> Published:
    """Write `model` to `folder` as a repository of the Hugging Face Hub, or upload it to `repository`, or both.

    public: of a repository that does not exist yet. Raises `DataError` if the version is damaged,
    `ConfigurationError` without huggingface_hub or a token, and as `huggingface.upload`.
    """
    from trainyard_control.targets import huggingface as hub

    if not folder and not repository:
        raise ConfigurationError("publish huggingface: names no target. Give --folder, --repository, or both.")
    version = _version(model, environment)
    request = hub.upload_request(repository, version.name, public) if repository else {}
    if repository and not dry_run:
        hub.require_client()  # before files are read
    files = hub.contents(version.folder)
    request = {"files": {name: file.size for name, file in sorted(files.items())}, **request}
    if dry_run:
        return Published(version, request)
    if folder:
        hub.write(files, folder)
    return Published(version, request, hub.upload(files, request) if repository else str(folder))


def kserve(
    model: str,
    *,
    environment: str,
    name: str | None,
    canary_percent: int | None,
    log: LogOptions | None,
    dry_run: bool,
) -> Published:
    """Create or update the KServe InferenceService that serves `model` in the cluster of `environment`.

    name: of the object and of the model in URLs, by default the recipe's. canary_percent: share of the requests; None
    for all. log: of the server, in a bucket.

    Raises `DataError` if `trainyard serve` cannot serve it, `ConfigurationError` if the cluster cannot read
    it, and as `kserve.inference_service` and `kserve.apply`.
    """
    from trainyard_control.targets import kserve as target

    loaded = environments.load(environment)
    if loaded.target != "kubeflow":
        raise ConfigurationError(
            f"--environment {environment}: its target is {loaded.target}. KServe runs on Kubernetes. "
            "Name an environment of a cluster with -e."
        )
    version = _version(model, environment)
    open_model(version.folder)  # the server needs what Trainyard's export wrote
    service = target.inference_service(version, loaded, _name(version, name), canary_percent, log)
    remark = _remark(version, loaded, target.READERS, target.UNREADABLE, dry_run)
    if dry_run:
        return Published(version, service, remark=remark)
    applied = target.apply(service, target.connect(loaded))
    share = "" if canary_percent is None else f" with {canary_percent} % of the requests"
    if applied.canary:
        share = f" as the canary {applied.canary} with trafficPercent {canary_percent}"
    replaced = f", after version {applied.before}" if applied.before not in ("", str(version.number)) else ""
    metadata = service["metadata"]
    return Published(version, service, f"InferenceService {metadata['namespace']}/{metadata['name']}{share}{replaced}")


def kubeflow(model: str, *, environment: str, name: str | None, dry_run: bool) -> Published:
    """Register `model` in the Model Registry of the cluster of `environment`.

    name: of the registered model, by default the recipe's. Raises `ConfigurationError` if a cluster cannot read it, and
    as `model_registry.registration` and `model_registry.register`.
    """
    from trainyard_control.targets import model_registry as target
    from trainyard_control.targets.kserve import READERS, UNREADABLE

    loaded = environments.load(environment)
    version = _version(model, environment)
    request = target.registration(version, loaded, _name(version, name))
    remark = _remark(version, loaded, READERS, UNREADABLE, dry_run)
    return Published(version, request, "" if dry_run else target.register(request, loaded), remark)


def mlflow(model: str, *, environment: str, name: str | None, dry_run: bool) -> Published:
    """Log `model` as a run of the MLflow server of MLFLOW_TRACKING_URI, and register it.

    name: of the registered model, by default the recipe's. Raises as `mlflow.register`.
    """
    from trainyard_control.targets import mlflow as target

    version = _version(model, environment)
    request = target.registration(version, _name(version, name))
    return Published(version, request, "" if dry_run else target.register(version, request))


def vertex(
    model: str,
    *,
    environment: str,
    name: str | None,
    endpoint: str,
    machine: str,
    canary_percent: int | None,
    dry_run: bool,
) -> Published:
    """Upload `model` to the Model Registry of the project of `environment`, and deploy it to `endpoint` unless ''.

    name: id and display name of the model, by default the recipe's. machine: type of the endpoint's machine.
    canary_percent: share of the endpoint's requests; None for all. Raises `DataError` if `trainyard serve` cannot serve
    it, `ConfigurationError` if Vertex AI cannot read it, and as `vertex.upload_request`, `vertex.upload` and
    `vertex.deploy`.
    """
    from trainyard_control.targets import vertex as target
    from trainyard_control.targets.vertex import settings_of

    if canary_percent is not None and not endpoint:
        raise ConfigurationError("--canary-percent: is the share at an endpoint. Name it by --endpoint.")
    loaded = environments.load(environment)
    settings = settings_of(loaded)
    version = _version(model, environment)
    open_model(version.folder)
    name = _name(version, name)
    body = target.upload_request(version, loaded, settings, name)
    deployment = (endpoint, machine, canary_percent, loaded.kms_key)
    requests = target.deploy_requests(settings, name, *deployment) if endpoint else {}
    request = {"models.upload": body, **requests} if endpoint else body
    remark = _remark(version, loaded, target.READERS, target.UNREADABLE, dry_run)
    if dry_run:
        return Published(version, request, remark=remark)
    uploaded = target.upload(body, settings)
    place = f"{uploaded}, at {target.deploy(requests, uploaded, settings)}" if endpoint else uploaded
    return Published(version, request, place)


def _remark(
    version: Version, environment: Environment, readers: tuple[str, ...], unreadable: str, dry_run: bool
) -> str:
    """Return the sentence if the version's URI begins with none of `readers`, '' otherwise.

    Raises it as `ConfigurationError` unless this is a dry run.
    """
    from trainyard_control.targets.kserve import storage_uri

    if storage_uri(version.folder, environment).startswith(readers):
        return ""
    if not dry_run:
        raise ConfigurationError(f"{version.folder}: {unreadable}")
    return f"{version.folder}: {unreadable}"


def _name(version: Version, name: str | None) -> str:
    """Return the name of the model on a server."""
    return (version.recipe or default_name(version.folder)) if name is None else name


def _version(model: str, environment: str) -> Version:
    """Return the version that `model` names. Raises `DataError` if Trainyard did not push it, and as `find_one`."""
    version = find_one(model, environment)
    if version.unapproved:
        raise ConfigurationError(
            f"{model}: version {version.number} {version.unapproved}. Only an approved version is published."
        )
    if version.fault:
        raise DataError(version.fault)
    return version
