"""What the operating system says of a file or a disk, as one sentence of ours."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import InfrastructureError, TrainyardError

# EFBIG is what a limit on the size of files (ulimit -f) says.
_FULL = {errno.ENOSPC: "is full", errno.EDQUOT: "quota is used up", errno.EFBIG: "takes no larger file"}
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_ADVICE = "Mend it, or name another storage in the environment."


@contextmanager
def os_errors(path: Path, verb: str = "written") -> Iterator[None]:
    """Raise `InfrastructureError` for every error of the operating system in the block, which works on `path` alone.

    verb: what cannot be done: written, read or removed.
    """
    try:
        yield
    except OSError as error:
        raise fault(error, path, verb) from error


@contextmanager
def staging_errors(staging: Path, final: Path) -> Iterator[None]:
    """As `os_errors`, where the block is a step's own code: errors that neither the disk nor `staging` causes are its own."""
    vanished = InfrastructureError(
        f"{staging}: was removed while the output was written there. Leave {staging.parent} alone, and run the same "
        "command again."
    )
    try:
        yield
    except TrainyardError:
        raise
    except Exception as error:
        if found := find_full(error):
            raise full(found, final) from error
        if not staging.is_dir():
            raise vanished from error
        if isinstance(error, OSError) and error.errno in (errno.EIO, *_NOT_ALLOWED):
            raise fault(error, final, "read or written") from error
        raise
    if not staging.is_dir():
        raise vanished


def fault(error: OSError, path: Path, verb: str = "written") -> InfrastructureError:
    """Return what `error`, met in work on `path`, means to a person."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return full(error, path)
    if error.errno in _NOT_ALLOWED:
        return InfrastructureError(
            f"{where}: may not be {verb} ({reason}). Grant the permission, or name another storage in the environment."
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        in_the_way = next((each for each in (path, *path.parents) if os.path.lexists(each) and not each.is_dir()), path)
        what = "a link to nothing" if in_the_way.is_symlink() and not in_the_way.exists() else "a file"
        return InfrastructureError(
            f"{in_the_way}: is {what} where a folder is needed. Remove it, or name another storage in the environment."
        )
    return InfrastructureError(f"{where}: cannot be {verb} ({reason}). {_ADVICE}")


def full(error: BaseException, path: Path) -> InfrastructureError:
    """Return the sentence about the disk that `error` found full: that of `path`, or that of the temporary files."""
    what = next((words for number, words in _FULL.items() if isinstance(error, OSError) and error.errno == number), "")
    what = what or next(words for number, words in _FULL.items() if os.strerror(number) in str(error))
    temporary = Path(tempfile.gettempdir())
    where = temporary if _has_room(path) and not _has_room(temporary) else path
    return InfrastructureError(f"{where}: the disk {what}. Free some space and run the same command again.")


def find_full(error: BaseException) -> BaseException | None:
    """Return what says, among `error` and what it came from, that a disk is full; libraries tell it in words alone."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return seen
        if any(os.strerror(number) in str(seen) for number in (errno.ENOSPC, errno.EDQUOT)):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _has_room(path: Path) -> bool:
    """Whether the disk that `path` is on, or would be, takes another file; True where that cannot be known."""
    try:
        there = next(each for each in (path, *path.parents) if each.exists())
        found = os.statvfs(there)
    except (OSError, StopIteration):
        return True
    return found.f_bavail > 0 and (found.f_files == 0 or found.f_favail > 0)
