"""Profiles CSV files in one pass and bounded memory."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainyard.errors import ConfigurationError, DataError, did_you_mean
from trainyard.quality import findings
from trainyard.quality.hashes import ConflictSample, HashSample, combined, mixed
from trainyard.quality.profile import ColumnProfile, Profile, Repeats
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.cells import Cells, cells
from trainyard.quality.tables.columns import ColumnCounter
from trainyard.quality.tables.formulas import with_derived
from trainyard.quality.tables.label_checks import label_errors, target_leakage
from trainyard.quality.tables.table import nested, read_table
from trainyard.readers.csv_rows import find_delimiter
from trainyard.readers.parquet_rows import is_readable
from trainyard.readers.rows import BadRow, RowBatch
from trainyard.spec.recipe import Data
from trainyard.spec.tables.columns import MAX_COLUMNS, has_name
from trainyard.values import zones
from trainyard.values.zones import DEFAULT_ZONE

_FIRST = 5
_SUCH_AS = 5
_LABELS = ("label", "target", "class", "y", "category", "outcome")  # chosen: names that say it
_ROW_BITS = 40  # of a row's id, for its number in its file
_AT_FAULT = "Correct them, or remove the column at fault: a run whose recipe does not name it reads the rows."
_INTEGER_CLASSES = 10, 20  # chosen: more different integers count something; 10 are digits
_SPLITS, _EXAMPLES = 3, 10  # chosen: examples that each class needs for a split, and for one of more than 10 classes
_CLASSES = 1000  # chosen: most values of a column that is taken for classes
_CELLS = 400_000  # chosen, of the row sample: a hundred megabytes of text at the worst
_ROWS = 20_000  # chosen, of the row sample: a share is then known to about a hundredth


def profile_table(
    source: SourceFiles,
    label: str | None,
    is_number: bool | None = None,
    data: Data | None = None,
    *,
    requires_label: bool = True,
    time_zone: str = DEFAULT_ZONE,
) -> Profile:
    """Return the profile of the rows; without `label` the likely one is named.

    requires_label: else rows that lack `label` have none. time_zone: in which days are counted without `data`.

    is_number: the label is a number to predict; None decides by its values. data: whose derived columns are counted
    too, and whose `where` leaves rows out. Raises `ConfigurationError` if there is no
    column `label`, `DataError` if the files cannot be read or have no rows.
    """
    named = frozenset(data.columns if data else [label or ""])
    time_zone = data.time_zone if data else time_zone
    counts = _ColumnCounters(label, requires_label, named, zones.time_zone(time_zone))
    for item in read_table(source):
        counts.add(with_derived(item, data) if data and isinstance(item, RowBatch) else item)
    if counts.ragged and not counts.rows:
        raise DataError(
            f"{source.path}: no row can be read, such as {counts.ragged_such_as[0]}. "
            + ("Remove what stands above the header, or correct it." if source.kind == "csv" else _AT_FAULT)
        )
    if not counts.columns or not counts.rows:
        raise DataError(f"{source.path}: there are no rows below the header. Name a file with data.")
    columns = [column.profile() for column in counts.columns.values()]
    label_name = counts.label if label else _likely_label(columns, counts.rows)
    label_column = next((column for column in columns if column.name == label_name), None)
    if is_number is None:
        is_number = label_column is not None and _is_target(
            label_column, counts.columns[label_column.name].most_common(_CLASSES)
        )
    classes = {}
    if label_column is not None and not is_number:
        classes = counts.columns[label_column.name].most_common(_CLASSES)
        classes |= label_column.missing_texts if data else {}  # preprocess reads NA as the name of a class
    drawn = counts.drawn() if label_name else {}
    ids = {column.name for column in columns if column.is_id}
    telling = {name: column for name, column in drawn.items() if name not in ids or name == label_name}
    kinds = nested(source)
    certainty = target_leakage(drawn, label_name, is_number) if label_name else {}
    repeated = counts.repeated()
    profile = Profile(
        source=source.path,
        kind=source.kind,
        delimiter=find_delimiter(source.tables[0]) if source.kind == "csv" else ",",
        files=len(source.files),
        bytes=sum(file.bytes for file in source.files),
        rows=counts.rows,
        ragged=counts.ragged,
        ragged_such_as=counts.ragged_such_as,
        label=label_name,
        label_is_guessed=label is None and label_name is not None,
        classes=classes,
        columns=columns,
        first=counts.first,
        repeated=repeated,
        target_leakage=list(certainty),
        lists=[name for name, kind in kinds.items() if is_readable(kind)],
        unread={name: f"{kind}"[:80] for name, kind in kinds.items() if not is_readable(kind)},
        label_errors=counts.label_errors(telling, label_name) if label_name and classes else [],
        images=None,
        findings=[],
        other_files=source.other_files,
        time_zone=time_zone,
    )
    return profile.model_copy(
        update={"findings": findings.table_findings(profile, certainty, counts.whole.exact, data)}
    )


@dataclass
class _ColumnCounters:
    label: str | None
    requires_label: bool
    named: frozenset[str]  # columns that somebody asks for, though the data do not name them
    zone: datetime.tzinfo
    columns: dict[str, ColumnCounter] = field(default_factory=dict)
    rows: int = 0
    ragged: int = 0
    ragged_such_as: list[str] = field(default_factory=list)
    first: list[list[str]] = field(default_factory=list)
    sample: RowSample | None = None
    whole: HashSample = field(default_factory=HashSample)
    conflicts: ConflictSample = field(default_factory=ConflictSample)
    files: list[str] = field(default_factory=list)

    def add(self, item: RowBatch | BadRow) -> None:
        if isinstance(item, BadRow):
            self.ragged += 1
            if len(self.ragged_such_as) < _SUCH_AS:
                self.ragged_such_as.append(f"{item.key} ({item.detail})")
            return
        names = item.columns.schema.names
        if self.sample is None:
            if len(names) > MAX_COLUMNS:
                raise DataError(
                    f"{item.file}: the table has {len(names):,} columns. At most {MAX_COLUMNS:,} are read. "
                    "Write those that matter into another file."
                )
            if not self.requires_label and self.label not in names:
                self.label = None
            if self.label is not None and self.label not in names:
                raise ConfigurationError(
                    f"--label {self.label}: no such column.{did_you_mean(self.label, names)} "
                    f"The header has: {', '.join(names)[:400]}."
                )
            self.columns = {name: ColumnCounter(name) for name in names}
            self.sample = RowSample(len(names))
            self.first = [names, *_texts(item.columns.slice(0, _FIRST))]
        if item.file not in self.files[-1:]:
            self.files.append(item.file)
        ids = item.rows + (len(self.files) - 1 << _ROW_BITS)
        self.sample.add(item.columns, self.rows, ids)
        self._count(item, ids)
        self.rows += item.columns.num_rows

    def repeated(self) -> Repeats:
        """Return the equal rows; with a label, those that are equal without it and differ in it are conflicts."""
        return Repeats(
            repeats=self.whole.repeats,
            such_as=[[self._name(row), f"{times} times"] for row, times in self.whole.repeated(_SUCH_AS)],
            conflicts=self.conflicts.conflicts,
        )

    def drawn(self) -> dict[str, Cells]:
        """Return the columns of the rows that were drawn."""
        assert self.sample is not None  # noqa: S101 - there are rows
        table = self.sample.table()
        return {name: cells(table[name], self.zone) for name in table.column_names if self._tells(name)}

    def label_errors(self, drawn: dict[str, Cells], label: str) -> list[tuple[str, str, str]]:
        """Return the name, the label and the likely class of each suspicious row of those `drawn`, the surest first."""
        assert self.sample is not None  # noqa: S101 - there are rows
        ids = self.sample.ids()
        return [(self._name(ids[row]), named, likely) for row, named, likely in label_errors(drawn, label)]

    def _count(self, batch: RowBatch, ids: NDArray[np.int64]) -> None:
        features = whole = np.zeros(len(ids), np.uint64)
        for name, column in self.columns.items():
            parsed: Cells = cells(batch.columns[name], self.zone)
            cell_hashes = column.add(parsed, batch.name, self.rows)
            if not self._tells(name):
                continue
            whole = combined(whole, cell_hashes)
            if name != self.label:
                features = combined(features, cell_hashes)
        self.whole.add(whole, ids)
        if self.label is not None:
            self.conflicts.add(features, whole)

    def _tells(self, name: str) -> bool:
        """Return True if the column says something of its row: an index without a name only counts the rows."""
        return has_name(name) or name in self.named

    def _name(self, row: int) -> str:
        """Return the name of the row with an id: the place of its file, and its number there."""
        return f"{self.files[row >> _ROW_BITS]}:{row & ((1 << _ROW_BITS) - 1)}"


def _texts(batch: Any) -> list[list[str]]:
    return [list(map(str, row.values())) for row in batch.to_pylist()]


def _likely_label(columns: list[ColumnProfile], rows: int) -> str | None:
    """Return the column that by its name or else by its place is the label, or None."""
    fitting = [
        column
        for column in columns
        if column.distinct >= 2 and column.type in ("category", "integer", "number") and has_name(column.name)
    ]
    for usual in _LABELS:
        for column in fitting:
            if column.name.lower() == usual:
                return column.name
    last = columns[-1]
    return last.name if last in fitting and last.distinct <= min(100, max(2, rows // 10)) else None


def _is_target(column: ColumnProfile, counts: dict[str, int]) -> bool:
    """Return True if the numbers of `column` are regression targets, not classes.

    counts: the number of rows with each value.
    """
    if column.type == "number":
        return column.distinct > 2
    if column.type != "integer" or column.distinct <= 2:
        return False
    few, some = _INTEGER_CLASSES
    if column.distinct > few:
        return column.distinct > some or min(counts.values(), default=0) < _EXAMPLES or _has_one_peak(counts)
    rare = sum(count < _SPLITS for count in counts.values())  # one alone may be a typing error
    return rare > 1 and 4 * rare >= column.distinct


def _has_one_peak(counts: dict[str, int]) -> bool:
    """Return True if the numbers rise in frequency to one between the ends, then fall, as those of a score do."""
    sizes = [counts[number] for number in sorted(counts, key=float)]
    peak = sizes.index(max(sizes))
    return 0 < peak < len(sizes) - 1 and sizes == sorted(sizes[:peak]) + sorted(sizes[peak:])[::-1]


class RowSample:
    """At most 20,000 rows, fewer if there are many columns: those whose position has the smallest hash."""

    def __init__(self, columns: int) -> None:
        self._rows = max(200, min(_ROWS, _CELLS // max(1, columns)))
        self._limit = np.uint64(2**64 - 1)
        self._kept: list[Any] = []
        self._draws: list[Any] = []
        self._ids: list[Any] = []

    def add(self, batch: Any, first: int, ids: NDArray[np.int64]) -> None:
        """Draw from the rows of the Arrow `batch` with these `ids`, the first of which is the `first`-th to be read."""
        draws = mixed(np.arange(first + 1, first + 1 + batch.num_rows, dtype=np.uint64))
        chosen = draws <= self._limit
        self._kept.append(batch.filter(pa.array(chosen)))
        self._draws.append(draws[chosen])
        self._ids.append(ids[chosen])
        if sum(map(len, self._draws)) > 2 * self._rows:
            self._shrink()

    def table(self) -> Any:
        """Return the rows as a table of text, in their order."""
        if sum(map(len, self._draws)) > self._rows:
            self._shrink()
        return pa.Table.from_batches(self._kept) if self._kept else None

    def ids(self) -> list[int]:
        """Return the ids of the rows of `table`, which is asked for before."""
        return [int(row) for ids in self._ids for row in ids]

    def _shrink(self) -> None:
        self._limit = np.partition(np.concatenate(self._draws), self._rows - 1)[self._rows - 1]
        chosen = [draws <= self._limit for draws in self._draws]
        self._kept = [batch.filter(pa.array(mask)) for batch, mask in zip(self._kept, chosen, strict=True)]
        self._ids = [ids[mask] for ids, mask in zip(self._ids, chosen, strict=True)]
        self._draws = [draws[mask] for draws, mask in zip(self._draws, chosen, strict=True)]
