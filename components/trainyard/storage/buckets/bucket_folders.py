"""Committed folders in a bucket: the creation of one marker object publishes them.

    <final>/manifest.json              the marker: the manifest, and in which folder the files are
    <final>/.attempts/<attempt>/...    the files of one attempt to write it; attempts never share a folder

The marker is created with a generation match (Google) or If-None-Match (S3), so of several writers one wins, and every
reader that opened a marker sees the files of that one writer. What killed writers left is removed by the next one that
publishes.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard import events
from trainyard.errors import DataError, InfrastructureError
from trainyard.storage import cache
from trainyard.storage import manifest as manifests
from trainyard.storage.buckets import stores, transfer
from trainyard.storage.buckets.bucket_lease import lease as lease
from trainyard.storage.buckets.objects import ABSENT, Changed, Missing, ObjectStore
from trainyard.storage.disk import os_errors, staging_errors
from trainyard.storage.manifest import MANIFEST, Manifest

ATTEMPTS = ".attempts/"


@dataclass(frozen=True)
class _Published:
    """A folder as its marker tells of it: `prefix` begins the names of its files' objects."""

    manifest: Manifest
    prefix: str


def committed(uri: str) -> Manifest | None:
    """See `storage.committed`."""
    found = _published(uri)
    return found.manifest if found else None


def require(uri: str, made_by: str) -> Manifest:
    """See `storage.require`."""
    store, _ = stores.place(uri)
    found = _opened(uri, made_by)
    sizes = {each.name.removeprefix(found.prefix): each.bytes for each in store.list(found.prefix).objects}
    if fault := manifests.missing(found.manifest, sizes, uri, made_by):
        raise fault
    return found.manifest


def local(uri: str, made_by: str, only: Callable[[str], bool] | None = None) -> Path:
    """See `storage.local`."""
    store, _ = stores.place(uri)
    found = _opened(uri, made_by, only)
    try:
        return _cached(store, uri, found)
    except Missing as error:
        again = _opened(uri, made_by, only)
        if again.prefix == found.prefix:
            raise DataError(
                f"{uri}: a file of its manifest is gone ({error}). Run with --from {made_by} to write it again."
            ) from error
        return _cached(store, uri, again)  # it was written anew while it was read


def read(folder: str, name: str) -> bytes | None:
    """See `storage.read`."""
    found = _published(folder)
    if found is None or name not in found.manifest.files:
        return None
    content = stores.place(folder)[0].read(found.prefix + name)
    return manifests.checked(content[0], found.manifest, name, folder) if content else None


def children(uri: str) -> list[str]:
    """See `storage.children`."""
    store, name = stores.place(uri)
    below = store.list(f"{name}/", deep=False)
    names = {each.removeprefix(f"{name}/").rstrip("/") for each in (*below.folders, *(o.name for o in below.objects))}
    return sorted(each for each in names if each and not each.startswith("."))


def remove_unfinished(uri: str) -> None:
    """See `storage.remove_unfinished`: folders that hold attempts and no marker."""
    store, name = stores.place(uri)
    found = [each.name.removeprefix(f"{name}/") for each in store.list(f"{name}/").objects]
    begun = {each.partition("/")[0] for each in found if each.partition("/")[2].startswith(ATTEMPTS)}
    whole = {each.partition("/")[0] for each in found if each.partition("/")[2] == MANIFEST}
    transfer.delete(store, [f"{name}/{each}" for each in found if each.partition("/")[0] in begun - whole])


def remove_abandoned(uri: str) -> None:
    """See `storage.remove_abandoned`.

    Without a marker, a writer that was overtaken while it stood still could wake up and publish what was removed.
    """
    found = _published(uri)
    if found is not None:
        _remove_attempts(uri, but=found.prefix)


@contextmanager
def stage(uri: str, producer: str, last: str = "") -> Iterator[Path]:
    """See `storage.stage`."""
    stores.place(uri)
    with cache.workplace() as staging:
        with staging_errors(staging, staging):
            yield staging
        with os_errors(staging, "read"):
            manifest = manifests.measured_folder(staging, producer)
        _publish(uri, staging, manifest, last)


