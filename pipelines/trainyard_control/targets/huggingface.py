"""A pushed version as a repository of the Hugging Face Hub: a folder, and its upload.

The SavedModel of a version moves to `saved_model/`, and the files of `assets.extra/` to the root. The content of
`model.keras` is there once more, unpacked, because `keras.saving.load_model("hf://OWNER/NAME")` reads it so.

Source: `save_model` and `load_model` in https://github.com/keras-team/keras/blob/master/keras/src/saving/saving_lib.py.
"""

from __future__ import annotations

import re
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from trainyard.contract.version import CARD, CODE, EXTRA, SERVED
from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.graph import remedy
from trainyard.storage import cache, disk, storage

_KERAS = "model.keras"
# Source: validate_repo_id in huggingface_hub/utils/_validators.py.
_REPOSITORY = re.compile(
    r"(?!.*(--|\.\.|\.git$))[a-z0-9][\w.-]{0,95}/[a-z0-9]([\w.-]{0,94}\w)?", re.ASCII | re.IGNORECASE
)
_LINK = re.compile(rf"(?<=[(\[]){re.escape(EXTRA)}/")
# What an earlier version may have left in a repository. Other files of a repository stay.
_REPLACED = [
    *("config.json", "examples/*", "metadata.json", "model*.tflite", "model.keras", "model.onnx"),
    *("model.weights.h5", "predict.py", "preprocess.py", "saved_model/*", "vocabularies/*"),
]


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: that in `source`, or the file `member` of this archive; `text` replaces its content."""

    source: Path
    size: int
    member: str = ""
    text: str = ""

    def open(self) -> BinaryIO:
        """Open the content, which `text` does not replace."""
        if self.member:
            return cast(BinaryIO, zipfile.Path(self.source, self.member).open("rb"))
        return self.source.open("rb")


def contents(folder: str) -> dict[str, HubFile]:
    """Return the files of the repository for the version in `folder`, by path.

    Raises `DataError` if a file of the version is missing or changed.
    """
    local = storage.local(folder, remedy("push"))
    stored = storage.require(folder, remedy("push")).files
    names = {name: file for name, file in stored.items() if name != CODE}  # which is not for the public
    if SERVED not in names:  # the files of a custom program
        return {name: HubFile(local / name, file.bytes) for name, file in names.items()}
    files = {_place(name): HubFile(local / name, file.bytes) for name, file in names.items()}
    if CARD in files:
        text = _LINK.sub("", (local / CARD).read_text(encoding="utf-8", errors="surrogateescape"))
        text = text.replace(f"]({SERVED})", f"](saved_model/{SERVED})")
        files[CARD] = HubFile(local / CARD, len(text.encode(errors="surrogateescape")), text=text)
    return {**dict(_unpacked(files.get(_KERAS))), **files}


def write(files: dict[str, HubFile], folder: Path) -> None:
    """Write a repository with `files` to `folder`, which must be new or empty."""
    with disk.os_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigurationError(f"{folder}: already exists. Name a new or an empty folder.")
        folder.mkdir(parents=True, exist_ok=True)
        staging = folder / f".{secrets.token_hex(4)}"  # inside, because the folder may be a disk or the working folder
        try:
            _fill(files, staging)
            for path in staging.iterdir():
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def upload_request(repository: str, version: str, public: bool) -> dict[str, Any]:
    """Return the arguments of HfApi.create_repo and HfApi.upload_folder. version: for the commit message.

    Raises `ConfigurationError` for a name that no repository can have.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise ConfigurationError(
            f"--repository {repository[:100]!r}: not a repository. Write OWNER/NAME, such as ada/digits, of letters, "
            "digits, '.', '_' and '-', without '--', '..' or a sign at the end."
        )
    return {
        "create_repo": {"repo_id": repository, "private": not public, "exist_ok": True},
        "upload_folder": {
            "repo_id": repository,
            "commit_message": f"Upload {version} with Trainyard",
            "delete_patterns": _REPLACED,
        },
    }


def require_client() -> Any:
    """Return the module huggingface_hub. Raises `ConfigurationError` if it, or a token of the Hub, is missing."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigurationError(
            "huggingface: the package huggingface_hub is missing. Install trainyard[huggingface], or write a folder "
            "with --folder."
        ) from error
    if huggingface_hub.get_token() is None:
        raise ConfigurationError("huggingface: no token. Log in by `hf auth login`, or set HF_TOKEN.")
    return huggingface_hub


def upload(files: dict[str, HubFile], request: dict[str, Any]) -> str:
    """Upload `files` as `upload_request` says, and return the address of the commit. Never run against the Hub.

    Raises `InfrastructureError` if the Hub refuses, `TransientError` if it cannot be reached.
    """
    client = require_client()
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    hub = client.HfApi()
    with cache.temporary_folder() as temporary:
        _fill(files, temporary / "repository")
        try:
            hub.create_repo(**request["create_repo"])
            done = hub.upload_folder(folder_path=temporary / "repository", **request["upload_folder"])
        except HfHubHTTPError as error:
            sentence = " ".join(str(error).split())[:400]
            if error.response.status_code >= 500 or error.response.status_code == 429:
                raise TransientError(f"huggingface: busy ({sentence}). Run the same command again.") from error
            raise InfrastructureError(
                f"huggingface: refused ({sentence}). Check the repository's name, and that your token may write to it."
            ) from error
        except HFValidationError as error:
            raise ConfigurationError(f"--repository: refused ({error}). Give another name.") from error
        except (HTTPError, ConnectionError) as error:
            raise TransientError(
                f"huggingface: {hub.endpoint} cannot be reached ({error}). Run the same command again."
            ) from error
    return str(done)


def _place(name: str) -> str:
    """Return the path in a repository of a file of a version."""
    if name == CARD:
        return name
    return name.removeprefix(f"{EXTRA}/") if name.startswith(f"{EXTRA}/") else f"saved_model/{name}"


def _unpacked(keras: HubFile | None) -> Iterator[tuple[str, HubFile]]:
    """Yield the files of the archive `keras`, by name."""
    if keras is None or not zipfile.is_zipfile(keras.source):
        return
    with zipfile.ZipFile(keras.source) as archive:
        for member in archive.infolist():
            if not member.is_dir() and ".." not in Path(member.filename).parts and not member.filename.startswith("/"):
                yield member.filename, HubFile(keras.source, member.file_size, member.filename)


def _fill(files: dict[str, HubFile], folder: Path) -> None:
    for name, file in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.text:
            target.write_text(file.text, encoding="utf-8", errors="surrogateescape")
        else:
            with file.open() as content, target.open("wb") as copy:
                shutil.copyfileobj(content, copy)
