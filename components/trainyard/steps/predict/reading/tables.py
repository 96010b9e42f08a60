"""Reads rows from files of tables in batches, and sets aside what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.errors import DataError
from trainyard.readers import formats
from trainyard.readers.rows import BadRow
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.reading.batches import Items
from trainyard.steps.predict.reading.columns import require_columns, table_items
from trainyard.steps.predict.reading.source import InputFiles
from trainyard.storage.listing import SourceFile


def read_rows(source: InputFiles, model: PushedModel, key: str | None, extras: Sequence[str] = ()) -> Items:
    """Yield the rows of all files in order. A file that cannot be read on is set aside from there.

    extras: the columns that are read beside the inputs and the key.

    Raises `DataError` if the first file lacks a column.
    """
    for number, file in enumerate(source.files):
        if file.reason:
            yield BadRow(file.name, None, file.reason, file.detail)
            continue
        try:
            yield from _rows(source, file, model, key, extras)
        except _MissingColumnError as error:
            if number == 0:
                raise DataError(str(error)) from error
            yield BadRow(file.name, None, "missing_column", str(error))
        except DataError as error:
            yield BadRow(file.name, None, "unreadable_file", str(error))


class _MissingColumnError(Exception):
    """A file lacks a column that the model takes."""


def _rows(source: InputFiles, file: SourceFile, model: PushedModel, key: str | None, extras: Sequence[str]) -> Items:
    assert source.kind != "images"  # noqa: S101 - asked of rows alone
    numbers = {feature.name for feature in model.inputs if feature.dtype == "float32"} - {key, *extras}
    table = source.table(file, model.quote, numbers)
    names = formats.columns(source.kind, table)
    required = list(dict.fromkeys([*(feature.name for feature in model.inputs), *([key] if key else []), *extras]))
    if missing := set(required) - set(names):  # or of a type that is not read, which the reader says
        names += missing & formats.FORMATS[source.kind].nested(table).keys()
    if not (formats.FORMATS[source.kind].is_sparse and set(names) & set(required)):
        try:
            require_columns(names, model, key, file.name, extras)
        except DataError as error:
            raise _MissingColumnError(str(error)) from error
    lists = {feature.name for feature in model.inputs if feature.column and feature.column.separator} | {*extras}
    for item in formats.read(source.kind, table, required, lists):
        if isinstance(item, BadRow):
            yield item
        else:
            yield from table_items(item.columns, item.names, model, key, extras)
