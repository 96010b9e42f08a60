"""Publish a pushed version to another system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigurationError, DataError
from trainyard_control.api.versions import Version, find_one


@dataclass(frozen=True)
class Published:
    """A version for another system. place: its address there, '' after a dry run.

    request: the exact object, or the arguments of calls of the client.
    """

    version: Version
    request: dict[str, Any]
    place: str = ""


def huggingface(
    model: str, *, environment: str, folder: Path | None, repository: str, public: bool, dry_run: bool
) -> Published:
    """Write `model` to `folder` as a repository of the Hugging Face Hub, or upload it to `repository`, or both.

    public: of a repository that does not exist yet. Raises `DataError` if the version is damaged,
    `ConfigurationError` without huggingface_hub or a token, and as `huggingface.upload`.
    """
    from trainyard_control.targets import huggingface as hub

    if not folder and not repository:
        raise ConfigurationError("publish huggingface: names no target. Give --folder, --repository, or both.")
    version = _version(model, environment)
    request = hub.upload_request(repository, version.name, public) if repository else {}
    if repository and not dry_run:
        hub.require_client()  # before files are read
    files = hub.contents(version.folder)
    request = {"files": {name: file.bytes for name, file in sorted(files.items())}, **request}
    if dry_run:
        return Published(version, request)
    if folder:
        hub.write(files, folder)
    return Published(version, request, hub.upload(files, request) if repository else str(folder))


def _version(model: str, environment: str) -> Version:
    """Return the version that `model` names. Raises `DataError` if Trainyard did not push it, and as `find_one`."""
    version = find_one(model, environment)
    if version.fault:
        raise DataError(version.fault)
    return version
