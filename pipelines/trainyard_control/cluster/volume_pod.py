"""Reads and changes a volume of a cluster from this machine, through pods that live as long as the command."""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from websocket import ABNF, WebSocketException

from trainyard.errors import InfrastructureError, TrainyardError, TransientError, from_code
from trainyard.kubernetes.diagnosis import conditions
from trainyard.kubernetes.pod_spec import pod_spec, short_pod
from trainyard.steps.push.versions import person
from trainyard.storage.manifest import STAGING
from trainyard_control.cluster import volume_program
from trainyard_control.cluster.environments import missing_right
from trainyard_control.cluster.explanation import Evidence, explain
from trainyard_control.cluster.port_forward import open_websocket

if TYPE_CHECKING:
    from trainyard.kubernetes.client import Cluster, Manifest
    from trainyard.spec.environment import Environment
    from trainyard.storage.volume_copies import Member

_LIFE_SECONDS = 3600  # chosen: a killed command leaves the pod for this long
_START_SECONDS = 180.0  # chosen: a node pulls the image of the steps
_POLL_SECONDS = 0.5
_NOTHING = 66  # the exit code for a path that is not there
_IN, _OUT, _ERROR, _STATUS = 0, 1, 2, 3  # specified: the channels of v4.channel.k8s.io
_CHUNK_BYTES = 1 << 18  # chosen: of one message to the API server
_RESOURCES = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def volume_pod(environment: Environment, name: str, writes: bool = False) -> Manifest:
    """Build the pod `name` with the volume of `environment`, read-only unless it `writes`, on the pool of push."""
    pool = environment.pools[environment.pool_name("push")]
    spec = pod_spec(pool, environment.platform, environment.volume, environment.image_pull_secrets)
    container = spec["containers"][0]
    mounts = [mount | {"readOnly": mount["name"] == "storage" and not writes} for mount in container["volumeMounts"]]
    container |= {
        "name": "main",
        "image": environment.images[pool.variant],
        "command": ["sleep", str(_LIFE_SECONDS)],
        "resources": _RESOURCES,
        "volumeMounts": mounts,
    }
    return short_pod(name, spec, _LIFE_SECONDS)


