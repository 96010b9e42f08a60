"""Moves many files between a local folder and a bucket at one time, and verifies each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainyard import events
from trainyard.errors import DataError
from trainyard.storage.buckets.objects import ObjectStore
from trainyard.storage.manifest import File, Manifest, measured

THREADS = 8  # chosen: one request waits for the network while another is copied
RANGE_BYTES = 16 << 20  # chosen: what one request reads, so that a lost one costs little


def upload(store: ObjectStore, prefix: str, folder: Path, files: dict[str, File]) -> None:
    """Leave each of `files` below `folder` as the object `prefix` + its name, confirmed by the store."""
    in_parallel(lambda name: store.upload(prefix + name, folder / name, files[name]), files)


def download(store: ObjectStore, prefix: str, manifest: Manifest, folder: Path) -> None:
    """Leave the files of `manifest` in `folder`, whose objects are `prefix` + their names, verified.

    Raises `Missing` where one is gone, `DataError` where one is not what its manifest says.
    """
    for name, file in manifest.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            stream.truncate(file.bytes)
    pieces = [(name, start) for name, file in manifest.files.items() for start in range(0, file.bytes, RANGE_BYTES)]
    in_parallel(lambda piece: _fetch(store, prefix, folder, manifest, *piece), pieces)
    in_parallel(lambda name: _verify(store, prefix, folder, manifest, name), manifest.files)


def delete(store: ObjectStore, names: Iterable[str]) -> None:
    """Remove the objects `names`."""
    in_parallel(store.delete, names)


def in_parallel(call: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call `call` with each of `items`, several at a time. The first error ends it, and calls not begun are left out."""
    with ThreadPoolExecutor(THREADS, "transfer") as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(store: ObjectStore, prefix: str, folder: Path, manifest: Manifest, name: str, start: int) -> None:
    content = store.read_range(prefix + name, start, min(RANGE_BYTES, manifest.files[name].bytes - start))
    descriptor = os.open(folder / name, os.O_WRONLY)
    try:
        view = memoryview(content)
        while view:
            written = os.pwrite(descriptor, view, start)
            view, start = view[written:], start + written
    finally:
        os.close(descriptor)


def _verify(store: ObjectStore, prefix: str, folder: Path, manifest: Manifest, name: str) -> None:
    """Raise `DataError` where the file is not what its manifest says, after it was fetched once more."""
    expected = manifest.files[name]
    if measured(folder / name) == expected:
        return
    events.emit("warning", message=f"{store.root}/{prefix}{name}: came damaged, it is fetched again.")
    for start in range(0, expected.bytes, RANGE_BYTES):
        _fetch(store, prefix, folder, manifest, name, start)
    if measured(folder / name) != expected:
        raise DataError(
            f"{store.root}/{prefix}{name}: its content differs from its manifest's checksum. "
            "Run the step again that wrote it (--from)."
        )
