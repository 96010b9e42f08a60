"""The login of requests to Kubeflow: the token of a file or a command, or the cookie of a session.

A run is followed for hours, and tokens expire within one. So a file is read again for every request, and a command runs
again before its token expires, or if the server refuses it. Multi-user Kubeflow answers a request without a valid login
by a web page to log in, often with status 200.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.kubernetes.client import message
from trainyard.spec.environment import Kubeflow

_COMMAND_SECONDS = 300  # chosen: a person may have to log in with a browser
_EARLY_SECONDS = 60  # chosen: longer than a request takes
_KEPT_SECONDS = 300  # chosen: of a token that does not say when it expires
# Kubeflow's conventions for the token of a notebook or a step.
_AUDIENCE = "pipelines.kubeflow.org"
_OWN_VARIABLE, _OWN_TOKEN = "KF_PIPELINES_SA_TOKEN_PATH", "/var/run/secrets/kubeflow/pipelines/token"
_ISTIO = "RBAC: access denied"
_NAMES = ("email", "preferred_username", "sub")


@dataclass(frozen=True)
class _NoLogin:
    """A refusal. text: status and message of the server, '' for a login page."""

    text: str
    cause: Exception | None


class Login:
    """The login of an environment's `kubeflow` section, or that of the pod in which the process runs.

    address: the URL of the server; default: the endpoint, '' for one that the Kubernetes API server or a Service gives.
    """

    def __init__(self, settings: Kubeflow, address: str = "") -> None:
        address = address or settings.endpoint
        self.command, self._cookie = settings.token_command, settings.cookie_file
        self._inside = bool(not address and os.environ.get("KUBERNETES_SERVICE_HOST"))
        # Through the Kubernetes API server the login is that of KUBECONFIG.
        self.applies = bool(address or self._inside)
        self._file = settings.token_file if self.applies else ""
        if self._inside and not self._file:
            own = os.environ.get(_OWN_VARIABLE) or _OWN_TOKEN
            self._file = own if Path(own).exists() else ""
        self._token, self._until = "", 0.0

    @property
    def source(self) -> str:
        """The setting that names the login, '' for none."""
        if self.command:
            return "kubeflow.token_command"
        if self._cookie:
            return f"kubeflow.cookie_file ({self._cookie})"
        return f"kubeflow.token_file ({self._file})" if self._file else ""

    def headers(self) -> dict[str, str]:
        """Return the headers of a request. Raises `ConfigurationError` if the file or the command gives nothing."""
        if self._cookie:
            return {"Cookie": _read("cookie_file", self._cookie)}
        token = self.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def token(self) -> str:
        """Return the current token, '' without one."""
        if not self.command:
            return _read("token_file", self._file) if self._file else ""
        if time.time() >= self._until:
            self._token, expires = _parsed(_output(self.command))
            self._until = expires - _EARLY_SECONDS if expires else time.time() + _KEPT_SECONDS
        return self._token

    def forget(self) -> bool:
        """Forget the token of the command. Returns True if another request may succeed with a new one."""
        self._until = 0.0
        return bool(self.command)

    def user(self) -> tuple[str, float | None]:
        """Return the name in the token and the time of its expiry; '' and None if it does not say so."""
        claims = _claims("" if self._cookie else self.token())
        return str(next((claims[name] for name in _NAMES if claims.get(name)), "")), _seconds(claims.get("exp"))

    def attach(self, api: Any, namespace: str) -> None:
        """Have every request of `api`, an `ApiClient` of kfp_server_api or kubernetes, carry the login.

        A request raises `InfrastructureError` if the login is missing, expired or refused.
        """
        host, send = str(api.configuration.host), api.request

        def request(*arguments: Any, headers: Any = None, **options: Any) -> Any:
            answer = self._sent(partial(send, *arguments, **options), headers or {})
            if isinstance(answer, _NoLogin) and self.forget():
                answer = self._sent(partial(send, *arguments, **options), headers or {})
            if isinstance(answer, _NoLogin):
                raise self._refused(host, namespace, answer.text) from answer.cause
            return answer

        api.request = request

    def _sent(self, send: Callable[..., Any], headers: dict[str, str]) -> Any:
        """Return the answer to the request, `_NoLogin` if it is a login page or a refusal of the login."""
        own = self.headers()
        kept = {name: value for name, value in headers.items() if name.title() not in own}
        try:
            answer = send(headers=kept | own)
        except Exception as error:
            status, text = getattr(error, "status", None), ""
            if status in (401, 403) and not _is_page(getattr(error, "headers", None)):
                text = f"{status}: {refusal(error)}"
            if status == 401 or (status == 403 and (not text or text.endswith(_ISTIO))):
                return _NoLogin(text, error)
            raise
        return _NoLogin("", None) if _is_page(getattr(answer, "urllib3_response", answer).headers) else answer

    def _refused(self, host: str, namespace: str, text: str) -> InfrastructureError:
        """Return the error for a refusal. text: the server's, '' for a login page."""
        if text.endswith(_ISTIO):
            return InfrastructureError(
                f"kubeflow: {host}: Istio refuses the request ({_ISTIO}): your account may not reach Kubeflow in "
                f"namespace '{namespace}'. Have the owner of that profile add you as a contributor, or name your own "
                "namespace in the environment."
            )
        came = f"refused the request ({text})" if text else "answered with a login page"
        if not self.source:
            advice = "Name kubeflow.token_command, token_file or cookie_file in the environment."
            if self._inside:
                advice = (
                    f"Give the pod a token for {_AUDIENCE} at {_OWN_TOKEN}: in a notebook, the configuration 'Allow "
                    "access to Kubeflow Pipelines'."
                )
            return InfrastructureError(f"kubeflow: {host}: {came}, because the request has no login. {advice}")
        expires = None if self._cookie else self.user()[1]
        ended = f" at {datetime.fromtimestamp(expires, UTC):%Y-%m-%d %H:%M} UTC" if expires else ""
        if expires and expires > time.time():
            why = f"it does not accept the login of {self.source}, which expires{ended}"
        else:
            why = f"the session of {self.source} has expired{ended}{'' if ended else ' or is unknown there'}"
        return InfrastructureError(f"kubeflow: {host}: {came}: {why}. Log in again, and run the same command again.")


