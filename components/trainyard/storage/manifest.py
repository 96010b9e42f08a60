"""What a committed folder holds: the document whose appearance publishes it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from trainyard.errors import DataError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
SELF_CHECKED = ".tfrecord"
"""How the names of files end that hold checksums of their own, which whoever reads them checks."""


@dataclass(frozen=True)
class File:
    """One file of a committed folder: its size and CRC32C, the checksum that object stores use too."""

    bytes: int
    crc32c: str

    @property
    def base64(self) -> str:
        """The checksum as object stores write it."""
        return base64.b64encode(bytes.fromhex(self.crc32c)).decode()


@dataclass(frozen=True)
class Manifest:
    """What a committed folder holds and who wrote it."""

    producer: str
    files: dict[str, File]
    schema_version: int = SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """SHA-256 over names, sizes and checksums: equal for equal content."""
        lines = [f"{name} {file.bytes} {file.crc32c}\n" for name, file in sorted(self.files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files.values())

    def to_json(self, **more: str) -> str:
        """Return the document, with what is in `more` beside the manifest's own."""
        return json.dumps(asdict(self) | more, indent=1, sort_keys=True)


def parse(text: str | bytes, where: str) -> tuple[Manifest, dict[str, Any]]:
    """Return the manifest in `text` and the whole document. Raises `DataError` where it is none."""
    try:
        document = json.loads(text)
        manifest = Manifest(
            producer=document["producer"],
            files={name: File(**entry) for name, entry in document["files"].items()},
            schema_version=document["schema_version"],
        )
        if wrong := [name for name in manifest.files if any(part in ("", ".", "..") for part in name.split("/"))]:
            raise ValueError(f"the name {wrong[0]!r} leads out of the folder")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: not a manifest of Trainyard ({error}). Remove the folder and run the step again."
        ) from error
    return manifest, document


def text(content: bytes, where: str) -> str:
    """Return `content` as text. Raises `DataError` where it is none."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: is no UTF-8 text, so it is damaged. Remove it and run the step again.") from error


def measured(path: Path) -> File:
    """Return the size and the checksum of the local file `path`."""
    checksum = google_crc32c.Checksum()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            checksum.update(chunk)
    return File(bytes=path.stat().st_size, crc32c=checksum.hexdigest().decode())


def measured_folder(folder: Path, producer: str) -> Manifest:
    """Return the manifest of all files below `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Manifest(producer=producer, files={path.relative_to(folder).as_posix(): measured(path) for path in files})


def checked(content: bytes, manifest: Manifest, name: str, uri: str) -> bytes:
    """Return `content`, read as the file `name` of the folder at `uri`. Raises `DataError` where it is not what was written."""
    file = manifest.files.get(name)
    if file is not None and google_crc32c.Checksum(content).hexdigest().decode() != file.crc32c:
        raise changed(manifest, name, uri)
    return content


def verify(manifest: Manifest, folder: Path, only: Callable[[str], bool] | None = None) -> None:
    """Raise `DataError` where a file in `folder` is not what was written; with `only` those whose names are chosen.

    Examples are left out: TFRecord holds a CRC32C of each record, and they may be more than memory can keep.
    """
    for name, file in manifest.files.items():
        if not name.endswith(SELF_CHECKED) and (only is None or only(name)) and measured(folder / name) != file:
            raise changed(manifest, name, str(folder))


def changed(manifest: Manifest, name: str, uri: str) -> DataError:
    """Return the sentence about the file `name` of the folder at `uri` that was changed after its step had written it."""
    step = manifest.producer.removeprefix("trainyard.")
    advice = (
        "Restore it, or remove champion.json to go on without a champion."
        if step == "push"
        else f"Run with --from {step} to write it again."
    )
    return DataError(
        f"{uri}/{name}: its content differs from its manifest's checksum, so it was changed after {step} had written "
        f"it. {advice}"
    )


def missing(manifest: Manifest, found: dict[str, int], uri: str, made_by: str) -> DataError | None:
    """Return what is wrong where the sizes `found`, by name, are not those of `manifest`."""
    for name, file in manifest.files.items():
        if found.get(name) != file.bytes:
            size = f"{found[name]} bytes" if name in found else "missing"
            return DataError(
                f"{uri}/{name}: {size}, its manifest says {file.bytes}. Run with --from {made_by} to write it again."
            )
    return None
