"""Jobs of Vertex AI Pipelines, and a pushed version as its model, which `trainyard serve` answers at an endpoint.

Not yet tested with an account.
Source: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models/upload,
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.endpoints/deployModel and
https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements (AIP_STORAGE_URI, AIP_HTTP_PORT).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainyard.contract.pushed_versions import PushedVersion
from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError, TransientError
from trainyard.spec.environment import Environment, Vertex
from trainyard.storage import cache, storage
from trainyard_control.compiler.compilation import Submission
from trainyard_control.targets.kserve import storage_uri

READERS = ("gs://",)
UNREADABLE = "Vertex AI reads gs:// only. Push to a gs:// storage."
"""The sentence about a version at a URI that begins with none of `READERS`."""
_ALIAS = re.compile(r"[a-z]([a-zA-Z0-9-]{0,126}[a-z0-9-])?")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_MACHINE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
_ENDPOINT = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,18}")
_VERSION = "trainyard-version"
_NEW = "0"  # the model that a request deploys, in its trafficSplit
_PORT = 8080
_SECONDS = 1800  # chosen: Vertex AI copies the files meanwhile, or starts a machine
Connect = Callable[[Any], Any]


def upload_request(version: PushedVersion, environment: Environment, settings: Vertex, name: str) -> dict[str, Any]:
    """Return the body of models:upload for `version` as a new model `name`, with the keys of the REST API.

    Raises `ConfigurationError` if Vertex AI takes no such name or alias, or no container image is known.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--model-name {name[:100]!r}: not an id of a model. Use at most 63 lowercase letters, digits, '-' and "
            "'_', and start with a letter."
        )
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
        "labels": {_VERSION: str(version.number)},
        "artifactUri": storage_uri(version.folder, environment),
        "containerSpec": {
            "imageUri": image,
            "args": ["serve", "$(AIP_STORAGE_URI)", *arguments],
            "ports": [{"containerPort": _PORT}],
            "predictRoute": f"/v1/models/{name}:predict",
            "healthRoute": "/v2/health/ready",
        },
        "encryptionSpec": _encryption(environment.kms_key),
    }
    body = {
        "parent": _parent(settings),
        "modelId": name,
        "model": {key: value for key, value in model.items() if value},
    }
    return body | ({"serviceAccount": settings.service_account} if settings.service_account else {})


