"""The profile of a source: what `trainyard data inspect` finds, as a document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from trainyard.contract.document import FrozenModel
from trainyard.contract.image_formats import Role
from trainyard.contract.statistics.drift import FeatureStatistics, Statistics, TopValue, top_values
from trainyard.quality.far_values import FarValues
from trainyard.spec.columns import Delimiter, Encoding, TableName
from trainyard.values.patterns import ONLY_DAY
from trainyard.values.zones import DEFAULT_ZONE

ColumnType = Literal["integer", "number", "date", "category", "text", "empty"]

LABEL_SEPARATORS = (";", "|")
"""The separators that are looked for between several classes in a cell."""

_NUMBER = r"[+-]?(\d{1,3}([.,'\u00a0\u202f ]\d{3})+|\d+)([.,]\d+)?"
_CURRENCY = "([$€£¥₹]|EUR|USD|GBP|CHF)"
_FOREIGN = {
    "numbers with thousands separators": (
        r"[+-]?\d{1,3}((,\d{3})+|(['\u00a0\u202f ]\d{3})+)(\.\d+)?",
        "write 1234.5 for 1,234.5, as pandas.read_csv(..., thousands=',') reads it",
    ),
    "numbers with a comma": (
        r"[+-]?\d{1,3}([.'\u00a0\u202f ]\d{3})*,\d+|[+-]?\d+,\d+|[+-]?\d{1,3}(\.\d{3}){2,}",
        "set data.decimal: ',' if no number of the CSV has a point, or write 1234.5 for 1.234,5, as "
        "pandas.read_csv(..., thousands='.', decimal=',') reads it",
    ),
    "days not written YYYY-MM-DD": (r"\d{1,2}[./]\d{1,2}[./]\d{4}.*", "write them as 2024-03-01"),
    "percentages": (rf"{_NUMBER}\s?%", "write the number alone, with a point, such as 12.5"),
    "amounts of money": (
        rf"[+-]?{_CURRENCY}\s?{_NUMBER}|{_NUMBER}\s?{_CURRENCY}",
        "write the number alone, such as 1234.5, and the currency in another column",
    ),
    "numbers with a unit": (
        r"[+-]?\d[\d,.]* (k?g|lbs?|[mck]?m|ft|mi|[mk]?l|[mk]?W|kWh|°?[CF]|min|h|s|ms|[KMG]i?B)",
        "write the number alone, all in one unit",
    ),
}
_PLAIN = r"[+-]?(\d+(\.\d*)?|\.\d+)"
_LISTED = 0.1  # chosen: share of cells with several classes
_PROSE = 5  # chosen: words of half of the texts; a name or an address has fewer
_FEW = 20  # chosen: fewer values may all differ by chance
_ID = ("id", "key", "code", "nr", "no", "number")  # chosen: what names of ids end with
_TIME = ("year", "yr", "month", "week", "day", "time")  # chosen: what names of times end with
_SURELY_EQUAL = 4  # chosen: expected equal pairs among as many integers drawn from the same range


class ColumnProfile(FrozenModel):
    """One column. statistics: of a date its days since 1970 and, in `top`, how often each occurs.

    type: what most cells are; mistyped counts those that are something else. distinct is exact up to a million.
    quantiles: of numbers and dates, by share. top: the most frequent texts, of every type. zoned: times
    with an offset from UTC. missing_texts: how often which text, such as NA, stands for a missing number. far: see
    `FarValues`. alike: groups of values of a category that differ in their writing alone. same_words: how many
    different texts give the same words as another, of a sample of the rows, and such_as. mistyped_kind: what
    `foreign_kind` says of mistyped cells.
    """

    name: str
    type: ColumnType
    statistics: FeatureStatistics
    distinct: int
    mistyped: int
    mistyped_such_as: list[str]
    quantiles: dict[str, float]
    top: list[TopValue]
    longest: int
    zoned: int = 0
    missing_texts: dict[str, int] = {}
    far: FarValues | None = None
    alike: list[list[str]] = []
    mistyped_kind: str = ""
    same_words: int = 0
    same_words_such_as: list[str] = []

    def statistics_beside(self, other: FeatureStatistics | None) -> FeatureStatistics:
        """Return the statistics; if `other`, of preprocess, counts texts, not those of numbers or days."""
        statistics = self.statistics
        if other is None or other.top is None:
            return statistics
        is_day = self.type == "date" and all(re.fullmatch(ONLY_DAY, each.value) for each in other.top)
        if is_day or statistics.mean is None:
            return statistics
        counts = {entry.value: entry.count for entry in self.top} | self.missing_texts  # which are values of a text
        named = sum(self.missing_texts.values())
        return FeatureStatistics(
            count=statistics.count + self.mistyped + named,
            missing=statistics.missing - named,
            distinct=self.distinct + len(self.missing_texts),
            top=top_values(counts),
        )

    @property
    def is_id(self) -> bool:
        """True if all values differ and none is a number with a fraction, a day or a text of words.

        Integers that differ are ids only if measured ones would repeat (incomes of 50 towns and years differ, too), or
        if they count the rows.
        """
        present = self.statistics.count + self.mistyped
        if self.distinct < present or any(" " in top.value for top in self.top) or self.foreign:
            return False
        low, high = self.statistics.min or 0, self.statistics.max or 0
        span = high - low + 1
        if self.type == "integer" and low in (0, 1) and span == present > 2:
            return True
        if present <= _FEW or self.type not in ("text", "category", "integer"):
            return False
        name = self.name.lower()
        if self.type != "integer" or name.endswith(_ID):
            return True
        return not name.rstrip("s").endswith(_TIME) and present * (present - 1) / 2 >= _SURELY_EQUAL * span

    @property
    def is_prose(self) -> bool:
        """True if the column holds texts of several words: not names, addresses or codes."""
        words = sorted(len(top.value.split()) for top in self.top)
        return self.type == "text" and bool(words) and words[len(words) // 2] >= _PROSE

    @property
    def foreign(self) -> str:
        """The kind of numbers or dates in an unsupported notation that the column seems to hold; '' if none.

        Numbers in the usual notation may stand between them. Of a column of numbers, what some cells hold instead.
        """
        if self.type in ("text", "category"):
            return foreign_kind(top.value for top in self.top)
        return self.mistyped_kind


def foreign_kind(values: Iterable[str]) -> str:
    """Return the kind of numbers or dates in an unsupported notation that all `values` are, but for numbers; or ''."""
    unusual = [value for value in values if not re.fullmatch(_PLAIN, value)]
    kinds = (kind for kind, (like, _) in _FOREIGN.items() if all(re.fullmatch(like, value) for value in unusual))
    return next(kinds, "") if unusual else ""


def how_to_write(kind: str) -> str:
    """Return the advice on writing values of a `kind` of `foreign_kind`."""
    return _FOREIGN[kind][1]


class Repeats(FrozenModel):
    """Rows or images with equal content: how many repeat an earlier one, and some of them by name.

    conflicts: groups with equal content and different labels.
    """

    repeats: int
    such_as: list[list[str]]
    conflicts: int
    conflicts_such_as: list[list[str]] = []


class SheetImage(FrozenModel):
    """One image of the contact sheet: its name below the root, its class, and itself as a JPEG in base64."""

    name: str
    label: str
    height: int
    width: int
    thumbnail: str


class ImageProfile(FrozenModel):
    """The images of a source. broken: counts by reason. Sizes are `columns` of the profile.

    constant: how many are one color; level: the largest value after decoding in those of more than 8 bits without a
    white level, -1 if there are none.
    hashed: how many were decoded to look for near-duplicates; near: pairs of names that look the same.
    """

    formats: dict[str, int]
    modes: dict[str, int]
    broken: dict[str, int]
    broken_such_as: list[str]
    constant: int = 0
    constant_such_as: list[str] = []
    level: int = -1
    hashed: int
    near: list[list[str]]
    near_count: int
    sheet: list[SheetImage]


class Profile(FrozenModel):
    """The profile of a source. ragged counts the rows whose number of cells differs from the header's.

    skip_rows: lines that are no rows, and comment: what other such lines begin with. decimal: the separator in numbers
    of CSV. absent_columns: in how many files some columns are absent.

    classes: the label's values with their counts, if it is one of classes. first: the header and the first rows.
    target_leakage: columns that tell the label alone. lists: columns of Parquet with several values a row. unread:
    those that are read by nothing, and their types. label_errors: of rows with a likely wrong label the name, the label
    and the likely class, the surest first. time_zone: in which the days of times with an offset are counted.
    findings: what is worth a look, a sentence each. hidden: the images that are hidden, or in hidden folders.
    splits: the role of the folders above the class folders. deeper_folders: those in class folders.
    labels_file: the CSV file with the labels of images.
    """

    source: str
    kind: Literal[TableName, "image_folder"]
    delimiter: Delimiter = ","
    encoding: Encoding = "utf-8"
    skip_rows: tuple[int, ...] = ()
    comment: str | None = None
    decimal: Literal[".", ","] = "."
    absent_columns: dict[str, int] = {}
    files: int
    bytes: int
    rows: int
    ragged: int = 0
    ragged_such_as: list[str] = []
    label: str | None = None
    label_is_guessed: bool = False
    classes: dict[str, int] = {}
    columns: list[ColumnProfile]
    first: list[list[str]] = []
    repeated: Repeats
    target_leakage: list[str] = []
    lists: list[str] = []
    unread: dict[str, str] = {}
    label_errors: list[tuple[str, str, str]] = []
    images: ImageProfile | None = None
    findings: list[str] = []
    other_files: list[str] = []
    hidden: list[str] = []
    splits: dict[str, Role] = {}
    labels_file: str = ""
    deeper_folders: list[str] = []
    time_zone: str = DEFAULT_ZONE

    @property
    def label_separator(self) -> str:
        """The separator between the classes in one cell of the label, '' if each cell names one class."""
        rows = sum(self.classes.values())
        for separator in LABEL_SEPARATORS:
            listed = sum(times for cell, times in self.classes.items() if separator in cell)
            parts = {part.strip() for cell in self.classes for part in cell.split(separator)}
            if listed >= _LISTED * rows > 0 and 2 <= len(parts) < len(self.classes):
                return separator
        return ""

    def statistics(self, other: Statistics | None = None, separator: str = "") -> Statistics:
        """Return the statistics to compare with another data set's.

        other: those of preprocess. Columns that its recipe leaves out are left out here, and numbers and dates that it
        reads as categories are categories here.
        separator: stands between the classes of a cell, which are counted one by one.
        """
        classes, counted = Counter[str](), dict(self.classes)
        if other and counted:  # NA is a class of training, and a missing number if nothing says that these are classes
            named = next((column.missing_texts for column in self.columns if column.name == self.label), {})
            counted |= {cell: times for cell, times in named.items() if cell in other.classes}
        for cell, times in counted.items():
            parts = {part.strip() for part in cell.split(separator)} - {""} if separator else {cell}
            classes.update(dict.fromkeys(sorted(parts), times))
        known = other.features if other else {}
        features = {
            column.name: {"train": column.statistics_beside(known.get(column.name, {}).get("train"))}
            for column in self.columns
            if (column.name != self.label or not self.classes) and (not known or column.name in known)
        }
        return Statistics.model_validate(
            {
                "examples": {"train": self.rows, "eval": 0, "test": 0},
                "classes": {name: {"train": count} for name, count in classes.items()},
                "features": features,
            }
        )
