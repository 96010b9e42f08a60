"""Turns operating system errors about files and disks into one-sentence errors."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import InfrastructureError, TrainyardError, TransientError

# EFBIG is raised at a limit on file sizes (ulimit -f).
_FULL = {errno.ENOSPC: "is full", errno.EDQUOT: "quota is used up", errno.EFBIG: "takes no larger file"}
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of flock on a file system without locks."""
_ADVICE = "Fix it, or name another storage in the environment."


@contextmanager
def os_errors(path: Path, verb: str = "written") -> Iterator[None]:
    """Raise the error of `fault` for every OSError in the block, which works only on `path`.

    verb: the operation: written, read, removed or locked.
    """
    try:
        yield
    except OSError as error:
        raise fault(error, path, verb) from error


@contextmanager
def staging_errors(staging: Path, final: Path) -> Iterator[None]:
    """Translate errors of the disk or of `staging` in the step's own code, as `os_errors` does."""
    vanished = InfrastructureError(
        f"{staging}: was removed while the output was written there. Leave {staging.parent} alone, and run the same "
        "command again."
    )
    try:
        yield
    except TrainyardError:
        raise
    except Exception as error:
        if cause := disk_full_cause(error):
            raise disk_full(cause, final) from error
        if not staging.is_dir():
            raise vanished from error
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EREMOTEIO, errno.ESTALE, *_NOT_ALLOWED):
            raise fault(error, final, "read or written") from error
        raise
    if not staging.is_dir():
        raise vanished


def fault(error: OSError, path: Path, verb: str = "written") -> InfrastructureError | TransientError:
    """Return the error for `error`, raised by an operation on `path`; only a stale file handle may pass by itself."""
    file = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return disk_full(error, path)
    if error.errno in _NOT_ALLOWED:
        return InfrastructureError(
            f"{file}: may not be {verb} ({reason}). Grant the permission, or name another storage in the environment."
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        paths = (path, *path.parents)
        in_the_way = next((ancestor for ancestor in paths if os.path.lexists(ancestor) and not ancestor.is_dir()), path)
        kind = "a link to nothing" if in_the_way.is_symlink() and not in_the_way.exists() else "a file"
        return InfrastructureError(
            f"{in_the_way}: is {kind} where a folder is needed. Remove it, or name another storage in the environment."
        )
    if error.errno == errno.ESTALE:
        return TransientError(
            f"{file}: cannot be {verb} ({reason}): the network file system has lost it. Run the same command again; if "
            "it happens again, mount the file system again."
        )
    if verb == "locked" and error.errno in NO_LOCKS:
        return InfrastructureError(
            f"{file}: cannot be locked ({reason}). Without locks two processes could write one output. Mount the file "
            "system with locks, as NFS 4 has them, or name another storage in the environment."
        )
    return InfrastructureError(f"{file}: cannot be {verb} ({reason}). {_ADVICE}")


def disk_full(error: BaseException, path: Path) -> InfrastructureError:
    """Return the error for a full disk: that of `path`, or of the temporary files."""
    number = error.errno if isinstance(error, OSError) and error.errno in _FULL else None
    reason = _FULL[number] if number else next(_FULL[code] for code in _FULL if os.strerror(code) in str(error))
    temporary = Path(tempfile.gettempdir())
    full_path = temporary if _has_room(path) and not _has_room(temporary) else path
    return InfrastructureError(f"{full_path}: the disk {reason}. Free some space and run the same command again.")


def disk_full_cause(error: BaseException) -> BaseException | None:
    """Return the error among `error` and its causes that reports a full disk; libraries may do so only as text."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return cause
        if any(os.strerror(number) in str(cause) for number in (errno.ENOSPC, errno.EDQUOT)):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _has_room(path: Path) -> bool:
    """Return True if the disk of `path` has room for another file; True if unknown."""
    try:
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        status = os.statvfs(existing)
    except (OSError, StopIteration):
        return True
    return status.f_bavail > 0 and (status.f_files == 0 or status.f_favail > 0)
