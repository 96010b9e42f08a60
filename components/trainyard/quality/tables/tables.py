"""Reads tables and profiles them in one pass and bounded memory, and checks their labels in a sample of the rows."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.errors import ConfigurationError, DataError, did_you_mean
from trainyard.quality import findings
from trainyard.quality.profile import ColumnProfile, Profile, Repeats
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.cells import Cells, cells
from trainyard.quality.tables.columns import ColumnCounter, with_same_words
from trainyard.quality.tables.formulas import with_derived, without_declared_rows
from trainyard.quality.tables.hashes import combined, mixed
from trainyard.quality.tables.samples import ConflictSample, HashSample
from trainyard.readers import formats
from trainyard.readers.csv_rows import find_delimiter
from trainyard.readers.parquet_rows import is_readable
from trainyard.readers.rows import BadRow, RowBatch
from trainyard.spec.columns import MAX_COLUMNS, TableName, has_name
from trainyard.spec.recipe import Data, Declared
from trainyard.values import zones
from trainyard.values.columns import canonical_texts
from trainyard.values.patterns import NUMBER
from trainyard.values.zones import DEFAULT_ZONE

_FIRST = 5
_SUCH_AS = 5
_LABELS = ("label", "target", "class", "y", "category", "outcome")  # chosen: names that say it
_ROW_BITS = 40  # of a row's id, for its number in its file
_AT_FAULT = "Correct them, or remove the column at fault: a run whose recipe does not name it reads the rows."
_INTEGER_CLASSES = 10, 20  # chosen: more different integers count something; 10 are digits
_SPLITS, _EXAMPLES = 3, 10  # chosen: examples that each class needs for a split, and for one of more than 10 classes
_CLASSES = 10_000  # chosen: most values of a column that is taken for classes
_CELLS = 400_000  # chosen, of the row sample: a hundred megabytes of text at the worst
_ROWS = 20_000  # chosen, of the row sample: a share is then known to about a hundredth

# Target leakage (columns that predict the label alone) and likely label errors:
_ENOUGH = 0.99  # chosen: of the mistakes that always naming the largest class makes, this share is gone
_GROUPS = 64  # chosen: quantile groups of a number; more would each hold too few rows
_LEAST_ROWS = 5  # chosen: rows a group on average; fewer remember the rows instead of telling about them
_LINEAR = 0.9999  # chosen: correlation of a number with a number to predict
_MAX_CLASSES = 50  # chosen: of more, few have rows enough in a sample
_TOGETHER = 100  # chosen: rows, by their margins, among which agreement is counted
_AGREE = 0.95  # chosen: of all that are predicted so surely; so up to one label in twenty may be wrong
_MAX_CLASS_SHARE = 0.5  # chosen: of a class whose rows look so more often, the other columns tell nothing
_AGREE_TOGETHER = 0.9  # chosen: of a hundred of them, for some have more wrong ones by chance
_BATCH_ROWS, _BATCH_BYTES = 1 << 16, 8 << 20  # of a batch; chosen: what costs once a batch is then little


def profile_table(
    source: SourceFiles,
    label: str | None,
    is_number: bool | None = None,
    data: Data | None = None,
    *,
    requires_label: bool = True,
    time_zone: str = DEFAULT_ZONE,
    declared: Declared = MappingProxyType({}),
) -> Profile:
    """Return the profile of the rows; without `label` the likely one is named.

    requires_label: else rows that lack `label` have none. time_zone: in which days are counted without `data`.
    declared: what counts as missing without `data`.

    is_number: the label is a number to predict; None decides by its values. data: whose derived columns are counted
    too, and whose `where` leaves rows out. Raises `ConfigurationError` if there is no
    column `label`, `DataError` if the files cannot be read or have no rows.
    """
    named = frozenset(data.columns if data else [label or ""])
    time_zone = data.time_zone if data else time_zone
    zone = zones.time_zone(time_zone)
    counts = _ColumnCounters(label, requires_label, named, zone)
    names, absent = all_columns(source) if data is None or data.may_lack else ([], {})
    for item in read_table(source, data.columns if data else None, names if absent else []):
        if isinstance(item, RowBatch):
            item = with_derived(item, data) if data else without_declared_rows(item, declared, zone)
        counts.add(item)
    if counts.ragged and not counts.rows:
        raise DataError(
            f"{source.path}: no row can be read, such as {counts.ragged_such_as[0]}. "
            + ("Name lines above the header in data.skip_rows, or correct it." if source.kind == "csv" else _AT_FAULT)
        )
    if not counts.columns or not counts.rows:
        raise DataError(f"{source.path}: there are no rows below the header. Name a file with data.")
    columns = [column.profile() for column in counts.columns.values()]
    label_name = counts.label if label else _likely_label(columns, counts.rows)
    label_column = next((column for column in columns if column.name == label_name), None)
    if is_number is None:
        is_number = label_column is not None and bool(
            why_target(label_column, counts.columns[label_column.name].most_common(_CLASSES))
        )
    classes = {}
    if label_column is not None and not is_number:
        classes = counts.columns[label_column.name].most_common(_CLASSES)
        classes |= label_column.missing_texts if data else {}  # preprocess reads NA as the name of a class
    commas = source.dialect.comma_numbers
    if label_name in commas and any("." in name for name in classes):  # a class keeps its writing
        dialect = replace(source.dialect, comma_numbers=tuple(name for name in commas if name != label_name))
        return profile_table(
            replace(source, dialect=dialect), label_name, False, data, time_zone=time_zone, declared=declared
        )
    drawn = counts.drawn() if label_name else {}
    ids = {column.name for column in columns if column.is_id}
    telling = {name: column for name, column in drawn.items() if name not in ids or name == label_name}
    kinds = nested(source)
    certainty = _find_target_leakage(drawn, label_name, is_number) if label_name else {}
    texts = _word_columns(columns, data)
    columns = [
        with_same_words(column, counts.texts(column.name)) if column.name in texts else column for column in columns
    ]
    repeated = counts.repeated()
    profile = Profile(
        source=source.path,
        kind=source.kind,
        delimiter=find_delimiter(source.tables[0]) if source.kind == "csv" else ",",
        encoding=source.dialect.encoding,
        skip_rows=source.dialect.skip_rows,
        comment=source.dialect.comment,
        decimal="," if source.dialect.comma_numbers else ".",
        absent_columns=absent,
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

    def texts(self, name: str) -> pa.Array:
        """Return the texts of a column in the rows that were drawn."""
        assert self.sample is not None  # noqa: S101 - there are rows
        return canonical_texts(self.sample.table()[name])

    def label_errors(self, drawn: dict[str, Cells], label: str) -> list[tuple[str, str, str]]:
        """Return the name, the label and the likely class of each suspicious row of those `drawn`, the surest first."""
        assert self.sample is not None  # noqa: S101 - there are rows
        ids = self.sample.ids()
        return [(self._name(ids[row]), named, likely) for row, named, likely in _find_label_errors(drawn, label)]

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


def _word_columns(columns: list[ColumnProfile], data: Data | None) -> set[str]:
    """Return the names of the columns of texts that are split into words; without a recipe, those of several words."""
    if data is None:
        return {each.name for each in columns if each.type == "text" and any(" " in top.value for top in each.top)}
    return {name for name, feature in data.features.items() if feature.type == "text" and feature.separator is None}


def _texts(batch: Any) -> list[list[str]]:
    return [list(map(str, row.values())) for row in batch.to_pylist()]


def _likely_label(columns: list[ColumnProfile], rows: int) -> str | None:
    """Return the column that by its name or else by its place is the label, or None."""
    fitting = [
        column
        for column in columns
        if column.distinct >= 2 and column.type in ("category", "integer", "number") and has_name(column.name)
    ]
    usual = (column.name for name in _LABELS for column in fitting if column.name.lower() == name)
    if label := next(usual, None):
        return label
    last = columns[-1]
    return last.name if last in fitting and last.distinct <= min(100, max(2, rows // 10)) else None


def why_target(column: ColumnProfile, counts: dict[str, int]) -> str:
    """Return the reason why numbers of `column` are regression targets, '' if they are classes.

    counts: the number of rows with each value, at least of the most frequent ones.
    """
    if column.type == "number":
        return "numbers" if column.distinct > 2 else ""
    if column.type != "integer" or column.distinct <= 2:
        return ""
    few, some = _INTEGER_CLASSES
    if column.distinct > some:
        return f"more than {some} different integers"
    if column.distinct > few:
        if min(counts.values(), default=0) < _EXAMPLES:
            return f"more than {few} different integers, some with fewer than {_EXAMPLES} rows"
        peak = _only_peak(counts)
        return f"a score: integers that are the rarer the farther they are from {peak}" if peak else ""
    rare = sum(count < _SPLITS for count in counts.values())  # one alone may be a typing error
    is_rare = rare > 1 and 4 * rare >= column.distinct
    if is_rare:
        return f"integers of which {rare} have fewer than {_SPLITS} rows"
    largest = max((int(number) for number in counts if number.isdecimal()), default=0)
    is_count = column.distinct > 3 and counts.get("0", 0) > sum(counts.values()) / 2 and largest > column.distinct
    return f"a count: most are 0, and some numbers up to {largest} never occur" if is_count else ""


def _only_peak(counts: dict[str, int]) -> str:
    """Return the number between the ends to which the numbers rise in frequency, then fall, as of a score; or ''."""
    numbers = sorted((number for number in counts if re.fullmatch(NUMBER, number)), key=float)
    sizes = [counts[number] for number in numbers]
    peak = sizes.index(max(sizes))
    is_only = 0 < peak < len(sizes) - 1 and sizes == sorted(sizes[:peak]) + sorted(sizes[peak:])[::-1]
    return numbers[peak] if is_only else ""


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


def _find_target_leakage(columns: Mapping[str, Cells], label: str, is_number: bool) -> dict[str, float]:
    """Return the certainty of `label` given each suspicious column, by its name.

    is_number: the label is a number to predict, measured by correlation. Otherwise it is the share of rows predicted
    right by the most frequent class of each value, or of each of 64 quantile groups of a number.
    """
    target = columns[label]
    certainties = {}
    for name, other in columns.items():
        if name != label:
            certainty = (
                _correlation(other.numbers, target.numbers)
                if is_number
                else _certainty(_groups(other), _codes(target.texts.dictionary_encode()))
            )
            if certainty is not None:
                certainties[name] = certainty
    return certainties


def _are_enough(column: NDArray[np.int64]) -> bool:
    """Return True if the groups of `column` have enough rows for a verdict."""
    return len(column) > 0 and len(column) >= _LEAST_ROWS * (int(column.max()) + 1)


def _certainty(column: NDArray[np.int64], classes: NDArray[np.int64]) -> float | None:
    if not _are_enough(column):
        return None
    pairs, counts = np.unique(column * (int(classes.max()) + 1) + classes, return_counts=True)
    best = np.zeros(int(column.max()) + 1, np.int64)
    np.maximum.at(best, pairs // (int(classes.max()) + 1), counts)
    right = best.sum() / len(column)
    baseline = np.bincount(classes).max() / len(classes)
    return float(right) if baseline < 1 and (1 - right) <= (1 - _ENOUGH) * (1 - baseline) else None


def _groups(column: Cells) -> NDArray[np.int64]:
    """Return the number of each cell's group: of its value, or of a quantile of 64 where there are more numbers."""
    numbers = column.numbers
    if np.isnan(numbers).mean() > 0.5 or len(np.unique(numbers)) <= _GROUPS:
        return _codes(column.texts.dictionary_encode())
    edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, _GROUPS + 1)[1:-1]))
    return np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers, side="right"))