def write_text(uri: str, text: str) -> None:
    """See `storage.write_text`."""
    store, name = stores.place(uri)
    store.write(name, text.encode())


def reserve(uri: str, size: int) -> None:
    """See `storage.reserve`."""


def read_text(uri: str) -> str | None:
    """See `storage.read_text`."""
    store, name = stores.place(uri)
    found = store.read(name)
    return manifests.text(found[0], uri) if found else None


def remove(uri: str) -> None:
    """See `storage.remove`."""
    store, name = stores.place(uri)
    store.delete(f"{name}/{MANIFEST}")
    store.delete(name)
    transfer.delete(store, [each.name for each in store.list(f"{name}/").objects])


def _published(uri: str) -> _Published | None:
    store, name = stores.place(uri)
    marker = store.read(f"{name}/{MANIFEST}")
    if marker is None:
        return None
    manifest, document = manifests.parse(marker[0], f"{uri}/{MANIFEST}")
    attempt = document.get("attempt", "")
    return _Published(manifest, f"{name}/{ATTEMPTS}{attempt}/" if attempt else f"{name}/")


def _opened(uri: str, made_by: str, only: Callable[[str], bool] | None = None) -> _Published:
    found = _published(uri)
    if found is None:
        raise DataError(f"{uri}: no committed output of the step '{made_by}'. Run with --from {made_by}.")
    if only is None:
        return found
    files = {name: file for name, file in found.manifest.files.items() if only(name)}
    return replace(found, manifest=replace(found.manifest, files=files))


def _publish(uri: str, staging: Path, manifest: Manifest, last: str) -> None:
    store, name = stores.place(uri)
    start = time.monotonic()
    attempt = secrets.token_hex(8)
    own = f"{name}/{ATTEMPTS}{attempt}/"
    prefix = f"{name}/" if last else own
    if last:
        store.write(own.rstrip("/"), b"")  # says that what lies here without a marker is unfinished
    transfer.upload(store, prefix, staging, {each: f for each, f in manifest.files.items() if each != last})
    if last in manifest.files:
        transfer.upload(store, prefix, staging, {last: manifest.files[last]})
    # The attempt's name makes the marker unlike any other, also where the files lie beside it.
    document = manifest.to_json(attempt="" if last else attempt, writer=attempt)
    try:
        store.write(f"{name}/{MANIFEST}", document.encode(), match=ABSENT)
    except Changed as error:
        if not last:
            transfer.delete(store, [own + each for each in manifest.files])
        winner = committed(uri)
        if winner is None or winner.digest != manifest.digest:
            raise InfrastructureError(
                f"{uri}: something else is there ({winner.producer if winner else 'no manifest'}). "
                "Remove it or name another storage."
            ) from error
        return
    _remove_attempts(uri, but=own)
    seconds = round(time.monotonic() - start, 2)
    events.emit("published", uri=uri, files=len(manifest.files), bytes=manifest.bytes, seconds=seconds)


def _remove_attempts(uri: str, but: str) -> None:
    """Remove the attempts to write `uri`, except the one whose objects' names begin with `but`."""
    store, name = stores.place(uri)
    attempts = [each.name for each in store.list(f"{name}/{ATTEMPTS}").objects]
    transfer.delete(store, [each for each in attempts if not each.startswith(but)])


def _cached(store: ObjectStore, uri: str, found: _Published) -> Path:
    """Return the verified copy, made now unless it is there. Raises `Missing` where an object is gone."""

    def fetch(folder: Path) -> None:
        start = time.monotonic()
        transfer.download(store, found.prefix, found.manifest, folder)
        seconds = round(time.monotonic() - start, 2)
        events.emit("fetched", uri=uri, files=len(found.manifest.files), bytes=found.manifest.bytes, seconds=seconds)

    key = hashlib.sha256(f"{uri}\0{found.manifest.digest}".encode()).hexdigest()[:32]
    return cache.entry(key, found.manifest, fetch)
