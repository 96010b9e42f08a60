"""A pushed version as a version in Kubeflow's Model Registry.

Source: https://github.com/kubeflow/hub/blob/bd07139/api/openapi/model-registry.yaml (v1alpha3);
https://github.com/kubeflow/hub/issues/2992: the same objects have other paths in v1.
"""

from __future__ import annotations

import re
from typing import Any

from trainyard.contract.pushed_versions import PushedVersion
from trainyard.contract.version import SERVED
from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.graph import remedy
from trainyard.kubernetes import client
from trainyard.kubernetes.client import Cluster, Manifest
from trainyard.spec.environment import Environment
from trainyard.storage import storage
from trainyard_control.cluster.environments import bundle_file
from trainyard_control.cluster.login import Login
from trainyard_control.targets.kserve import storage_uri

_API = "/api/model_registry"
_VERSIONS = ("v1", "v1alpha3")  # since release 0.3.15; until 2027
_SERVICE = "services/model-registry-service:8080/proxy"  # as Kubeflow's manifests install it
_OURS = "trainyard."  # before the names of properties
_DIGEST = f"{_OURS}digest"
_NAME = re.compile(r"[\w .-]{1,250}")
_ARTIFACT = "model-artifact"
_REMEDY = (
    "Correct what it names, renew the token, have your account granted get and create on services/proxy, or name the "
    "URL as kubeflow.model_registry in the environment."
)


def registration(version: PushedVersion, environment: Environment, name: str) -> dict[str, Any]:
    """Return the three objects for `version` of the model `name`: registered model, version and files.

    The server gives the id of the registered model, which is added to the version. Raises `ConfigurationError` if the
    registry cannot find such a name.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--model-name {name[:100]!r}: not a name of a registered model. Use at most 250 letters, digits, spaces, "
            "'.', '_' and '-'."
        )
    record, manifest = version.record, storage.require(version.folder, remedy("push"))
    texts = {
        _DIGEST: manifest.digest,
        f"{_OURS}run": record.run.rpartition("/")[2],
        f"{_OURS}fingerprint": record.fingerprint,
        f"{_OURS}pushed": record.pushed,
        f"{_OURS}aliases": ", ".join(version.aliases),
    }
    properties: dict[str, dict[str, Any]] = {
        key: {"metadataType": "MetadataStringValue", "string_value": text} for key, text in texts.items() if text
    }
    for metric, value in record.metrics.items():
        properties[f"{_OURS}metric.{metric}"] = {"metadataType": "MetadataDoubleValue", "double_value": value}
    author = {"author": record.by} if record.by else {}
    known_format = {"modelFormatName": "tensorflow", "modelFormatVersion": "2"} if SERVED in manifest.files else {}
    return {
        "registered_model": {"name": name, **({"owner": record.by} if record.by else {})},
        "model_version": {"name": str(version.number), **author, "customProperties": properties},
        "artifact": {
            "artifactType": _ARTIFACT,
            "name": name,
            "uri": storage_uri(version.folder, environment),
            "state": "LIVE",
            **known_format,
        },
    }


def register(request: dict[str, Any], environment: Environment) -> str:
    """Register as `registration` says, and return the URI of the version. What exists already is updated.

    Raises `ConfigurationError` if the registry has other files under this number, `InfrastructureError` if it refuses,
    `TransientError` if it cannot be reached.
    """
    registry, root = _connect(environment)
    try:
        _write(registry, _current(registry, root), request)
    except (InfrastructureError, TransientError) as error:
        cause = error.__cause__ or error
        said = client.message(cause) if hasattr(cause, "status") else client.reason(cause)
        if isinstance(error, InfrastructureError):
            raise InfrastructureError(f"Model Registry: {registry.host} refused ({said}). {_REMEDY}") from error
        raise TransientError(
            f"Model Registry: {registry.host} cannot be used ({said}). Check kubeflow.model_registry in the "
            "environment, and run the same command again."
        ) from error
    return f"model-registry://{request['registered_model']['name']}/{request['model_version']['name']}"


def _write(registry: Cluster, root: str, request: dict[str, Any]) -> None:
    model, version, artifact = request["registered_model"], request["model_version"], request["artifact"]
    known = registry.get(f"{root}/registered_model", {"name": model["name"]})
    parent = (known or registry.post(f"{root}/registered_models", model))["id"]
    found = registry.get(f"{root}/model_version", {"name": version["name"], "parentResourceId": parent})
    if found is None:
        found = registry.post(f"{root}/model_versions", {**version, "registeredModelId": parent})
    elif _digest(found) != _digest(version):
        raise ConfigurationError(
            f"Model Registry: version {version['name']} of {model['name']} is registered with other files. Give "
            "another --model-name."
        )
    else:
        foreign = {key: text for key, text in found["customProperties"].items() if not key.startswith(_OURS)}
        properties = {"customProperties": foreign | version["customProperties"]}
        registry.patch(f"{root}/model_versions/{found['id']}", properties)
    place = f"{root}/model_versions/{found['id']}/artifacts"
    listed = registry.get(place, {"name": artifact["name"], "artifactType": _ARTIFACT}) or {"items": []}
    if not listed["items"]:
        registry.post(place, artifact)
    elif listed["items"][0]["uri"] != artifact["uri"]:
        changed = {key: artifact[key] for key in ("artifactType", "uri", "state")}
        registry.patch(f"{root}/model_artifacts/{listed['items'][0]['id']}", changed)


def _current(registry: Cluster, root: str) -> str:
    """Return the path of the newest API that the server has, otherwise of the oldest, whose error then tells more."""
    for version in _VERSIONS[:-1]:
        if registry.get(f"{root}/{version}/registered_models", {"pageSize": 1}):
            return f"{root}/{version}"
    return f"{root}/{_VERSIONS[-1]}"


def _connect(environment: Environment) -> tuple[Cluster, str]:
    """Connect to the registry, and return the path of its API: directly, or through the Kubernetes API server."""
    settings = environment.kubeflow
    if not settings.model_registry:
        cluster = client.connect(settings.namespace)
        return cluster, cluster.path(_SERVICE) + _API
    from kubernetes.client import ApiClient, Configuration

    configuration = Configuration()
    configuration.host = settings.model_registry.rstrip("/")
    configuration.ssl_ca_cert = bundle_file(environment) or None
    api = ApiClient(configuration)
    Login(settings, settings.model_registry).attach(api, environment.namespace)
    return Cluster(api, settings.namespace), _API


def _digest(version: Manifest) -> str:
    return str(version.get("customProperties", {}).get(_DIGEST, {}).get("string_value", ""))