def deploy_requests(
    settings: Vertex, name: str, endpoint: str, machine: str, percent: int | None, kms_key: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the bodies of endpoints.create and endpoints:deployModel for the model `name`, by method.

    percent: share of the requests that it gets, None for all. kms_key: the model's. Names in capitals are known once
    the server has answered: VERSION, and DEPLOYED_MODEL for each one that had requests before. Raises
    `ConfigurationError` for a name that no endpoint or machine can have.
    """
    if not _ENDPOINT.fullmatch(endpoint):
        raise ConfigurationError(
            f"--endpoint {endpoint[:100]!r}: not an id of an endpoint. Use at most 63 lowercase letters, digits and "
            "'-', and start with a letter, or give the number of an endpoint."
        )
    if not _MACHINE.fullmatch(machine):
        raise ConfigurationError(
            f"--machine-type {machine[:100]!r}: not a machine type. Name one of Compute Engine, such as n1-standard-2."
        )
    resources = {"machineSpec": {"machineType": machine}, "minReplicaCount": 1, "maxReplicaCount": 1}
    share = 100 if percent is None else percent
    return {
        "endpoints.create": {
            "parent": _parent(settings),
            "endpointId": endpoint,
            "endpoint": {"displayName": endpoint, "labels": {"trainyard-model": name}}
            | ({"encryptionSpec": _encryption(kms_key)} if kms_key else {}),
        },
        "endpoints.deployModel": {
            "endpoint": f"{_parent(settings)}/endpoints/{endpoint}",
            "deployedModel": {
                "model": f"{_parent(settings)}/models/{name}@VERSION",
                "displayName": name,
                "dedicatedResources": resources,
            },
            "trafficSplit": traffic_split({"DEPLOYED_MODEL": 100}, _NEW, share),
        },
    }


def _encryption(kms_key: str) -> dict[str, str]:
    return {"kmsKeyName": kms_key} if kms_key else {}


def traffic_split(shares: Mapping[str, int], version_id: str, percent: int) -> dict[str, int]:
    """Return shares of the requests: `percent` for `version_id`, the rest for others in proportion to `shares`.

    >>> traffic_split({"7": 50, "8": 50}, "0", 15)
    {'0': 15, '7': 43, '8': 42}
    """
    rest = {name: share for name, share in shares.items() if name != version_id and share}
    total, left = sum(rest.values()), 100 - percent
    if not total and left:
        raise ConfigurationError(
            "--canary-percent: no other version at the endpoint gets requests, so none could get the rest. Publish "
            "without --canary-percent first."
        )
    split = {name: share * left // total for name, share in rest.items()}
    for name in sorted(rest, key=lambda name: -(rest[name] * left % total))[: left - sum(split.values())]:
        split[name] += 1
    return {name: share for name, share in {version_id: percent, **split}.items() if share}


def upload(body: dict[str, Any], settings: Vertex, connect: Connect | None = None) -> str:
    """Upload as `upload_request` says and return the version's name: of the next version if the model exists.

    If the same files are uploaded already for the same container image, only the aliases are set. connect: returns a
    client of a class, by default with the account's credentials. Raises `ConfigurationError` without
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
        client = (connect or _connect(settings))(ModelServiceClient)
        known = f"{body['parent']}/models/{body['modelId']}"
        try:
            for version in client.list_model_versions(name=known):
                if _is_same(version, body["model"]):
                    name = f"{known}@{version.version_id}"
                    if new := sorted(set(body["model"].get("versionAliases", [])) - set(version.version_aliases)):
                        client.merge_version_aliases(name=name, version_aliases=new)
                    return name
            body = {key: value for key, value in body.items() if key != "modelId"} | {"parentModel": known}
        except exceptions.NotFound:
            pass
        request = UploadModelRequest(ParseDict(body, UploadModelRequest.pb()()))
        done = client.upload_model(request).result(timeout=_SECONDS)
    return f"{known}@{done.model_version_id}"


def deploy(requests: dict[str, dict[str, Any]], model: str, settings: Vertex, connect: Connect | None = None) -> str:
    """Deploy the version `model` as `deploy_requests` says, and return where and with which share of the requests.

    A version that is deployed already gets the share only. connect and the errors are as in `upload`.
    """
    from google.api_core import exceptions
    from google.cloud.aiplatform_v1 import CreateEndpointRequest, DeployModelRequest, EndpointServiceClient
    from google.cloud.aiplatform_v1.types import Endpoint
    from google.protobuf.json_format import ParseDict

    create, body = requests["endpoints.create"], requests["endpoints.deployModel"]
    share = body["trafficSplit"].get(_NEW, 0)
    with client_errors(InfrastructureError):
        client = (connect or _connect(settings))(EndpointServiceClient)
        try:
            endpoint = client.get_endpoint(name=body["endpoint"])
        except exceptions.NotFound:
            traffic_split({}, _NEW, share)  # before a new endpoint without requests is left
            request = CreateEndpointRequest(ParseDict(create, CreateEndpointRequest.pb()()))
            endpoint = client.create_endpoint(request).result(timeout=_SECONDS)
        deployed = next(
            (one.id for one in endpoint.deployed_models if _version_of(one) == model.rpartition("/")[2]), _NEW
        )
        split = traffic_split(endpoint.traffic_split, deployed, share)
        if deployed == _NEW:
            body = {**body, "deployedModel": {**body["deployedModel"], "model": model}, "trafficSplit": split}
            client.deploy_model(DeployModelRequest(ParseDict(body, DeployModelRequest.pb()()))).result(timeout=_SECONDS)
        else:
            client.update_endpoint(
                endpoint=Endpoint(name=body["endpoint"], traffic_split=split), update_mask={"paths": ["traffic_split"]}
            )
    return f"{body['endpoint']} with {share} % of the requests"


def _is_same(version: Any, model: dict[str, Any]) -> bool:
    """Return True if `version` of the registry has the files and the container image of `model`."""
    return (version.artifact_uri, version.container_spec.image_uri, version.labels.get(_VERSION)) == (
        model["artifactUri"],
        model["containerSpec"]["imageUri"],
        model["labels"][_VERSION],
    )


def _version_of(deployed: Any) -> str:
    """Return NAME@VERSION of a deployed model. Vertex AI writes the project as a number, so paths do not compare."""
    name, _, version = deployed.model.rpartition("/")[2].partition("@")
    return f"{name}@{deployed.model_version_id or version}"


def _connect(settings: Vertex) -> Connect:
    address = {"api_endpoint": f"{settings.location}-aiplatform.googleapis.com"}
    return lambda kind: kind(client_options=address)


def _parent(settings: Vertex) -> str:
    return f"projects/{settings.project}/locations/{settings.location}"


def job(submission: Submission, credentials: Any = None) -> Any:
    """Return the PipelineJob to send. Its id is the name of the run, which is unique in Vertex AI."""
    try:
        from google.cloud import aiplatform
    except ImportError as error:
        raise ConfigurationError(
            "vertex: the package google-cloud-aiplatform is missing. Install trainyard[vertex]."
        ) from error

    settings = settings_of(submission.environment)
    with cache.temporary_folder() as folder:
        file = folder / "pipeline.yaml"
        file.write_text(submission.package, encoding="utf-8")
        return aiplatform.PipelineJob(
            display_name=submission.run,
            job_id=submission.run,
            template_path=str(file),
            pipeline_root=storage.join(submission.environment.storage, "pipeline-root"),
            labels={"pipeline": submission.pipeline, "version": submission.version},
            project=settings.project,
            location=settings.location,
            credentials=credentials,
            encryption_spec_key_name=submission.environment.kms_key or None,
        )


def send(submission: Submission) -> tuple[str, bool]:
    """Return the job's resource name, and True if a job of that name already existed."""
    from google.api_core import exceptions

    settings = settings_of(submission.environment)
    with client_errors(ConfigurationError):
        try:
            made = job(submission)
            made.submit(service_account=settings.service_account or None)
        except exceptions.AlreadyExists:
            return f"projects/{settings.project}/locations/{settings.location}/pipelineJobs/{submission.run}", True
    return str(made.resource_name), False


@contextmanager
def client_errors(refused: type[TrainyardError]) -> Iterator[None]:
    """Raise errors of Google's clients as those of Trainyard. refused: of a request that Vertex AI does not accept."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (exceptions.Unauthenticated, exceptions.Forbidden, GoogleAuthError) as error:
        raise InfrastructureError(
            f"vertex: refused ({error}). Log in by `gcloud auth application-default login`, or have the role "
            "Vertex AI User granted."
        ) from error
    except exceptions.ClientError as error:
        raise refused(f"vertex: refused ({error}).") from error
    except exceptions.GoogleAPIError as error:
        raise TransientError(f"vertex: cannot be reached ({error}). Run the same command again.") from error


def settings_of(environment: Environment) -> Vertex:
    """Return the project and region. Raises `ConfigurationError` if the environment names none."""
    if environment.vertex is None:
        raise ConfigurationError(f"{environment.name}: vertex: is required. Name the project and the location.")
    return environment.vertex
