"""The rows of one file as preprocess reads and judges them."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from trainyard.readers.rows import WHOLE, BadRow, Piece
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.records import Unselected
from trainyard.steps.preprocess.readers.tables import judged_rows


def judged(path: str | Path, recipe: Recipe, piece: Piece = WHOLE) -> Iterator[pa.RecordBatch | BadRow | Unselected]:
    """Yield what `judged_rows` yields. Raises `DataError` if the file is wrong as a whole."""
    name = str(path).rpartition("/")[2]
    return judged_rows(TableFile(str(path), name, dialect=Dialect.from_recipe(recipe)), recipe, piece)
