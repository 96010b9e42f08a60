"""Walks through a tar archive: what its members are and where their bytes lie. Nothing of it is ever unpacked.

An archive comes from anywhere: its names may lead out of a folder, its links and devices anywhere, a header may promise
more bytes than memory holds, and the file may be cut. Python's tarfile reads such headers whole, so here it judges
single blocks alone.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from trainyard.errors import DataError
from trainyard.steps.preprocess.readers.files import PIECE_BYTES, WHOLE, Piece, as_folder, is_archive, open_file
from trainyard.uris import is_bucket

_BLOCK = 512
_MOST_MEMBERS = 20_000_000  # chosen: ten times ImageNet and more; as headers they alone are 10 GB
_LONGEST_HEADER = 64 << 10  # bytes of an extended header; chosen: a path has 4,096 at most
_FARTHEST = 1 << 60  # bytes; no file is as long
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_LINKS = {tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a link"}
_OTHERS = {tarfile.FIFOTYPE: "a named pipe", tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device"}


@dataclass(frozen=True)
class Member:
    """A member that is no folder: its bytes are `size` from `at` on, its first header begins at `header`.

    reason, detail: why its bytes are not read, as a code for counting and as a sentence; '' if they may be.
    """

    name: str
    header: int
    at: int
    size: int
    reason: str = ""
    detail: str = ""


def tar_pieces(path: str, name: str) -> list[Piece]:
    """Return the pieces of the archive at `path` that can be read apart: of about 64 MiB, each of whole members.

    One in a bucket is cut if it holds archives; else its headers would take as long to read as all of it. One that
    cannot be read is one piece, whose reader says why. Raises `DataError` if it, or an archive in it, is none.
    """
    starts = [0]
    try:
        with open_file(path, _BLOCK * 2 if is_bucket(path) else None) as stream:
            for number, member in enumerate(members(stream)):
                if not number and member.reason in ("broken_archive", "truncated_archive"):
                    raise _no_archive(name)
                if is_archive(member.name) and not member.reason:
                    _require_archive(stream, member, name)
                elif is_bucket(path):
                    break
                if path.endswith(".gz"):
                    break
                if member.header - starts[-1] >= PIECE_BYTES:
                    starts.append(member.header)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _no_archive(name) from error
    except OSError:
        return [WHOLE]
    ends = [*starts[1:], None]
    return [Piece(start, end) for start, end in zip(starts, ends, strict=True)]


def names(path: str) -> list[str]:
    """Return the names of the pictures in the archive at `path`, and of archives in it as folders, with a slash.

    The latter are not looked into: those of ImageNet have a million headers. Raises `DataError` if it cannot be read.
    """
    try:
        with open_file(path) as stream:
            good = [member.name for member in members(stream) if not member.reason]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"data.path: {path}: cannot be read ({error}). Check its permissions, or copy it again from its origin."
        ) from error
    return [f"{as_folder(name)}/" if is_archive(name) else name for name in good]


def inside(stream: IO[bytes], archive: Member) -> Iterator[Member]:
    """Yield the members of the `archive` that is a member of `stream`."""
    yield from members(stream, archive.at, archive.at + archive.size)


def members(stream: IO[bytes], start: int = 0, end: int | None = None) -> Iterator[Member]:
    """Yield the members of the archive in the bytes from `start` to `end` of `stream`, but for hidden ones.

    A header that cannot be read, or a missing end, is a last member with a reason. The caller may read between two of
    them, but not seek before the last one.
    """
    walk = _Walk(stream, start, end)
    for _ in range(_MOST_MEMBERS):
        member = walk.next()
        if member is None:
            return
        yield from [member] if member.reason or not _is_hidden(member.name) else []
        if walk.is_over:
            return
    yield walk.broken(f"has more than {_MOST_MEMBERS} members")


class _Walk:
    """Reads one header after the other. is_over: what `next` gave is the last."""

    def __init__(self, stream: IO[bytes], start: int, end: int | None) -> None:
        self._stream, self._at, self._end = stream, start, end
        self._last = ""
        self.is_over = False

    def next(self) -> Member | None:
        """Return the next member, None at the end of the archive."""
        header, name, size = self._at, "", None
        while True:
            block = self._read(_BLOCK)
            if len(block) < _BLOCK:
                return self._cut()
            if block == tarfile.NUL * _BLOCK:
                return None
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                return self.broken(f"the header at byte {self._at - _BLOCK} is none ({error})")
            if not 0 <= info.size < _FARTHEST:
                return self.broken(f"a header promises {info.size} bytes")
            if info.type in (*_LONG_NAMES, *_EXTENDED):
                if info.size > _LONGEST_HEADER:
                    return self.broken(f"an extended header has {info.size} bytes, at most {_LONGEST_HEADER} are taken")
                content = self._read(info.size)
                if len(content) < info.size:
                    return self._cut()
                self._at += -info.size % _BLOCK
                if info.type == tarfile.GNUTYPE_LONGNAME:
                    name = _text(content.partition(b"\0")[0])
                elif info.type in _EXTENDED:
                    try:
                        fields = _fields(content)
                        name = _text(fields[b"path"]) if b"path" in fields else name
                        size = int(fields[b"size"]) if b"size" in fields else size
                    except ValueError:
                        return self.broken("an extended header is none")
            elif info.type == tarfile.XGLTYPE:
                self._at += -(-info.size // _BLOCK) * _BLOCK
            else:
                member = self._member(info, name or info.name, header, info.size if size is None else size)
                if member is not None:
                    return member
                header, name, size = self._at, "", None

    def broken(self, why: str) -> Member:
        """Return a last member that says that the archive cannot be read further."""
        self.is_over = True
        after = f"after {self._last}" if self._last else "at its beginning"
        detail = f"{why}, {after}; what follows is not read"
        return Member(self._last, self._at, self._at, 0, "broken_archive", detail)

    def _member(self, info: tarfile.TarInfo, name: str, header: int, size: int) -> Member | None:
        """Return the member of this header, None of a folder, and go on to the next one."""
        if not 0 <= size < _FARTHEST:
            return self.broken(f"a header promises {size} bytes")
        at = self._at
        has_bytes = info.type not in (tarfile.DIRTYPE, *_LINKS, *_OTHERS)
        self._at += -(-size // _BLOCK) * _BLOCK if has_bytes else 0
        clean = "/".join(part for part in name.split("/") if part not in ("", "."))
        self._last = _printable(clean or name)
        if self._end is not None and self._at > self._end:
            return self._cut()
        if info.type == tarfile.DIRTYPE:
            return None
        reason, detail = _fault(info, name, clean)
        return Member(self._last if reason else clean, header, at, size, reason, detail)

    def _cut(self) -> Member:
        self.is_over = True
        after = f"in or after {self._last}" if self._last else "at its beginning"
        return Member(
            self._last,
            self._at,
            self._at,
            0,
            "truncated_archive",
            f"ends {after}, without its mark; the rest is missing",
        )

    def _read(self, size: int) -> bytes:
        if self._end is not None:
            size = max(0, min(size, self._end - self._at))
        self._stream.seek(self._at)
        content = self._stream.read(size)
        self._at += len(content)
        return content


def _fault(info: tarfile.TarInfo, name: str, clean: str) -> tuple[str, str]:
    if clean != _printable(clean):
        return "name_not_utf8", "the member's name is not UTF-8"
    if name.startswith("/") or ".." in clean.split("/") or not clean:
        return "unsafe_name", "the member's name leads out of the archive"
    if info.type in _LINKS:
        return "link_in_archive", f"is {_LINKS[info.type]}, which is not followed"
    if info.type not in _FILES:
        return "not_a_file", f"is {_OTHERS.get(info.type, f'of the kind {info.type!r}')}; a regular file is expected"
    return "", ""


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _fields(content: bytes) -> dict[bytes, bytes]:
    """Return the fields of a pax header: lines of `length key=value`. Raises `ValueError` if it is none."""
    fields, at = {}, 0
    while at < len(content) and content[at]:
        length, _, _ = content[at : at + 20].partition(b" ")
        line = content[at : at + int(length)]
        key, equals, value = line[len(length) + 1 :].partition(b"=")
        if not equals or not value.endswith(b"\n") or int(length) < 5:
            raise ValueError(line)
        fields[key] = value[:-1]
        at += int(length)
    return fields


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _printable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _require_archive(stream: IO[bytes], member: Member, name: str) -> None:
    first = next(inside(stream, member), None)
    if first is not None and first.reason == "broken_archive":
        raise _no_archive(f"{name}/{member.name}")


def _no_archive(name: str) -> DataError:
    return DataError(
        f"data.path: {name}: is no tar archive, though its name ends so. Copy it again from its origin, or rename it."
    )
