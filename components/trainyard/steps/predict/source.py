"""The files of a prediction's input, known by their names or first bytes, and the batches that are read from them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Literal

import numpy.typing as npt
import pyarrow as pa

from trainyard import uris
from trainyard.contract.image_formats import ENDINGS as IMAGE_ENDINGS
from trainyard.errors import DataError
from trainyard.readers import tf_examples
from trainyard.readers.rows import BadRow
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.spec.columns import ENDINGS, TableName, hint, table_of
from trainyard.storage import listing
from trainyard.storage.listing import SourceFile, open_file

Array = npt.NDArray[Any]
Kind = Literal["images", TableName]
_SHOWN = 5
_PARQUET = b"PAR1"


@dataclass(frozen=True)
class InputBatch:
    """Inputs for the model: `keys` (n,), and `inputs` (n,) by their name in the serving signature.

    extras: the columns (n,) that were read beside them, such as the label.
    """

    keys: pa.Array
    inputs: dict[str, Array]
    extras: dict[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """The memory of the inputs."""
        arrays = self.inputs.values()
        objects = (sum(map(sys.getsizeof, values)) for values in arrays if values.dtype == object)
        return sum(values.nbytes for values in arrays) + sum(objects)

    def halves(self) -> tuple[InputBatch, InputBatch]:
        """Return the first and the second half."""
        middle = len(self) // 2
        first = InputBatch(self.keys.slice(0, middle), {name: values[:middle] for name, values in self.inputs.items()})
        return first, InputBatch(
            self.keys.slice(middle), {name: values[middle:] for name, values in self.inputs.items()}
        )


Items = Iterator[InputBatch | BadRow]


@dataclass(frozen=True)
class InputFiles:
    """The files of an input, all of one kind and below `root`, in order; ignored are the names of others."""

    path: str
    kind: Kind
    root: str
    files: list[SourceFile]
    ignored: list[str]

    def open(self, file: SourceFile) -> IO[bytes]:
        """Return the file's bytes, gunzipped if they are compressed."""
        return open_file(self.path_of(file.name))

    def table(
        self, file: SourceFile, dialect: Dialect, numbers: Collection[str] = (), may_lack: Collection[str] = ()
    ) -> TableFile:
        """Return a file of rows for its reader."""
        return TableFile(self.path_of(file.name), file.name, file.bytes, dialect, numbers, may_lack)

    def path_of(self, name: str) -> str:
        """Return the path or URI of what is called `name` below the root."""
        return f"{self.root.rstrip('/')}/{name}"


def find_source(path: str, *, images: bool) -> InputFiles:
    """Return the files of `path` (a folder, a file or a glob, local, gs:// or s3://) for a model of `images` or rows.

    Of a folder of images every file is tried, whatever its name. Raises `DataError` if there are no such files.
    """
    if why := uris.path_error(path):
        raise DataError(f"{uris.without_secrets(path)}: {why}.")
    listed = listing.list_files(path, field="")
    if not listed.files:
        raise DataError(f"{path}: no files found. Name a file, a folder or a glob.")
    kinds = {file.name: _kind(listed, file) for file in listed.files}
    allowed: tuple[Kind, ...] = ("images", "tfrecord") if images else tuple(ENDINGS)
    counts = Counter(kind for kind in kinds.values() if kind is not None and kind in allowed)
    if not counts:
        takes = "images (a folder, or a TFRecord file)" if images else "rows (CSV, Parquet or TFRecord files)"
        raise DataError(
            f"{path}: the model takes {takes}, and its files are {', '.join(list(kinds)[:_SHOWN])}."
            f"{hint(kinds)} Name another input."
        )
    kind = counts.most_common(1)[0][0]
    files = listed.files if kind == "images" else [file for file in listed.files if kinds[file.name] == kind]
    chosen = {file.name for file in files}
    return InputFiles(path, kind, listed.root, files, [name for name in kinds if name not in chosen])


def _kind(listed: listing.Listing, file: SourceFile) -> Kind | None:
    if table := table_of(file.name, in_folder=listed.is_folder):
        return table
    if file.name.lower().endswith(IMAGE_ENDINGS):
        return "images"
    return None if listed.is_folder or file.reason else _by_content(f"{listed.root.rstrip('/')}/{file.name}")


def _by_content(path: str) -> Kind:
    """Return the kind of the file at `path` by its content: text is a table by default."""
    try:
        with open_file(path) as stream:
            start = stream.read(tf_examples.HEADER_BYTES)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Check its permissions.") from error
    if start.startswith(_PARQUET):
        return "parquet"
    if tf_examples.is_header(start):
        return "tfrecord"
    try:
        start.decode()
    except UnicodeDecodeError:
        return "images"
    return "csv"
