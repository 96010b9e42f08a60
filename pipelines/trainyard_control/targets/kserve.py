"""A pushed version as a KServe InferenceService, which `trainyard serve` answers.

KServe's own TensorFlow runtime is not offered: it looks for numbered folders in `storageUri`, so it would serve the
highest version instead of the one that is named.

Source: https://github.com/kserve/kserve/blob/v0.20.0/pkg/apis/serving/v1beta1/predictor_custom.go (STORAGE_URI),
component.go beside it (canaryTrafficPercent), and inference_service.go and inference_service_validation.go (canary).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.pushed_versions import PushedVersion
from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.kubernetes import client
from trainyard.kubernetes.client import Cluster, Manifest
from trainyard.kubernetes.pod_spec import bundle_source, literal_value, variables
from trainyard.serving.options import LogOptions
from trainyard.spec.environment import CA_FOLDER, CA_VARIABLES, Environment
from trainyard.uris import is_bucket, path_error, without_secrets

GROUP = "apis/serving.kserve.io/v1beta1"
KIND = "inferenceservices"
_MANAGER = "trainyard"
_MANAGED_BY = "app.kubernetes.io/managed-by"
_VERSION = "trainyard/version"
_RUN = "trainyard/run"
_MODE = "serving.kserve.io/deploymentMode"
_PERCENT = "canaryTrafficPercent"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?")  # NAME-predictor is a Service, of at most 63 characters
_LONGEST_LABEL = 63  # specified: of a host's name, in RFC 1035
READERS = ("gs://", "s3://", "pvc://")
UNREADABLE = "a cluster cannot read this folder. Push to a gs:// or s3:// storage, or to the environment's volume."
"""The sentence about a version at a URI that begins with none of `READERS`."""

_MODELS = "/mnt/models"  # where KServe leaves what STORAGE_URI names
_PORT = 8080
_RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}


def inference_service(
    version: PushedVersion,
    environment: Environment,
    name: str,
    canary_percent: int | None,
    log: LogOptions | None = None,
) -> Manifest:
    """Return the InferenceService `name` that serves `version`.

    canary_percent: share of the requests that it gets; the version before keeps the others. log: of the server, which
    for S3 gets the environment's variables and Secrets AWS_*. Raises `ConfigurationError` if no container image or name
    is known, or the log is in no bucket.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--model-name {name[:100]!r}: not a name of an object. Use at most 53 lowercase letters, digits and '-', "
            "start with a letter, and end with a letter or a digit."
        )
    host = f"{name}-predictor-{environment.namespace}"  # by domainTemplate of KServe's Helm chart and manifests
    if len(host) > _LONGEST_LABEL:
        raise ConfigurationError(
            f"--model-name {name}: KServe's host {host} has {len(host)} characters. At most {_LONGEST_LABEL} are "
            "possible. Give a shorter --model-name, or a namespace with a shorter name."
        )
    if not (image := environment.images.get("cpu")):
        raise ConfigurationError(f"{environment.name}: images.cpu: is missing, which serves the model. Name it.")
    container: Manifest = {
        "name": "kserve-container",
        "image": image,
        "args": ["serve", _MODELS, "--host", "0.0.0.0", "--port", str(_PORT), "--model-name", name],  # noqa: S104
        "env": [{"name": "STORAGE_URI", "value": storage_uri(version.folder, environment)}],
        "ports": [{"containerPort": _PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": _PORT}},
        "resources": _RESOURCES,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if log:
        if why := path_error(log.folder) if is_bucket(log.folder) else "a pod loses its files when it ends":
            raise ConfigurationError(f"--log {without_secrets(log.folder)[:200]}: {why}. Name a gs:// or s3:// folder.")
        container["args"] += ["--log", literal_value(log.folder), "--sample", f"{log.sample:g}"]
        container["env"] += _store_variables(environment) if log.folder.startswith("s3://") else []
    volumes = []
    if bundle := environment.ca_bundle:
        container["env"] += [{"name": name, "value": bundle.path} for name in CA_VARIABLES]
        container["volumeMounts"] = [{"name": "ca-bundle", "mountPath": CA_FOLDER}]
        volumes = [{"name": "ca-bundle", **bundle_source(bundle)}]
    account = environment.service_accounts.server or environment.service_accounts.run
    pull_secrets = [{"name": secret} for secret in environment.image_pull_secrets]
    canary = {} if canary_percent is None else {_PERCENT: canary_percent}
    notes = {_VERSION: str(version.number), _RUN: version.record.run.rpartition("/")[2]}
    return {
        "apiVersion": GROUP.removeprefix("apis/"),
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": environment.namespace,
            "labels": {_MANAGED_BY: _MANAGER},
            "annotations": {key: text for key, text in notes.items() if text},
        },
        "spec": {
            "predictor": {
                **({"serviceAccountName": account} if account else {}),
                "automountServiceAccountToken": False,
                **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
                **({"volumes": volumes} if volumes else {}),
                **canary,
                "containers": [container],
            }
        },
    }


def _store_variables(environment: Environment) -> list[Manifest]:
    """Return the variables by which an S3 client in a pod finds its endpoint and its keys."""
    values = {name: value for name, value in environment.variables.items() if name.startswith("AWS_")}
    secrets = {name: source for name, source in environment.secrets.items() if name.startswith("AWS_")}
    return variables(values, secrets)


@dataclass(frozen=True)
class Applied:
    """The outcome of `apply`. before: number of the version that served, '' if the object is new.

    canary: name of the version's entry in spec.canary, '' if it has none.
    """

    before: str
    canary: str


def apply(service: Manifest, cluster: Cluster) -> Applied:
    """Create or update `service`, whose canary takes the form of the object's deployment mode.

    Raises `ConfigurationError` for a share of the requests that KServe would not keep, `InfrastructureError` if the
    cluster refuses the object, and as `Cluster`.
    """
    name, predictor = service["metadata"]["name"], service["spec"]["predictor"]
    title = f"InferenceService {cluster.namespace}/{name}"
    path = cluster.path(KIND, name, GROUP)
    before = cluster.get(path) or {}
    metadata = before.get("metadata", {})
    if before and metadata.get("labels", {}).get(_MANAGED_BY) != _MANAGER:
        raise ConfigurationError(f"{title}: exists, and Trainyard did not create it. Give another --model-name.")
    if _PERCENT in predictor and not before:
        raise ConfigurationError(
            f"{title}: does not exist, so no version serves the other requests. Publish without --canary-percent first."
        )
    mode = before.get("status", {}).get("deploymentMode") or metadata.get("annotations", {}).get(_MODE, "")
    if _PERCENT in predictor and mode == "RawDeployment":
        raise ConfigurationError(
            f"{title}: its deployment mode is {mode}, in which KServe before 0.20 has no canary. "
            "Update KServe, use the mode Knative, or publish without --canary-percent."
        )
    if mode == "Standard":
        service = in_standard_mode(service, before)
    try:
        cluster.apply(path, service, _MANAGER)
    except InfrastructureError as error:
        raise InfrastructureError(f"{title}: not published. {_remedy(error)}", *error.args) from error
    canaries = service["spec"].get("canary", [])
    return Applied(
        str(metadata.get("annotations", {}).get(_VERSION, "")), canaries[0]["predictor"]["name"] if canaries else ""
    )


def in_standard_mode(service: Manifest, live: Manifest) -> Manifest:
    """Return `service` for the object `live` of KServe's deployment mode Standard.

    A canary becomes the entry of spec.canary, and the predictor stays as it was applied. Otherwise the entry goes; if
    it has the same files, its name becomes the predictor's, so that its Deployment continues to serve. Raises
    `ConfigurationError` if the version serves already, or its host's name is too long.
    """
    metadata, predictor = service["metadata"], service["spec"]["predictor"]
    known, stable = live.get("metadata", {}).get("annotations", {}), live.get("spec", {}).get("predictor", {})
    title = f"InferenceService {metadata['namespace']}/{metadata['name']}"
    if _PERCENT not in predictor:
        canaries = [entry["predictor"] for entry in live.get("spec", {}).get("canary", [])]
        promoted = [canary["name"] for canary in canaries if _served_uri(canary) == _served_uri(predictor)]
        if name := [*promoted, stable.get("name", "")][0]:
            predictor = {**predictor, "name": name}
        notes = {**metadata["annotations"], **({_MODE: known[_MODE]} if _MODE in known else {})}
        return {**service, "metadata": {**metadata, "annotations": notes}, "spec": {"predictor": predictor}}
    number = metadata["annotations"][_VERSION]
    if _served_uri(stable) == _served_uri(predictor):
        raise ConfigurationError(
            f"{title}: version {number} serves already, so it is no canary. Name another version, or publish without "
            "--canary-percent."
        )
    name = f"v{number}" if stable.get("name") != f"v{number}" else f"v{number}-2"  # a promoted canary keeps its name
    host = f"{metadata['name']}-{name}-predictor-{metadata['namespace']}"
    if len(host) > _LONGEST_LABEL:
        raise ConfigurationError(
            f"{title}: the canary's host {host} has {len(host)} characters. At most {_LONGEST_LABEL} are possible. "
            "Publish without --canary-percent, or under a shorter --model-name."
        )
    entry = {"predictor": {"name": name, **predictor}, "trafficPercent": predictor[_PERCENT]}
    del entry["predictor"][_PERCENT]
    notes = {_MODE: "Standard", **{key: known[key] for key in (_MODE, _VERSION, _RUN) if key in known}}
    spec = {"predictor": {key: stable[key] for key in _applied(live) if key in stable}, "canary": [entry]}
    return {**service, "metadata": {**metadata, "annotations": notes}, "spec": spec}


def _served_uri(predictor: Manifest) -> str:
    variables = (variable for container in predictor.get("containers", []) for variable in container.get("env", []))
    return next((variable.get("value", "") for variable in variables if variable["name"] == "STORAGE_URI"), "")


def _applied(live: Manifest) -> list[str]:
    """Return the fields of the predictor that Trainyard applied; the others belong to other programs.

    Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/#managers.
    """
    fields: list[str] = []
    for manager in live.get("metadata", {}).get("managedFields", []):
        if (manager["manager"], manager["operation"]) == (_MANAGER, "Apply"):
            fields += manager.get("fieldsV1", {}).get("f:spec", {}).get("f:predictor", {})
    return [field.removeprefix("f:") for field in fields if field.startswith("f:")]


def storage_uri(folder: str, environment: Environment) -> str:
    """Return the URI of the version in `folder`, as KServe reads it; file:// if it is on this machine alone."""
    if is_bucket(folder):
        return folder
    volume, place = environment.volume, Path(folder).absolute()
    if volume and place.is_relative_to(volume.path):
        return f"pvc://{volume.claim}/{place.relative_to(volume.path)}"
    return place.as_uri()


def connect(environment: Environment) -> Cluster:
    """Connect to the cluster of KUBECONFIG, in the environment's namespace."""
    remedy = "Have your account granted get and patch on inferenceservices."
    return client.connect(environment.namespace, remedy=remedy)


def _remedy(error: InfrastructureError) -> str:
    """Return the advice for a refusal by the API server."""
    status = getattr(error.__cause__, "status", None)
    if status == 404:
        return "Install KServe in the cluster, or correct the environment's namespace."
    if status == 409:
        return (
            "Undo the change of the other program, or apply the output of --dry-run with kubectl apply --server-side "
            f"--force-conflicts --field-manager={_MANAGER}."
        )
    return "Correct what the API server names."
