"""The columns of a table in a recipe: their types, computed columns, and the split of rows."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from trainyard.spec.documents import Strict
from trainyard.spec.gates import Bound

MAX_COLUMNS = 10_000
"""Maximum number of columns of a table and of a recipe. Chosen: read and checked within seconds."""

_NAME, _LONGEST_NAME = r"^[^\x00-\x1f\x7f]+$", 256
Column = Annotated[str, Field(max_length=_LONGEST_NAME, pattern=_NAME)]
Count = Annotated[int, Field(gt=0, le=1_000_000_000)]
Examples = Annotated[int, Field(gt=0, le=10_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
NO_NAME = r"column [1-9]\d*|__index_level_\d+__|Unnamed: \d+"
"""Names of unnamed columns: by position here, and by pandas in Parquet and in rewritten files."""


def column_names(header: Iterable[str]) -> list[str]:
    """Return the column names of a `header`; a column without a name, such as pandas' index, is named by its position.

    >>> column_names(["", "age"])
    ['column 1', 'age']
    """
    return [name.strip() or f"column {number}" for number, name in enumerate(header, 1)]


def has_name(column: str) -> bool:
    """Return True if the data name the column `column`."""
    return re.fullmatch(NO_NAME, column) is None


Delimiter = Literal[",", ";", "\t"]
DELIMITERS: tuple[Delimiter, ...] = get_args(Delimiter)
Quote = Literal['"', "'", "none"]
Day = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


def name_fault(name: str) -> str:
    """Return the reason why no recipe or schema can name the column `name`, or ''."""
    if len(name) > _LONGEST_NAME:
        return f"its name has {len(name):,} characters, and at most {_LONGEST_NAME} are allowed; rename the column"
    if not name:
        return "it has no name; give it one"
    return "" if re.fullmatch(_NAME, name) else "its name holds a control character; rename the column"


def _without_space(separator: str) -> str:
    if separator != separator.strip():
        raise ValueError(f"separator {separator!r} has white space around it. Write it without, such as ';'")
    return separator


Separator = Annotated[str, Field(min_length=1, max_length=8), AfterValidator(_without_space)]


class Numeric(Strict):
    """A number. What is missing is imputed; the z-score, range or quantile buckets come from the training split."""

    type: Literal["numeric"] = Field(description="Says that the column is a number.")
    scale: Literal["zscore", "log", "minmax", "buckets", "none"] = Field(
        "zscore",
        description="zscore: mean 0, deviation 1. log: sign(x) log(1 + abs(x)), which keeps the sign of negative "
        "numbers, then zscore. minmax: 0 to 1. buckets: the id of its quantile. none: as it is.",
    )
    buckets: Annotated[int, Field(ge=2, le=10_000)] = Field(
        10, description="Number of quantile buckets for scale: buckets."
    )
    impute: Literal["mean", "median"] | Bound = Field(
        "mean",
        description="Stands in for a missing value. With scale: log the mean is that of the logarithms, a number is "
        "written as in the data.",
    )


class Category(Strict):
    """A string out of a vocabulary that the training split gives."""

    type: Literal["category"] = Field(description="Says that the column is a category.")
    vocabulary_size: Examples = Field(10_000, description="The most frequent values that get an id of their own.")
    min_count: Count = Field(1, description="Rarer values count as out of vocabulary.")
    oov_buckets: Examples = Field(1, description="Ids shared by the values out of vocabulary.")


class Date(Strict):
    """A day written YYYY-MM-DD (a time of day may follow): becomes days since 1970, month and weekday."""

    type: Literal["date"] = Field(description="Says that the column is a day.")
    hour: bool = Field(
        False, description="Learn from the hour of the time that follows, too; a day without a time is midnight."
    )


class Text(Strict):
    """Words in any language: lower case, cut where neither letters nor digits stand, each with an id of a vocabulary.

    In scripts without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each character is a word:
    ngrams of 2 or 3 learn from words of two or three characters.

    The network adds up what it learns of the words of a row.
    """

    type: Literal["text"] = Field(description="Says that the column is prose.")
    vocabulary_size: Examples = Field(10_000, description="The most frequent words that get an id of their own.")
    min_count: Count = Field(2, description="Rarer words count as out of vocabulary.")
    oov_buckets: Examples = Field(1, description="Ids shared by the words out of vocabulary.")
    words: Annotated[int, Field(ge=1, le=4096)] = Field(64, description="The first so many words of a row count.")
    ngrams: Annotated[int, Field(ge=1, le=3)] = Field(
        1, description="2 counts pairs of neighbours as words too, 3 also triples; they follow the single words."
    )
    separator: Separator | None = Field(
        None,
        description="Of a list in one cell, such as ';' in rock;pop: cut there alone. What lies between is one word, "
        "as it is written, but for the space around it.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.separator is not None and self.ngrams > 1:
            raise ValueError(f"ngrams {self.ngrams} counts neighbours, and values of a list are none. Leave one out")
        return self


class SplitRows(Strict):
    """Which examples train, which choose the best epoch (eval), and which the gates judge by (test).

    An example's place depends on the seed and its own content alone, or on that of one column; by class also on the
    other examples of its class.
    """

    by: Literal["content", "class", "group", "time", "column", "folder"] = Field(
        "content",
        description="content: equal examples meet. class: each class gives its share to every split, to the row, and "
        "one at least if it has three different ones. group: rows with the same value of column meet. time: by the day "
        "in column, the oldest train. column: it names the split: train, eval (validation, val, dev) or test. folder: "
        "of images, as they were published: the test split is val/ (or validation/, else test/; an archive, or a split "
        "of tfds, by that name), and train/ gives its share eval to the eval split, by content.",
    )
    column: Column | None = Field(None, description="Of group, time and column: a column of the data, or of derive.")
    train: Share = Field(0.8, description="Share of the training split, by content, class or group.")
    eval: Share = Field(0.1, description="Share of the eval split, by content, class, group or folder.")
    test: Share = Field(0.1, description="Share of the test split, by content, class or group.")
    eval_from: Day | None = Field(None, description="Of time: the first day, YYYY-MM-DD, of the eval split.")
    test_from: Day | None = Field(None, description="Of time: the first day of the test split.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.by == "folder" and (self.train, self.test) != (0.8, 0.1):
            raise ValueError("train and test are not for by: folder, where folders say so. Give the share eval alone")
        if self.by != "folder" and abs(self.train + self.eval + self.test - 1) > 1e-6:
            raise ValueError(f"the fractions add up to {self.train + self.eval + self.test:g}, not to 1")
        if (self.column is None) != (self.by in ("content", "class", "folder")):
            raise ValueError(
                "column is for by: group, time or column. Say which one it is"
                if self.column
                else f"by: {self.by} needs to know the column. Give column"
            )
        if self.by in ("time", "column") and (self.train, self.eval, self.test) != (0.8, 0.1, 0.1):
            raise ValueError(
                f"fractions are for by: content, class and group; by: {self.by} takes what the column says"
            )
        if self.by != "time":
            if self.eval_from or self.test_from:
                raise ValueError("eval_from and test_from are for by: time. Leave them out")
            return self
        if self.eval_from is None or self.test_from is None:
            raise ValueError("by: time needs the first days of the eval and the test split. Give eval_from, test_from")
        for day in (self.eval_from, self.test_from):
            datetime.date.fromisoformat(day)
        if self.eval_from >= self.test_from:
            raise ValueError(f"test_from {self.test_from} is not later than eval_from {self.eval_from}")
        return self

    @property
    def by_value(self) -> bool:
        """Whether a column or the folder decides the split."""
        return self.column is not None or self.by == "folder"

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of examples that train and that choose the epoch, unless they are split by their values."""
        return (1 - self.eval, self.eval) if self.by == "folder" else (self.train, self.eval)
