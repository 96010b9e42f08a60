"""Transfers many files between a local folder and a bucket in parallel, and verifies each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainyard import events
from trainyard.errors import DataError
from trainyard.storage.buckets.objects import ObjectStore
from trainyard.storage.manifest import File, Manifest, measure

THREADS = 8  # chosen: one request waits for the network while another copies
RANGE_BYTES = 16 << 20  # chosen: what one request reads, so that a lost one costs little


def upload(store: ObjectStore, prefix: str, folder: Path, files: dict[str, File]) -> None:
    """Upload `files` below `folder` as the objects `prefix` + name, confirmed by the store."""
    in_parallel(lambda name: store.upload(prefix + name, folder / name, files[name]), files)


def download(store: ObjectStore, prefix: str, manifest: Manifest, folder: Path) -> None:
    """Download the objects `prefix` + name of `manifest` into `folder` and verify them.

    Raises `Missing` if one is gone, `DataError` if one differs from its manifest.
    """
    for name, file in manifest.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            stream.truncate(file.bytes)
    pieces = [(name, start) for name, file in manifest.files.items() for start in _starts(file)]
    in_parallel(
        lambda piece: _fetch(store, prefix + piece[0], folder / piece[0], manifest.files[piece[0]], piece[1]), pieces
    )
    in_parallel(lambda name: _verify(store, prefix + name, folder / name, manifest.files[name]), manifest.files)


def download_file(store: ObjectStore, name: str, path: Path, file: File) -> None:
    """Download the object `name` into the file at `path`, which has its size, and verify it. Raises as `download`."""
    for start in _starts(file):
        _fetch(store, name, path, file, start)
    _verify(store, name, path, file)


def delete(store: ObjectStore, names: Iterable[str]) -> None:
    """Delete the objects `names`."""
    in_parallel(store.delete, names)


def in_parallel(call: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call `call` for each of `items`, several at a time. The first error cancels calls that have not started."""
    with ThreadPoolExecutor(THREADS, "transfer") as pool:
        for _ in pool.map(call, items):
            pass


def _starts(file: File) -> range:
    return range(0, file.bytes, RANGE_BYTES)


def _fetch(store: ObjectStore, name: str, path: Path, file: File, start: int) -> None:
    content = store.read_range(name, start, min(RANGE_BYTES, file.bytes - start))
    descriptor = os.open(path, os.O_WRONLY)
    try:
        view = memoryview(content)
        while view:
            written = os.pwrite(descriptor, view, start)
            view, start = view[written:], start + written
    finally:
        os.close(descriptor)


def _verify(store: ObjectStore, name: str, path: Path, expected: File) -> None:
    """Fetch the file again if it differs from its manifest; raise `DataError` if it still differs."""
    if measure(path) == expected:
        return
    events.emit("warning", message=f"{store.root}/{name}: arrived damaged, it is fetched again.")
    for start in _starts(expected):
        _fetch(store, name, path, expected, start)
    if measure(path) != expected:
        raise DataError(
            f"{store.root}/{name}: its content differs from its manifest's checksum. "
            "Run the step again that wrote it (--from)."
        )
