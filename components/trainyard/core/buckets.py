"""Reads a recipe's source from Google Cloud Storage, and says within seconds when that cannot be done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import IO, Any, cast

from trainyard.core.errors import DataError, TransientError

SCHEME = "gs://"

_GLOB = re.compile(r"[*?\[]")
_LIST_SECONDS, _READ_SECONDS = 10, 60  # chosen: what is retried for longer is an outage
_TIMEOUT = (5, 30)  # seconds to connect and between two packets; chosen
_CHUNK = 16 << 20  # bytes a request; Beam's own choice for the same client
_LOGIN = "Log in by `gcloud auth application-default login`, or give the service account the role Storage Object Viewer"


@dataclass(frozen=True)
class Object:
    """One object: its name below the listing's root, its size and its CRC32C as the store gives it."""

    name: str
    bytes: int
    crc32c: str


@dataclass(frozen=True)
class Listing:
    """The objects below `root`, a gs:// URI without a slash at its end."""

    root: str
    objects: list[Object]


def list_objects(uri: str) -> Listing:
    """Return the objects that `uri` (a folder, an object or a glob) stands for, by name.

    Hidden objects are left out, and the empty ones ending in a slash by which consoles show a folder. Raises `DataError`
    where the bucket is missing or closed, `TransientError` where the store cannot be reached.
    """
    bucket, _, pattern = uri.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise DataError(
            f"data.path: {uri}: names no bucket. gs://<bucket>/<folder> is expected. Correct data.path in the recipe."
        )
    found = _GLOB.search(pattern)
    with faults(f"data.path: {uri}"):
        if found:
            folder = pattern[: found.start()].rpartition("/")[0]
            blobs = _list(bucket, match_glob=pattern)
        else:
            folder = pattern.rstrip("/")
            blobs = _list(bucket, prefix=f"{folder}/" if folder else None)
            if not blobs and folder:
                blobs = [blob for blob in _list(bucket, prefix=folder) if blob.name == folder]
                folder = folder.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    files = (blob for blob in blobs if not blob.name.endswith("/"))
    objects = [Object(blob.name.removeprefix(prefix), blob.size, blob.crc32c) for blob in files]
    visible = (item for item in objects if not any(part.startswith(".") for part in item.name.split("/")))
    return Listing(f"{SCHEME}{bucket}/{folder}".rstrip("/"), sorted(visible, key=lambda item: item.name))


def open_object(uri: str) -> IO[bytes]:
    """Return the bytes of the object at `uri` as they are stored; reading raises what `faults` understands."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    bucket, _, name = uri.removeprefix(SCHEME).partition("/")
    blob = _client().bucket(bucket).blob(name)
    retry = DEFAULT_RETRY.with_timeout(_READ_SECONDS)
    return cast(IO[bytes], blob.open("rb", chunk_size=_CHUNK, raw_download=True, retry=retry, timeout=_TIMEOUT))


@contextmanager
def faults(where: str) -> Iterator[None]:
    """Raise `DataError` where the store refuses what the block asks for, `TransientError` where it does not answer."""
    from google.api_core.exceptions import ClientError, GoogleAPIError, NotFound, TooManyRequests
    from google.auth.exceptions import GoogleAuthError, TransportError
    from requests import RequestException  # type: ignore[import-untyped]

    try:
        yield
    except NotFound as error:
        raise DataError(f"{where}: there is no such bucket or object. Correct data.path in the recipe.") from error
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        refused = isinstance(error, ClientError) and not isinstance(error, TooManyRequests)
        closed = isinstance(error, GoogleAuthError) and not isinstance(error, TransportError)
        if refused or closed:
            raise DataError(
                f"{where}: may not be read ({_reason(error)}). {_LOGIN}, or correct data.path in the recipe."
            ) from error
        raise TransientError(
            f"{where}: cannot be reached ({_reason(error)}). Check the network and run the same command again."
        ) from error


def _list(bucket: str, **selection: str | None) -> list[Any]:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return list(
        _client().list_blobs(
            bucket,
            **selection,
            fields="items(name,size,crc32c),nextPageToken",
            retry=DEFAULT_RETRY.with_timeout(_LIST_SECONDS),
            timeout=_TIMEOUT,
        )
    )


@cache
def _client() -> Any:
    """Return the process's client; without credentials an anonymous one, which reads public buckets."""
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud.storage import Client

    try:
        return Client(project=None)  # reading needs no project, and a person's own credentials often name none
    except DefaultCredentialsError:
        return Client.create_anonymous_client()


def _reason(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error
    return " ".join(str(getattr(cause, "message", cause)).split())[:300]
