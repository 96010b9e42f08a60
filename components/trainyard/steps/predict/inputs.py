"""The inputs of a prediction, in files or in memory, as batches for the model."""

from __future__ import annotations

import datetime
import io
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from trainyard.errors import ConfigurationError, DataError
from trainyard.quality.decoding import PixelForm
from trainyard.readers.parquet_rows import require_readable
from trainyard.readers.rows import BadRow, unreadable_rows
from trainyard.spec.columns import column_names
from trainyard.steps.predict.columns import read_rows, require_columns, table_items
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.source import Array, InputFiles, Items, find_source

_IMAGES = "a path, a list of paths, or uint8 images (n, height, width) or (n, height, width, channels)"
_ROWS = "a path, a list of paths, a pandas or Arrow table, or a dict of columns"


def source_items(source: InputFiles, model: PushedModel, key: str | None) -> Items:
    """Yield the contents of `source`'s files. Raises `ConfigurationError` if no column is called `key`."""
    if model.pixels is None:
        return read_rows(source, model, key)
    from trainyard.steps.predict.images import read_images

    _no_key(key, source.path)
    return read_images(source, model.pixels)


def items_of(inputs: Any, model: PushedModel, key: str | None) -> Items:
    """Yield `inputs`, which a person has in memory, as batches for the model.

    They are a path (a folder, a file or a glob) or a list of paths; for a model of columns a pandas or Arrow table or a
    dict of columns, whose rows are named by the index of pandas or counted from 0; for one of images an array or a
    list of them, uint8, (height, width) or (height, width, channels), or encoded ones as bytes, counted from 0.

    Raises `DataError` if they are of no such form, or lack a column.
    """
    if isinstance(inputs, str | os.PathLike):
        return source_items(find_source(os.fspath(inputs), images=model.pixels is not None), model, key)
    if _are_paths(inputs):
        return _files(inputs, model, key)
    if model.pixels is not None:
        _no_key(key, "a list of images")
        return _images(inputs, model.pixels)
    return _rows(inputs, model, key)


def _no_key(key: str | None, place: str) -> None:
    if key is not None:
        raise ConfigurationError(f"--key {key}: {place} has no columns. Leave --key out: an image's key is its name.")


def _are_paths(inputs: Any) -> bool:
    items = inputs if isinstance(inputs, list | tuple) else ()
    return bool(items) and all(isinstance(item, str | os.PathLike) for item in items)


def _files(paths: Sequence[str | os.PathLike[str]], model: PushedModel, key: str | None) -> Items:
    """Yield the contents of each file; an image is named by its path."""
    sources = [find_source(os.fspath(path), images=model.pixels is not None) for path in paths]
    if model.pixels is None:
        return itertools.chain.from_iterable(source_items(source, model, key) for source in sources)
    from trainyard.steps.predict.images import read_all

    _no_key(key, "a list of images")
    return read_all(sources, model.pixels)


def _images(inputs: Any, form: PixelForm) -> Items:
    from trainyard.steps.predict.images import batches, checked

    is_list = isinstance(inputs, Iterable) and not isinstance(inputs, Mapping | bytes)
    if not is_list or getattr(inputs, "ndim", 4) not in (3, 4):
        raise DataError(_wrong_form(inputs, "images", _IMAGES))
    shape: tuple[int, ...] = getattr(inputs, "shape", ())
    if len(shape) == 3 and shape[-1] in (1, 3, 4):
        raise DataError(f"predict: an array of shape {tuple(shape)} looks like one image. Give a list of it: [array].")
    encoded = (_encoded(image, index) for index, image in enumerate(inputs))
    return batches(checked(str(index), image, form) for index, image in enumerate(encoded))


