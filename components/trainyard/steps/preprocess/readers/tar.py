"""Cuts a tar archive into pieces that are read apart, and names what is in it."""

from __future__ import annotations

import gzip
import zlib
from typing import IO

from trainyard.readers.rows import PIECE_BYTES, WHOLE, Piece
from trainyard.storage.listing import open_file, unreadable
from trainyard.storage.tar import BLOCK, Member, as_folder, inside, is_archive, members, not_an_archive
from trainyard.uris import is_bucket


def tar_pieces(path: str, name: str) -> list[Piece]:
    """Return the pieces of the archive at `path` that can be read apart: of about 64 MiB, each of whole members.

    One in a bucket is cut if it holds archives; otherwise its headers would take as long to read as all of it. One that
    cannot be read is one piece, whose reader says why. Raises `DataError` if it, or an archive in it, is none.
    """
    starts = [0]
    try:
        with open_file(path, BLOCK * 2 if is_bucket(path) else None) as stream:
            for number, member in enumerate(members(stream)):
                if not number and member.reason in ("broken_archive", "truncated_archive"):
                    raise not_an_archive(f"data.path: {name}")
                if is_archive(member.name) and not member.reason:
                    _require_archive(stream, member, name)
                elif is_bucket(path):
                    break
                if path.endswith(".gz"):
                    break
                if member.header - starts[-1] >= PIECE_BYTES:
                    starts.append(member.header)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise not_an_archive(f"data.path: {name}") from error
    except OSError:
        return [WHOLE]
    ends = [*starts[1:], None]
    return [Piece(start, end) for start, end in zip(starts, ends, strict=True)]


def names(path: str) -> list[str]:
    """Return the names of the images in the archive at `path`, and of archives in it as folders, with a slash.

    The latter are not looked into: those of ImageNet have a million headers. Raises `DataError` if it cannot be read.
    """
    try:
        with open_file(path) as stream:
            good = [member.name for member in members(stream) if not member.reason]
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(f"data.path: {path}", error) from error
    return [f"{as_folder(name)}/" if is_archive(name) else name for name in good]


def _require_archive(stream: IO[bytes], member: Member, name: str) -> None:
    first = next(inside(stream, member), None)
    if first is not None and first.reason == "broken_archive":
        raise not_an_archive(f"data.path: {name}/{member.name}")
