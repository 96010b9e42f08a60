"""Finds and opens the files of a source, in a folder or in a bucket, and cuts tar archives into pieces."""

from __future__ import annotations

import fnmatch
import gzip
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import IO, Literal

from trainyard.contract import image_formats, window
from trainyard.contract.artifacts.preprocess import Window
from trainyard.errors import DataError, listed
from trainyard.readers.image_labels import ImageLabels, read_labels
from trainyard.readers.rows import PIECE_BYTES, WHOLE, BadRow, Piece
from trainyard.readers.table_file import Dialect
from trainyard.spec.columns import ENDINGS, TableName, hint, holds_rows
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.readers.records import BadRecord
from trainyard.storage import listing
from trainyard.storage.buckets import bucket_source
from trainyard.storage.listing import SourceFile, is_gzip, unreadable
from trainyard.storage.listing import open_file as open_file
from trainyard.storage.tar import BLOCK, Member, as_folder, inside, is_archive, members, not_an_archive
from trainyard.uris import is_bucket

_DESCRIPTIONS = ("*.json", "*.labels.txt", "*.txt")  # of a prepared data set, beside its shards
_SHOWN = 5
_FIRST_CHUNK, _CHUNK = 1 << 16, 1 << 20  # measured: of an image, most of the time is what a large buffer costs
_SLACK = 16 << 20  # bytes; chosen: for what else an image's file holds, such as a preview or a color profile
_BYTES_PER_PIXEL = 4  # chosen: 8 bits a channel and an alpha channel, not compressed at all


Part = Literal["train", "all_train", "eval", "test"]


@dataclass(frozen=True)
class Official:
    """A split that comes with the data.

    parts: the split by the first part of a file's name, archives as folders, or by the shard of a prepared data set:
    train (some of it is for eval), all_train, eval or test. labels: of images in no class folder, by the name without
    its ending, or by the number it ends in; labels_from: the file that said so.
    """

    parts: dict[str, Part]
    labels: dict[str, str] = field(default_factory=dict)
    labels_from: str = ""

    def split(self, name: str) -> Part | None:
        """Return the split of the file `name`, as seen from the root; None if it is of neither."""
        return self.parts.get(as_folder(name.partition("/")[0]))

    def folder(self, name: str) -> str | None:
        """Return the class folder that the image `name` lies in; None if it lies in none."""
        label, slash, _ = name.partition("/")[2].partition("/")
        return label if slash else None

    def label(self, name: str) -> str | None:
        """Return the class of the image `name` in the list, None if it is not listed."""
        stem = image_stem(name)
        number = re.search("[0-9]{1,18}$", stem)
        return self.labels.get(stem) or (self.labels.get(str(int(number[0]))) if number else None)


@dataclass(frozen=True)
class Files:
    """The files of a source: absolute paths in order, all below `root`; in a window of days, below a root a day.

    states: by path, what changes whenever its content does, and its bytes. bad: the images that must not be opened,
    and why. ignored: the names of other files and of hidden images, which are not read. official: of `data.split` by
    folder. labels: of `data.labels`.
    """

    root: str
    states: dict[str, tuple[str, int]]
    roots: tuple[str, ...] = ()
    window: Window | None = None
    bad: tuple[BadRow, ...] = ()
    ignored: tuple[str, ...] = ()
    official: Official | None = None
    labels: ImageLabels | None = None

    @property
    def paths(self) -> list[str]:
        """The paths of the files."""
        return list(self.states)

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return sum(size for _, size in self.states.values())

    @property
    def deeper_folders(self) -> list[str]:
        """The folders of images in class folders, which say nothing of the class, in order; not those of archives."""
        first = 1 if self.official else 0
        folders = (self.name_in_day(path).split("/")[first:-1] for path in self.paths)
        return sorted({"/".join(names[:2]) for names in folders if len(names) > 1})

    def name(self, path: str) -> str:
        """Return `path` as seen from the root."""
        return relative(path, self.root)

    def name_in_day(self, path: str) -> str:
        """Return `path` as seen from its day's root, or from the only one."""
        return relative(path, next((root for root in self.roots if path.startswith(f"{root}/")), self.root))


def image_stem(name: str) -> str:
    """Return the name of an image without folders and ending."""
    last = name.rpartition("/")[2]
    return last.rpartition(".")[0] or last


def relative(path: str, root: str) -> str:
    """Return `path` as seen from `root`."""
    return path.removeprefix(root.rstrip("/") + "/")


def find_files(data: Data, path: str, day: str = "") -> Files:
    """Return the files of `path`: a folder, a file or a glob, local, gs:// or s3://. Hidden files are left out.

    If `data` is a window of days, it ends before `day`. Raises `DataError` if there are none, if they cannot be listed,
    or if a file of many records cannot be read; `TransientError` if a bucket cannot be reached.
    """
    if data.window_days is not None:
        return _in_window(data, day)
    files = _listed(data, path)
    if not files.paths and not files.bad:
        raise DataError(
            f"data.path: {path}: no files found. Looked for {_patterns(data)}.{hint(files.ignored)} "
            "Correct data.path in the recipe."
        )
    return files


def with_listed_labels(files: Files, recipe: Recipe) -> Files:
    """Return the images of `files` with the labels of `data.labels`. Raises as `read_labels`."""
    file = recipe.data.labels_file or ""
    names = [*map(files.name, files.paths), *(item.file for item in files.bad)]
    labels = read_labels(files.root, file, recipe.data.listed_columns, names, Dialect.from_recipe(recipe))
    states = {path: state for path, state in files.states.items() if files.name(path) != file}
    return replace(files, states=states, labels=replace(labels, bad=()), bad=(*files.bad, *labels.bad))


