"""Finds what a source is by the names of its files: tables or images."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import IO, Literal

from trainyard import uris
from trainyard.contract import image_formats
from trainyard.contract.image_formats import Role
from trainyard.errors import ConfigurationError, DataError
from trainyard.readers import formats
from trainyard.readers.csv_layout import likely_dialect
from trainyard.readers.csv_rows import find_delimiter
from trainyard.readers.image_labels import ImageLabels, file_column, read_labels
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.spec.columns import ENDINGS, TableName, hint, holds_rows, table_of
from trainyard.storage import listing, tar
from trainyard.storage.listing import open_file
from trainyard.values.text import canonical

Kind = Literal[TableName, "image_folder"]

_SHOWN = 5
_NEARLY_ALL = 0.9  # chosen: of the images are in the file of their labels
_LABELS = ("label", "labels", "class", "target", "category", "tags")  # chosen: names that say it
_MOST_IN_BUCKET = 48  # headers of an archive, each a request; chosen: a second or two


@dataclass(frozen=True)
class ArchivedFile(listing.SourceFile):
    """A member of an archive, which is read as a folder: the archive's path and where in it the bytes begin."""

    archive: str = ""
    at: int = 0


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source, all below `root`, in order; others are those of no kind that is looked into. hidden: the
    images that are hidden, or in hidden folders.

    dialect: of CSV files; each says its delimiter. may_lack: the columns that a file may lack.
    count: how many files there are, an estimate if not `is_whole`, that is if
    not all members of archives were listed. splits: the role of each first folder that is a split, not a class.
    labels: of images, from a CSV file among them.
    """

    path: str
    kind: Kind
    root: str
    files: list[listing.SourceFile]
    other_files: list[str]
    hidden: list[str] = field(default_factory=list)
    dialect: Dialect = field(default_factory=lambda: Dialect(None))
    may_lack: Collection[str] = ()
    count: int = 0
    is_whole: bool = True
    splits: dict[str, Role] = field(default_factory=dict)
    labels: ImageLabels | None = None
    _archives: tar.Archives = field(default_factory=tar.Archives, compare=False, repr=False)

    @property
    def is_table(self) -> bool:
        """True if the files hold rows, not images."""
        return self.kind != "image_folder"

    def open(self, file: listing.SourceFile) -> IO[bytes]:
        """Return the file's bytes, gunzipped if they are compressed."""
        if isinstance(file, ArchivedFile):
            return io.BytesIO(self._archives.read(file.archive, file.at, file.bytes))
        return open_file(self._path(file))

    @property
    def tables(self) -> list[TableFile]:
        """The files, if they hold rows, for their reader, which finds out what separates cells of CSV."""
        return [
            TableFile(self._path(file), file.name, file.bytes, self.dialect, may_lack=self.may_lack)
            for file in self.files
        ]

    def _path(self, file: listing.SourceFile) -> str:
        return f"{self.root.rstrip('/')}/{file.name}"

    def label(self, name: str) -> str | None:
        """Return the label of the image `name`: in `labels`, otherwise the first folder; None if it has none."""
        if self.labels is not None:
            return canonical(self.labels.cells.get(name, ("",))[0]) or None
        folder, slash, _ = self._in_split(name).partition("/")
        return canonical(folder) if slash else None

    @property
    def deeper_folders(self) -> list[str]:
        """The folders in class folders, which say nothing of the class, in order."""
        if self.labels is not None:
            return []
        found = (self._in_split(file.name).split("/")[:-1] for file in self.files)
        return sorted({"/".join(folders[:2]) for folders in found if len(folders) > 1})

    def _in_split(self, name: str) -> str:
        first, _, rest = name.partition("/")
        return rest if first in self.splits else name


