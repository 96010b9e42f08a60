"""Asks the registry of an image whether it has it, and for which processors, as a node that pulls it would.

Source: OCI distribution specification 1.1, pulling manifests; distribution.github.io/distribution/spec/auth/token, for what a
registry asks before it answers; docs.docker.com/reference/cli/docker/login, for where credentials are kept.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import getproxies, proxy_bypass

from trainyard_control.cluster.kubernetes_api import reason

SECONDS = 5.0  # chosen: what a person waits for a registry, whatever that does
_MOST_BYTES = 4 << 20  # what a registry must take as a manifest, by the specification
_HUB = "registry-1.docker.io"
_HUB_KEY = "https://index.docker.io/v1/"  # under which docker keeps its credentials
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?$")
_MANIFESTS = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)


class Unanswered(Exception):
    """A registry did not say whether it has an image: why not, as the end of a sentence."""


def look_up(name: str) -> list[str] | None:
    """Return the platforms that the image `name` is there for, such as linux/amd64; None where its registry has none.

    Raises `Unanswered` where the registry cannot be reached, does not answer within SECONDS, or does not show it to the
    caller, whose credentials are those of docker's configuration.
    """
    answers: list[list[str] | Exception | None] = []

    def ask() -> None:
        try:
            answers.append(_platforms(parse(name)))
        except Exception as error:  # noqa: BLE001 - raised again below, in the thread that asked
            answers.append(error)

    # A daemon, so that a resolver or a server that does not answer keeps nobody from leaving.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if not answers:
        raise Unanswered(f"{parse(name).host} did not answer within {SECONDS:g} s")
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


@dataclass(frozen=True)
class Reference:
    """Where an image is: its registry's host, its repository, and its tag or digest."""

    host: str
    repository: str
    version: str

    @property
    def url(self) -> str:
        """The repository in the registry's API. Docker takes a registry of this machine for one without TLS."""
        scheme = "http" if _LOOPBACK.match(self.host) else "https"
        return f"{scheme}://{_HUB if self.host == 'docker.io' else self.host}/v2/{self.repository}"


def parse(name: str) -> Reference:
    """Return where the image `name` is; one that names no registry is in docker.io, as for docker and Kubernetes."""
    rest, _, digest = name.partition("@")
    if not digest:
        head, colon, tag = rest.rpartition(":")
        rest, digest = (head, tag) if colon and "/" not in tag else (rest, "latest")
    elif ":" in rest.rpartition("/")[2]:
        rest = rest.rpartition(":")[0]
    first, slash, remainder = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return Reference(first, remainder, digest)
    return Reference("docker.io", rest if slash else f"library/{rest}", digest)


def _platforms(image: Reference) -> list[str] | None:
    registry = _Registry(image)
    manifest = registry.read(f"manifests/{image.version}", _MANIFESTS)
    if manifest is None:
        return None
    try:
        if "manifests" in manifest:
            found = [each.get("platform", {}) for each in manifest["manifests"]]
        else:
            found = [registry.read(f"blobs/{manifest['config']['digest']}", "*/*") or {}]
        named = {f"{each['os']}/{each['architecture']}" for each in found if each}
    except (AttributeError, KeyError, TypeError) as error:
        raise Unanswered(f"{image.host} gave no answer of a registry ({type(error).__name__})") from error
    return sorted(named - {"unknown/unknown"})  # as which an index lists attestations


class _Registry:
    """A registry that is asked for one image, with what it wants to see of the caller."""

    def __init__(self, image: Reference) -> None:
        import urllib3

        self._image = image
        self._authorization = ""
        scheme = image.url.partition(":")[0]
        proxy = getproxies().get(scheme)
        timeout = urllib3.Timeout(total=SECONDS)
        retries = urllib3.Retry(connect=0, read=0, redirect=3, status=0, other=0)
        through = proxy if proxy and not proxy_bypass(image.host.partition(":")[0]) else None
        self._pool: Any = (
            urllib3.ProxyManager(through, timeout=timeout, retries=retries)
            if through
            else urllib3.PoolManager(timeout=timeout, retries=retries)
        )

    def read(self, path: str, accept: str) -> dict[str, Any] | None:
        """Return the JSON object at `path` of the repository, None where there is none."""
        url = f"{self._image.url}/{path}"
        answer = self._get(url, {"Accept": accept})
        if answer.status == 401 and not self._authorization:
            self._authorization = self._authorized(answer.headers.get("WWW-Authenticate", ""))
            answer = self._get(url, {"Accept": accept})
        if answer.status == 404:
            return None
        if answer.status in (401, 403):
            raise Unanswered(f"{self._image.host} does not show it to you ({answer.status})")
        return self._json(answer)

    def _authorized(self, challenge: str) -> str:
        """Return what to show to a registry that asks by `challenge`: a token that it names the place of, or who one is."""
        known = _credentials(self._image.host)
        basic = f"Basic {base64.b64encode(known.encode()).decode()}" if known else ""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() != "bearer":
            return basic
        told = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = told.pop("realm", "")
        if not realm.startswith("https://") and not _LOOPBACK.match(self._image.host):
            raise Unanswered(f"{self._image.host} wants credentials sent without TLS")
        query = urlencode({"scope": f"repository:{self._image.repository}:pull", **told})
        answer = self._get(f"{realm}?{query}", {"Authorization": basic} if basic else {})
        if answer.status >= 400:
            raise Unanswered(f"{self._image.host} does not show it to you ({answer.status} for a token)")
        found = self._json(answer)
        return f"Bearer {found.get('token') or found.get('access_token')}"

    def _get(self, url: str, headers: dict[str, str]) -> Any:
        from urllib3.exceptions import HTTPError

        if self._authorization and "Authorization" not in headers:
            headers = headers | {"Authorization": self._authorization}
        try:
            return self._pool.request("GET", url, headers=headers, preload_content=False)
        except (HTTPError, OSError) as error:
            said = re.sub(r"^HTTPS?Connection\(.*?\): ", "", reason(error))
            raise Unanswered(f"{self._image.host} cannot be reached from here ({said})") from error

    def _json(self, answer: Any) -> dict[str, Any]:
        from urllib3.exceptions import HTTPError

        try:
            found = json.loads(answer.read(_MOST_BYTES)) if answer.status == 200 else None
        except (ValueError, OSError, HTTPError):
            found = None
        if not isinstance(found, dict):
            raise Unanswered(f"{self._image.host} gave no answer of a registry ({answer.status})")
        return found


def _credentials(host: str) -> str:
    """Return `user:password` of the registry from docker's configuration or its helper, '' where there is none."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path("~/.docker").expanduser())
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        key = _HUB_KEY if host == "docker.io" else host
        if helper := config.get("credHelpers", {}).get(key) or config.get("credsStore"):
            return _helped(str(helper), key)
        known = config.get("auths", {})
        entry: dict[str, str] = next(
            (known[name] for name in (key, f"https://{key}", f"http://{key}") if name in known), {}
        )
        return base64.b64decode(entry.get("auth", "")).decode()
    except (OSError, ValueError, KeyError, AttributeError, subprocess.SubprocessError):
        return ""


def _helped(helper: str, key: str) -> str:
    """Return the answer of docker's credential helper. Source: github.com/docker/docker-credential-helpers."""
    command = [f"docker-credential-{Path(helper).name}", "get"]
    done = subprocess.run(command, input=key, capture_output=True, text=True, timeout=SECONDS, check=True)
    told = json.loads(done.stdout)
    return f"{told['Username']}:{told['Secret']}"
