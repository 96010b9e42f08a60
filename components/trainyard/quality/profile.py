"""The profile of a source: what `trainyard data inspect` finds, as a document."""

from __future__ import annotations

from typing import Literal

from trainyard.contract.document import Part
from trainyard.contract.statistics.drift import FeatureStatistics, Statistics, TopValue
from trainyard.spec.tables.columns import Delimiter

ColumnType = Literal["integer", "number", "date", "category", "text", "empty"]


class ColumnProfile(Part):
    """One column. statistics: of a date its days since 1970; `top` of it is that of texts alone.

    type: what most cells are; mistyped counts those that are something else. distinct is exact up to a million.
    quantiles: of numbers and dates, by share. top: the most frequent values, of every type.
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


class Repeats(Part):
    """Rows or pictures with equal content: how many repeat an earlier one, and some of them by name.

    conflicts: groups with equal content and different labels.
    """

    repeats: int
    such_as: list[list[str]]
    conflicts: int
    conflicts_such_as: list[list[str]] = []


class Picture(Part):
    """One picture of the contact sheet: its name below the root, its class, and itself as a JPEG in base64."""

    name: str
    label: str
    height: int
    width: int
    thumbnail: str


class PictureProfile(Part):
    """What the pictures of a source are. Broken ones are counted by why. Sizes are `columns` of the profile.

    hashed: how many were decoded to look for near-duplicates; near: pairs of names that look the same.
    """

    formats: dict[str, int]
    modes: dict[str, int]
    broken: dict[str, int]
    broken_such_as: list[str]
    hashed: int
    near: list[list[str]]
    near_count: int
    sheet: list[Picture]


class Profile(Part):
    """What is known of a source. ragged counts the rows with another number of cells than the header.

    classes: the label's values with their counts, if it is one of classes. first: the header and the first rows.
    giveaways: columns that tell the label alone. mislabelled: of likely mislabelled rows the name, the label and the
    likely class, the surest first.
    findings: what is worth a look, a sentence each.
    """

    source: str
    kind: Literal["csv", "parquet", "image_folder"]
    delimiter: Delimiter = ","
    files: int
    bytes: int
    rows: int
    ragged: int
    ragged_such_as: list[str]
    label: str | None
    label_is_guessed: bool
    classes: dict[str, int]
    columns: list[ColumnProfile]
    first: list[list[str]]
    repeated: Repeats
    giveaways: list[str] = []
    mislabelled: list[tuple[str, str, str]] = []
    pictures: PictureProfile | None
    findings: list[str]
    others: list[str]

    def statistics(self) -> Statistics:
        """Return what another data set is compared with."""
        features = {
            column.name: {"train": column.statistics}
            for column in self.columns
            if column.name != self.label or not self.classes
        }
        return Statistics.model_validate(
            {
                "examples": {"train": self.rows, "eval": 0, "test": 0},
                "classes": {name: {"train": count} for name, count in self.classes.items()},
                "features": features,
            }
        )
