"""Loads environments, and reaches their object stores from this machine as the pods do.

A store may be a Service that only pods reach, with its keys in a Secret: `variables` and `secrets` of the environment
name both. Nothing is asked before the first request to the store.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.spec import environment as environments
from trainyard.spec.environment import CaBundle, Environment, Volume
from trainyard.storage import cache as storage_cache
from trainyard.storage import storage, uploads
from trainyard.storage.buckets import gcs, s3
from trainyard.storage.buckets.objects import KMS_VARIABLE
from trainyard.storage.uploads import Upload
from trainyard.uris import is_bucket

if TYPE_CHECKING:
    from trainyard.kubernetes.client import Cluster
    from trainyard_control.cluster.port_forward import Secure
    from trainyard_control.cluster.volume_pod import VolumePod

_volume_pods: dict[tuple[str, str, str], VolumePod] = {}
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_IN_CLUSTER = re.compile(r"(?P<name>[a-z0-9-]+)(\.(?P<namespace>[a-z0-9-]+)(\.svc(\.[a-z0-9.-]+)?)?)?")
_FORBIDDEN = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)".*in the namespace "(?P<namespace>[^"]+)"')


def load(name: str) -> Environment:
    """Return the environment `name`, as `spec.environment.load` does, and have this process reach its storage.

    If the shell names an endpoint of S3, its variables are used instead of the environment's.
    """
    environment = environments.load(name)
    os.environ.pop(KMS_VARIABLE, None)
    if environment.kms_key:
        os.environ[KMS_VARIABLE] = environment.kms_key  # of this process and of the steps that it starts
    gcs.trust_by(lambda: bundle_file(environment))
    if environment.storage.startswith("s3://"):
        s3.access_by(_access(environment) or s3.Access)
    return environment


def readable_storage(environment: Environment) -> str:
    """Return the environment's storage, which a pod reads for this process if it is on a volume not mounted here.

    Only uploads are written there.
    """
    if (volume := _missing_volume(environment)) and environment.target == "kubeflow":
        from trainyard_control.cluster.volume_pod import VolumePod

        place = (environment.namespace, volume.claim, volume.path)
        if place not in _volume_pods:
            _volume_pods[place] = VolumePod(_cluster(environment.namespace), environment)
        storage.read_volume(volume.path, _volume_pods[place])
    return environment.storage


def store_uploads(named: Mapping[str, Upload], environment: Environment) -> None:
    """Upload what the storage of `environment` lacks, without a question. Raises as `uploads.send`."""
    if named:
        readable_storage(environment)
    for upload in named.values():
        uploads.store(upload)


def writable_storage(environment: Environment) -> str:
    """Return the environment's storage. Raises `ConfigurationError` if it is on a volume that is not mounted here."""
    if volume := _missing_volume(environment):
        raise ConfigurationError(
            f"{environment.name}: storage: {environment.storage} is on the volume '{volume.claim}', which is not "
            f"mounted on this machine. Mount it at {volume.path}, or run the command in a pod that has it."
        )
    return environment.storage


def _missing_volume(environment: Environment) -> Volume | None:
    """Return the volume of the environment's storage if it is not mounted here."""
    volume = environment.volume
    is_missing = volume and not is_bucket(environment.storage) and not Path(volume.path).is_dir()
    return volume if is_missing else None


def bundle_file(environment: Environment) -> str:
    """Return a file with public authorities and those of the environment's `ca_bundle`, as the cluster has it.

    A file that the shell names in REQUESTS_CA_BUNDLE is returned instead; '' without either. Raises
    `InfrastructureError` without the right to read it, `ConfigurationError` if it has no certificates.
    """
    own, bundle = os.environ.get("REQUESTS_CA_BUNDLE", ""), environment.ca_bundle
    return own if own or bundle is None else _bundle_file(environment.name, environment.namespace, bundle)


@cache
def _bundle_file(environment: str, namespace: str, bundle: CaBundle) -> str:
    import certifi

    at, key = f"{environment}: ca_bundle", bundle.key
    instead = "set AWS_CA_BUNDLE and REQUESTS_CA_BUNDLE to a file with the certificates"
    reason = f"{at}: the certificates are in the cluster"
    try:
        cluster = _cluster(namespace)
    except ConfigurationError as error:
        raise ConfigurationError(f"{reason}, and no cluster is known here. Set KUBECONFIG, or {instead}.") from error
    with missing_right(reason, instead):
        kind: Literal["Secret", "ConfigMap"] = "Secret" if bundle.secret else "ConfigMap"
        text = _value(cluster, kind, bundle.secret or bundle.config_map, key, at)
    if _CERTIFICATE not in text:
        raise ConfigurationError(f"{at}: key '{key}' holds no certificate. PEM is expected. Name another key.")
    file = storage_cache.folder() / f"ca-{hashlib.sha256(text.encode()).hexdigest()[:16]}.pem"
    storage.write_text(str(file), f"{Path(certifi.where()).read_text(encoding='utf-8')}\n{text}\n")
    return str(file)


def _access(environment: Environment) -> _PodAccess | None:
    """Return the access of pods to S3, None if the environment has none or the shell names an endpoint."""
    if environment.target != "kubeflow" or any(map(os.environ.get, ENDPOINTS)):
        return None
    wanted = (*ENDPOINTS, *_REGIONS, *_KEYS)
    variables = tuple((name, environment.variables[name]) for name in wanted if name in environment.variables)
    secrets = {name: environment.secrets[name] for name in _KEYS if name in environment.secrets}
    named = tuple((name, key.secret, key.key) for name, key in secrets.items())
    if not (variables or named or environment.ca_bundle):
        return None
    return _PodAccess(environment.name, environment.namespace, variables, named, environment.ca_bundle)


