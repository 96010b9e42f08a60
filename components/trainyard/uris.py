"""Paths on this machine, URIs of buckets and names of images. Checked before any request to a server."""

from __future__ import annotations

import os
import os.path
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

BUCKETS = ("gs://", "s3://")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")  # the oldest of S3 have capitals, and 255 characters
_PARAMETERS = re.compile(r"\?[^/?]*=")
# Also those before the name of a registry, which is no URI.
_SECRETS = re.compile(r"(?<=:/)\S*@|(?<=\?)\S*=\S*|(?<![^\s'\"(=])[^\s/:@'\"(=]+:[^\s/:@]+@(?!sha256:)")
# Source: https://github.com/distribution/reference, of which this is the part that every registry takes
_IMAGE = re.compile(
    r"^[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$"
)
_KNOWN = "A folder, gs://bucket/folder and s3://bucket/folder are known"
BRACKETS = "[]"
"""Around an IPv6 address that a port follows."""

# For gRPC alone, which then reads no `no_proxy`. Source: grpc, doc/environment_variables.md.
_NO_PROXY, _NO_PROXY_OF_ALL = "no_grpc_proxy", "no_proxy"


def is_bucket(uri: str) -> bool:
    """Return True if `uri` is in an object store."""
    return uri.startswith(BUCKETS)


def scheme(uri: str) -> str:
    """Return the scheme of `uri` with its colon, such as 'hdfs:'; '' for a path."""
    match = _SCHEME.match(uri)
    return match[0] if match else ""


def without_secrets(text: str) -> str:
    """Return `text` with what may be credentials in a URI replaced by '…'."""
    return _SECRETS.sub(
        lambda match: "/…@" if match[0].startswith("/") else "…@" if match[0].endswith("@") else "…", text
    )


def resolve(folder: Path, uri: str) -> str:
    """Return a bucket's URI as it is, a path as an absolute one: from `folder`, or from a home folder by ~."""
    # Unlike Path's, this leaves the ~ of an unknown user as it is.
    return uri if is_bucket(uri) else str((folder / os.path.expanduser(uri)).absolute())  # noqa: PTH111


def path_error(uri: str) -> str:
    """Return the reason why `uri` is neither a path nor a bucket URI, '' if it is one. The reason repeats no secret."""
    if not uri.strip():
        return f"names no place. {_KNOWN}"
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in uri):
        return "holds a control character. Leave it out"
    if not is_bucket(uri):
        begin = scheme(uri)
        return f"'{begin}' is of no known place. {_KNOWN}; a path with a colon begins with ./" if begin else ""
    bucket, _, name = uri.partition("://")[2].partition("/")
    if "@" in bucket or ":" in bucket or "@" in name.partition("/")[0]:
        return "credentials do not belong into a URI. Leave them out, and log in or give them by `secrets`"
    if _PARAMETERS.search(name):
        return "a signature or another parameter does not belong into a URI. Leave out what follows the '?'"
    return "" if _BUCKET.fullmatch(bucket) else f"'{bucket[:80]}' is no name of a bucket. {_KNOWN}"


def output_error(uri: str) -> str:
    """Return the reason why no output can be at `uri`, '' if one can."""
    if why := path_error(uri):
        return why
    if not is_bucket(uri):
        return "the root of the file system is no place for outputs. Name a folder" if _is_root(uri) else ""
    name = uri.partition("://")[2].partition("/")[2]
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        return "is no place for outputs. A folder below the bucket is expected, without '..', '.', '//' and a last '/'"
    if wild := next((letter for letter in "*?[]#" if letter in name), None):
        return f"'{wild}' does not belong into the name of an output. Leave it out"
    return ""


def _is_root(path: str) -> bool:
    return os.path.normpath(os.path.join(os.getcwd(), path)).strip("/") == ""  # noqa: PTH109, PTH118


def _source(uri: str) -> str:
    if why := path_error(uri):
        raise ValueError(why)
    return uri


def _output(uri: str) -> str:
    if why := output_error(uri):
        raise ValueError(why)
    return uri


def _image(name: str) -> str:
    if not _IMAGE.fullmatch(name):
        raise ValueError("is no name of an image. Write registry/name:tag or registry/name@sha256:digest")
    return name


Source = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_source)]
Output = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_output)]
Image = Annotated[str, Field(max_length=512, json_schema_extra={"pattern": _IMAGE.pattern}), AfterValidator(_image)]


def with_port(host: str, port: int) -> str:
    """Return host:port, with brackets around an IPv6 address.

    >>> with_port("::1", 8080)
    '[::1]:8080'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bypass_proxy(addresses: Iterable[str] = ()) -> None:
    """Have gRPC ask no proxy for this machine and the hosts of `addresses`, each host:port.

    Call it before a channel is made. What a user set for other hosts stays, and other libraries see no change.
    """
    known = os.environ.get(_NO_PROXY) or os.environ.get(_NO_PROXY_OF_ALL) or ""
    hosts = [*known.split(","), "localhost", "127.0.0.1", "::1"]
    hosts += [address.rpartition(":")[0].strip(BRACKETS) for address in addresses]
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys(filter(None, hosts)))