def find_source(
    path: str,
    kind: Kind | None = None,
    *,
    limit: int | None = None,
    has_splits: bool | None = None,
    label: str | None = None,
) -> SourceFiles:
    """Return the files of `path`: a folder, a file or a glob, local, gs:// or s3://; of archives their members.

    Without `kind` the one that most of the files have is taken. limit: headers that are read of all archives, by
    default each. has_splits: the first folders are splits, and what lies in no such folder or archive is of no kind;
    by default they are if all images lie in class folders below them. label: the column of a CSV file with the labels
    of images, by default the likely one. Raises `DataError` if there are none of the kind.
    """
    if why := uris.path_error(path):
        raise DataError(f"{uris.without_secrets(path)}: {why}.")
    listed = listing.list_files(path)
    if not listed.files:
        raise DataError(f"{path}: no files found. Name a CSV or Parquet file, a folder of images, or a glob.")
    by_kind: dict[Kind, list[listing.SourceFile]] = {**{name: [] for name in ENDINGS}, "image_folder": []}
    other_files = []
    for file in listed.files:
        is_of_split = not has_splits or image_formats.split_of(tar.as_folder(file.name.partition("/")[0]))
        file_kind = _kind(file.name, listed.is_folder) if is_of_split else None
        if file_kind is None and kind in ENDINGS and holds_rows(file.name, kind, in_folder=listed.is_folder):
            file_kind = kind
        if file_kind is None:
            other_files.append(file.name)
        else:
            by_kind[file_kind].append(file)
    loose = {name: sum(not tar.is_archive(file.name) for file in several) for name, several in by_kind.items()}
    commonest: Kind = max(by_kind, key=lambda name: (loose[name], len(by_kind[name])))  # an archive may hold anything
    chosen = kind or commonest
    files = by_kind[chosen]
    if not files:
        raise DataError(f"{path}: {_none_of(kind, listed.files)}")
    if chosen != "image_folder" and (bad := [file for file in files if file.reason]):
        raise DataError(f"{path}: {bad[0].name} cannot be read ({bad[0].detail}). Repair or remove it.")
    other_files += [file.name for name, several in by_kind.items() if name != chosen for file in several]
    source = SourceFiles(path, chosen, listed.root, files, sorted(other_files), count=len(files))
    if source.kind == "csv" and kind is None:
        return replace(source, dialect=likely_dialect(source.tables[0]))
    if source.is_table:
        return source
    source = _unpacked(replace(source, hidden=listed.hidden_files(image_formats.ENDINGS)), limit)
    source = source if has_splits is False else _with_splits(source, is_asked=has_splits is True)
    return _with_likely_labels(source, label) if kind is None and not source.splits else source


def with_labels(source: SourceFiles, name: str, columns: Sequence[str], dialect: Dialect) -> SourceFiles:
    """Return `source` with the labels of the images in `columns` of its CSV file `name`. Raises `DataError`."""
    images = [file.archive if isinstance(file, ArchivedFile) else file.name for file in source.files]
    labels = read_labels(source.root, name, columns, [*images, *source.other_files], dialect)
    ignored = [file for file in source.other_files if file != name]
    return replace(source, labels=labels, other_files=ignored, dialect=dialect)


def _with_likely_labels(source: SourceFiles, label: str | None) -> SourceFiles:
    """Return `source` with the labels of a CSV file beside the images if it has nearly all of their names."""
    for name in (name for name in source.other_files if name.lower().endswith((".csv", ".tsv")) and "/" not in name):
        file = TableFile(f"{source.root.rstrip('/')}/{name}", name, dialect=Dialect(None))
        try:
            file = replace(file, dialect=likely_dialect(file))
            file = replace(file, dialect=replace(file.dialect, delimiter=find_delimiter(file)))
            header = formats.columns("csv", file)
            named = [column for column in header if column != file_column(header)]
            likely = [label] if label else [*_LABELS, *(named if len(named) == 1 else [])]
            column = next((each for each in likely if each in named), "")
            if file_column(header) is None or not column:
                continue
            labelled = with_labels(source, name, [column], file.dialect)
        except DataError:
            continue
        if labelled.labels and len(labelled.labels.cells) >= _NEARLY_ALL * len(source.files):
            return labelled
    return source