def _codes(encoded: Any) -> NDArray[np.int64]:
    """Return the number of each value of the Arrow array `encoded` of dictionary type."""
    return np.asarray(encoded.indices).astype(np.int64)


def _correlation(numbers: NDArray[np.float64], target: NDArray[np.float64]) -> float | None:
    both = ~np.isnan(numbers) & ~np.isnan(target)
    numbers, target = numbers[both], target[both]
    if len(numbers) < 10 or not numbers.std() or not target.std():
        return None
    correlation = float(np.corrcoef(numbers, target)[0, 1])
    return correlation if abs(correlation) >= _LINEAR else None


def _find_label_errors(columns: Mapping[str, Cells], label: str) -> list[tuple[int, str, str]]:
    """Return the suspicious rows of a table of `columns`, the surest first; `label` is one of classes.

    Of each its position in the table, its label and the class that the other columns name. Naive Bayes predicts the
    class of each row from all others: its own share in the counts is taken away, so no row vouches for itself. A row is
    named only if it is among those predicted so surely that nearly all of them agree.
    Source: C. Northcutt et al., Confident Learning, arXiv:1911.00068, for judging labels by out-of-sample predictions,
    and with a threshold for each class.
    """
    encoded = columns[label].texts.dictionary_encode()
    labels = _codes(encoded)
    classes = encoded.dictionary.to_pylist()
    if not 2 <= len(classes) <= _MAX_CLASSES:
        return []
    grouped = [_groups(column) for name, column in columns.items() if name != label]
    grouped = [column for column in grouped if _are_enough(column) and column.max() > 0]
    if not grouped:
        return []
    scores = _scores(labels, grouped, len(classes))
    likely = scores.argmax(axis=1)
    best = np.partition(scores, -2, axis=1)[:, -2:]
    margins = best[:, 1] - best[:, 0]
    sure = np.zeros(len(labels), bool)
    for number in range(len(classes)):
        sure[_sure(np.flatnonzero(likely == number), labels == number, margins)] = True
    rows = np.flatnonzero(sure & (likely != labels))
    totals, named = (np.bincount(labels[places], minlength=len(classes)) for places in (slice(None), rows))
    rows = rows[(named < _MAX_CLASS_SHARE * totals)[labels[rows]]]
    rows = rows[np.argsort(-margins[rows], kind="stable")]
    return [(int(row), classes[labels[row]], classes[likely[row]]) for row in rows]


