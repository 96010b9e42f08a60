"""The store of an attempt's task results: a folder that all workers see, or objects of a bucket.

Whichever it is, a file is whole under its name or not there, and written again it is the same. What is read of a bucket
goes through a temporary file without a name, so that a worker that stays for many jobs keeps nothing of them.
"""

from __future__ import annotations

import io
import secrets
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from trainyard.errors import ConfigurationError
from trainyard.storage import storage
from trainyard.storage.buckets import objects, stores
from trainyard.storage.buckets.objects import Missing, ObjectStore
from trainyard.storage.manifest import File, measure, measure_folder

_UNFINISHED = ".part-"
_ALIGNED = 64  # bytes; specified by Arrow


@dataclass(frozen=True)
class Range:
    """Some bytes of a file: `bytes` of them from `start` on."""

    name: str
    start: int
    bytes: int


@dataclass(frozen=True)
class TaskStore:
    """The files of one attempt, by name.

    folder: of the step's machine. uri: '' if the workers see that folder; otherwise the folder of a bucket in which
    they leave what they write, and the step's own copies are in `folder`.
    """

    folder: str
    uri: str = ""

    def below(self, name: str) -> TaskStore:
        """Return the folder `name` of this one, which is there as soon as a file is."""
        return TaskStore(f"{self.folder}/{name}", storage.join(self.uri, name) if self.uri else "")

    def require(self) -> None:
        """Raise `ConfigurationError` if this worker does not see the folder."""
        if not self.uri and not Path(self.folder).is_dir():
            raise _unseen(self.folder)

    def names(self) -> set[str]:
        """Return the names of the files directly in it."""
        if not self.uri:
            return {path.name for path in Path(self.folder).glob("*") if _UNFINISHED not in path.name}
        store, name = stores.locate(self.uri)
        return {item.name.removeprefix(f"{name}/") for item in store.list(f"{name}/", deep=False).objects}

    def exists(self, name: str) -> bool:
        """Return True if the file exists."""
        return self.read(name) is not None if self.uri else Path(self.folder, name).exists()

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, None if there is none."""
        if self.uri:
            store, key = self._object(name)
            content = store.read(key)
            return content[0] if content else None
        try:
            return Path(self.folder, name).read_bytes()
        except FileNotFoundError:
            return None

    def content(self, name: str) -> bytes:
        """Return the content of a file that a worker wrote. Raises `ConfigurationError` if it is not there."""
        content = self.read(name)
        if content is None:
            raise _gone(self.uri, name) if self.uri else _unseen(self.folder)
        return content

    def write(self, name: str, fill: Callable[[Path], object]) -> File | None:
        """Let `fill` write a temporary file, which becomes `name`; in a bucket, return its size."""
        if not self.uri:
            with _finished(Path(self.folder, name)) as temporary:
                fill(temporary)
            return None
        store, key = self._object(name)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "file")
            fill(path)
            file = measure(path)
            store.upload(key, path, file)
        return file

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write the file `name`."""
        self.write(name, lambda path: path.write_bytes(content))

    def remove(self, name: str) -> None:
        """Remove the file if there is one."""
        if self.uri:
            storage.remove(storage.join(self.uri, name))
        Path(self.folder, name).unlink(missing_ok=True)

    def copied(self, name: str) -> str:
        """Return the path of the file on the step's machine, where a bucket's stays until the attempt's end."""
        path = Path(self.folder, name)
        if self.uri and not path.exists():
            content = self.content(name)
            with _finished(path) as temporary:
                temporary.write_bytes(content)
        return str(path)

    def buffers(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """Return the content of each of `ranges`, memory-mapped: of a folder's files, or of one temporary file."""
        if not self.uri:
            return [_mapped(f"{self.folder}/{item.name}", item.start, item.bytes) for item in ranges]
        starts = [0, *accumulate(-(-item.bytes // _ALIGNED) * _ALIGNED for item in ranges)]
        with tempfile.NamedTemporaryFile() as temporary:
            temporary.truncate(starts[-1])

            def fetch(request: tuple[Range, int]) -> None:
                item, at = request
                store, key = self._object(item.name)
                try:
                    content = store.read_range(key, item.start, item.bytes)
                except Missing as error:
                    raise _gone(self.uri, item.name) from error
                with Path(temporary.name).open("r+b") as stream:
                    stream.seek(at)
                    stream.write(content)

            placed = list(zip(ranges, starts, strict=False))
            objects.in_parallel(fetch, [request for item, at in placed for request in _requests(item, at)])
            return [_mapped(temporary.name, at, item.bytes) for item, at in placed]

    def shared_copy(self, folder: Path) -> str:
        """Return the path at which workers find the files below `folder`."""
        if not self.uri:
            return str(folder)
        store, prefix = stores.locate(self.below(folder.name).uri)
        objects.upload(store, f"{prefix}/", folder, measure_folder(folder, "").files)
        return f"{store.root}/{prefix}"

    def write_folder(self, name: str, folder: Path) -> None:
        """Leave the files below `folder` as the file `name`."""

        def fill(path: Path) -> None:
            with zipfile.ZipFile(path, "w") as archive:
                for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                    archive.write(file, file.relative_to(folder))

        self.write(name, fill)

    def read_folder(self, name: str, folder: Path) -> None:
        """Put the files that `write_folder` left into the new `folder`."""
        with zipfile.ZipFile(io.BytesIO(self.content(name))) as archive:
            archive.extractall(folder)

    def _object(self, name: str) -> tuple[ObjectStore, str]:
        return stores.locate(storage.join(self.uri, name))


def remove_unfinished(folder: Path) -> None:
    """Remove what workers that were lost left of files in `folder`."""
    for path in folder.glob(f"*{_UNFINISHED}*"):
        path.unlink(missing_ok=True)


@contextmanager
def _finished(final: Path) -> Iterator[Path]:
    """Yield a temporary path to write a file to, which becomes `final` at the end of the block.

    So the file is whole, though a runner may have two workers do the same when it took one for lost.
    """
    temporary = final.with_name(f"{final.name}{_UNFINISHED}{secrets.token_hex(4)}")
    final.parent.mkdir(exist_ok=True)
    yield temporary
    temporary.replace(final)


def _mapped(path: str, start: int, size: int) -> pa.Buffer:
    with pa.memory_map(path) as stream:
        stream.seek(start)
        return stream.read_buffer(size)


def _requests(item: Range, at: int) -> Iterator[tuple[Range, int]]:
    """Yield the requests that together read `item`, each with the position of its bytes, the first one's `at`."""
    for passed in range(0, item.bytes, objects.RANGE_BYTES):
        size = min(objects.RANGE_BYTES, item.bytes - passed)
        yield Range(item.name, item.start + passed, size), at + passed


def _gone(folder: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{folder}/{name}: was removed while preprocess was using it. Run the same command again, and see which rule "
        "of the bucket deletes new objects."
    )


def _unseen(folder: str) -> ConfigurationError:
    return ConfigurationError(
        f"{folder}: Beam's workers do not see this folder of the step. "
        "Mount one volume on all of them under the same path, name a bucket as storage, or preprocess with the "
        "runner direct."
    )
