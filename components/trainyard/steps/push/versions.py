"""The folder that a server polls: numbered versions, each of them whole from the moment it can be seen.

TensorFlow Serving lists the folder again and again, takes every child whose name is a number for a version, and loads
the highest. Names that are no numbers, such as `.staging`, `champion.json` and the lock, mean nothing to it, nor does a
version's `assets.extra/`.

On a file system a version appears whole, by a rename. A bucket has none, so there saved_model.pb comes after all other
files: a server that looks in between finds no SavedModel yet and, by its own default, tries again each minute, five
times.

Source: tensorflow_serving/model_servers/main.cc (max_num_load_retries, load_retry_interval_micros),
tensorflow_serving/sources/storage_path/file_system_storage_path_source.cc and the SavedModel layout at
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/python/saved_model/README.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.pushed_versions import version_numbers
from trainyard.contract.version import CARD, PRODUCER, SERVED
from trainyard.contract.version import digest as model_digest
from trainyard.errors import DataError
from trainyard.storage import storage
from trainyard.storage.storage import File, Manifest


def newest(destination: str) -> int:
    """Return the highest version number in `destination`, whoever wrote it, or 0."""
    return max(version_numbers(destination), default=0)


def place(destination: str, digest: str) -> tuple[int, bool]:
    """Return the number of the version for a model with the content `digest`, and True if it already exists.

    Only the newest version counts: a server loads the highest number, so an older model that is pushed again becomes a
    new version.
    """
    number = newest(destination)
    manifest = storage.committed(storage.join(destination, str(number)))
    already = manifest is not None and model_digest(manifest) == digest
    return number if already else number + 1, already


def publish(
    source: str,
    files: dict[str, str],
    manifest: Manifest,
    destination: str,
    version: int,
    record: VersionRecord,
    card: str = "",
) -> None:
    """Leave `files` of the folder `source` as `version` in `destination`; nobody sees a part of it.

    files: the name in `source` of each file of the version. manifest: of `source`. card: the model card, '' if `files`
    holds one; a program's own README.md stays.

    Raises `DataError` if a file is not the one that its manifest tells of, `InfrastructureError` as `storage.stage`.
    """
    last = SERVED if SERVED in files else next(iter(files))
    target = storage.join(destination, str(version))
    origin = record.model_copy(update={"number": version}).model_dump(mode="json", exclude_defaults=True)
    with storage.stage(target, producer=PRODUCER, last=last, origin=origin) as folder:
        for path, name in files.items():
            _copy(Path(source) / name, folder / path, manifest.files[name])
        if card and CARD not in files:
            (folder / CARD).write_text(card, encoding="utf-8")


def _copy(source: Path, target: Path, expected: File) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if storage.measure(target) != expected:
        raise DataError(
            f"{source}: its content differs from its manifest's checksum. Run with --from export to write it again."
        )