@dataclass
class VolumePod:
    """A reader of the volume of `environment` (see `volume_copies.Reader`). Its pods start when they are needed.

    Raises `InfrastructureError` if the API server refuses, `TransientError` if the pod does not start.
    """

    cluster: Cluster
    environment: Environment
    _copied: set[str] = field(default_factory=set)
    _pods: dict[str, str] = field(default_factory=dict)

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

    def send(self, path: str, files: Mapping[str, Callable[[], Member]], last: str) -> None:
        """Publish `files`, by name, as a folder: whole and checked, or not at all. The file `last` comes last.

        Raises `TransientError` if the connection breaks, the volume is full, or other bytes arrive.
        """
        folder, _, name = path.rpartition("/")
        staging = f"{folder}/{STAGING}/{name}-{secrets.token_hex(4)}"
        program = Path(volume_program.__file__).read_text(encoding="utf-8")
        command = ["python3", "-c", program, path, staging, last]
        with tempfile.TemporaryFile() as output:
            status, error = self._execute("write", command, output, lambda stream: _write(stream, files))
        if status != 0:
            raise TransientError(
                f"{path}: cannot be written to its volume ({error or 'the connection broke'}). Make room if it is "
                "full, and run the same command again."
            )

    def run(self, arguments: list[str]) -> str:
        """Run `trainyard` with `arguments` in the pod that may write, and return what it prints.

        Raises the error that ended it, with its sentence.
        """
        command = ["env", f"LOGNAME={person()}", "python3", "-m", "trainyard_control.cli.main", *arguments]
        with tempfile.TemporaryFile() as output:
            status, error = self._execute("write", command, output)
            if status != 0:
                raise from_code(status, error.removeprefix("✗ ") or f"{self._subject}: the connection broke.")
            output.seek(0)
            return output.read().decode()

    def _copy(self, path: str) -> Path:
        return Path(self._folder.name) / path.lstrip("/")

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="trainyard-volume-")

    def _pod(self, use: str) -> str:
        """Return the name of the running pod that may 'read' or 'write'."""
        if use not in self._pods:
            self._pods[use] = self._started(use)
        return self._pods[use]

    def _started(self, use: str) -> str:
        name = f"trainyard-{use}-{secrets.token_hex(4)}"
        self.cluster.post(self.cluster.path("pods"), volume_pod(self.environment, name, use == "write"))
        atexit.register(self._delete, name)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            pod = self.cluster.get(self.cluster.path("pods", name)) or {}
            if "Ready" in conditions(pod):
                return name
            finding = explain(Evidence(pod))
            if finding.permanent or finding.state == "failed" or time.monotonic() > deadline:
                kind = InfrastructureError if finding.permanent else TransientError
                raise kind(f"{self._subject}, and the pod that {use}s it {finding.sentence.rstrip('.')}.")
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
        with tempfile.TemporaryFile() as output:
            status, error = self._execute("read", ["sh", "-c", script, path, *more], output)
            if status not in (0, _NOTHING):
                raise TransientError(f"{path}: cannot be read from its volume ({error or 'the connection broke'}).")
            output.seek(0)
            yield None if status == _NOTHING else output

    def _execute(
        self, use: str, command: list[str], output: IO[bytes], write: Callable[[_Input], None] | None = None
    ) -> tuple[int, str]:
        """Run `command` in the pod that may `use` the volume; return its exit code, -1 without one, and its error.

        write: writes its input.
        """
        query = [("command", word) for word in command]
        query += [("stdin", "true")] if write else []
        query += [("stdout", "true"), ("stderr", "true")]
        instead = f"mount the volume at {self.environment.volume and self.environment.volume.path} of this machine"
        with (
            missing_right(self._subject, instead),
            closing(open_websocket(self.cluster, f"{self.cluster.path('pods', self._pod(use))}/exec", query)) as remote,
        ):
            if write:
                with suppress(WebSocketException, ConnectionError):  # the program has ended, and says why
                    write(_Input(remote))
            said: dict[int, bytes] = {_ERROR: b"", _STATUS: b""}
            with suppress(WebSocketException, ConnectionError):
                _read(remote, output, said)
        status = json.loads(said[_STATUS] or b"{}")
        causes = (status.get("details") or {}).get("causes") or []
        code = next((int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"), -1)
        text = said[_ERROR].decode(errors="replace").strip() or str(status.get("message") or "")
        return 0 if status.get("status") == "Success" else code, text[-300:]


class _Input:
    """The standard input of a program in a pod."""

    def __init__(self, remote: Any) -> None:
        self._remote = remote

    def write(self, content: bytes) -> int:
        """Send a message."""
        self._remote.send_binary(bytes([_IN]) + content)
        return len(content)


def _read(remote: Any, output: IO[bytes], said: dict[int, bytes]) -> None:
    """Read what a program writes: to `output`, and into `said` of errors and of its end."""
    while not said[_STATUS]:
        code, frame = remote.recv_data_frame(control_frame=True)
        if code == ABNF.OPCODE_CLOSE:
            return
        if code == ABNF.OPCODE_BINARY and frame.data[0] == _OUT:
            output.write(frame.data[1:])
        elif code == ABNF.OPCODE_BINARY:
            said[frame.data[0]] += frame.data[1:]


def _write(stream: _Input, files: Mapping[str, Callable[[], Member]]) -> None:
    """Write `files` as a tar stream, with their digests as its last member."""
    digests: dict[str, str] = {}
    with tarfile.open(fileobj=stream, mode="w|", bufsize=_CHUNK_BYTES, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for name, opened in files.items():
            source = _Digested(opened())
            info = tarfile.TarInfo(name)
            info.size = source.size
            archive.addfile(info, source)
            digests[name] = source.digest.hexdigest()
        content = json.dumps(digests).encode()
        info = tarfile.TarInfo(volume_program.DIGESTS)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))


class _Digested:
    """A file that is sent, and the SHA-256 of what was read of it."""

    def __init__(self, source: Member) -> None:
        self._source, self.size, self.digest = source, source.size, hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        content = self._source.read(size)
        self.digest.update(content)
        return content
