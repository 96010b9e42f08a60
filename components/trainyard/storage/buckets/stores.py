"""The bucket of a URI, by the client of its store; no other module knows which clients there are."""

from __future__ import annotations

from functools import cache

from trainyard.errors import ConfigurationError
from trainyard.storage.buckets.gcs import CloudStorage
from trainyard.storage.buckets.objects import ObjectStore
from trainyard.storage.buckets.s3 import S3
from trainyard.uris import is_bucket


def split_uri(uri: str) -> tuple[str, str]:
    """Return the bucket's URI and the object's name, which may be ''. Raises `ConfigurationError` without a bucket."""
    scheme, _, path = uri.partition("://")
    bucket, _, name = path.partition("/")
    if not bucket or not is_bucket(uri):
        raise ConfigurationError(
            f"{uri}: names no bucket. gs://bucket/folder and s3://bucket/folder are known. Correct it."
        )
    return f"{scheme}://{bucket}", name


def locate(uri: str) -> tuple[ObjectStore, str]:
    """Return the bucket of an output at `uri`, and its name there.

    Raises `ConfigurationError` for a bucket itself, and for a name with '..', empty parts or a trailing slash.
    """
    root, name = split_uri(uri)
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ConfigurationError(
            f"{uri}: is no place for outputs. A folder below the bucket is expected, without '..', '.' and '//'. "
            "Correct it."
        )
    return open_store(root), name


@cache
def open_store(root: str, deadline_seconds: float | None = None) -> ObjectStore:
    """Return the bucket `root` (gs://bucket or s3://bucket), without a request to the store."""
    if root.startswith("gs://"):
        return CloudStorage(root, deadline_seconds)
    if root.startswith("s3://"):
        return S3(root, deadline_seconds)
    raise NotImplementedError(root)
