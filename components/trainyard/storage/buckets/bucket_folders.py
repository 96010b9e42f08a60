"""Committed folders in a bucket, published by creating one marker object.

    <final>/manifest.json              the marker: the manifest, and the attempt whose files it lists
    <final>/.attempts/<attempt>/...    the files of one attempt; attempts never share a folder

Open folders, for readers without manifests (`last` of `stage`):

    <final>/...                        the files
    <final>/.attempts/<attempt>        the names of the files of an unfinished attempt

The marker is created with a generation match (Google) or If-None-Match (S3), so one of several writers wins, and a
reader that opened a marker sees the files of that writer only. The next writer to publish removes leftovers of killed
ones.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard import events
from trainyard.errors import InfrastructureError, TransientError
from trainyard.storage import cache, damage, file_stream
from trainyard.storage import manifest as manifests
from trainyard.storage.buckets import objects, stores
from trainyard.storage.buckets.bucket_lease import lease as lease
from trainyard.storage.buckets.objects import ABSENT, Changed, Missing, ObjectStore
from trainyard.storage.disk import os_errors, staging_errors
from trainyard.storage.file_stream import CachedFiles, FileStream
from trainyard.storage.manifest import ATTEMPTS, MANIFEST, Manifest


@dataclass(frozen=True)
class _Published:
    """A folder as its marker describes it, or some of its files.

    prefix: of the names of its objects. digest: of the whole manifest. is_open: its files are directly below its name.
    """

    manifest: Manifest
    prefix: str
    digest: str
    is_open: bool


def committed(uri: str) -> Manifest | None:
    published = _published(uri)
    return published.manifest if published else None


def require(uri: str, advice: str) -> Manifest:
    store, _ = stores.locate(uri)
    published = _open(uri, advice)
    prefix = published.prefix
    sizes = {item.name.removeprefix(prefix): item.bytes for item in store.list(prefix).objects}
    damage.require_sizes(published.manifest, sizes, uri, advice)
    return published.manifest


def local(uri: str, advice: str, only: Callable[[str], bool] | None = None) -> Path:
    store, _ = stores.locate(uri)
    published = _open(uri, advice, only)
    try:
        return _local_copy(store, uri, published)
    except Missing as error:
        again = _open(uri, advice, only)
        if again.prefix == published.prefix:
            raise damage.lost(uri, advice, error) from error
        return _local_copy(store, uri, again)  # it was replaced while it was read


def stream(uri: str, advice: str, names: Collection[str]) -> FileStream | None:
    store, _ = stores.locate(uri)
    published = _open(uri, advice)
    key = _key(uri, published.digest)
    if cache.has(key, published.manifest):
        return None

    def download(name: str, path: Path) -> None:
        nonlocal published
        file = published.manifest.files[name]
        try:
            objects.download_file(store, published.prefix + name, path, file)
        except Missing as error:
            again = _open(uri, advice)
            if again.prefix == published.prefix or again.digest != published.digest:
                raise damage.lost(uri, advice, error) from error
            published = again  # it was replaced by an equal one while it was read
            objects.download_file(store, published.prefix + name, path, file)

    manifest = replace(published.manifest, files={name: published.manifest.files[name] for name in names})
    return FileStream(uri, CachedFiles(key, manifest, download))


def read(folder: str, name: str, advice: str) -> bytes | None:
    published = _published(folder)
    if published is None or name not in published.manifest.files:
        return None
    limit = manifests.max_bytes(name, published.manifest.files[name].bytes)
    content = stores.locate(folder)[0].read(published.prefix + name, limit)
    return damage.verified(content[0], published.manifest, name, folder, advice) if content else None


def read_bytes(uri: str, limit: int) -> bytes | None:
    store, name = stores.locate(uri)
    stored = store.read(name, limit)
    return stored[0] if stored else None


def children(uri: str) -> list[str]:
    store, name = stores.locate(uri)
    listing = store.list(f"{name}/", deep=False)
    paths = [*listing.folders, *(item.name for item in listing.objects)]
    names = {path.removeprefix(f"{name}/").rstrip("/") for path in paths}
    return sorted(child for child in names if child and not child.startswith("."))


def sizes(uri: str) -> dict[str, int]:
    store, name = stores.locate(uri)
    return {item.name.removeprefix(f"{name}/"): item.bytes for item in store.list(f"{name}/").objects}


def remove_unfinished(uri: str) -> None:
    """See `storage.remove_unfinished`: folders that hold attempts and no marker."""
    store, name = stores.locate(uri)
    paths = [item.name.removeprefix(f"{name}/").partition("/") for item in store.list(f"{name}/").objects]
    attempted = {folder for folder, _, rest in paths if rest.startswith(ATTEMPTS)}
    published = {folder for folder, _, rest in paths if rest == MANIFEST}
    objects.delete(store, [f"{name}/{''.join(path)}" for path in paths if path[0] in attempted - published])


def remove_abandoned(uri: str) -> None:
    """See `storage.remove_abandoned`.

    Removes nothing without a marker: a paused writer could wake up and publish what was removed.
    """
    published = _published(uri)
    if published is None:
        return
    if published.is_open:
        _remove_strays(uri, published.manifest)
    else:
        _remove_attempts(uri, keep=published.prefix)


@contextmanager
def stage(uri: str, producer: str, last: str = "", origin: dict[str, Any] | None = None) -> Iterator[Path]:
    stores.locate(uri)
    with cache.temporary_folder() as staging:
        with staging_errors(staging, staging):
            yield staging
        with os_errors(staging, "read"):
            attempt, adopted = manifests.take_adopted(staging)
            local = manifests.measure_folder(staging, producer, origin)
        manifest = replace(local, files=local.files | adopted)
        _publish(uri, staging, manifest, last, attempt or secrets.token_hex(8))


def write_text(uri: str, text: str) -> None:
    store, name = stores.locate(uri)
    store.write(name, text.encode())


def read_text(uri: str, errors: str = "strict") -> str | None:
    store, name = stores.locate(uri)
    content = store.read(name)
    return manifests.text(content[0], uri, errors) if content else None


def remove(uri: str) -> None:
    store, name = stores.locate(uri)
    store.delete(f"{name}/{MANIFEST}")
    store.delete(name)
    objects.delete(store, [item.name for item in store.list(f"{name}/").objects])


def _published(uri: str) -> _Published | None:
    store, name = stores.locate(uri)
    marker = store.read(f"{name}/{MANIFEST}", manifests.MAX_BYTES)
    if marker is None:
        return None
    manifest, document = manifests.parse(marker[0], f"{uri}/{MANIFEST}")
    attempt = document.get("attempt", "")
    prefix = f"{name}/{ATTEMPTS}{attempt}/" if attempt else f"{name}/"
    return _Published(manifest, prefix, manifest.digest, is_open=not attempt)


def _open(uri: str, advice: str, only: Callable[[str], bool] | None = None) -> _Published:
    published = _published(uri)
    if published is None:
        raise damage.missing(uri, advice)
    if only is None:
        return published
    files = {name: file for name, file in published.manifest.files.items() if only(name)}
    return replace(published, manifest=replace(published.manifest, files=files))


def _publish(uri: str, staging: Path, manifest: Manifest, last: str, attempt: str) -> None:
    """Publish the files of `manifest`: those in `staging`, and those that the attempt has already."""
    if last:
        _publish_open(uri, staging, manifest, last, attempt)
        return
    store, name = stores.locate(uri)
    start = time.monotonic()
    attempt_prefix = f"{name}/{ATTEMPTS}{attempt}/"
    here = {path: file for path, file in manifest.files.items() if (staging / path).is_file()}
    objects.upload(store, attempt_prefix, staging, here)
    try:
        store.write(f"{name}/{MANIFEST}", manifest.to_json(attempt=attempt, writer=attempt).encode(), match=ABSENT)
    except Changed as error:
        objects.delete(store, [attempt_prefix + path for path in manifest.files])
        _require_same(uri, manifest, error)
        return
    _remove_attempts(uri, keep=attempt_prefix)
    _emit_published(uri, manifest, start)


def _publish_open(uri: str, staging: Path, manifest: Manifest, last: str, attempt: str) -> None:
    """Publish the files of `manifest`, all in `staging`, directly below `uri`.

    Removes leftovers of killed attempts before it creates the marker, and nothing else. Raises `InfrastructureError` if
    a foreign file has one of the names, `TransientError` if another writer works there.
    """
    store, name = stores.locate(uri)
    start, marker_name = time.monotonic(), f"{name}/{ATTEMPTS}{attempt}"
    if committed(uri) is not None:
        _require_same(uri, manifest, None)
        return
    ours = {path for marker in _open_attempts(uri) for path in _attempt_files(store, marker)}
    found = (item.name.removeprefix(f"{name}/") for item in store.list(f"{name}/").objects)
    if foreign := sorted(set(found) & manifest.files.keys() - ours):
        raise InfrastructureError(
            f"{uri}/{foreign[0]}: already exists, and Trainyard did not write it. Remove it, or name another folder."
        )
    store.write(marker_name, json.dumps(sorted(manifest.files)).encode())
    objects.upload(store, f"{name}/", staging, {path: file for path, file in manifest.files.items() if path != last})
    if committed(uri) is None:  # no other writer was faster, possible only after a lost lease
        _remove_strays(uri, manifest, keep=marker_name)
        objects.upload(store, f"{name}/", staging, {last: manifest.files[last]})
        sizes = {item.name.removeprefix(f"{name}/"): item.bytes for item in store.list(f"{name}/").objects}
        if any(manifest.other_sizes(sizes)):
            raise TransientError(f"{uri}: another process has removed its files meanwhile. Run the same command again.")
    try:
        # The attempt's name makes the marker unique.
        store.write(f"{name}/{MANIFEST}", manifest.to_json(attempt="", writer=attempt).encode(), match=ABSENT)
    except Changed as error:
        winner = committed(uri)
        if winner is not None:
            objects.delete(store, [f"{name}/{path}" for path in manifest.files if path not in winner.files])
        store.delete(marker_name)
        _require_same(uri, manifest, error)
        return
    store.delete(marker_name)
    _emit_published(uri, manifest, start)


def _require_same(uri: str, manifest: Manifest, error: Changed | None) -> None:
    """Raise `InfrastructureError` if another writer published different content."""
    winner = committed(uri)
    if winner is None or winner.digest != manifest.digest:
        raise InfrastructureError(
            f"{uri}: something else is there ({winner.producer if winner else 'no manifest'}). "
            "Remove it or name another storage."
        ) from error


def _emit_published(uri: str, manifest: Manifest, start: float) -> None:
    seconds = round(time.monotonic() - start, 2)
    events.emit("published", uri=uri, files=len(manifest.files), bytes=manifest.bytes, seconds=seconds)


def _remove_strays(uri: str, manifest: Manifest, keep: str = "") -> None:
    """Remove leftovers of attempts at the open folder `uri`, except the files of `manifest` and the attempt `keep`."""
    store, name = stores.locate(uri)
    for marker in _open_attempts(uri):
        if marker != keep:
            strays = [path for path in _attempt_files(store, marker) if path not in manifest.files]
            objects.delete(store, [f"{name}/{path}" for path in strays])
            store.delete(marker)


def _open_attempts(uri: str) -> list[str]:
    """Return the names of the objects that list the files of attempts at the open folder `uri`."""
    store, name = stores.locate(uri)
    return [item.name for item in store.list(f"{name}/{ATTEMPTS}", deep=False).objects]


def _attempt_files(store: ObjectStore, marker: str) -> list[str]:
    """Return the file names of an attempt at an open folder."""
    content = store.read(marker)
    return json.loads(content[0]) if content and content[0] else []


def _remove_attempts(uri: str, keep: str) -> None:
    """Remove the attempts at `uri` whose object names do not start with `keep`."""
    store, name = stores.locate(uri)
    attempts = [item.name for item in store.list(f"{name}/{ATTEMPTS}").objects]
    objects.delete(store, [path for path in attempts if not path.startswith(keep)])


def _local_copy(store: ObjectStore, uri: str, published: _Published) -> Path:
    """Return the verified local copy, fetched if missing. Raises `Missing` if an object is gone."""
    manifest = published.manifest

    def fetch(folder: Path) -> None:
        start = time.monotonic()
        missing = file_stream.link(_key(uri, published.digest), manifest, folder)
        objects.download(store, published.prefix, missing, folder)
        seconds = round(time.monotonic() - start, 2)
        events.emit("fetched", uri=uri, files=len(missing.files), bytes=missing.bytes, seconds=seconds)

    return cache.entry(_key(uri, manifest.digest), manifest, fetch)


def _key(uri: str, digest: str) -> str:
    return hashlib.sha256(f"{uri}\0{digest}".encode()).hexdigest()[:32]