def _scores(labels: NDArray[np.int64], columns: list[NDArray[np.int64]], classes: int) -> NDArray[np.float64]:
    """Return the log probability of each class in each row, (rows, classes), up to a constant per row.

    A column's groups have one row more in each class than were counted (Laplace).
    """
    totals = np.bincount(labels, minlength=classes).astype(np.float64)
    rows = np.arange(len(labels))
    scores = np.tile(np.log(totals), (len(labels), 1))
    own = np.log(np.maximum(totals[labels] - 1, 0.5))
    for column in columns:
        size = int(column.max()) + 1
        counts = np.bincount(column * classes + labels, minlength=size * classes).reshape(size, classes)
        scores += np.log((counts + 1) / (totals + size))[column]
        own += np.log(counts[column, labels] / (totals[labels] - 1 + size))  # one less, and one more
    scores[rows, labels] = own
    return scores


def _sure(rows: NDArray[np.int64], agree: NDArray[np.bool_], margins: NDArray[np.float64]) -> NDArray[np.int64]:
    """Filter `rows` of one predicted class to margins at which nearly all rows `agree`."""
    ordered = rows[np.argsort(-margins[rows], kind="stable")]
    together = agree[ordered[: len(ordered) // _TOGETHER * _TOGETHER]].reshape(-1, _TOGETHER).mean(axis=1)
    before = np.cumsum(together) / np.arange(1, len(together) + 1)
    odd = np.flatnonzero((together < _AGREE_TOGETHER) | (before < _AGREE))
    return ordered[: _TOGETHER * (odd[0] if len(odd) else len(together))]


def all_columns(source: SourceFiles) -> tuple[list[str], dict[str, int]]:
    """Return the columns of all files, in the order of the first file that has each, and in how many some are absent.

    Raises `DataError` as `read_table`, also if a file has few columns of the earlier ones.
    """
    kind, names, counts = table_kind(source), list[str](), Counter[str]()
    if formats.FORMATS[kind].is_sparse or len(source.tables) == 1:
        return names, {}
    for file in source.tables:
        columns = formats.columns(kind, file)
        if names and 2 * len({*columns} & {*names}) <= len(columns):
            raise DataError(_other_header(columns, names, file.name, source.files[0].name))
        names += [name for name in columns if name not in names]
        counts.update(columns)
    files = len(source.tables)
    return names, {name: files - counts[name] for name in names if counts[name] < files}


def read_table(
    source: SourceFiles, used: Collection[str] | None = None, names: Collection[str] = ()
) -> Iterator[RowBatch | BadRow]:
    """Yield the rows of all files in order, as texts; rows of CSV of nothing but empty cells are left out.

    used: the columns that a recipe reads, by default all. A cell of another one that cannot be read is missing.
    names: the columns of all files together, some of which a file may lack; by default those of the first file.

    Raises `DataError` that names the file if it is empty, has other columns than the first file, or cannot be read.
    """
    first = list(names)
    for file in source.tables:
        file = replace(file, may_lack=names) if names else file
        columns = formats.columns(table_kind(source), file)
        if not columns:
            raise DataError(f"{file.name}: has no column of numbers or texts. Name a table.")
        if source.kind == "csv" and all(re.fullmatch(NUMBER, name) for name in columns):
            raise DataError(
                f"{file.name}: row 1: holds numbers alone ({', '.join(columns)[:80]}), so the file has no header. "
                "Add a line with the names of the columns."
            )
        first = first or columns
        if columns != first and source.kind == "csv" and not names:
            raise DataError(_other_header(columns, first, file.name, source.files[0].name))
        required = first if used is None else [name for name in first if name in used]
        for item in _together(formats.read(table_kind(source), file, required, whole_rows=True), first):
            yield _without_empty(item) if isinstance(item, RowBatch) and source.kind == "csv" else item


def table_kind(source: SourceFiles) -> TableName:
    """Return the format of a source of tables."""
    assert source.kind != "image_folder"  # noqa: S101 - asked of tables alone
    return source.kind


def nested(source: SourceFiles) -> dict[str, Any]:
    """Return Arrow's types of the columns of the first file that hold lists or structs. Raises as `read_table`."""
    return formats.FORMATS[table_kind(source)].nested(source.tables[0])


def _together(items: Iterator[RowBatch | BadRow], names: list[str]) -> Iterator[RowBatch | BadRow]:
    """Yield the columns `names` of one file as texts in larger batches."""
    waiting: list[RowBatch] = []
    for item in items:
        if isinstance(item, BadRow):
            yield item
            continue
        waiting.append(item.select(names).texts())
        rows, size = sum(len(each.rows) for each in waiting), sum(each.columns.nbytes for each in waiting)
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[RowBatch]) -> RowBatch:
    table = pa.Table.from_batches([batch.columns for batch in batches]).combine_chunks()
    (columns,) = table.to_batches()
    return RowBatch(batches[0].file, columns, np.concatenate([batch.rows for batch in batches]))


def _without_empty(batch: RowBatch) -> RowBatch:
    filled = np.zeros(len(batch.rows), bool)
    for column in batch.columns.columns:
        filled |= np.asarray(pc.binary_length(column)) > 0
        if filled.all():
            return batch
    return batch.filter(filled)


def _other_header(header: list[str], first: list[str], name: str, first_name: str) -> str:
    missing = [column for column in first if column not in header]
    new = [column for column in header if column not in first]
    parts = [f"lacks {', '.join(missing)[:200]}"] if missing else []
    parts += [f"has {', '.join(new)[:200]} besides"] if new else []
    return (
        f"{name}: row 1: the header {' and '.join(parts) or 'has another order'}, compared with {first_name}. "
        "All files of a source have the same columns in the same order. Correct it, or name the files by a glob."
    )
