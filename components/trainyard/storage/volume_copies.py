"""Outputs on a volume that is not mounted here: read from copies on this machine, written by pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from trainyard.errors import ConfigurationError
from trainyard.storage import folders
from trainyard.storage.manifest import MANIFEST, Manifest


class Member(Protocol):
    """A file to send."""

    @property
    def size(self) -> int:
        """The number of its bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, at most `size`."""


class Reader(Protocol):
    """Reads the files of a volume, and changes them by pods. Paths are those of the pods."""

    def file(self, path: str) -> Path:
        """Return a local copy of a file; nothing is at the returned path if there is none."""

    def folder(self, path: str) -> Path:
        """Return a local copy of a folder with all that is in it."""

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, none if there is no such folder."""

    def send(self, path: str, files: Mapping[str, Callable[[], Member]], last: str) -> None:
        """Publish `files`, by name, as a folder: whole and checked, or not at all. The file `last` comes last."""

    def run(self, arguments: list[str]) -> str:
        """Run `trainyard` where the volume is mounted, and return its output. Raises the error that ended it."""


class VolumeCopies:
    """The backend of `storage` for a volume: reading copies files here, writing is refused but for `send` and `run`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def send(self, uri: str, files: Mapping[str, Callable[[], Member]], last: str) -> None:
        """Send files as `Reader.send`."""
        self._reader.send(uri, files, last)

    def run(self, *arguments: str) -> str:
        """Run a command as `Reader.run`."""
        return self._reader.run([*arguments])

    def committed(self, uri: str) -> Manifest | None:
        """Return the manifest of a committed folder."""
        return folders.committed(str(self._reader.file(f"{uri}/{MANIFEST}").parent))

    def require(self, uri: str, advice: str) -> Manifest:
        """Return the manifest of a committed folder whose files are all there."""
        return folders.require(str(self._reader.folder(uri)), advice)

    def local(self, uri: str, advice: str, only: Callable[[str], bool] | None = None) -> Path:
        """Return a local copy of a committed folder."""
        return folders.local(str(self._reader.folder(uri)), advice, only)

    def read(self, folder: str, name: str, advice: str) -> bytes | None:
        """Return a file of a committed folder, checked by its manifest."""
        self._reader.file(f"{folder}/{MANIFEST}")
        copy = self._reader.file(f"{folder}/{name}")
        return folders.read(str(copy).removesuffix(f"/{name}"), name, advice)

    def read_bytes(self, uri: str, limit: int) -> bytes | None:
        """Return the content of a file."""
        return folders.read_bytes(str(self._reader.file(uri)), limit)

    def read_text(self, uri: str, errors: str = "strict") -> str | None:
        """Return the text of a file."""
        return folders.read_text(str(self._reader.file(uri)), errors)

    def children(self, uri: str) -> list[str]:
        """Return the names in a folder that are not hidden."""
        return sorted(name for name in self._reader.names(uri) if not name.startswith("."))

    def sizes(self, uri: str) -> dict[str, int]:
        """Return the bytes of every file below a folder."""
        return folders.sizes(str(self._reader.folder(uri)))

    def stage(
        self,
        uri: str,
        producer: str,  # noqa: ARG002 - as of the other backends
        last: str = "",  # noqa: ARG002
        origin: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> AbstractContextManager[Path]:
        """Refuse to write."""
        _refuse(uri)

    def write_text(self, uri: str, text: str) -> None:  # noqa: ARG002
        """Refuse to write."""
        _refuse(uri)

    def remove(self, uri: str) -> None:
        """Refuse to write."""
        _refuse(uri)

    def lease(self, uri: str, wait: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002
        """Refuse to write."""
        _refuse(uri)

    remove_unfinished = remove_abandoned = remove


def _refuse(uri: str) -> NoReturn:
    raise ConfigurationError(
        f"{uri}: is on a volume that is not mounted on this machine, from which it is only read. Mount the volume, or "
        "run the command in a pod that has it."
    )
