"""Lists the files of a recipe's source, in a folder or in a bucket, each with what keeps it from being read.

A folder comes from anywhere: a queue that is opened for reading blocks for ever, a link may lead out of the folder or
in a circle, and a name need not be text. All of it is found here, before anything is opened, and nothing is passed over.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard import globs
from trainyard.errors import DataError
from trainyard.storage.buckets import buckets
from trainyard.uris import is_bucket

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@dataclass(frozen=True)
class SourceFile:
    """One file: its name below the source's root, and what changes whenever its content does.

    reason, detail: why it must not be opened, as a code for counting and as a sentence; '' where it may be.
    """

    name: str
    bytes: int
    state: str
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Listing:
    """The files of a source by name, all below `root`. whole: whether the source is a folder and not a file or glob."""

    root: str
    files: list[SourceFile]
    whole: bool


def list_files(path: str) -> Listing:
    """Return the files that `path` (a folder, a file or a glob, local, gs:// or s3://) stands for, hidden ones left out.

    A name that exists is taken as it is, whatever characters it has. Links are followed as long as they stay below the
    root, into folders once. Raises `DataError` where a folder cannot be read or is a link out of the root, `TransientError`
    where a bucket cannot be reached.
    """
    if is_bucket(path):
        source = buckets.list_objects(path)
        files = [SourceFile(item.name, item.bytes, item.checksum) for item in source.objects]
        return Listing(source.root, files, source.root == path.rstrip("/"))
    try:
        return _local(path)
    except (OSError, ValueError) as error:
        where = getattr(error, "filename", None) or path
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"data.path: {_shown(str(where))}: cannot be read ({reason}). Check the name and the permissions."
        ) from error


def _local(path: str) -> Listing:
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path would drop what TensorFlow and Beam see
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):  # noqa: PTH114
            raise
        return _matching(path)
    if stat.S_ISDIR(status.st_mode):
        return Listing(path.rstrip("/") or "/", _sorted(_Folder(path, "").files()), True)
    folder, slash, name = path.rpartition("/")
    return Listing(folder or slash or ".", [_judged(name, status)], False)


def _matching(path: str) -> Listing:
    folder, slash, _ = globs.literal(path).rpartition("/")
    root, glob = folder or slash or ".", path[len(folder + slash) :]
    found = globs.literal(path) != path and os.path.isdir(root)  # noqa: PTH112
    return Listing(root, _sorted(_Folder(root, glob).files()) if found else [], False)


def _sorted(files: Iterator[SourceFile]) -> list[SourceFile]:
    return sorted(files, key=lambda file: file.name)


class _Folder:
    """A walk through a local folder."""

    def __init__(self, root: str, glob: str) -> None:
        self._root = root.rstrip("/")
        self._real = os.path.realpath(root)
        self._wanted = globs.expression(glob) if glob else None
        self._parts = [_part(part) for part in glob.split("/")] if glob else []

    def files(self) -> Iterator[SourceFile]:
        """Yield the files, in no order."""
        folders = [("", False)]  # the name, with a slash at its end, and whether a link led there
        while folders:
            folder, linked = folders.pop()
            with os.scandir(f"{self._root}/{folder}") as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    name = folder + entry.name
                    found = self._linked(name, linked) if entry.is_symlink() else None
                    if found is not None:
                        if self._matches(name) or self._leads_down(name):
                            yield found
                    elif entry.is_dir():
                        if self._leads_down(name):
                            folders.append((f"{name}/", linked or entry.is_symlink()))
                    elif self._matches(name):
                        yield _judged(name, entry.stat())

    def _matches(self, name: str) -> bool:
        return self._wanted is None or self._wanted.fullmatch(name) is not None

    def _leads_down(self, name: str) -> bool:
        """Return whether files below the folder `name` may match."""
        names = name.split("/")
        for name, part in zip(names, self._parts, strict=False):
            if part is None:
                return True
            if not part.fullmatch(name):
                return False
        return not self._parts or len(names) < len(self._parts)

    def _linked(self, name: str, linked: bool) -> SourceFile | None:
        """Return why the link `name` is not followed, or None."""
        path = f"{self._root}/{name}"
        try:
            target = os.path.realpath(path, strict=True)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return _bad(name, "looping_link", "the link leads in a circle")
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return _bad(name, "dangling_link", f"the link leads to {_shown(os.readlink(path))}, which is not there")  # noqa: PTH115
            raise
        folder = os.path.isdir(target)  # noqa: PTH112
        if not _below(target, self._real):
            if folder:
                raise DataError(
                    f"data.path: {_shown(path)}: is a link to the folder {_shown(target)}, outside of {self._root}. Only "
                    "what lies below data.path is read. Move the folder there, or name a data.path that holds both."
                )
            return _bad(name, "link_out_of_root", f"the link leads to {_shown(target)}, outside of data.path")
        if folder and _below(os.path.realpath(path.rpartition("/")[0] or "/"), target):
            return _bad(name, "looping_link", "the link leads to a folder that holds it")
        if folder and linked:
            return _bad(name, "nested_link", "a link to a folder, below another such link, is not followed")
        return None


def _part(part: str) -> re.Pattern[str] | None:
    return None if "**" in part else globs.expression(part)


def _judged(name: str, status: os.stat_result) -> SourceFile:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        return _bad(name, "not_a_file", f"is {_KINDS.get(kind, 'no file')}; a regular file is expected")
    if _shown(name) != name:
        return _bad(name, "name_not_utf8", "the name is not UTF-8. Rename the file or its folder")
    return SourceFile(name, status.st_size, str(status.st_mtime_ns))


def _bad(name: str, reason: str, detail: str) -> SourceFile:
    return SourceFile(_shown(name), 0, reason, reason, detail)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _shown(name: str) -> str:
    """Return the name as text; bytes that are not UTF-8 become such as \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
