"""Lists the files of a recipe's source, in a folder or bucket, with the reason if a file cannot be read; opens them.

Opening a named pipe would block forever, a link may lead out of the folder or in a circle, and a name may not be text.
All of this is detected before a file is opened, and reported.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from trainyard.errors import DataError
from trainyard.storage import globs
from trainyard.storage.buckets import bucket_source
from trainyard.uris import is_bucket

MAX_ENTRIES = 20_000_000
"""Maximum of files and folders searched for a source. Chosen: ImageNet-21k has 14 million, in a minute."""

LINK_OUT = "link_out_of_root"
"""The reason of a link that is not followed because it leads out of the source."""

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_GZIP_HEADER = 10  # bytes
_SEEKING_CHUNK = 4 << 20  # chosen: maximum of unused bytes fetched after each column of a row group


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file: its name below the source's root, and a state that changes with its content.

    reason, detail: why it must not be opened, as a code for counting and as a sentence; '' if it may be.
    """

    name: str
    bytes: int
    state: str
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Listing:
    """The files of a source by name below `root`. is_folder: the source is a folder, not a file or glob.

    hidden: names of hidden files and folders of a folder, which are not read.
    """

    root: str
    files: list[SourceFile]
    is_folder: bool
    hidden: tuple[str, ...] = ()

    def hidden_files(self, endings: tuple[str, ...]) -> list[str]:
        """Return the hidden files with these endings in any case, also of hidden folders, but not macOS' ._ files."""
        names: list[str] = []
        for hidden in self.hidden:
            top = f"{self.root.rstrip('/')}/{hidden}"  # of a bucket already a file
            below = (f"{folder}/{file}" for folder, _, files in os.walk(top) for file in files)
            names += [hidden + path.removeprefix(top) for path in below] or [hidden]
        return sorted(
            name for name in names if name.lower().endswith(endings) and not name.rpartition("/")[2].startswith("._")
        )


def list_files(path: str, field: str = "data.path") -> Listing:
    """Return the visible files that `path` (a folder, a file or a glob, local, gs:// or s3://) names.

    An existing name is taken literally, whatever its characters. Links are followed if they stay below the root, links
    to folders once. Raises `DataError` if a folder cannot be read or is a link out of the root, `TransientError` if a
    bucket does not answer; both name the recipe's `field`, if given.
    """
    if is_bucket(path):
        root, objects, hidden = bucket_source.list_objects(path, field)
        files = [SourceFile(item.name, item.bytes, item.checksum) for item in objects]
        is_folder = root == path.rstrip("/")
        return Listing(root, files, is_folder, tuple(item.name for item in hidden) if is_folder else ())
    try:
        return _local(path, field)
    except (OSError, ValueError) as error:
        location = bucket_source.in_field(_printable(str(getattr(error, "filename", None) or path)), field)
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{location}: cannot be read ({reason}). Check the name and the permissions.") from error


def _local(path: str, field: str) -> Listing:
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path would drop what TensorFlow and Beam see
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):  # noqa: PTH114
            raise
        return _match_glob(path, field)
    if stat.S_ISDIR(status.st_mode):
        found = _Folder(path, "", field)
        return Listing(path.rstrip("/") or "/", _sorted(found.files()), True, tuple(sorted(found.hidden)))
    folder, slash, name = path.rpartition("/")
    return Listing(folder or slash or ".", [_source_file(name, status)], False)


def _match_glob(path: str, field: str) -> Listing:
    folder, slash, _ = globs.literal(path).rpartition("/")
    root, glob = folder or slash or ".", path[len(folder + slash) :]
    searched = globs.literal(path) != path and os.path.isdir(root)  # noqa: PTH112
    return Listing(root, _sorted(_Folder(root, glob, field).files()) if searched else [], False)


def _sorted(files: Iterator[SourceFile]) -> list[SourceFile]:
    return sorted(files, key=lambda file: file.name)


