"""The Kubernetes API as plain JSON: what `submit`, `runs`, `explain` and `doctor` read of a cluster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from trainyard.errors import ConfigurationError, InfrastructureError, TransientError

Manifest = dict[str, Any]

CALL_SECONDS = 20  # chosen: no single call hangs longer than this
PATIENCE_SECONDS = 30  # chosen: a person waits for the answer

_JSON = "application/json, */*"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_BUSY = frozenset({429, 500, 502, 503, 504})


def connect(namespace: str, context: str = "") -> Kubernetes:
    """Return the cluster of the pod that this process runs in, else the one that KUBECONFIG names.

    context: one of that file's, instead of its current one.
    Raises `ConfigurationError` where there is neither.
    """
    from kubernetes import client, config

    configuration = client.Configuration()
    configure(configuration, config, context)
    return Kubernetes(client.ApiClient(configuration), namespace)


def configure(configuration: Any, config: Any, context: str = "") -> None:
    """Fill in the address and the credentials of the cluster; `config` is the module kubernetes.config."""
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not context:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(client_configuration=configuration, context=context or None)
    except (config.ConfigException, OSError, TypeError) as error:  # TypeError: an empty file
        raise ConfigurationError(
            f"kubernetes: no cluster is known here ({error}). Set KUBECONFIG to a file with its address and your credentials."
        ) from error


class Kubernetes:
    """A cluster and the namespace of the runs. Reading is tried again for PATIENCE_SECONDS.

    Raises `TransientError` where the API server cannot be reached, `InfrastructureError` where it refuses.
    """

    def __init__(self, api: Any, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    @property
    def host(self) -> str:
        """The API server's address."""
        return str(self._api.configuration.host)

    def get(self, path: str, query: dict[str, str | int] | None = None, metadata_only: bool = False) -> Manifest | None:
        """Return the object or list at `path`, None where there is none; of a Secret ask for the metadata only."""
        text = self._call("GET", path, query=query, absent=(404,), accept=_METADATA if metadata_only else _JSON)
        return None if text is None else dict(json.loads(text))

    def items(self, kind: str, selector: str = "", fields: str = "", group: str = "api/v1") -> list[Manifest]:
        """Return the objects of `kind` in the namespace, such as pods."""
        query: dict[str, str | int] = {"labelSelector": selector, "fieldSelector": fields}
        path = f"/{group}/namespaces/{self.namespace}/{kind}"
        found = self.get(path, {name: value for name, value in query.items() if value})
        return list(found["items"]) if found else []

    def post(self, path: str, body: Manifest) -> Manifest:
        """Return what the API server answers to `body`."""
        return dict(json.loads(self._call("POST", path, body=body) or "{}"))

    def delete(self, path: str) -> None:
        """Ask for the end of the object and of all that it owns."""
        self._call("DELETE", path, body={"propagationPolicy": "Foreground"}, absent=(404,))

    def log(self, pod: str, container: str, tail: int | None = None, previous: bool = False) -> str:
        """Return the container's log, '' where there is none."""
        query: dict[str, str | int] = {"container": container, "previous": str(previous).lower()}
        if tail is not None:
            query["tailLines"] = tail
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        return self._call("GET", path, query=query, absent=(400, 404)) or ""

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str | int] | None = None,
        body: Manifest | None = None,
        absent: tuple[int, ...] = (),
        accept: str = _JSON,
    ) -> str | None:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        def once() -> str:
            response = self._api.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=CALL_SECONDS,
            )
            return str(response.data.decode("utf-8", errors="replace"))

        try:
            return patient(once, ApiException, (HTTPError, OSError), retry=method == "GET")
        except ApiException as error:
            if error.status in absent:
                return None
            raise self._refused(method, path, error) from error
        except (HTTPError, OSError) as error:
            raise TransientError(
                f"kubernetes: {self.host} cannot be reached ({reason(error)}). "
                "Check the network and KUBECONFIG, and run the same command again."
            ) from error

    def _refused(self, method: str, path: str, error: Any) -> InfrastructureError | TransientError:
        what = f"kubernetes: {method} {path}"
        if error.status in (401, 403):
            return InfrastructureError(
                f"{what}: refused ({message(error)}). Log in again, or have the permission granted to you."
            )
        kind = TransientError if error.status in _BUSY else InfrastructureError
        return kind(f"{what}: {error.status} ({message(error)}).")


def patient(once: Callable[[], str], refused: type[Exception], lost: tuple[type[Exception], ...], retry: bool) -> str:
    """Return what `once` returns; where `retry`, a busy or silent server is asked again for PATIENCE_SECONDS.

    Raises the last error as it came.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = 0.5
    while True:
        try:
            return once()
        except (refused, *lost) as error:
            final = isinstance(error, refused) and getattr(error, "status", None) not in _BUSY
            if not retry or final or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 5)


def message(error: Any) -> str:
    """Return what a server says in the body of a refusal, else its reason."""
    body = error.body.decode("utf-8", errors="replace") if isinstance(error.body, bytes) else error.body or ""
    try:
        document = json.loads(body)
        said = document.get("message") or document.get("error_message") or document.get("error")
    except (ValueError, AttributeError):
        said = body
    return " ".join(str(said or error.reason).split())[:400]


def reason(error: BaseException) -> str:
    """Return the innermost cause that a network library wraps, in one line."""
    while (inner := getattr(error, "reason", None)) and isinstance(inner, BaseException):
        error = inner
    return " ".join(str(error).split())[:200] or type(error).__name__