def _with_splits(source: SourceFiles, *, is_asked: bool) -> SourceFiles:
    """Return `source` with the splits in the names of folders; unless `is_asked`, all of their images have a class."""
    folders: dict[str, list[bool]] = {}
    for file in source.files:
        first, slash, rest = file.name.partition("/")
        if slash and image_formats.split_of(first):
            folders.setdefault(first, []).append("/" in rest)
    names = {
        folder: image_formats.split_of(folder) or "" for folder, nested in folders.items() if is_asked or all(nested)
    }
    roles = image_formats.split_roles({names[folder] for folder in names if any(folders[folder])})
    if is_asked:
        return replace(source, splits={folder: roles.get(name, "test") for folder, name in names.items()})
    splits = {folder: roles[name] for folder, name in names.items() if name in roles}
    used = [file for file in source.files if not splits or file.name.partition("/")[0] in splits]
    ignored = sorted({*source.other_files, *(file.name for file in source.files)} - {file.name for file in used})
    count = source.count if len(used) == len(source.files) else len(used)
    return replace(source, files=used, other_files=ignored, count=count, splits=splits)


def _unpacked(source: SourceFiles, limit: int | None) -> SourceFiles:
    """Return `source` with the images of its archives in their places, as preprocess names and orders them."""
    archives = sum(tar.is_archive(file.name) for file in source.files)
    if not archives:
        return source
    share = None if limit is None else max(1, limit // archives)
    files: list[listing.SourceFile] = []
    count, is_whole = 0, True
    for file in source.files:
        if not tar.is_archive(file.name) or file.reason:
            files.append(file)
            count += 1
            continue
        path = f"{source.root.rstrip('/')}/{file.name}"
        is_in_bucket = share is not None and uris.is_bucket(path)
        look = tar.list_archive(path, file.bytes, min(share or 0, _MOST_IN_BUCKET) if is_in_bucket else share)
        folder = "" if path == source.path else f"{tar.as_folder(file.name)}/"
        files += [
            ArchivedFile(folder + member.name, member.size, file.state, member.reason, member.detail, path, member.at)
            for member in look.members
        ]
        count, is_whole = count + look.count, is_whole and look.is_whole
    if not files:
        raise DataError(f"{source.path}: its archives are empty. Name a folder of images, or an archive of them.")
    return replace(source, files=files, count=count, is_whole=is_whole)


def require_libraries() -> None:
    """Raise `ConfigurationError` if a library for data is not installed."""
    for name in ("numpy", "PIL", "pyarrow"):
        if find_spec(name) is None:
            raise ConfigurationError(f"{name}, which reads data, is not installed. Install trainyard[cpu].")


def _kind(name: str, is_in_folder: bool) -> Kind | None:
    is_image = name.lower().endswith(image_formats.ENDINGS) or tar.is_archive(name)
    return table_of(name, in_folder=is_in_folder) or ("image_folder" if is_image else None)


def _none_of(kind: Kind | None, files: list[listing.SourceFile]) -> str:
    names = [file.name for file in files]
    shown = ", ".join(names[:_SHOWN])
    if kind is None:
        tables = ", ".join(f"*{endings[0]}" for endings in ENDINGS.values())
        expected = f"neither tables ({tables} …; not in its folders) nor images (*.jpg, *.png …)"
    elif kind == "image_folder":
        expected = "no image (*.jpg, *.png …) and no archive (*.tar)"
    else:
        endings = ", ".join(f"*{ending}" for ending in ENDINGS[kind])
        place = "outside its folders" + (" and in those like day=1" if kind == "parquet" else "")
        expected = f"no {kind} file ({endings}) {place}"
    return f"{expected} among its {len(files):,} files, such as {shown}.{hint(names)} Name another source."
