"""Google Cloud Storage as an `ObjectStore`: versions are generations, and the server verifies CRC32C."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import InfrastructureError
from trainyard.storage.buckets import objects
from trainyard.storage.buckets.objects import Kind, Object, ObjectStore, Page, StoreFault, one_line
from trainyard.storage.manifest import File, too_large

if TYPE_CHECKING:
    from typing_extensions import Buffer

_RETRIED = (408, 429, 500, 502, 503, 504)
# Source: https://cloud.google.com/storage/docs/retry-strategy#retryable


class CloudStorage(ObjectStore):
    """A bucket of Google Cloud Storage."""

    role = (
        "Grant the service account (or, on your machine, the account of `gcloud auth application-default login`) the "
        "role Storage Object User on the bucket"
    )
    bundle_variable = "REQUESTS_CA_BUNDLE"

    def errors(self) -> tuple[type[Exception], ...]:
        """Return the errors of the client, its credentials and its HTTP library."""
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
        from requests import RequestException  # type: ignore[import-untyped]
        from urllib3.exceptions import HTTPError

        return (GoogleAPIError, GoogleAuthError, DataCorruption, InvalidResponse, RequestException, HTTPError)

    def _fault(self, error: Exception) -> StoreFault:
        from google.api_core.exceptions import RetryError
        from google.auth.exceptions import GoogleAuthError, TransportError

        if isinstance(error, RetryError) and isinstance(error.cause, Exception):
            return self._fault(error.cause)
        reason = one_line(getattr(error, "message", None) or error)
        if objects.untrusted(reason):
            return StoreFault(Kind.UNTRUSTED, reason)
        code = int(getattr(error, "code", 0) or getattr(getattr(error, "response", None), "status_code", 0) or 0)
        if isinstance(error, GoogleAuthError):
            kind = Kind.TRANSIENT if isinstance(error, TransportError) else Kind.REFUSED
        elif code == 404:
            kind = Kind.NO_BUCKET if "bucket does not exist" in reason else Kind.MISSING
        elif code in (412, 416):
            kind = Kind.CHANGED if code == 412 else Kind.PAST_END
        elif 400 <= code < 500 and code not in _RETRIED and "doesn't match calculated" not in reason:
            kind = Kind.REFUSED
        else:
            kind = Kind.TRANSIENT  # no answer, a broken or retriable one, or damage in transit
        return StoreFault(kind, reason)

    def _read(self, name: str, limit: int) -> tuple[bytes, str]:
        blob, content = self._blob(name), _Bounded(f"{self.root}/{name}", limit)
        blob.download_to_file(content, raw_download=True, retry=None, timeout=objects.TIMEOUT_SECONDS)
        return content.getvalue(), str(blob.generation)

    def _read_range(self, name: str, start: int, length: int) -> bytes:
        return bytes(
            self._blob(name).download_as_bytes(
                start=start,
                end=start + length - 1,
                raw_download=True,
                checksum=None,
                retry=None,
                timeout=objects.TIMEOUT_SECONDS,
            )
        )

    def _write(self, name: str, content: bytes, match: str | None) -> str:
        blob = self._blob(name)
        blob.upload_from_string(
            content,
            content_type=objects.content_type(name),
            if_generation_match=None if match is None else int(match or 0),
            checksum="crc32c",
            retry=None,
            timeout=objects.TIMEOUT_SECONDS,
        )
        return str(blob.generation)

    def _upload(self, name: str, path: Path, file: File) -> None:
        from google.cloud.storage.retry import DEFAULT_RETRY

        blob = self._blob(name)
        blob.crc32c = file.base64  # the server refuses other content
        # A large file is uploaded in parts of a session, which only the client's own retries can resume.
        blob.upload_from_filename(
            path,
            content_type=objects.content_type(name),
            checksum="crc32c",
            retry=DEFAULT_RETRY.with_timeout(self.deadline_seconds).with_delay(
                initial=objects.FIRST_PAUSE, maximum=objects.LONGEST_PAUSE
            ),
            timeout=objects.TIMEOUT_SECONDS,
        )
        if blob.crc32c != file.base64:
            raise InfrastructureError(f"{path}: was changed while it was uploaded. Run the same command again.")

    def _page(self, prefix: str, deep: bool, token: str) -> Page:
        blobs = _client().list_blobs(
            self.bucket,
            prefix=prefix or None,
            delimiter=None if deep else "/",
            page_token=token or None,
            page_size=objects.PAGE_OBJECTS,
            fields="items(name,size,crc32c),prefixes,nextPageToken",
            retry=None,
            timeout=objects.TIMEOUT_SECONDS,
        )
        listed = [Object(blob.name, blob.size, blob.crc32c) for blob in next(blobs.pages)]
        return Page(listed, sorted(blobs.prefixes), blobs.next_page_token or "")

    def _delete(self, name: str) -> None:
        self._blob(name).delete(retry=None, timeout=objects.TIMEOUT_SECONDS)

    def _delete_version(self, name: str, version: str) -> None:
        self._blob(name).delete(if_generation_match=int(version), retry=None, timeout=objects.TIMEOUT_SECONDS)

    def _blob(self, name: str) -> Any:
        key = os.environ.get(objects.KMS_VARIABLE, "")
        return _client().bucket(self.bucket).blob(name, kms_key_name=key if objects.is_google_key(key) else None)


class _Bounded(BytesIO):
    """A buffer that takes at most `limit` bytes of the object `place`."""

    def __init__(self, place: str, limit: int) -> None:
        super().__init__()
        self._place, self._limit = place, limit

    def write(self, content: Buffer) -> int:
        """Append `content`. Raises `DataError` if it is too much."""
        if self.tell() + memoryview(content).nbytes > self._limit:
            raise too_large(self._place, self._limit)
        return super().write(content)


_find_bundle: Callable[[], str] = str


def trust_by(find: Callable[[], str]) -> None:
    """Let `find` name the file of trusted certificates before the first request, unless REQUESTS_CA_BUNDLE does."""
    global _find_bundle
    _find_bundle = find


@cache
def _client() -> Any:
    """Return the process's client; without credentials an anonymous one, which reads public buckets."""
    if bundle := _find_bundle():
        # Tokens are renewed by other clients of google-auth, which know no other way.
        os.environ.setdefault(CloudStorage.bundle_variable, bundle)
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud.storage import Client

    try:
        return Client(project=None)  # objects need no project, and user credentials often name none
    except DefaultCredentialsError:
        return Client.create_anonymous_client()
