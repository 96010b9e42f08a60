"""Reads the rows of one file of a table, and judges them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from trainyard.quality.tables.row_hashes import row_hashes
from trainyard.readers.formats import read
from trainyard.readers.rows import MOST_ROWS, WHOLE, BadRow, Piece, RowBatch
from trainyard.readers.table_file import TableFile
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import table_format
from trainyard.steps.preprocess.readers.records import BadRecord
from trainyard.steps.preprocess.readers.tables.columns import ColumnJudge
from trainyard.steps.preprocess.readers.tfds import Dataset


def judged_rows(
    file: TableFile, recipe: Recipe, piece: Piece = WHOLE, dataset: Dataset | None = None
) -> Iterator[pa.RecordBatch | BadRow]:
    """Yield the good rows of `file` in batches, and why one is bad.

    With a TFDS `dataset`, integer labels get their names. Raises `DataError` if the file is wrong as a whole, or holds
    another number of records than the data set's own description says.
    """
    data, count = recipe.data, 0
    judge = ColumnJudge(data, recipe.task)
    for item in read(table_format(data), file, data.columns, data.separators, piece, data.hashes_rows):
        count += 1 if isinstance(item, BadRow) else len(item.rows)
        if isinstance(item, BadRow):
            yield item
            continue
        if data.hashes_rows:
            item = replace(item, columns=item.columns.select(data.columns), hashes=row_hashes(item.columns))
        for rows in item.texts(data.separators).slices(MOST_ROWS):
            if dataset and dataset.label_names is not None and data.label in rows.columns.schema.names:
                rows, unnamed = _with_label_names(rows, data.label, dataset)
                yield from unnamed
            batch, bad = judge.check(rows)
            if batch.num_rows:
                yield batch
            yield from bad
    if dataset:
        dataset.require_count(file.name, count)


def _with_label_names(rows: RowBatch, label: str, dataset: Dataset) -> tuple[RowBatch, list[BadRow]]:
    """Return the rows with the names of their labels, and those whose label has none."""
    encoded = rows.columns[label].dictionary_encode()
    names: list[str] = []
    unnamed: dict[int, BadRecord] = {}
    for place, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            names.append(dataset.label_name(text, label))
        except BadRecord as error:
            names.append("")
            unnamed[place] = error
    place = rows.columns.schema.get_field_index(label)
    named = rows.columns.set_column(place, label, pa.array(names, pa.string()).take(encoded.indices))
    places = encoded.indices.to_numpy()
    is_bad = np.isin(places, list(unnamed))
    bad = [
        BadRow(rows.file, int(rows.rows[index]), unnamed[places[index]].reason, unnamed[places[index]].detail)
        for index in np.flatnonzero(is_bad).tolist()
    ]
    return replace(rows, columns=named).filter(~is_bad), bad
