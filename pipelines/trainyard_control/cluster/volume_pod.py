"""Reads a volume of a cluster from this machine, through a pod that mounts it and lives as long as the command."""

from __future__ import annotations

import atexit
import json
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from websocket import ABNF

from trainyard.errors import InfrastructureError, TrainyardError, TransientError
from trainyard.kubernetes import labels
from trainyard.kubernetes.diagnosis import conditions
from trainyard.kubernetes.pod_spec import pod_spec
from trainyard_control.cluster.environments import missing_right
from trainyard_control.cluster.explanation import Evidence, explain
from trainyard_control.cluster.port_forward import open_websocket

if TYPE_CHECKING:
    from trainyard.kubernetes.client import Cluster, Manifest
    from trainyard.spec.environment import Environment

_LIFE_SECONDS = 3600  # chosen: a killed command leaves the pod for this long
_START_SECONDS = 180.0  # chosen: a node pulls the image of the steps
_POLL_SECONDS = 0.5
_NOTHING = 66  # the exit code for a path that is not there
_OUT, _ERROR, _STATUS = 1, 2, 3  # specified: the channels of v4.channel.k8s.io
_RESOURCES = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def reader_pod(environment: Environment, name: str) -> Manifest:
    """Build the pod `name` that mounts the volume of `environment`, on the pool of push."""
    pool = environment.pools[environment.pool_name("push")]
    spec = pod_spec(pool, environment.platform, environment.volume, environment.image_pull_secrets)
    container = spec["containers"][0]
    mounts = [mount | {"readOnly": mount["name"] == "storage"} for mount in container["volumeMounts"]]
    container |= {
        "name": "main",
        "image": environment.images[pool.variant],
        "command": ["sleep", str(_LIFE_SECONDS)],
        "resources": _RESOURCES,
        "volumeMounts": mounts,
    }
    spec |= {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _LIFE_SECONDS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
    }
    metadata = {"name": name, "labels": {labels.APPLICATION: "trainyard"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass
class VolumePod:
    """A reader of the volume of `environment` (see `volume_copies.Reader`). Its pod starts with the first read.

    Raises `InfrastructureError` if the API server refuses, `TransientError` if the pod does not start.
    """

    cluster: Cluster
    environment: Environment
    _copied: set[str] = field(default_factory=set)

    def file(self, path: str) -> Path:
        """Return a local copy of a file; nothing is at the returned path if there is none."""
        copy = self._copy(path)
        copy.unlink(missing_ok=True)
        with self._output("test -f", path, "cat") as content:
            if content:
                copy.parent.mkdir(parents=True, exist_ok=True)
                with copy.open("wb") as stream:
                    shutil.copyfileobj(content, stream)
        return copy

    def folder(self, path: str) -> Path:
        """Return a local copy of a folder with all that is in it. An output that was copied is not copied again."""
        copy = self._copy(path)
        if path not in self._copied:
            with self._output("test -d", path, "tar -cf - -C", ".") as content:
                if content:
                    copy.mkdir(parents=True, exist_ok=True)
                    with tarfile.open(fileobj=content) as archive:
                        archive.extractall(copy, filter="data")
            self._copied.add(path)
        return copy

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, none if there is no such folder."""
        with self._output("test -d", path, "ls -1A") as content:
            return content.read().decode(errors="replace").splitlines() if content else []

    def _copy(self, path: str) -> Path:
        return Path(self._folder.name) / path.lstrip("/")

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="trainyard-volume-")

    @cached_property
    def _pod(self) -> str:
        """The name of the running pod."""
        name = f"trainyard-read-{secrets.token_hex(4)}"
        self.cluster.post(self.cluster.path("pods"), reader_pod(self.environment, name))
        atexit.register(self._delete, name)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            pod = self.cluster.get(self.cluster.path("pods", name)) or {}
            if "Ready" in conditions(pod):
                return name
            finding = explain(Evidence(pod))
            if finding.permanent or finding.state == "failed" or time.monotonic() > deadline:
                kind = InfrastructureError if finding.permanent else TransientError
                raise kind(f"{self._subject}, and the pod that reads it {finding.sentence.rstrip('.')}.")
            time.sleep(_POLL_SECONDS)

    @property
    def _subject(self) -> str:
        volume = self.environment.volume
        return (
            f"{self.environment.name}: storage: {self.environment.storage} is on the volume '{volume and volume.claim}'"
        )

    def _delete(self, name: str) -> None:
        with suppress(TrainyardError):
            self.cluster.delete(self.cluster.path("pods", name))

    @contextmanager
    def _output(self, test: str, path: str, command: str, *more: str) -> Iterator[IO[bytes] | None]:
        """Yield the output of `command` for `path`, None if the `test` fails. Each is a command and its options."""
        script = f'{test} "$0" || exit {_NOTHING}; exec {command} "$0" "$@"'
        query = [("command", word) for word in ("sh", "-c", script, path, *more)]
        query += [("stdout", "true"), ("stderr", "true")]
        with (
            tempfile.TemporaryFile() as output,
            missing_right(
                self._subject,
                f"mount the volume at {self.environment.volume and self.environment.volume.path} of this machine",
            ),
            closing(open_websocket(self.cluster, f"{self.cluster.path('pods', self._pod)}/exec", query)) as remote,
        ):
            said: dict[int, bytes] = {_ERROR: b"", _STATUS: b""}
            while not said[_STATUS]:
                code, frame = remote.recv_data_frame(control_frame=True)
                if code == ABNF.OPCODE_CLOSE:
                    break
                if code == ABNF.OPCODE_BINARY and frame.data[0] == _OUT:
                    output.write(frame.data[1:])
                elif code == ABNF.OPCODE_BINARY:
                    said[frame.data[0]] += frame.data[1:]
            status = json.loads(said[_STATUS] or b"{}")
            causes = [cause.get("message") for cause in (status.get("details") or {}).get("causes") or []]
            is_missing = str(_NOTHING) in causes
            if status.get("status") != "Success" and not is_missing:
                reason = said[_ERROR].decode(errors="replace") or status.get("message") or "the connection broke"
                raise TransientError(f"{path}: cannot be read from its volume ({reason.strip()[:300]}).")
            output.seek(0)
            yield None if is_missing else output