def _in_window(data: Data, day: str) -> Files:
    by_day = {date: _listed(data, path) for date, path in window.paths(data, day).items()}
    days = window.require(data, ((date, len(files.paths) + len(files.bad)) for date, files in by_day.items()))
    root = (data.path or "").partition("%")[0].rpartition("/")[0]
    filled = [files for files in by_day.values() if files.paths or files.bad]
    bad = [replace(item, file=_from(root, day, item.file)) for day in filled for item in day.bad]
    states = {path: state for files in filled for path, state in files.states.items()}
    return Files(
        root,
        dict(sorted(states.items())),
        roots=tuple(dict.fromkeys(files.root for files in filled)),
        window=days,
        bad=tuple({item.file: item for item in bad}.values()),
        ignored=tuple(dict.fromkeys(_from(root, files, name) for files in by_day.values() for name in files.ignored)),
    )


def _from(root: str, files: Files, name: str) -> str:
    return relative(f"{files.root.rstrip('/')}/{name}", root)


def _listed(data: Data, path: str) -> Files:
    source = listing.list_files(path)
    chosen = [file for file in source.files if _is_wanted(file.name, data, source.is_folder)]
    bad = [file for file in (_limited(file, data) for file in chosen) if file.reason]
    if bad and data.format != "image_folder":
        shown = listed([f"{file.name} ({file.detail})" for file in bad], _SHOWN, "; ")
        raise DataError(
            f"data.path: {path}: files cannot be read: {shown}. Each may hold many examples. Repair or remove them."
        )
    names = {file.name for file in bad}
    ignored = {file.name for file in source.files} - {file.name for file in chosen}
    ignored |= {*source.hidden_files(image_formats.ENDINGS)} if data.format == "image_folder" else set()
    good = [file for file in chosen if file.name not in names]
    return Files(
        source.root,
        {f"{source.root.rstrip('/')}/{file.name}": (f"{file.bytes} {file.state}", file.bytes) for file in good},
        bad=tuple(BadRow(file.name, None, file.reason, file.detail) for file in bad),
        ignored=tuple(sorted(name for name in ignored if not _describes(name, data))),
    )


def _is_wanted(name: str, data: Data, in_folder: bool) -> bool:
    return data.format == "image_folder" or holds_rows(name, table_format(data), in_folder=in_folder)


def table_format(data: Data) -> TableName:
    """Return the format of the files of rows, or of examples of images, that `data` names."""
    if data.format == "image_folder" or data.format == "none":
        raise AssertionError("images are read one by one, and no data not at all")
    return "tfrecord" if data.format == "tfds" else data.format


def _patterns(data: Data) -> str:
    return "*" if data.format == "image_folder" else " or ".join(f"*{end}" for end in ENDINGS[table_format(data)])


def _describes(name: str, data: Data) -> bool:
    return data.format == "tfds" and "/" not in name and _is_like(name, _DESCRIPTIONS)


def _is_like(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


def _limited(file: SourceFile, data: Data) -> SourceFile:
    may_be_long = data.format != "image_folder" or file.name.endswith(".gz") or is_archive(file.name)
    if may_be_long or file.reason or file.bytes <= image_limit(data.max_image_pixels):
        return file
    error = too_many_bytes(file.bytes, image_limit(data.max_image_pixels))
    return replace(file, reason=error.reason, detail=error.detail)


def image_limit(max_pixels: int) -> int:
    """Return the most bytes that an encoded image of at most `max_pixels` may have."""
    return max_pixels * _BYTES_PER_PIXEL + _SLACK


def too_many_bytes(size: int, limit: int) -> BadRecord:
    """Return the error for an item of `found` bytes, more than the limit."""
    return BadRecord("too_many_bytes", f"{size:,} bytes, at most {limit:,} are taken (by data.max_image_pixels)")


def read_at_most(stream: IO[bytes], limit: int) -> bytes | None:
    """Return all bytes of `stream`, or None if it has more than `limit`."""
    content = stream.read(min(_FIRST_CHUNK, limit + 1))
    if len(content) == _FIRST_CHUNK:
        more = bytearray(content)
        while len(more) <= limit and (chunk := stream.read(min(_CHUNK, limit + 1 - len(more)))):
            more += chunk
        content = bytes(more)
    return content if len(content) <= limit else None


def read_text(path: str, limit: int = 64 << 20) -> str | None:
    """Return the text of the file at `path`, or None if there is none. Raises `DataError` if it is no such text."""
    try:
        if is_bucket(path) and not bucket_source.list_objects(path)[1]:
            return None
        with open_file(path) as stream:
            content = read_at_most(stream, limit)
        if content is None:
            raise DataError(
                f"{path}: has more than {limit:,} bytes, which no description of data has. Correct data.path."
            )
        return content.decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Check it, or copy it again from its origin.") from error


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
                if is_gzip(path):
                    break
                if member.header - starts[-1] >= PIECE_BYTES:
                    starts.append(member.header)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise not_an_archive(f"data.path: {name}") from error
    except OSError:
        return [WHOLE]
    ends = [*starts[1:], None]
    return [Piece(start, end) for start, end in zip(starts, ends, strict=True)]


def names_in(path: str) -> list[str]:
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