class _Folder:
    """A walk through a local folder."""

    def __init__(self, root: str, glob: str, field: str) -> None:
        self._field = field
        self._path = f"{root.rstrip('/')}/{glob}"
        self._root = root.rstrip("/")
        self._real = os.path.realpath(root)
        self._pattern = globs.expression(glob) if glob else None
        self.hidden: list[str] = []
        parts = glob.split("/") if glob else []
        self._parts = [None if "**" in part else globs.expression(part) for part in parts]

    def files(self) -> Iterator[SourceFile]:
        """Yield the files in no order. Raises `DataError` if there are too many entries."""
        if self._real == "/" and None in (self._parts or [None]):
            raise DataError(
                f"{self._place()}: means the whole file system. Name the folder that holds the data, such as /data/**."
            )
        seen = 0
        folders = [("", False)]  # the name, with a slash at its end, and whether a link led there
        while folders:
            folder, linked = folders.pop()
            with os.scandir(f"{self._root}/{folder}") as entries:
                for entry in entries:
                    seen += 1
                    if seen > MAX_ENTRIES:
                        raise DataError(
                            f"{self._place()}: there are more than {MAX_ENTRIES:,} files and folders to look "
                            "through. Name a folder that holds the data alone."
                        )
                    name = folder + entry.name
                    if entry.name.startswith("."):
                        self.hidden.append(name)
                        continue
                    refused = self._refused_link(name, linked) if entry.is_symlink() else None
                    if refused is not None:
                        if self._matches(name) or self._may_match_below(name):
                            yield refused
                    elif entry.is_dir():
                        if self._may_match_below(name):
                            folders.append((f"{name}/", linked or entry.is_symlink()))
                    elif self._matches(name):
                        yield _source_file(name, entry.stat())

    def _place(self) -> str:
        return bucket_source.in_field(_printable(self._path), self._field)

    def _matches(self, name: str) -> bool:
        return self._pattern is None or self._pattern.fullmatch(name) is not None

    def _may_match_below(self, name: str) -> bool:
        """Return True if files below the folder `name` may match."""
        names = name.split("/")
        for name, part in zip(names, self._parts, strict=False):
            if part is None:
                return True
            if not part.fullmatch(name):
                return False
        return not self._parts or len(names) < len(self._parts)

    def _refused_link(self, name: str, linked: bool) -> SourceFile | None:
        """Return the file with the reason why the link `name` is not followed, or None."""
        path = f"{self._root}/{name}"
        try:
            target = os.path.realpath(path, strict=True)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return _unreadable(name, "looping_link", "the link leads in a circle")
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                target = _printable(os.readlink(path))  # noqa: PTH115
                return _unreadable(name, "dangling_link", f"the link leads to {target}, which is not there")
            raise
        folder, source = os.path.isdir(target), self._field or self._root  # noqa: PTH112
        if not _is_below(target, self._real):
            if folder:
                raise DataError(
                    f"{bucket_source.in_field(_printable(path), self._field)}: is a link to the folder "
                    f"{_printable(target)}, outside of {self._root}. Only what lies below {source} is read. "
                    f"Move the folder there, or name a {self._field or 'folder'} that holds both."
                )
            return _unreadable(name, LINK_OUT, f"the link leads to {_printable(target)}, outside of {source}")
        if folder and _is_below(os.path.realpath(path.rpartition("/")[0] or "/"), target):
            return _unreadable(name, "looping_link", "the link leads to a folder that holds it")
        if folder and linked:
            return _unreadable(name, "nested_link", "a link to a folder, below another such link, is not followed")
        return None


def _source_file(name: str, status: os.stat_result) -> SourceFile:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        return _unreadable(name, "not_a_file", f"is {_KINDS.get(kind, 'no file')}; a regular file is expected")
    if _printable(name) != name:
        return _unreadable(name, "name_not_utf8", "the name is not UTF-8. Rename the file or its folder")
    return SourceFile(name, status.st_size, str(status.st_mtime_ns))


def _unreadable(name: str, reason: str, detail: str) -> SourceFile:
    return SourceFile(_printable(name), 0, reason, reason, detail)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _printable(name: str) -> str:
    """Return the name as text; bytes that are not UTF-8 become such as \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def copy_advice(reasons: Iterable[str], path: str) -> str:
    """Return the sentence about how links out of `path` become files, '' if no file is bad for the `reasons` of one."""
    return f" `cp -RL {shlex.quote(path)} COPY` copies the files that links lead to." if LINK_OUT in reasons else ""


def open_file(path: str, chunk: int | None = None) -> IO[bytes]:
    """Return the bytes of `path`, gunzipped if its name ends in .gz or its first bytes say so.

    So are objects with Content-Encoding: gzip, whose stored bytes are read. A damaged archive raises while reading.
    The stream can seek, at least forward. chunk: bytes of one request to a bucket, many by default. Raises `OSError` if
    it is not a regular file, because opening a named pipe would wait forever.
    """
    stream = _open_stored(path, chunk)
    if path.endswith(".gz"):
        stream = _gunzipped(stream)
    return _gunzipped(stream) if _starts_as_gzip(stream) else stream


def is_gzip(path: str) -> bool:
    """Return True if `open_file` gunzips the file at `path`. Raises `OSError` if it cannot be read."""
    if path.endswith(".gz"):
        return True
    with _open_stored(path, io.DEFAULT_BUFFER_SIZE) as stream:
        return _starts_as_gzip(stream)


def _open_stored(path: str, chunk: int | None) -> io.BufferedReader:
    return bucket_source.open_object(path, chunk) if is_bucket(path) else _open_regular(path)


def _gunzipped(stream: io.BufferedReader) -> io.BufferedReader:
    return io.BufferedReader(gzip.GzipFile(fileobj=stream, mode="rb"))


def _starts_as_gzip(stream: io.BufferedReader) -> bool:
    """Return True if `stream` begins with the header of a gzip member (RFC 1952) that is no TFRecord's length."""
    start = stream.peek(_GZIP_HEADER)[:_GZIP_HEADER]
    return len(start) == _GZIP_HEADER and start[:3] == b"\x1f\x8b\x08" and start[3] < 0x20 and start[8] in (0, 2, 4)


@contextmanager
def seekable_file(path: str) -> Iterator[str | IO[bytes]]:
    """Yield the path of a local file, or a seekable stream of a bucket's object."""
    if not is_bucket(path):
        yield path
        return
    with _open_stored(path, _SEEKING_CHUNK) as stream:
        yield stream


def unreadable(name: str, error: Exception) -> DataError:
    """Return the error for the file `name`, which cannot be read to its end."""
    return DataError(f"{name}: cannot be read ({error}). Check its permissions, or copy it again from its origin.")


def _open_regular(path: str) -> io.BufferedReader:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path}: is no regular file")
    return io.BufferedReader(io.FileIO(file))
