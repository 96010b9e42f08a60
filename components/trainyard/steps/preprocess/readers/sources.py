"""Reads image folders, CSV, TFRecord and TFDS folders into records, and says which records are bad and why."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from trainyard.contract.artifacts import Quarantined
from trainyard.errors import DataError
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess import progress
from trainyard.steps.preprocess.readers.csv_rows import read_csv
from trainyard.steps.preprocess.readers.files import Files, image_limit, open_file, read_at_most
from trainyard.steps.preprocess.readers.images import image_record
from trainyard.steps.preprocess.readers.records import BadRecord, BadSource, Record
from trainyard.steps.preprocess.readers.rows import check_label
from trainyard.steps.preprocess.readers.tf_examples import read_tf_examples
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.storage.buckets import buckets

BAD, FATAL, GOOD = "bad", "fatal", "good"


class ReadRecords(beam.PTransform):  # type: ignore[misc]
    """Reads the files of a source into three outputs: `GOOD` (`Record`), `BAD` (`Quarantined`), `FATAL` (sentences)."""

    def __init__(self, recipe: Recipe, files: Files, dataset: Dataset | None) -> None:
        super().__init__()
        self._read = _Read(recipe, files, dataset)
        self._paths = files.paths

    def expand(self, pipeline: beam.Pipeline) -> Any:
        """Return the outputs by tag."""
        # Spreads the files over the workers as Reshuffle does, but in the same order each time.
        named = pipeline | "Files" >> beam.Create([(path, None) for path in self._paths])
        files = named | "Spread" >> beam.GroupByKey() | "Paths" >> beam.Keys()
        return files | "Read" >> beam.ParDo(self._read).with_outputs(BAD, FATAL, main=GOOD)


class _Read(beam.DoFn):  # type: ignore[misc]
    def __init__(self, recipe: Recipe, files: Files, dataset: Dataset | None) -> None:
        self._recipe = recipe
        self._root = replace(files, paths=[], bad=(), left_out=())
        self._dataset = dataset

    def process(self, path: str) -> Iterator[Any]:
        """Yield what the file at `path` holds. Raises `TransientError` where a bucket does not answer any more."""
        name = self._root.name(path)
        try:
            with buckets.faults(path):
                for item in self._items(path, name):
                    progress.count("records")
                    yield item if isinstance(item, Record) else pvalue.TaggedOutput(BAD, item)
        except (BadSource, DataError) as error:
            yield pvalue.TaggedOutput(FATAL, str(error))
        except (OSError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield pvalue.TaggedOutput(
                FATAL, f"{name}: cannot be read ({error}). Check its permissions, or copy it again from its origin."
            )
        progress.count("files")

    def _items(self, path: str, name: str) -> Iterator[Record | Quarantined]:
        if self._recipe.data.format == "image_folder":
            label, slash, _ = self._root.name_in_day(path).partition("/")
            yield _read_image(path, name, label if slash else None, self._recipe)
        elif self._recipe.data.format == "csv":
            yield from read_csv(path, name, self._recipe)
        else:
            yield from read_tf_examples(path, name, self._recipe, self._dataset)


def _read_image(path: str, name: str, label: str | None, recipe: Recipe) -> Record | Quarantined:
    try:
        if label is None:
            raise BadRecord("missing_label", "the file lies in no class folder")
        check_label(label, "the folder", regression=False)
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
