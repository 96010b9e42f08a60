"""The manifest of a committed folder, whose appearance publishes the folder."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c

from trainyard.errors import ConfigurationError, DataError

MANIFEST = "manifest.json"
MAX_BYTES = 64 << 20
"""Maximum size of a manifest. Chosen: half a million files."""

MAX_TEXT_BYTES = 1 << 30
"""Of any text that is read. Chosen: logs are the largest."""

_DOCUMENTS = (".json", ".txt")
_MAX_DOCUMENT_BYTES = 256 << 20  # chosen: statistics of ten thousand columns have a tenth

SCHEMA_VERSION = 1
STAGING = ".staging"
"""The folder beside an output on a file system for uncommitted files."""

ATTEMPTS = ".attempts/"
"""The folder below an output in a bucket for the files of each attempt."""

_ADOPTED = ".adopted.json"
SELF_CHECKED = ".tfrecord"
"""Suffix of files with their own checksums, verified by their readers."""


@dataclass(frozen=True)
class File:
    """A file of a committed folder: size and CRC32C, the checksum that object stores use too."""

    bytes: int
    crc32c: str

    @property
    def base64(self) -> str:
        """The checksum in the spelling of object stores."""
        return base64.b64encode(bytes.fromhex(self.crc32c)).decode()


@dataclass(frozen=True)
class Manifest:
    """The files of a committed folder, its producer, and its origin: the inputs that the producer names."""

    producer: str
    files: dict[str, File]
    schema_version: int = SCHEMA_VERSION
    origin: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def digest(self) -> str:
        """SHA-256 over names, sizes and checksums: equal for equal content."""
        lines = [f"{name} {file.bytes} {file.crc32c}\n" for name, file in sorted(self.files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.bytes for file in self.files.values())

    def other_sizes(self, sizes: Mapping[str, int]) -> Iterator[str]:
        """Yield the files that are missing in `sizes`, or have another size there."""
        return (name for name, file in self.files.items() if sizes.get(name) != file.bytes)

    def changed(self, folder: Path, only: Callable[[str], bool] | None = None) -> Iterator[str]:
        """Yield the files in `folder` that have another checksum. only: predicate of the files that are read.

        Examples are left out: TFRecord holds a CRC32C of each record, and they may exceed the memory.
        """
        for name, file in self.files.items():
            if not name.endswith(SELF_CHECKED) and (only is None or only(name)) and measure(folder / name) != file:
                yield name

    def to_json(self, **more: str) -> str:
        """Return the document with the additional keys `more`."""
        return json.dumps(asdict(self) | more, indent=1, sort_keys=True)


def parse(text: str | bytes, location: str) -> tuple[Manifest, dict[str, Any]]:
    """Return the manifest in `text` and the whole document.

    Raises `DataError` if it is malformed, `ConfigurationError` if a newer Trainyard wrote it.
    """
    try:
        document = json.loads(text)
        if (version := int(document["schema_version"])) > SCHEMA_VERSION:
            raise ConfigurationError(
                f"{location}: a newer Trainyard wrote it (schema version {version}; this one reads up to "
                f"{SCHEMA_VERSION}). Install that Trainyard, or name another storage in the environment."
            )
        manifest = Manifest(
            producer=str(document["producer"]),
            files={name: _file(name, entry) for name, entry in document["files"].items()},
            schema_version=version,
            origin=dict(document.get("origin", {})),
        )
        if wrong := [name for name in manifest.files if any(part in ("", ".", "..") for part in name.split("/"))]:
            raise ValueError(f"the name {wrong[0]!r} leads out of the folder")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{location}: not a manifest of Trainyard ({error}). Remove the folder and run the step again."
        ) from error
    return manifest, document


def _file(name: str, entry: dict[str, Any]) -> File:
    file = File(**entry)
    if not isinstance(file.bytes, int) or file.bytes < 0 or not re.fullmatch("[0-9a-f]{8}", file.crc32c):
        raise ValueError(f"size and checksum of {name!r}")
    return file


def max_bytes(name: str, size: int) -> int:
    """Return the maximum number of bytes to read of the file `name`, which has `size` bytes in its manifest."""
    return _MAX_DOCUMENT_BYTES if name.endswith(_DOCUMENTS) else max(size, _MAX_DOCUMENT_BYTES)


def too_large(place: str, limit: int) -> DataError:
    """Return the error for a file or object of more than `limit` bytes."""
    return DataError(
        f"{place}: has more than {limit:,} bytes, the most that is read. "
        "Trainyard writes none as large: name the folder of another output."
    )


def text(content: bytes, location: str, errors: str = "strict") -> str:
    """Return `content` as text. Raises `DataError` if it is not UTF-8."""
    try:
        return content.decode(errors=errors)
    except UnicodeDecodeError as error:
        raise DataError(f"{location}: is no UTF-8 text, so it is damaged. Remove it and run the step again.") from error


def measure(path: Path) -> File:
    """Return size and checksum of the local file `path`."""
    checksum = google_crc32c.Checksum()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            checksum.update(chunk)
    return File(bytes=path.stat().st_size, crc32c=checksum.hexdigest().decode())


def measure_folder(folder: Path, producer: str, origin: dict[str, Any] | None = None) -> Manifest:
    """Return the manifest of all files below `folder`."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): measure(path) for path in paths}
    return Manifest(producer=producer, files=files, origin=origin or {})


def adopt(folder: Path, attempt: str, files: dict[str, File]) -> None:
    """Add `files`, which workers left in the folder of `attempt`, to the staging `folder` of an output in a bucket.

    attempt: as in `storage.attempt`.
    """
    document = {"attempt": attempt, "files": {name: asdict(file) for name, file in files.items()}}
    (folder / _ADOPTED).write_text(json.dumps(document), encoding="utf-8")


def take_adopted(folder: Path) -> tuple[str, dict[str, File]]:
    """Return the arguments of `adopt`, or '' and no files, and remove them from `folder`."""
    try:
        document = json.loads((folder / _ADOPTED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "", {}
    (folder / _ADOPTED).unlink()
    return document["attempt"], {name: File(**file) for name, file in document["files"].items()}
