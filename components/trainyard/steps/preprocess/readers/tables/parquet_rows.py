"""Reads Parquet files in batches, with the judge of the rows of CSV files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from trainyard.contract.artifacts.preprocess import Quarantined
from trainyard.quality.tables.parquet import read_parquet
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import PIECE_BYTES, WHOLE, FilePiece
from trainyard.steps.preprocess.readers.records import MOST_ROWS
from trainyard.steps.preprocess.readers.tables.columns import ColumnJudge
from trainyard.storage.source_stream import seekable_file
from trainyard.uris import is_bucket

_PACKED = 8  # chosen: a column is seldom packed closer


def parquet_pieces(path: str, size: int) -> list[FilePiece]:
    """Return the pieces of the file of `size` bytes at `path`: row groups of about 64 MiB, unpacked."""
    if is_bucket(path) and size < PIECE_BYTES // _PACKED:  # not worth two requests
        return [WHOLE]
    try:
        with seekable_file(path) as file:
            about = parquet.read_metadata(file)
    except (OSError, pa.ArrowInvalid):  # whoever reads it says why
        return [WHOLE]
    starts, unpacked, row = [(0, 1)], 0, 1
    for group in range(about.num_row_groups):
        if unpacked >= PIECE_BYTES:
            starts.append((group, row))
            unpacked = 0
        unpacked += about.row_group(group).total_byte_size
        row += about.row_group(group).num_rows
    ends = [*(start for start, _ in starts[1:]), None]
    return [FilePiece(start, end, row) for (start, row), end in zip(starts, ends, strict=True)]


def read_parquet_batches(
    path: str, name: str, recipe: Recipe, piece: FilePiece = WHOLE
) -> Iterator[pa.RecordBatch | Quarantined]:
    """Yield the rows of the file at `path` in batches, and why one is bad; `name` stands for the file in messages.

    Raises `DataError` as `read_parquet` does. The first row is row 1.
    """
    judge = ColumnJudge(recipe.data, recipe.task)
    row = piece.row
    columns, separators = recipe.data.columns, recipe.data.separators
    for texts in read_parquet(path, name, columns, MOST_ROWS, piece.start, piece.end, separators):
        numbers = pa.array(np.arange(row, row + texts.num_rows))
        sources = pc.binary_join_element_wise(f"{name}:", pc.cast(numbers, pa.string()), "")
        row += texts.num_rows
        batch, bad = judge.check(dict(zip(texts.schema.names, texts.columns, strict=True)), sources)
        if batch.num_rows:
            yield batch
        yield from (item for _, item in sorted(bad.items()))
