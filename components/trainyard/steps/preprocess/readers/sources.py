"""Reads image folders, CSV, TFRecord and TFDS folders into records, and says which records are bad and why."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, TypeAlias, TypeVar

import pyarrow as pa

from trainyard.beam import progress
from trainyard.errors import DataError
from trainyard.readers.formats import FORMATS
from trainyard.readers.image_labels import ImageLabels
from trainyard.readers.rows import WHOLE, BadRow, Piece
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.readers.tf_examples import MOST_BYTES, read_image_examples
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import (
    Files,
    image_limit,
    read_at_most,
    table_format,
    tar_pieces,
    too_many_bytes,
)
from trainyard.steps.preprocess.readers.images import image_limits, image_record
from trainyard.steps.preprocess.readers.records import LABELS_APART, BadRecord, Record, Unselected, in_batches
from trainyard.steps.preprocess.readers.tables import judged_rows, split_by, typed_label
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.storage import tar
from trainyard.storage.buckets import bucket_source
from trainyard.storage.listing import open_file, unreadable
from trainyard.storage.tar import as_folder, is_archive

_Item = TypeVar("_Item")
_Read: TypeAlias = pa.RecordBatch | BadRow | Unselected


class Reader:
    """Reads files of a source into batches of rows."""

    def __init__(self, recipe: Recipe, files: Files, dataset: Dataset | None) -> None:
        self._recipe = recipe
        self._root = replace(files, states={}, bad=(), ignored=())
        self._dataset = dataset
        self._limits = image_limits(recipe.data)

    def read(self, paths: Sequence[str], piece: Piece = WHOLE) -> Iterator[_Read | DataError]:
        """Yield the records of the files at `paths`; of a table only `piece`.

        Raises `TransientError` if a bucket does not answer any more.
        """
        images = self._recipe.data.format == "image_folder"
        for item in self._images(paths, piece) if images else self._files(paths, piece):
            progress.count("records", _records(item))
            yield item

    def _images(self, paths: Sequence[str], piece: Piece) -> Iterator[_Read | DataError]:
        read = {path: partial(self._archive, piece) if is_archive(path) else self._image for path in paths}
        items = (item for path in paths for item in self._guarded(path, read[path], counts=piece.end is None))
        return in_batches(items, self._recipe.data)

    def _files(self, paths: Sequence[str], piece: Piece) -> Iterator[_Read | DataError]:
        for path in paths:
            yield from self._guarded(path, partial(self._rows, piece), counts=piece.end is None)

    def _guarded(
        self, path: str, read: Callable[[str, str], Iterator[_Item]], counts: bool = True
    ) -> Iterator[_Item | DataError]:
        name = self._root.name(path)
        try:
            with bucket_source.source_errors(path):
                yield from read(path, name)
        except DataError as error:
            yield error
        except (OSError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield unreadable(name, error)
        if counts:
            progress.count("files")

    def _image(self, path: str, name: str) -> Iterator[Record | BadRow]:
        yield self._judged(name, self._root.name_in_day(path), lambda: _encoded(path, self._recipe))

    def _archive(self, piece: Piece, path: str, name: str) -> Iterator[Record | BadRow]:
        """Yield the images of the archive at `path`, which is read as a folder; one that is the source, as its root.

        An archive in it is read likewise.
        """
        folder = "" if path == self._recipe.data.path else f"{as_folder(self._root.name_in_day(path))}/"
        with open_file(path) as stream:
            for member in tar.members(stream, piece.start):
                if piece.end is not None and member.header >= piece.end:
                    return
                if not is_archive(member.name) or member.reason:
                    yield self._member(stream, member, f"{name}/{member.name}", folder + member.name)
                    continue
                for inner in tar.inside(stream, member):
                    source = f"{name}/{member.name}/{inner.name}"
                    yield self._member(stream, inner, source, f"{folder}{as_folder(member.name)}/{inner.name}")

    def _member(self, stream: IO[bytes], member: tar.Member, source: str, name: str) -> Record | BadRow:
        if member.reason:
            return BadRow(source, None, member.reason, member.detail)
        return self._judged(source, name, lambda: _member_bytes(stream, member, self._recipe))

    def _judged(self, source: str, name: str, read: Callable[[], bytes]) -> Record | BadRow:
        """Return the image that `read` reads; name: its own, with archives as folders, which says its class."""
        official, recipe = self._root.official, self._recipe
        label: str | None
        try:
            if self._root.labels is not None:
                label, by = self._listed(self._root.labels, name)
                return image_record(read(), label, source, self._limits, by)
            if official is None:
                folder, slash, _ = name.partition("/")
                label, split = folder if slash else None, ""
            else:
                label, split = official.folder(name) or official.label(name), official.split(name) or ""
            if label is None:
                raise BadRecord("missing_label", "the file lies in no class folder")
            label = typed_label(label, "the folder", recipe.data, "classification")
            return image_record(read(), label, source, self._limits, split)
        except BadRecord as error:
            return BadRow(source, None, error.reason, error.detail)

    def _listed(self, labels: ImageLabels, name: str) -> tuple[str, str]:
        """Return the label of the image `name` in the recipe's file of labels, and what splits go by."""
        data = self._recipe.data
        if fault := labels.fault(name):
            raise BadRecord(fault.reason, fault.detail)
        cells = dict(zip(labels.columns, labels.cells[name], strict=True))
        label = LABELS_APART.join(typed_label(cells[each], each, data, self._recipe.task) for each in data.labels)
        return label, split_by(cells[data.split.column], data) if data.split.column else ""

    def _rows(self, piece: Piece, path: str, name: str) -> Iterator[_Read]:
        recipe, dataset = self._recipe, self._dataset
        file = TableFile(path, name, dialect=Dialect.from_recipe(recipe), may_lack=recipe.data.may_lack)
        items: Iterator[_Read]
        if recipe.data.is_image:
            items = in_batches(_example_images(file, recipe, dataset), recipe.data)
        else:
            items = judged_rows(file, recipe, piece, dataset)
        split = self._root.official.split(name) if self._root.official else None
        return items if split is None else (_with_split(item, split) for item in items)