@dataclass(frozen=True)
class _PodAccess:
    """Variables and Secrets by which the pods of an environment reach S3. Called, it returns this process's access."""

    environment: str
    namespace: str
    variables: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str, str], ...]
    bundle: CaBundle | None = None

    def __call__(self) -> s3.Access:
        """Open a port-forward if the endpoint is a Service of the cluster, and read the keys and certificates.

        Raises `InfrastructureError` if a right is missing, `ConfigurationError` if a Service or Secret is.
        """
        variables = dict(self.variables)
        endpoint = next((variables[name] for name in ENDPOINTS if name in variables), "")
        reached = self._forwarded(endpoint) or endpoint
        keys = {name: variables[name] for name in _KEYS if name in variables}
        if self.secrets and (reached != endpoint or not _has_credentials()):
            keys |= self._secret_keys()
        region = next((variables[name] for name in _REGIONS if name in variables), "")
        bundle = ""
        if self.bundle and not reached.startswith("http://") and not os.environ.get("AWS_CA_BUNDLE"):
            bundle = _bundle_file(self.environment, self.namespace, self.bundle)
        return replace(s3.Access(reached, region, *(keys.get(name, "") for name in _KEYS)), bundle=bundle)

    def _forwarded(self, endpoint: str) -> str:
        """Return the address on this machine from which `endpoint` is forwarded, '' if that is no Service."""
        url = urlsplit(endpoint)
        match = _IN_CLUSTER.fullmatch(url.hostname or "")
        if not match or _is_address(match[0]) or match[0] == "localhost" or os.environ.get("KUBERNETES_SERVICE_HOST"):
            return ""
        from trainyard_control.cluster.port_forward import forward

        cluster = replace(_cluster(self.namespace), namespace=match["namespace"] or self.namespace)
        reason = f"{self.environment}: storage: {endpoint} is only reached from pods"
        secure, port = (self._secure(match[0]), 443) if url.scheme == "https" else (None, 80)
        try:
            with missing_right(reason, "set AWS_ENDPOINT_URL_S3 to an address that this machine reaches"):
                local = forward(cluster, match["name"], url.port or port, secure)
        except ssl.SSLCertVerificationError as error:
            raise InfrastructureError(
                f"{self.environment}: storage: the certificate of {endpoint} is not trusted ({error.verify_message}). "
                "Name the certificates of its authority as ca_bundle in the environment, or a file of them in "
                "AWS_CA_BUNDLE."
            ) from error
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"{self.environment}: storage: {endpoint}: no TLS is spoken there ({error.reason or error}). Correct "
                "the endpoint."
            ) from error
        return f"http://127.0.0.1:{local}{url.path}" if local else ""

    def _secure(self, host: str) -> Secure:
        """Return the function that adds TLS to a connection to `host`."""
        bundle = os.environ.get("AWS_CA_BUNDLE", "")
        if self.bundle and not bundle:
            bundle = _bundle_file(self.environment, self.namespace, self.bundle)
        context = ssl.create_default_context(cafile=bundle or None)
        return partial(context.wrap_socket, server_hostname=host)

    def _secret_keys(self) -> dict[str, str]:
        """Return the keys in the environment's Secrets; none if they must not be read and the shell has some."""
        cluster, values = _cluster(self.namespace), {}
        reason, instead = f"{self.environment}: storage: its keys are in a Secret", f"set {' and '.join(_KEYS[:2])}"
        try:
            with missing_right(reason, instead):
                for name, secret, key in self.secrets:
                    values[name] = _value(cluster, "Secret", secret, key, f"{self.environment}: secrets.{name}")
        except InfrastructureError:
            if all(map(os.environ.get, _KEYS[:2])):
                return {}
            raise
        return values


def _cluster(namespace: str) -> Cluster:
    from trainyard.kubernetes.client import connect

    return connect(namespace)


@contextmanager
def missing_right(reason: str, instead: str) -> Iterator[None]:
    """Turn a refusal of the Kubernetes API in the block into a sentence that names the missing right."""
    try:
        yield
    except InfrastructureError as error:
        if not (match := _FORBIDDEN.search(str(error))):
            raise
        raise InfrastructureError(
            f"{reason}, and you may not {match['verb']} {match['resource']} in namespace {match['namespace']}. Have "
            f"that right granted to you, or {instead}."
        ) from error


def _value(cluster: Cluster, kind: Literal["Secret", "ConfigMap"], name: str, key: str, location: str) -> str:
    """Return the text under `key` of a Secret or ConfigMap. location: of the setting that names it."""
    found = cluster.get(cluster.path(f"{kind.lower()}s", name))
    if found is None:
        raise ConfigurationError(
            f"{location}: namespace {cluster.namespace} has no {kind} '{name}'. Create it, or name another."
        )
    data = found.get("data") or {}
    if key not in data:
        raise ConfigurationError(
            f"{location}: {kind} '{name}' has no key '{key}'. It has: {', '.join(sorted(data)) or 'none'}."
        )
    return (base64.b64decode(data[key]).decode() if kind == "Secret" else str(data[key])).strip()


def _has_credentials() -> bool:
    """Return True if boto3 finds credentials on this machine."""
    import boto3

    return boto3.Session().get_credentials() is not None


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False
