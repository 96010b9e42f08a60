"""Reads image folders, CSV, TFRecord and TFDS folders into records, and says which records are bad and why."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import apache_beam as beam
import tensorflow as tf
from apache_beam import pvalue

from trainyard.core.artifacts import Quarantined
from trainyard.core.recipe import Data, Recipe
from trainyard.preprocess.files import Files, open_file, relative
from trainyard.preprocess.images import check_image
from trainyard.preprocess.records import BadRecord, BadSource, Record, content_digest
from trainyard.preprocess.rows import check_label, check_row
from trainyard.preprocess.tfds import Dataset
from trainyard.preprocess.tfrecord import read_records

BAD, FATAL = "bad", "fatal"


class ReadRecords(beam.PTransform):  # type: ignore[misc]
    """Reads the files of a source: outputs `Record`s, `BAD` ones as dicts of `Quarantined`, and `FATAL` sentences."""

    def __init__(self, recipe: Recipe, files: Files, dataset: Dataset | None) -> None:
        super().__init__()
        self._recipe = recipe
        self._files = files
        self._dataset = dataset

    def expand(self, pipeline: beam.Pipeline) -> Any:
        """Return the outputs by tag; the main one is `records`."""
        reader = {"image_folder": _read_image, "csv": _read_csv}.get(self._recipe.data.format, _read_tfrecord)
        return (
            pipeline
            | "Files" >> beam.Create(self._files.paths)
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(_Read(reader, self._recipe, self._files.root, self._dataset)).with_outputs(
                BAD, FATAL, main="records"
            )
        )


class _Read(beam.DoFn):  # type: ignore[misc]
    def __init__(self, reader: Any, recipe: Recipe, root: str, dataset: Dataset | None) -> None:
        self._reader = reader
        self._recipe = recipe
        self._root = root
        self._dataset = dataset

    def process(self, path: str) -> Iterator[Any]:
        """Yield what the file at `path` holds."""
        name = relative(path, self._root)
        try:
            for item in self._reader(path, name, self._recipe, self._dataset):
                if isinstance(item, Record):
                    yield item
                else:
                    yield pvalue.TaggedOutput(BAD, asdict_quarantined(item))
        except BadSource as error:
            yield pvalue.TaggedOutput(FATAL, str(error))
        except (OSError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield pvalue.TaggedOutput(FATAL, f"{name}: cannot be read ({error}). Copy the file again from its origin.")