def _example_images(file: TableFile, recipe: Recipe, dataset: Dataset | None) -> Iterator[Record | BadRow]:
    data, limits, count = recipe.data, image_limits(recipe.data), 0
    image, limit = dataset.image if dataset else None, MOST_BYTES + image_limit(data.max_image_pixels)
    for item in read_image_examples(file, limit, image, data.columns, data.separators):
        count += 1 if isinstance(item, BadRow) else len(item[1])
        if isinstance(item, BadRow):
            yield item
            continue
        rows = item[0].texts(data.separators)
        for index, (label, encoded) in enumerate(zip(rows.columns[data.label].to_pylist(), item[1], strict=True)):
            try:
                name = dataset.label_name(label, data.label) if dataset else label
                name = typed_label(name, data.label, data, recipe.task)
                yield encoded if isinstance(encoded, BadRow) else image_record(encoded, name, rows.name(index), limits)
            except BadRecord as error:
                yield BadRow(rows.file, int(rows.rows[index]), error.reason, error.detail)
    if dataset:
        dataset.require_count(file.name, count)


def _records(item: _Read | DataError) -> int:
    if isinstance(item, Unselected):
        return item.rows
    return len(item) if isinstance(item, pa.RecordBatch) else 1


def _with_split(item: _Read, split: str) -> _Read:
    if not isinstance(item, pa.RecordBatch):
        return item
    return item.drop_columns("split_by").append_column("split_by", pa.array([split] * len(item), pa.string()))


def pieces(path: str, size: int, recipe: Recipe) -> list[Piece]:
    """Return the pieces of the file of `size` bytes at `path` that can be read apart."""
    with bucket_source.source_errors(path):
        if recipe.data.format == "image_folder":
            return tar_pieces(path, path)
        return FORMATS[table_format(recipe.data)].pieces(TableFile(path, path, size, Dialect.from_recipe(recipe)))


def _encoded(path: str, recipe: Recipe) -> bytes:
    limit = image_limit(recipe.data.max_image_pixels)
    try:
        with open_file(path) as stream:
            encoded = read_at_most(stream, limit)
    except (FileNotFoundError, PermissionError) as error:
        raise BadRecord("unreadable", error.strerror or str(error)) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadRecord("broken_gzip", str(error)) from error
    if encoded is None:
        raise BadRecord("too_many_bytes", f"more than {limit:,} bytes (by data.max_image_pixels)")
    return encoded


def _member_bytes(stream: IO[bytes], member: tar.Member, recipe: Recipe) -> bytes:
    limit = image_limit(recipe.data.max_image_pixels)
    if member.size > limit:
        raise too_many_bytes(member.size, limit)
    stream.seek(member.at)
    content = stream.read(member.size)
    if len(content) < member.size:
        raise BadRecord("truncated_archive", f"the archive ends {member.size - len(content):,} bytes before the image")
    return content
