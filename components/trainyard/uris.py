"""Where data and outputs are: a path on this machine, or a bucket's URI. Judged before anything is asked of a server."""

from __future__ import annotations

import os.path
import re
import unicodedata
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

BUCKETS = ("gs://", "s3://")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")  # the oldest of S3 have capitals, and 255 characters
_PARAMETERS = re.compile(r"\?[^/?]*=")
_SECRETS = re.compile(r"(?<=:/)\S*@|(?<=\?)\S*=\S*")
_KNOWN = "A folder, gs://bucket/folder and s3://bucket/folder are known"


def is_bucket(uri: str) -> bool:
    """Return whether `uri` is in an object store."""
    return uri.startswith(BUCKETS)


def scheme(uri: str) -> str:
    """Return what `uri` begins with up to its first colon, such as 'hdfs:'; '' for a path."""
    found = _SCHEME.match(uri)
    return found[0] if found else ""


def without_secrets(text: str) -> str:
    """Return `text` with what may be credentials in a URI replaced by '…'."""
    return _SECRETS.sub(lambda found: "/…@" if found[0].endswith("@") else "…", text)


def beside(folder: Path, place: str) -> str:
    """Return `place` as it is where it is a bucket's, else as an absolute path: from `folder`, or from a person's home by ~."""
    # Unlike Path's, this leaves a ~ of nobody as it is.
    return place if is_bucket(place) else str((folder / os.path.expanduser(place)).absolute())  # noqa: PTH111


def fault(place: str) -> str:
    """Return why `place` can be neither a path nor a bucket's URI, '' where it can. The reason repeats no secret."""
    if not place.strip():
        return f"names no place. {_KNOWN}"
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in place):
        return "holds a control character. Leave it out"
    if not is_bucket(place):
        found = scheme(place)
        return f"'{found}' is of no known place. {_KNOWN}; a path with a colon begins with ./" if found else ""
    bucket, _, name = place.partition("://")[2].partition("/")
    if "@" in bucket or ":" in bucket or "@" in name.partition("/")[0]:
        return "credentials do not belong into a URI. Leave them out, and log in or give them by `secrets`"
    if _PARAMETERS.search(name):
        return "a signature or another parameter does not belong into a URI. Leave out what follows the '?'"
    return "" if _BUCKET.fullmatch(bucket) else f"'{bucket[:80]}' is no name of a bucket. {_KNOWN}"


def output_fault(place: str) -> str:
    """Return why no output can be at `place`, '' where one can."""
    if why := fault(place):
        return why
    if not is_bucket(place):
        return "the root of the file system is no place for outputs. Name a folder" if _is_root(place) else ""
    name = place.partition("://")[2].partition("/")[2]
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        return "is no place for outputs. A folder below the bucket is expected, without '..', '.', '//' and a last '/'"
    if wild := next((letter for letter in "*?[]#" if letter in name), None):
        return f"'{wild}' does not belong into the name of an output. Leave it out"
    return ""


def _is_root(path: str) -> bool:
    return os.path.normpath(os.path.join(os.getcwd(), path)).strip("/") == ""  # noqa: PTH109, PTH118


def _source(place: str) -> str:
    if why := fault(place):
        raise ValueError(why)
    return place


def _output(place: str) -> str:
    if why := output_fault(place):
        raise ValueError(why)
    return place


Source = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_source)]
Output = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_output)]
