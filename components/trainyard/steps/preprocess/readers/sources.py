"""Reads image folders, CSV, TFRecord and TFDS folders into records, and says which records are bad and why."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from trainyard.beam import progress
from trainyard.contract.artifacts.preprocess import Quarantined
from trainyard.errors import DataError
from trainyard.quality.tables.dialect import Dialect
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.readers.files import WHOLE, Files, Piece, image_limit, open_file, read_at_most
from trainyard.steps.preprocess.readers.images import image_record
from trainyard.steps.preprocess.readers.records import BadRecord, BadSource, Record, in_batches
from trainyard.steps.preprocess.readers.tables.csv_rows import csv_pieces, read_csv_batches
from trainyard.steps.preprocess.readers.tables.parquet_rows import parquet_pieces, read_parquet_batches
from trainyard.steps.preprocess.readers.tables.rows import typed_label
from trainyard.steps.preprocess.readers.tf_examples import read_tf_batches
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.storage.buckets import bucket_source

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Fatal:
    """A file is wrong as a whole: the sentence that the run ends with."""

    sentence: str


class Reader:
    """Reads files of a source into batches of rows."""

    def __init__(self, recipe: Recipe, files: Files, dataset: Dataset | None) -> None:
        self._recipe = recipe
        self._root = replace(files, paths=[], states=[], bad=(), left_out=())
        self._dataset = dataset

    def read(self, paths: Sequence[str], piece: Piece = WHOLE) -> Iterator[pa.RecordBatch | Quarantined | Fatal]:
        """Yield what the files at `paths` hold; of a table its `piece`.

        Raises `TransientError` if a bucket does not answer any more.
        """
        for item in self._images(paths) if self._recipe.data.format == "image_folder" else self._files(paths, piece):
            progress.count("records", len(item) if isinstance(item, pa.RecordBatch) else 1)
            yield item

    def _images(self, paths: Sequence[str]) -> Iterator[pa.RecordBatch | Quarantined | Fatal]:
        return in_batches((item for path in paths for item in self._guarded(path, self._image)), self._recipe.data)

    def _files(self, paths: Sequence[str], piece: Piece) -> Iterator[pa.RecordBatch | Quarantined | Fatal]:
        for path in paths:
            yield from self._guarded(path, partial(self._rows, piece), counts=piece.end is None)

    def _guarded(
        self, path: str, read: Callable[[str, str], Iterator[_Item]], counts: bool = True
    ) -> Iterator[_Item | Fatal]:
        name = self._root.name(path)
        try:
            with bucket_source.source_errors(path):
                yield from read(path, name)
        except (BadSource, DataError) as error:
            yield Fatal(str(error))
        except (OSError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield Fatal(f"{name}: cannot be read ({error}). Check its permissions, or copy it again from its origin.")
        if counts:
            progress.count("files")

    def _image(self, path: str, name: str) -> Iterator[Record | Quarantined]:
        label, slash, _ = self._root.name_in_day(path).partition("/")
        yield _read_image(path, name, label if slash else None, self._recipe)

    def _rows(self, piece: Piece, path: str, name: str) -> Iterator[pa.RecordBatch | Quarantined]:
        if self._recipe.data.format == "csv":
            return read_csv_batches(path, name, self._recipe, piece)
        if self._recipe.data.format == "parquet":
            return read_parquet_batches(path, name, self._recipe, piece)
        return read_tf_batches(path, name, self._recipe, self._dataset)


def pieces(path: str, data: Data) -> list[Piece]:
    """Return the pieces of the file at `path` that can be read apart."""
    if data.format == "csv":
        return csv_pieces(path, Dialect.of(data))
    return parquet_pieces(path) if data.format == "parquet" else [WHOLE]


def _read_image(path: str, name: str, label: str | None, recipe: Recipe) -> Record | Quarantined:
    try:
        if label is None:
            raise BadRecord("missing_label", "the file lies in no class folder")
        label = typed_label(label, "the folder", recipe.data, "classification")
        return image_record(_encoded(path, recipe), label, name, recipe.data)
    except BadRecord as error:
        return Quarantined(source=name, reason=error.reason, detail=error.detail)


def _encoded(path: str, recipe: Recipe) -> bytes:
    limit = image_limit(recipe.data)
    try:
        with open_file(path) as stream:
            encoded = read_at_most(stream, limit)
    except (FileNotFoundError, PermissionError) as error:
        raise BadRecord("unreadable", error.strerror or str(error)) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadRecord("broken_gzip", str(error)) from error
    if encoded is None:
        raise BadRecord("too_many_bytes", f"more than {limit} bytes (by data.max_image_pixels)")
    return encoded
