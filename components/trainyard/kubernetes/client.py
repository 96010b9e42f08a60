"""The client of the Kubernetes API, as plain JSON, for the launcher of a gang and for the CLI."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.retry import retry
from trainyard.storage.buckets.objects import untrusted

Manifest = dict[str, Any]
T = TypeVar("T")

CALL_SECONDS = 20  # chosen: no single call hangs longer than this
PATIENCE_SECONDS = 30.0  # chosen: a person waits for the answer
JOBS = "apis/batch/v1"

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_JSON = "application/json, */*"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_BUSY = frozenset({429, 500, 502, 503, 504})


def connect(
    namespace: str = "",
    context: str = "",
    *,
    patience_seconds: float | None = None,
    on_retry: Callable[[str], None] | None = None,
    remedy: str = "Log in again, or have the permission granted to you.",
) -> Cluster:
    """Connect to the cluster of this pod, otherwise to the one of KUBECONFIG.

    namespace: by default the pod's own, or that of the kubeconfig context. context: by default the current one. The
    others are as in `Cluster`. Raises `ConfigurationError` if there is no cluster.
    """
    from kubernetes import client, config

    configuration = client.Configuration()
    configure(configuration, config, context)
    if not namespace and os.environ.get("KUBERNETES_SERVICE_HOST"):
        namespace = _NAMESPACE.read_text(encoding="utf-8").strip()
    elif not namespace:
        namespace = config.list_kube_config_contexts()[1]["context"].get("namespace", "default")
    return Cluster(client.ApiClient(configuration), namespace, patience_seconds, on_retry, remedy)


def configure(configuration: Any, config: Any, context: str = "") -> None:
    """Set the address and credentials of the cluster. config: the module kubernetes.config."""
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not context:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(client_configuration=configuration, context=context or None)
    except (config.ConfigException, OSError, TypeError) as error:  # TypeError: an empty file
        raise ConfigurationError(
            f"kubernetes: no cluster is known here ({error}). "
            "Set KUBECONFIG to a file with its address and your credentials."
        ) from error


@dataclass
class Cluster:
    """A cluster and one of its namespaces.

    patience_seconds: how long a call is retried while the API server is busy or unreachable, by default
    PATIENCE_SECONDS; `post` is never retried. on_retry: called with the problem before a retry, as in `patient`.
    remedy: what to do if the API server refuses the caller.

    Raises `TransientError`, with `unreachable` set, if the API server stays unreachable, `InfrastructureError` if it
    refuses.
    """

    api: Any
    namespace: str
    patience_seconds: float | None = None
    on_retry: Callable[[str], None] | None = None
    remedy: str = ""
    unreachable: bool = field(default=False, init=False)

    @property
    def host(self) -> str:
        """The API server's address."""
        return str(self.api.configuration.host)

    def path(self, kind: str, name: str = "", group: str = "api/v1") -> str:
        """Return the path of an object, or of all objects of `kind`, in the namespace."""
        return f"/{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def get(self, path: str, query: dict[str, str | int] | None = None, metadata_only: bool = False) -> Manifest | None:
        """Return the object or list at `path`, None if there is none. metadata_only: for Secrets."""
        text = self._call("GET", path, query=query, absent=(404,), accept=_METADATA if metadata_only else _JSON)
        return None if text is None else dict(json.loads(text))

    def items(self, kind: str, selector: str = "", fields: str = "", group: str = "api/v1") -> list[Manifest]:
        """Return the objects of `kind` in the namespace, such as pods."""
        query: dict[str, str | int] = {"labelSelector": selector, "fieldSelector": fields}
        answer = self.get(self.path(kind, group=group), {name: value for name, value in query.items() if value})
        return list(answer["items"]) if answer else []

    def create(self, kind: str, body: Manifest) -> Manifest | None:
        """Create an object in the namespace, and return it, or None if its name exists."""
        version = body["apiVersion"]
        path = self.path(kind, group=f"apis/{version}" if "/" in version else f"api/{version}")
        text = self._call("POST", path, body=body, absent=(409,), repeat=True)
        return None if text is None else dict(json.loads(text))

    def post(self, path: str, body: Manifest) -> Manifest:
        """Post `body`, and return the answer."""
        return dict(json.loads(self._call("POST", path, body=body, repeat=False) or "{}"))

    def refusal(self, path: str, body: Manifest) -> str:
        """Post `body`, and return why the API server refuses it, '' if it accepts."""
        from kubernetes.client import ApiException

        try:
            self.post(path, body)
        except InfrastructureError as error:
            return message(error.__cause__) if isinstance(error.__cause__, ApiException) else str(error)
        return ""

    def delete(self, path: str, uid: str = "") -> None:
        """Delete the object and everything that it owns. uid: only if the object has this uid."""
        body: Manifest = {"propagationPolicy": "Foreground"}
        if uid:
            body["preconditions"] = {"uid": uid}
        self._call("DELETE", path, body=body, absent=(404, 409) if uid else (404,))

    def patch(self, path: str, body: Manifest) -> None:
        """Merge `body` into the object at `path`, if the object exists."""
        self._call("PATCH", path, body=body, absent=(404, 409))

    def apply(self, path: str, body: Manifest, manager: str) -> Manifest:
        """Create the object at `path`, or change the fields that `manager` set before, by server-side apply.

        Unknown fields and fields that another manager has changed are refused with `InfrastructureError`.

        Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/.
        """
        query: dict[str, str | int] = {"fieldManager": manager, "fieldValidation": "Strict"}
        return dict(json.loads(self._call("PATCH", path, query=query, body=body, content=_APPLY) or "{}"))

    def log(self, pod: str, container: str, tail: int | None = None) -> str:
        """Return the container's log, '' if there is none."""
        query: dict[str, str | int] = {"container": container}
        if tail is not None:
            query["tailLines"] = tail
        return self._call("GET", f"{self.path('pods', pod)}/log", query=query, absent=(400, 404)) or ""

    def follow_log(self, pod: str, container: str, since_seconds: int | None) -> Iterator[bytes]:
        """Yield the container's log as it is written, with timestamps, until it ends or breaks off.

        Raises the client's own errors, without retries.
        """
        query: dict[str, str | int] = {"container": container, "follow": "true", "timestamps": "true"}
        if since_seconds is not None:
            query["sinceSeconds"] = since_seconds
        response = self._request("GET", f"{self.path('pods', pod)}/log", query=query, limit=(CALL_SECONDS, None))
        try:
            yield from response.stream(decode_content=False)
        finally:
            response.close()

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str | int] | None = None,
        body: Manifest | None = None,
        accept: str = _JSON,
        content: str = "",
        limit: Any = CALL_SECONDS,
    ) -> Any:
        kind = content or (_MERGE if method == "PATCH" else "application/json")
        return self.api.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
            _request_timeout=limit,
        )

    def _call(
        self, method: str, path: str, *, absent: tuple[int, ...] = (), repeat: bool = True, **request: Any
    ) -> str | None:
        """Return the text of the answer to `request`, None for a status in `absent`. repeat: it may be sent twice."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        def once() -> str:
            return str(self._request(method, path, **request).data.decode("utf-8", errors="replace"))

        seconds = PATIENCE_SECONDS if self.patience_seconds is None else self.patience_seconds
        try:
            return patient(once, seconds if repeat else 0, self.on_retry)
        except ApiException as error:
            if error.status in absent:
                return None
            raise self._refused(method, path, error) from error
        except (HTTPError, OSError) as error:
            self.unreachable = True
            raise TransientError(
                f"kubernetes: {self.host} cannot be reached ({reason(error)}). "
                "Check the network and KUBECONFIG, and run the same command again."
            ) from error

    def _refused(self, method: str, path: str, error: Any) -> InfrastructureError | TransientError:
        request = f"kubernetes: {method} {path}"
        if error.status in (401, 403):
            return InfrastructureError(f"{request}: refused ({message(error)}). {self.remedy}")
        busy, why = _is_busy(error), message(error)
        self.unreachable = self.unreachable or busy
        silent = busy and "failed calling webhook" in why
        remedy = " Start what serves that webhook, and run the same command again." if silent else ""
        return (TransientError if busy else InfrastructureError)(f"{request}: {error.status} ({why}).{remedy}")


def patient(call: Callable[[], T], seconds: float, on_retry: Callable[[str], None] | None = None) -> T:
    """Call `call`, and retry it for `seconds` if the server is busy or does not answer.

    on_retry: called with the problem before a retry, once for retries in a row with the same. Raises the last error
    unchanged.
    """
    from urllib3.exceptions import HTTPError

    told = ""

    def transient(error: Exception) -> bool:
        if isinstance(error, HTTPError | OSError):
            return not untrusted(reason(error))
        return _is_busy(error)

    def report(error: Exception, _: float) -> None:
        nonlocal told
        problem = message(error) if hasattr(error, "status") else reason(error)
        if on_retry and problem != told:
            told = problem
            on_retry(problem)

    return retry(call, transient, seconds=seconds, first_pause=0.5, longest_pause=5, on_retry=report)


def _is_busy(error: Any) -> bool:
    # Server-side apply answers 500 to a field that the schema does not have.
    return getattr(error, "status", None) in _BUSY and "typed patch object" not in message(error)


def message(error: Any) -> str:
    """Return the message in the body of a server's refusal, otherwise its reason."""
    body = error.body.decode("utf-8", errors="replace") if isinstance(error.body, bytes) else error.body or ""
    try:
        document = json.loads(body)
        text = document.get("message") or document.get("error_message") or document.get("error")
    except (ValueError, AttributeError):
        text = "" if body.lstrip().startswith("<") else body  # a web page
    return " ".join(str(text or error.reason).split())[:400]


def reason(error: BaseException) -> str:
    """Return the innermost cause in an error of a network library, in one line."""
    while (inner := getattr(error, "reason", None)) and isinstance(inner, BaseException):
        error = inner
    return " ".join(str(error).split())[:200] or type(error).__name__
