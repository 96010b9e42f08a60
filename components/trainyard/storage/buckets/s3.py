"""Amazon S3 and compatible servers (MinIO, SeaweedFS, Ceph …) as an `ObjectStore`: versions are ETags.

Unless `access_by` names others, region, endpoint and credentials are boto3's own: AWS_REGION, AWS_ENDPOINT_URL_S3,
AWS_ACCESS_KEY_ID …, ~/.aws, or the role of the pod. Without credentials requests are anonymous, which reads public
buckets. Every upload carries its CRC32C. A server that supports it refuses other content and returns it; otherwise the
ETag must be the content's MD5, or the content is read back.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import google_crc32c

from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.storage.buckets import objects
from trainyard.storage.buckets.objects import (
    ABSENT,
    Changed,
    Kind,
    Missing,
    Object,
    ObjectStore,
    Page,
    StoreFault,
    one_line,
)
from trainyard.storage.manifest import MAX_TEXT_BYTES, File, too_large

PART_BYTES = 16 << 20  # chosen: of a file that is uploaded in parts
_MAX_PARTS = 10_000  # specified by S3
_MISSING = ("NoSuchKey", "404", "NotFound", "NoSuchUpload")
_FULL = ("XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded")  # source: MinIO's and Ceph's lists
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException", "RequestExpired")
# Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_RETRIED = ("SlowDown", "RequestTimeout", "BadDigest", "XAmzContentChecksumMismatch", "ConditionalRequestConflict")


_ANONYMOUS = "; no AWS credentials were found, so the request was anonymous"


@dataclass(frozen=True)
class Access:
    """Endpoint, keys and file of trusted certificates of this process's client; for an empty one boto3's own."""

    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    bundle: str = ""


_find_access: Callable[[], Access] = Access
_lock = threading.RLock()


def access_by(find: Callable[[], Access]) -> None:
    """Let `find` choose the access of this process's client. It is called once, at the first request.

    Raises `ConfigurationError` if the client exists already and reaches its store in another way.
    """
    global _find_access  # a process has one client, as it has one set of AWS variables
    with _lock:
        if find == _find_access:
            return
        if _made_client.cache_info().currsize:
            raise ConfigurationError(
                "storage: this process reaches an S3 store by another environment already. Use one environment with "
                "S3 storage in a process."
            )
        _find_access = find


def connect() -> None:
    """Create the client, without a request to the store. Raises the errors of the function given to `access_by`."""
    _client()


class S3(ObjectStore):
    """A bucket reached by the S3 protocol."""

    role = (
        "Allow s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and s3:ListBucket on the bucket to "
        "these credentials (AWS_ACCESS_KEY_ID …, or the pod's role)"
    )
    bundle_variable = "AWS_CA_BUNDLE"

    def __init__(self, root: str, deadline_seconds: float | None) -> None:
        super().__init__(root, deadline_seconds)
        self._trusted = False

    def errors(self) -> tuple[type[Exception], ...]:
        """Return the errors of the client and its HTTP library."""
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        return (ClientError, BotoCoreError, HTTPError)

    def _fault(self, error: Exception) -> StoreFault:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            IncompleteReadError,
            ResponseStreamingError,
        )

        if isinstance(error, ClientError):
            detail = error.response.get("Error", {})
            kind, reason = _kind(error.response), f"{detail.get('Code', '')}: {detail.get('Message', '')}"[:300]
            return StoreFault(kind, reason + (_ANONYMOUS if kind is Kind.REFUSED and _is_anonymous() else ""))
        reason = one_line(error)
        if objects.untrusted(reason):
            return StoreFault(Kind.UNTRUSTED, reason)
        broken = (ConnectionError, HTTPClientError, IncompleteReadError, ResponseStreamingError)
        if isinstance(error, BotoCoreError) and not isinstance(error, broken):
            return StoreFault(Kind.REFUSED, reason)  # no credentials, an endpoint that is no URL …
        return StoreFault(Kind.TRANSIENT, reason)

    def _read(self, name: str, limit: int) -> tuple[bytes, str]:
        answer = _client().get_object(Bucket=self.bucket, Key=name)
        if answer["ContentLength"] > limit:
            answer["Body"].close()
            raise too_large(f"{self.root}/{name}", limit)
        return answer["Body"].read(), answer["ETag"]

    def _read_range(self, name: str, start: int, length: int) -> bytes:
        answer = _client().get_object(Bucket=self.bucket, Key=name, Range=f"bytes={start}-{start + length - 1}")
        return bytes(answer["Body"].read())

    def _write(self, name: str, content: bytes, match: str | None) -> str:
        condition = {} if match is None else {"IfNoneMatch": "*"} if match == ABSENT else {"IfMatch": match}
        version = self._put(name, content, condition)
        if condition and not self._trusted:
            self._require_conditions(name, content)
        return version

    def _require_conditions(self, name: str, content: bytes) -> None:
        """Raise `InfrastructureError` if the server ignores conditions, because two writers could then both win.

        Checked once a process, with an object that was just written under a condition.
        """
        for header, condition in (
            ("If-None-Match", {"IfNoneMatch": "*"}),
            ("If-Match", {"IfMatch": '"00000000000000000000000000000000"'}),
        ):
            try:
                target = {"Bucket": self.bucket, "Key": name, "Body": content, **_encryption(), **condition}
                put_again = partial(_client().put_object, **target)
                self.retried(name, "write", put_again)
            except Changed:
                continue
            raise InfrastructureError(
                f"{self.root}: its server ignores {header} when an object is written, so two runs could "
                "overwrite each other. Use a server with conditional writes (Amazon's, MinIO, SeaweedFS)."
            )
        self._trusted = True

    def _upload(self, name: str, path: Path, file: File) -> None:
        size = _part_bytes(file)
        if file.bytes <= size:
            content = path.read_bytes()
            if _base64_crc32c(content) != file.base64:
                raise _was_changed(path)
            self._put(name, content, {})
        else:
            self._upload_parts(name, path, file, size)

    def _upload_parts(self, name: str, path: Path, file: File, size: int) -> None:
        target = {"Bucket": self.bucket, "Key": name}
        upload = _begin(target)
        try:
            total = google_crc32c.Checksum()
            parts: list[dict[str, Any]] = []
            with path.open("rb") as stream:
                while content := stream.read(size):
                    total.update(content)
                    number = len(parts) + 1
                    send = partial(self._upload_part, target, upload, number, content)
                    parts.append(self.retried(name, "write", send))
            if total.hexdigest().decode() != file.crc32c:
                raise _was_changed(path)
            answer = _client().complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts})
            if "ETag" not in answer:  # S3 may answer 200 with an error in it
                raise ConnectionError("the parts were not put together")
        except BaseException:
            with suppress(*self.errors()):  # after a kill, the bucket's lifecycle rule does it
                _client().abort_multipart_upload(**target, UploadId=upload)
            raise

    def upload_in_parts(self, name: str, path: Path, file: File, progress: Callable[[int], None]) -> None:
        """Upload several parts at a time; complete parts of an unfinished upload of this name are not sent again."""
        target = {"Bucket": self.bucket, "Key": name}
        size = _part_bytes(file)
        upload, stored = self.retried(name, "write", partial(self._begun, target))
        slots = threading.BoundedSemaphore(objects.THREADS)  # so that few parts are in memory

        def send(number: int, content: bytes) -> dict[str, Any]:
            try:
                if not (part := _same_part(stored.get(number), content)):
                    part = self.retried(name, "write", partial(self._upload_part, target, upload, number, content))
                progress(len(content))
                return part
            finally:
                slots.release()

        total = google_crc32c.Checksum()
        with path.open("rb") as stream, ThreadPoolExecutor(objects.THREADS, "transfer") as pool:
            sent: list[Future[dict[str, Any]]] = []
            while content := stream.read(size):
                slots.acquire()
                if any(part.done() and part.exception() for part in sent):
                    slots.release()
                    break
                total.update(content)
                sent.append(pool.submit(send, len(sent) + 1, content))
        parts = [part.result() for part in sent]
        if total.hexdigest().decode() != file.crc32c:
            with suppress(*self.errors()):
                _client().abort_multipart_upload(**target, UploadId=upload)
            raise _was_changed(path)
        self._complete(name, upload, parts, file)

    def _complete(self, name: str, upload: str, parts: list[dict[str, Any]], file: File) -> None:
        """Put the parts together, unless another process that used the same parts has done it."""
        whole = {"Bucket": self.bucket, "Key": name, "UploadId": upload, "MultipartUpload": {"Parts": parts}}
        try:
            answer = self.retried(name, "write", lambda: _client().complete_multipart_upload(**whole))
            if "ETag" in answer:  # S3 may answer 200 with an error in it
                return
        except Missing:
            pass
        if not any(item.name == name and item.bytes == file.bytes for item in self.list(name).objects):
            raise TransientError(f"{self.root}/{name}: its parts were not put together. Run the same command again.")

    def _begun(self, target: dict[str, str]) -> tuple[str, dict[int, dict[str, Any]]]:
        """Return the id of an unfinished upload of the object and its parts by number, or those of a new one."""
        with suppress(*self.errors()):  # it may be forbidden to list them
            pages = _client().get_paginator("list_multipart_uploads")
            begun = pages.paginate(Bucket=self.bucket, Prefix=target["Key"])
            for upload in (upload for page in begun for upload in page.get("Uploads", [])):
                if upload["Key"] == target["Key"]:
                    listed = _client().get_paginator("list_parts").paginate(**target, UploadId=upload["UploadId"])
                    parts = [part for page in listed for part in page.get("Parts", [])]
                    return upload["UploadId"], {part["PartNumber"]: part for part in parts}
        return _begin(target), {}

    def _upload_part(self, target: dict[str, str], upload: str, number: int, content: bytes) -> dict[str, Any]:
        checksum = _base64_crc32c(content)
        answer = _client().upload_part(
            **target, UploadId=upload, PartNumber=number, Body=content, ChecksumCRC32C=checksum
        )
        confirmed = answer.get("ChecksumCRC32C") == checksum
        if not confirmed and answer["ETag"].strip('"') != _md5(content):
            raise InfrastructureError(
                f"{self.root}/{target['Key']}: the server confirms no checksum of a part, neither CRC32C nor MD5. "
                "Use a server that does."
            )
        return {"PartNumber": number, "ETag": answer["ETag"]} | ({"ChecksumCRC32C": checksum} if confirmed else {})

    def _put(self, name: str, content: bytes, condition: dict[str, str]) -> str:
        """Store a whole object and return its version.

        Raises a transient error if the server stored other content, so that the upload is retried.
        """
        checksum = _base64_crc32c(content)
        answer = _client().put_object(
            Bucket=self.bucket,
            Key=name,
            Body=content,
            ContentType=objects.content_type(name),
            ChecksumCRC32C=checksum,
            **_encryption(),
            **condition,
        )
        confirmed = answer.get("ChecksumCRC32C") == checksum or answer["ETag"].strip('"') == _md5(content)
        if not confirmed and self._read(name, MAX_TEXT_BYTES)[0] != content:
            raise ConnectionError("what was stored differs from what was sent")
        return str(answer["ETag"])

    def _page(self, prefix: str, deep: bool, token: str) -> Page:
        options = ({} if deep else {"Delimiter": "/"}) | ({"ContinuationToken": token} if token else {})
        page = _client().list_objects_v2(Bucket=self.bucket, Prefix=prefix, MaxKeys=objects.PAGE_OBJECTS, **options)
        listed = [Object(item["Key"], item["Size"], item["ETag"]) for item in page.get("Contents", [])]
        folders = [item["Prefix"] for item in page.get("CommonPrefixes", [])]
        return Page(listed, folders, page.get("NextContinuationToken", ""))

    def _delete(self, name: str) -> None:
        _client().delete_object(Bucket=self.bucket, Key=name)

    def _delete_version(self, name: str, version: str) -> None:
        _client().delete_object(Bucket=self.bucket, Key=name, IfMatch=version)


def _client() -> Any:
    with _lock:  # several threads may need the first one
        return _made_client()


@cache
def _made_client() -> Any:
    """Return the process's client. Servers other than Amazon's are addressed by `host/bucket`, not by `bucket.host`."""
    import boto3
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config

    connect, read = objects.TIMEOUT_SECONDS
    # Not every server knows botocore's own checksums (CRC32, in a trailer); every request carries ours.
    settings = Config(
        connect_timeout=connect,
        read_timeout=read,
        retries={"total_max_attempts": 1},
        max_pool_connections=32,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    access = _find_access()
    # No object's time is used, and dateutil takes half of the time of a listing to read them.
    core = botocore.session.get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    session = boto3.Session(botocore_session=core)
    if not access.access_key and session.get_credentials() is None:
        settings = settings.merge(Config(signature_version=UNSIGNED))
    options = {
        "endpoint_url": access.endpoint or None,
        "region_name": access.region or None,
        "aws_access_key_id": access.access_key or None,
        "aws_secret_access_key": access.secret_key or None,
        "aws_session_token": access.session_token or None,
        "verify": access.bundle or None,
    }
    client = session.client("s3", config=settings, **options)
    if ".amazonaws.com" in client.meta.endpoint_url:
        return client
    return session.client("s3", config=settings.merge(Config(s3={"addressing_style": "path"})), **options)


def _encryption() -> dict[str, str]:
    """Return the arguments of a request that creates an object, with the key that encrypts it."""
    key = os.environ.get(objects.KMS_VARIABLE, "")
    return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key} if key and not objects.is_google_key(key) else {}


def _is_anonymous() -> bool:
    from botocore import UNSIGNED

    return _client().meta.config.signature_version is UNSIGNED


def _kind(answer: dict[str, Any]) -> Kind:
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return Kind.NO_BUCKET
    if code in _FULL or status == 507:
        return Kind.FULL
    if code in _RETRIED or status in (408, 429) or status >= 500:
        return Kind.TRANSIENT
    if code in _MISSING or status == 404:
        return Kind.MISSING
    if status in (412, 416):
        return Kind.CHANGED if status == 412 else Kind.PAST_END
    return Kind.EXPIRED if code in _EXPIRED else Kind.REFUSED


def _part_bytes(file: File) -> int:
    """Return the size of the parts of `file`, which are at most `_MAX_PARTS`."""
    return max(PART_BYTES, -(-file.bytes // _MAX_PARTS))


def _begin(target: dict[str, str]) -> str:
    """Begin an upload in parts, and return its id."""
    answer = _client().create_multipart_upload(
        **target, ChecksumAlgorithm="CRC32C", ContentType=objects.content_type(target["Key"]), **_encryption()
    )
    return str(answer["UploadId"])


def _same_part(stored: dict[str, Any] | None, content: bytes) -> dict[str, Any]:
    """Return the `stored` part as a completed upload lists it; empty if it differs from `content`."""
    if stored is None or stored["Size"] != len(content):
        return {}
    checksum = stored.get("ChecksumCRC32C")
    if (checksum != _base64_crc32c(content)) if checksum else (stored["ETag"].strip('"') != _md5(content)):
        return {}
    return {"PartNumber": stored["PartNumber"], "ETag": stored["ETag"]} | (
        {"ChecksumCRC32C": checksum} if checksum else {}
    )


def _was_changed(path: Path) -> InfrastructureError:
    return InfrastructureError(f"{path}: was changed while it was uploaded. Run the same command again.")


def _base64_crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