def refusal(error: Any) -> str:
    """Return the message of a refusal by Kubeflow's server, without the names of its functions around it."""
    try:
        return " ".join(str(json.loads(error.body)["details"][0]["message"]).split())
    except (ValueError, KeyError, IndexError, TypeError):
        return message(error)


def _is_page(headers: Any) -> bool:
    """Return True if an answer with these headers is a web page."""
    return str((headers or {}).get("content-type", "")).startswith("text/html")


def _read(setting: str, file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        advice = "the cookie" if setting == "cookie_file" else "the token"
        raise ConfigurationError(
            f"kubeflow.{setting}: {file}: cannot be read ({why}). Write {advice} there."
        ) from error


def _output(command: list[str]) -> str:
    """Run the command and return its output; what it writes to stderr, the person sees."""
    at = f"kubeflow.token_command: {command[0]}"
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{at}: cannot be run ({getattr(error, 'strerror', error)}). Correct it.") from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{at}: gave no token for {_COMMAND_SECONDS} s. Run it alone to see why.") from error
    if ended.returncode or not ended.stdout.strip():
        why = f"ended with exit code {ended.returncode}" if ended.returncode else "printed no token"
        raise InfrastructureError(f"{at}: {why}. Run it alone to see why; it prints a token or an ExecCredential.")
    return ended.stdout.strip()


def _parsed(output: str) -> tuple[str, float | None]:
    """Return the token and the time of its expiry, None if unknown, of a text or an ExecCredential (JSON).

    Source: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/#ExecCredential.
    """
    if not output.startswith("{"):
        return output, _seconds(_claims(output).get("exp"))
    try:
        status = json.loads(output)["status"]
        token, expires = str(status["token"]), status.get("expirationTimestamp")
        until = datetime.fromisoformat(expires).timestamp() if expires else _seconds(_claims(token).get("exp"))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            "kubeflow.token_command: printed JSON without status.token. Print an ExecCredential, or the token."
        ) from error
    return token, until


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JSON Web Token, unverified; none of another token."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
