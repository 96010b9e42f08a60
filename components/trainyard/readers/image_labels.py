"""Reads the labels of images from a CSV file beside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from trainyard.errors import DataError, did_you_mean
from trainyard.readers import formats
from trainyard.readers.rows import BadRow
from trainyard.readers.table_file import Dialect, TableFile
from trainyard.storage.buckets import bucket_source
from trainyard.storage.tar import is_archive

FILE_COLUMNS = ("file", "filename", "file_name", "image", "image_path", "path")
"""Names of the column with the image's name below the folder; the first that exists is used."""


@dataclass(frozen=True)
class ImageLabels:
    """The cells of `columns` by the name of each image in the CSV `file`, and its row.

    contradicting: why images have no cells that have two rows that differ. bad: the rows that name no image.
    """

    file: str
    columns: tuple[str, ...]
    cells: dict[str, tuple[str, ...]]
    rows: dict[str, int] = field(default_factory=dict)
    contradicting: dict[str, str] = field(default_factory=dict)
    bad: tuple[BadRow, ...] = ()

    def fault(self, image: str) -> BadRow | None:
        """Return the reason why `image` has no label, None if it has one."""
        if image in self.contradicting:
            return BadRow(image, None, "contradicting_labels", self.contradicting[image])
        return None if image in self.cells else BadRow(image, None, "missing_label", f"{self.file} has no row for it")


def file_column(names: Sequence[str]) -> str | None:
    """Return the column among `names` that holds the names of images, None if there is none."""
    return next((name for name in FILE_COLUMNS if name in names), None)


def read_labels(
    root: str, name: str, columns: Sequence[str], files: Collection[str], dialect: Dialect | None = None
) -> ImageLabels:
    """Return the labels of the images among `files`, the names below `root`, from the CSV file `name` there.

    columns: those to read. Raises `DataError` if the file is missing, lacks a column or cannot be read, or if there are
    archives; `TransientError` if a bucket does not answer.
    """
    if name not in files:
        raise DataError(
            f"data.labels: there is no file {name} in {root}, which data.path names. Put it there, and name the folder "
            "as data.path."
        )
    if archive := next(filter(is_archive, files), None):
        raise DataError(f"data.labels: {archive} is an archive, and labels are of files. Unpack it in data.path.")
    path = f"{root.rstrip('/')}/{name}"
    with bucket_source.source_errors(path, "data.labels"):
        return _labels(TableFile(path, name, dialect=dialect or Dialect()), columns, {*files} - {name})


def _labels(file: TableFile, columns: Sequence[str], images: Collection[str]) -> ImageLabels:
    name, header = file.name, formats.columns("csv", file)
    column = file_column(header)
    if column is None:
        raise DataError(
            f"{name}: row 1: no column {FILE_COLUMNS[0]!r} names the images.{did_you_mean(FILE_COLUMNS[0], header)} "
            f"The header has: {', '.join(header)[:400]}. Name the column {', '.join(FILE_COLUMNS)}."
        )
    first: dict[str, tuple[int, tuple[str, ...]]] = {}
    contradicting: dict[str, str] = {}
    bad: list[BadRow] = []
    for item in formats.read("csv", file, list(dict.fromkeys([column, *columns]))):
        if isinstance(item, BadRow):
            bad.append(item)
            continue
        rows = zip(item.rows.tolist(), *(item.columns[each].to_pylist() for each in (column, *columns)), strict=True)
        for row, image, *cells in rows:
            image, values = image.strip().removeprefix("./"), tuple(map(str.strip, cells))
            if image.startswith("/") or ".." in image.split("/"):
                bad.append(BadRow(name, row, "name_out_of_root", f"{image[:80]!r} leads out of the folder"))
            elif image not in images:
                bad.append(BadRow(name, row, "missing_image", f"there is no image {image[:80]!r}"))
            elif first.setdefault(image, (row, values))[1] != values:
                earlier, other = first[image]
                contradicting.setdefault(image, f"{name} says {other} in row {earlier} and {values} in row {row}")
    kept = {image: found for image, found in first.items() if image not in contradicting}
    cells_by_image = {image: values for image, (_, values) in kept.items()}
    rows_by_image = {image: row for image, (row, _) in kept.items()}
    return ImageLabels(name, tuple(columns), cells_by_image, rows_by_image, contradicting, tuple(bad))