def _encoded(item: Any, index: int) -> bytes:
    """Return the image as PNG, which loses nothing, or as it is if it is encoded."""
    if isinstance(item, bytes):
        return item
    pixels: Array = np.asarray(item)
    shape = pixels.shape
    channels = shape[2:] or (1,)
    if pixels.dtype != np.uint8 or len(shape) < 2 or 0 in shape or channels not in ((1,), (3,), (4,)):
        raise DataError(
            f"predict: image {index} is {pixels.dtype} {shape}. Give uint8, 0 to 255, (height, width) or "
            "(height, width, channels) with 1, 3 or 4 channels."
        )
    stream = io.BytesIO()
    image = Image.fromarray(pixels.reshape(shape[:2]) if channels == (1,) else pixels)
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _rows(inputs: Any, model: PushedModel, key: str | None) -> Items:
    table, names = _table(inputs)
    table = table.rename_columns(column_names(table.schema.names))
    require_columns(table.schema.names, model, key, "predict")
    for name in model.required(key):
        require_readable(name, table.schema.field(name).type, "predict")
    return _table_items(table, names, model, key)


def _table_items(table: pa.Table, names: pa.Array, model: PushedModel, key: str | None) -> Items:
    start = 0
    for columns in table.combine_chunks().to_batches():
        rows = names.slice(start, columns.num_rows)
        start += columns.num_rows
        if bad := unreadable_rows(columns, model.required(key)):
            yield from (BadRow(rows[row].as_py(), None, "mistyped_value", detail) for row, detail in bad.items())
            kept = pa.array(~np.isin(np.arange(len(rows)), [*bad]))
            columns, rows = columns.filter(kept), rows.filter(kept)
        yield from table_items(columns, rows, model, key)


def _table(inputs: Any) -> tuple[pa.Table, pa.Array]:
    """Return the columns, and the names (n,) of the rows."""
    try:
        if hasattr(inputs, "iloc") and hasattr(inputs, "columns"):  # pandas, which need not be installed
            table = pa.Table.from_pandas(inputs, preserve_index=False)
            _require_one_kind_of_time(table, [inputs.iloc[:, place] for place in range(inputs.shape[1])])
            return table, pa.array([str(name) for name in inputs.index], pa.string())
        if isinstance(inputs, pa.RecordBatch):
            inputs = pa.Table.from_batches([inputs])
        table = pa.table(dict(inputs)) if isinstance(inputs, Mapping) else inputs
        if isinstance(inputs, Mapping):
            _require_one_kind_of_time(table, [*inputs.values()])
    except (pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError) as error:
        why = (str(error).splitlines() or [""])[0][:200]
        raise DataError(f"predict: the columns are no table ({why}). Give {_ROWS}.") from error
    if not isinstance(table, pa.Table):
        raise DataError(_wrong_form(inputs, "rows", _ROWS))
    return table, pa.array(map(str, range(table.num_rows)), pa.string())


def _require_one_kind_of_time(table: pa.Table, columns: Sequence[Any]) -> None:
    """Raise `DataError` if one of the `columns` of `table` mixes days, times and times with a zone.

    The first of a column of Python's objects decides what Arrow makes of all: a time after a day loses its hour.
    """
    for name, kind, values in zip(table.schema.names, table.schema.types, columns, strict=True):
        if not pa.types.is_temporal(kind) or str(getattr(values, "dtype", "object")) != "object":
            continue
        days = [value for value in values if isinstance(value, datetime.date) and value == value]  # NaT is none
        if len({(isinstance(day, datetime.datetime), getattr(day, "tzinfo", None) is None) for day in days}) > 1:
            raise DataError(
                f"predict: column '{name}' mixes days, times or times with a zone, which would all be read as {kind}. "
                "Give one kind, or texts."
            )


def _wrong_form(inputs: Any, takes: str, forms: str) -> str:
    shape = getattr(inputs, "shape", None)
    received = f"{type(inputs).__name__}{f' {tuple(shape)}' if shape is not None else ''}"
    return f"predict: the model takes {takes}, a {received} was given. Give {forms}."
