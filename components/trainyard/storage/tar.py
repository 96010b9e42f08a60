"""Lists the members of a tar archive and the positions of their bytes. Nothing is ever unpacked to disk.

Archives are untrusted: names may lead out of a folder, links and devices anywhere, a header may promise more bytes than
memory holds, and the file may be truncated. Python's tarfile reads such headers whole, so it only parses single blocks
here.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO

from trainyard.errors import DataError
from trainyard.storage.listing import is_gzip, open_file, unreadable
from trainyard.uris import is_bucket

BLOCK = 512
"""Block size of an archive in bytes."""

_MAX_MEMBERS = 20_000_000  # chosen: over ten times ImageNet; the headers alone are 10 GB
_LONGEST_HEADER = 64 << 10  # bytes of an extended header; chosen: a path has 4,096 at most
_FARTHEST = 1 << 60  # bytes; no file is as long
_FARTHEST_PACKED = 64 << 20  # bytes of a gzip that a listing unpacks; chosen: a fifth of a second
_MAX_BYTES = 256 << 20  # of an image; chosen: more than the default data.max_image_pixels uncompressed
_ENDINGS = (".tar", ".tar.gz")
_BROKEN = ("broken_archive", "truncated_archive")  # of the first member
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_LINKS = {tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a link"}
_SPECIAL_FILES = {tarfile.FIFOTYPE: "a named pipe", tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device"}


@dataclass(frozen=True)
class Member:
    """A member that is not a folder: `size` bytes from `at` on; its first header starts at `header`.

    reason, detail: why its bytes are not read, as a code for counting and as a sentence; '' if they may be.
    """

    name: str
    header: int
    at: int
    size: int
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class ArchiveListing:
    """The members of an archive; members of a nested archive are named as in a folder.

    count: number of members, estimated from their bytes unless is_whole, that is unless every header was read.
    """

    members: list[Member]
    count: int
    is_whole: bool


def is_archive(name: str) -> bool:
    """Return True if the file `name` is read as an archive."""
    return name.endswith(_ENDINGS)


def as_folder(name: str) -> str:
    """Return the folder name of the archive `name`; other names unchanged."""
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)


def list_archive(path: str, size: int, limit: int | None = None) -> ArchiveListing:
    """Return the members of the archive of `size` bytes at `path`, from `limit` of its headers or all.

    Nested archives share the limit. Raises `DataError` if it, or a nested one, is not an archive or cannot be read.
    """
    farthest = None if limit is None or not is_gzip(path) else _FARTHEST_PACKED
    try:
        with open_file(path, BLOCK * 2 if limit is not None and is_bucket(path) else None) as stream:
            outer, is_whole = _first(members(stream), limit, farthest)
            if outer and outer[0].reason in _BROKEN:
                raise not_an_archive(path)
            archives = [member for member in outer if is_archive(member.name) and not member.reason]
            share = None if limit is None else max(1, (limit - len(outer)) // max(1, len(archives)))
            inner = {member.at: _list_inner(stream, path, member, share, farthest) for member in archives}
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error
    listings = [inner.get(member.at) or ArchiveListing([member], 1, True) for member in outer]
    count = sum(listing.count for listing in listings) * (1 if is_whole else _times(outer, 0, size))
    seen = [member for listing in listings for member in listing.members]
    return ArchiveListing(seen, round(count), is_whole and all(listing.is_whole for listing in listings))


def _list_inner(
    stream: IO[bytes], path: str, archive: Member, limit: int | None, farthest: int | None
) -> ArchiveListing:
    seen, is_whole = _first(inside(stream, archive), limit, farthest)
    if seen and seen[0].reason == "broken_archive":
        raise not_an_archive(f"{path}/{archive.name}")
    named = [replace(member, name=f"{as_folder(archive.name)}/{member.name}") for member in seen]
    count = len(seen) * (1 if is_whole else _times(seen, archive.at, archive.size))
    return ArchiveListing(named, round(count), is_whole)


def _first(members: Iterator[Member], limit: int | None, farthest: int | None) -> tuple[list[Member], bool]:
    """Return the first members and True if these are all; a compressed archive is read up to `farthest`."""
    seen = []
    for member in members:
        seen.append(member)
        if len(seen) == limit or (farthest is not None and member.at + member.size > farthest):
            return seen, False
    return seen, True


def _times(seen: list[Member], start: int, size: int) -> float:
    """Return the ratio of `size` to the bytes of the members `seen`."""
    end = seen[-1].at + -(-seen[-1].size // BLOCK) * BLOCK
    return max(1.0, size / max(1, end - start))


class Archives:
    """Reads members of archives. Keeps the last archive open, so that a gzip read in order is unpacked once."""

    def __init__(self) -> None:
        self._path = ""
        self._stream: IO[bytes] | None = None

    def read(self, path: str, at: int, size: int) -> bytes:
        """Return `size` bytes from `at` on of the archive at `path`; raises `OSError` if they are missing."""
        if size > _MAX_BYTES:
            raise OSError(f"{size:,} bytes, at most {_MAX_BYTES:,} are read")
        try:
            if self._stream is None or self._path != path:
                self.close()
                self._path, self._stream = path, open_file(path)
            self._stream.seek(at)
            content = self._stream.read(size)
        except (EOFError, zlib.error) as error:
            raise OSError(str(error)) from error
        if len(content) < size:
            raise OSError(f"the archive ends {size - len(content):,} bytes before the image")
        return content

    def close(self) -> None:
        """Close the open archive."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def inside(stream: IO[bytes], archive: Member) -> Iterator[Member]:
    """Yield the members of the nested `archive` of `stream`."""
    yield from members(stream, archive.at, archive.at + archive.size)


