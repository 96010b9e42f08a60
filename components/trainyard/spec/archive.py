"""Code that is too large for the text of a recipe: a tar archive, which the recipe names by its place and its SHA-256.

The archive is the same on every machine: its files are sorted, and owners and times are left out. It is not compressed,
so that it cannot grow when it is read.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from trainyard import uris
from trainyard.errors import DataError
from trainyard.spec import documents
from trainyard.storage import cache, storage, tar

FILE = "code.tar"
"""The name of an archive, in an upload as in a pushed version."""

MAX_BYTES = 100 << 20  # chosen: a second of a pod's start
MAX_FILES = 10_000  # chosen
_MAX_ARCHIVE = MAX_BYTES + MAX_FILES * 6 * tar.BLOCK  # each file has at most a header of 5 blocks, and is padded
_NAME = r"[^\x00-\x1f\x7f./\\][^\x00-\x1f\x7f/\\]*"
NAME = rf"^{_NAME}(/{_NAME})*$"
"""The form of the name of a file that travels: relative, and no part is hidden or leads out of the folder."""

_VALID = re.compile(rf"(?=.{{1,256}}$){NAME[1:]}")


class Archive(documents.Strict):
    """The archive of code that is larger than a recipe's text may be. Trainyard writes it."""

    archive: Annotated[str, Field(max_length=1024, pattern=r"^(/|gs://|s3://)[^\x00-\x1f]+$")] = Field(
        description="Absolute path or URI."
    )
    sha256: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")] = Field(description="Its SHA-256.")


class ArchivedFiles(dict[str, str | bytes]):
    """The files of an archive by name. A process that gets them from another one reads the archive itself."""

    def __init__(self, archive: Archive) -> None:
        super().__init__(_members(archive))
        self.archive = archive

    def __reduce__(self) -> tuple[Callable[[Archive], ArchivedFiles], tuple[Archive]]:
        return unpack, (self.archive,)


def is_valid_name(name: str) -> bool:
    """Return True if a file of this name may travel."""
    return _VALID.match(name) is not None


def pack(files: Mapping[str, bytes]) -> Archive:
    """Return the archive of `files`, which is in this machine's cache as long as this process runs."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    content = stream.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    path = cache.file(FILE, sha256, lambda path: path.write_bytes(content))
    return Archive(archive=str(path), sha256=sha256)


def read(archive: Archive) -> bytes:
    """Return the bytes of the archive. Raises `DataError` if it is missing or has another SHA-256."""
    place = uris.without_secrets(archive.archive)
    content = storage.read_bytes(archive.archive, _MAX_ARCHIVE)
    if content is None:
        raise DataError(f"files: {place}: the archive of the code is not there. Start the run from the recipe's file.")
    cache.require_digest(hashlib.sha256(content).hexdigest(), archive.sha256, f"files: {place}")
    return content


@lru_cache(maxsize=2)  # chosen: of a recipe, and of a version that is judged by its own
def unpack(archive: Archive) -> ArchivedFiles:
    """Return the files of the archive, in memory.

    Raises `DataError` if it is missing, has another SHA-256, or holds what Trainyard does not pack.
    """
    return ArchivedFiles(archive)


def _members(archive: Archive) -> dict[str, str | bytes]:
    place, content = uris.without_secrets(archive.archive), read(archive)
    files: dict[str, str | bytes] = {}
    for member in tar.members(io.BytesIO(content)):
        name = documents.safe(member.name)
        why = member.detail or ("is there twice" if member.name in files else "")
        if not why and not is_valid_name(member.name):
            why = "is no name of a file that travels"
        if why or len(files) == MAX_FILES:
            why = f"'{name}': {why}" if why else f"has more than {MAX_FILES:,} files"
            raise DataError(
                f"files: {place}: {why}. Trainyard packs no such archive. Name one from a source you trust."
            )
        data = content[member.at : member.at + member.size]
        files[member.name] = _text(data, f"{place}: '{name}'") if member.name.endswith(".py") else data
    return files


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"files: {name}: is not UTF-8 text. Save it as UTF-8.") from error
