"""A pushed version as a model of Vertex AI's Model Registry, which `trainyard serve` answers. Never sent to Google.

Source: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models/upload and
https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements (AIP_STORAGE_URI, AIP_HTTP_PORT).
"""

from __future__ import annotations

import re
from typing import Any

from trainyard.contract.pushed_versions import PushedVersion
from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.spec.environment import Environment, Vertex
from trainyard_control.compiler.vertex import client_errors

_ALIAS = re.compile(r"[a-z]([a-zA-Z0-9-]{0,126}[a-z0-9-])?")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_PORT = 8080
_SECONDS = 1800  # chosen: Vertex AI copies the files meanwhile


def upload_request(version: PushedVersion, environment: Environment, settings: Vertex, name: str) -> dict[str, Any]:
    """Return the body of models:upload for `version` as a new model `name`, with the keys of the REST API.

    Raises `ConfigurationError` if Vertex AI cannot read the version, takes no such name or alias, or no container image
    is known.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--model-name {name[:100]!r}: not an id of a model. Use at most 63 lowercase letters, digits, '-' and "
            "'_', and start with a letter."
        )
    if not version.folder.startswith("gs://"):
        raise ConfigurationError(f"{version.folder}: Vertex AI reads gs:// only. Push to a gs:// storage.")
    if not (image := environment.images.get("cpu")):
        raise ConfigurationError(f"{environment.name}: images.cpu: is missing, which serves the model. Name it.")
    if refused := [alias for alias in version.aliases if not _ALIAS.fullmatch(alias)]:
        raise ConfigurationError(
            f"alias '{refused[0]}': Vertex AI allows letters, digits and '-' only. Name another by `models alias`."
        )
    arguments = ["--host", "0.0.0.0", "--port", str(_PORT), "--model-name", name]  # noqa: S104
    model = {
        "displayName": name,
        "versionAliases": list(version.aliases),
        "versionDescription": ", ".join(filter(None, [version.name, version.metric])),
        "labels": {"trainyard-version": str(version.number)},
        "artifactUri": version.folder,
        "containerSpec": {
            "imageUri": image,
            "args": ["serve", "$(AIP_STORAGE_URI)", *arguments],
            "ports": [{"containerPort": _PORT}],
            "predictRoute": f"/v1/models/{name}:predict",
            "healthRoute": "/v2/health/ready",
        },
    }
    body = {
        "parent": _parent(settings),
        "modelId": name,
        "model": {key: value for key, value in model.items() if value},
    }
    return body | ({"serviceAccount": settings.service_account} if settings.service_account else {})


def upload(body: dict[str, Any], settings: Vertex, transport: Any = None) -> str:
    """Upload as `upload_request` says, or as the next version if the model exists; return the version's name.

    transport: of the client, by default with the account's credentials. Raises `ConfigurationError` without
    google-cloud-aiplatform, `InfrastructureError` if Vertex AI refuses, `TransientError` if it cannot be reached.
    """
    try:
        from google.cloud.aiplatform_v1 import ModelServiceClient, UploadModelRequest
    except ImportError as error:
        raise ConfigurationError(
            "vertex: the package google-cloud-aiplatform is missing. Install trainyard[vertex]."
        ) from error
    from google.api_core import exceptions
    from google.protobuf.json_format import ParseDict

    with client_errors(InfrastructureError):
        address = {"api_endpoint": f"{settings.location}-aiplatform.googleapis.com"}
        client = ModelServiceClient(transport=transport, client_options=None if transport else address)
        known = f"{body['parent']}/models/{body['modelId']}"
        try:
            client.get_model(name=known)
            body = {key: value for key, value in body.items() if key != "modelId"} | {"parentModel": known}
        except exceptions.NotFound:
            pass
        request = UploadModelRequest(ParseDict(body, UploadModelRequest.pb()()))
        done = client.upload_model(request).result(timeout=_SECONDS)
    return f"{done.model}@{done.model_version_id}"


def _parent(settings: Vertex) -> str:
    return f"projects/{settings.project}/locations/{settings.location}"