def members(stream: IO[bytes], start: int = 0, end: int | None = None) -> Iterator[Member]:
    """Yield the visible members of the archive in the bytes `start` to `end` of `stream`.

    An unreadable header, or a missing end, is a last member with a reason. The caller may read between two members, but
    not seek before the last one.
    """
    walk = _Walk(stream, start, end)
    for _ in range(_MAX_MEMBERS):
        member = walk.next()
        if member is None:
            return
        yield from [member] if member.reason or not _is_hidden(member.name) else []
        if walk.is_over:
            return
    yield walk.broken(f"has more than {_MAX_MEMBERS} members")


class _Walk:
    """Reads one header after the other. is_over: the last result of `next` was the last member."""

    def __init__(self, stream: IO[bytes], start: int, end: int | None) -> None:
        self._stream, self._at, self._end = stream, start, end
        self._last = ""
        self.is_over = False

    def next(self) -> Member | None:
        """Return the next member, None at the end of the archive."""
        header, name, size = self._at, "", None
        while True:
            block = self._read(BLOCK)
            if len(block) < BLOCK:
                return self._cut()
            if block == tarfile.NUL * BLOCK:
                return None
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                return self.broken(f"the header at byte {self._at - BLOCK:,} is invalid ({error})")
            if not 0 <= info.size < _FARTHEST:
                return self.broken(f"a header promises {info.size:,} bytes")
            if info.type in (*_LONG_NAMES, *_EXTENDED):
                if info.size > _LONGEST_HEADER:
                    allowed = f"at most {_LONGEST_HEADER:,} are taken"
                    return self.broken(f"an extended header has {info.size:,} bytes, {allowed}")
                content = self._read(info.size)
                if len(content) < info.size:
                    return self._cut()
                self._at += -info.size % BLOCK
                if info.type == tarfile.GNUTYPE_LONGNAME:
                    name = _text(content.partition(b"\0")[0])
                elif info.type in _EXTENDED:
                    try:
                        fields = _fields(content)
                        name = _text(fields[b"path"]) if b"path" in fields else name
                        size = int(fields[b"size"]) if b"size" in fields else size
                    except ValueError:
                        return self.broken("an extended header is invalid")
            elif info.type == tarfile.XGLTYPE:
                self._at += -(-info.size // BLOCK) * BLOCK
            else:
                member = self._member(info, name or info.name, header, info.size if size is None else size)
                if member is not None:
                    return member
                header, name, size = self._at, "", None

    def broken(self, why: str) -> Member:
        """Return a last member that reports a broken archive."""
        after = f"after {self._last}" if self._last else "at its beginning"
        return self._last_member("broken_archive", f"{why}, {after}; what follows is not read")

    def _member(self, info: tarfile.TarInfo, name: str, header: int, size: int) -> Member | None:
        """Return the member of this header, None for a folder, and skip its bytes."""
        if not 0 <= size < _FARTHEST:
            return self.broken(f"a header promises {size:,} bytes")
        at = self._at
        has_bytes = info.type not in (tarfile.DIRTYPE, *_LINKS, *_SPECIAL_FILES)
        self._at += -(-size // BLOCK) * BLOCK if has_bytes else 0
        clean = "/".join(part for part in name.split("/") if part not in ("", "."))
        self._last = _printable(clean or name)
        if self._end is not None and self._at > self._end:
            return self._cut()
        if info.type == tarfile.DIRTYPE:
            return None
        reason, detail = _fault(info, name, clean)
        return Member(self._last if reason else clean, header, at, size, reason, detail)

    def _cut(self) -> Member:
        after = f"in or after {self._last}" if self._last else "at its beginning"
        return self._last_member("truncated_archive", f"ends {after}, without an end marker; the rest is missing")

    def _last_member(self, reason: str, detail: str) -> Member:
        self.is_over = True
        return Member(self._last, self._at, self._at, 0, reason, detail)

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
        return (
            "not_a_file",
            f"is {_SPECIAL_FILES.get(info.type, f'of the kind {info.type!r}')}; a regular file is expected",
        )
    return "", ""


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _fields(content: bytes) -> dict[bytes, bytes]:
    """Return the fields of a pax header, lines of `length key=value`. Raises `ValueError` if it is malformed."""
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


def not_an_archive(name: str) -> DataError:
    """Return the error for a file that is not a tar archive."""
    return DataError(f"{name}: is not a tar archive, despite its name. Copy it again from its origin, or rename it.")
