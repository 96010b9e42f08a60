"""The tables of a recipe: their files, the types and names of columns, computed columns, and the split of rows."""

from __future__ import annotations

import datetime
import hashlib
import keyword
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from trainyard.spec.documents import Strict
from trainyard.spec.gates import Bound
from trainyard.values.patterns import MAX_EXACT, MAX_FLOAT32, MISSING, NUMBER
from trainyard.values.text import canonical, column_name, day, number

TableName = Literal["csv", "parquet", "tfrecord"]
"""The formats of tables; `trainyard.readers.formats` says how each is read."""

ENDINGS: dict[TableName, tuple[str, ...]] = {
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
    "tfrecord": (".tfrecord", ".tfrecord.gz", ".tfrecords", ".tfrecords.gz"),
}
IMAGE_MEASURES = ("height", "width", "bytes")
"""The measures of image files in statistics."""

_SHARD = ".tfrecord-"  # as Beam and TensorFlow Datasets name them: a.tfrecord-00000-of-00010


def has_ending(name: str, format: TableName) -> bool:
    """Return True if the file name ends as files of the format do."""
    lower = name.lower()
    return lower.endswith(ENDINGS[format]) or (format == "tfrecord" and _SHARD in lower)


def is_part(name: str, format: TableName) -> bool:
    """Return True if the file `name` of a folder holds table rows: files directly in it or in partition folders.

    >>> is_part("may.csv", "csv"), is_part("old/may.csv", "csv"), is_part("day=1/0.parquet", "parquet")
    (True, False, True)
    """
    folders = name.rpartition("/")[0]
    is_partition = format == "parquet" and all("=" in folder for folder in folders.split("/"))
    return has_ending(name, format) and (not folders or is_partition)


def holds_rows(name: str, format: TableName, *, in_folder: bool) -> bool:
    """Return True if the file `name` of a source holds table rows of the format.

    in_folder: the source is the folder. A file that is named by itself or by a glob may have any ending but those of
    another format.

    >>> holds_rows("a.txt", "csv", in_folder=False), holds_rows("a.parquet", "csv", in_folder=False)
    (True, False)
    """
    if in_folder:
        return is_part(name, format)
    return has_ending(name, format) or table_of(name, in_folder=False) is None


def hint(names: Iterable[str]) -> str:
    """Return advice on files that would be tables if they were not in a ZIP archive, or ''."""
    zipped = next((name for name in names if name.lower().endswith(".zip")), None)
    return f" {zipped} is a ZIP archive, which is not read: unpack it." if zipped else ""


def table_of(name: str, *, in_folder: bool) -> TableName | None:
    """Return the format of the file `name`, of a folder or named by itself; None if it is no table."""
    return next((kind for kind in ENDINGS if (is_part if in_folder else has_ending)(name, kind)), None)


if TYPE_CHECKING:
    from trainyard.spec.recipe import Data

_DIGEST = 4  # hexadecimal digits


@cache  # measured: 10 µs a name, which every request and batch asks of each column
def input_name(name: str) -> str:
    """Return the model input name of the feature `name`: ASCII letters, digits and underscores, a letter first.

    Accents are left out. Letters of other scripts become underscores, and a digest of the name stands at its end.
    Python's keywords and `self`, which TensorFlow takes for no input, get a prefix.

    >>> input_name("Größe in km/h")
    'Gro_e_in_km_h_cf31'
    """
    ascii_letters = "".join(
        letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter)
    )
    plain = re.sub(r"\W", "_", ascii_letters, flags=re.ASCII)
    if any(letter.isalnum() and not letter.isascii() for letter in ascii_letters):
        plain += f"_{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]}"
    is_reserved = keyword.iskeyword(plain) or plain == "self"
    return plain if plain[:1].isalpha() and not is_reserved else f"feature_{plain}"


def date_names(name: str, *, hour: bool = False) -> list[str]:
    """Return the feature names of the date `name`: days, month, weekday and, if requested, hour."""
    return [f"{name}_{part}" for part in ("days", "month", "weekday", *(["hour"] if hour else []))]


def indicator_name(name: str) -> str:
    """Return the feature name of the indicator of missing values of the number `name`."""
    return f"{name}_missing"


def indicators(data: Data, incomplete: Collection[str]) -> list[str]:
    """Return the numbers of `data` whose missing values the model is told of.

    incomplete: those that lack values in the training split.
    """
    dates = {part for name in data.dates for part in date_names(name, hour=True)}
    known = {input_name(name).lower() for name in {*data.features, *data.labels, *dates}}
    numbers = {name: feature.indicator for name, feature in data.features.items() if feature.type == "numeric"}
    return [
        name
        for name, wanted in numbers.items()
        if (wanted is None and name in incomplete and input_name(indicator_name(name)).lower() not in known) or wanted
    ]


def faults(data: Data) -> Iterator[tuple[str, str]]:
    """Yield each column of `data` with an invalid name, and the reason."""
    reserved = {"label", "key", *data.labels}
    names: dict[str, str] = {}
    read = {name: feature for name, feature in data.inputs.items() if name not in data.labels}
    for name, feature in (data.features | read).items():
        parts = date_names(name, hour=feature.hour) if feature.type == "date" else []
        parts += [indicator_name(name)] if feature.type == "numeric" and feature.indicator else []
        for made in (name, *parts):
            if made in reserved or made.startswith(("raw/", "_")):
                yield (
                    name,
                    f"the name '{made}' is taken. Names differ from the label, 'label' and 'key', and begin neither "
                    "with '_' nor 'raw/'. Rename the column",
                )
            other = names.setdefault(input_name(made).lower(), name)
            if other != name:
                yield (
                    name,
                    f"'{made}' and a name of '{other}' would both be the input '{input_name(made)}' of the model. "
                    "Rename one of the columns",
                )


MAX_COLUMNS = 10_000
"""Maximum number of columns of a table and of a recipe. Chosen: read and checked within seconds."""

_NAME, _LONGEST_NAME = r"^[^\x00-\x1f\x7f]+$", 256


def as_in_tables(name: str) -> str:
    """Return the column `name` of a recipe. Raises `ValueError` if no table that is read has such a name."""
    if name != (expected := column_name(name)):
        form = "has white space around it" if name.strip() != name else "is not in Unicode's composed form (NFC)"
        raise ValueError(f"the name {name[:60]!r} {form}, and names of columns are read without. Write {expected!r}")
    return name


Column = Annotated[str, Field(max_length=_LONGEST_NAME, pattern=_NAME), AfterValidator(as_in_tables)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Examples = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
NO_NAME = r"column [1-9]\d*|__index_level_\d+__|Unnamed: \d+"
"""Names of unnamed columns: by position here, and by pandas in Parquet and in rewritten files."""


def column_names(header: Iterable[str]) -> list[str]:
    """Return the column names of a `header`; a column without a name, such as pandas' index, is named by its position.

    >>> column_names(["", "age"])
    ['column 1', 'age']
    """
    return [column_name(name) or f"column {number}" for number, name in enumerate(header, 1)]


def has_name(column: str) -> bool:
    """Return True if the data have a column named `column`."""
    return re.fullmatch(NO_NAME, column) is None


Delimiter = Literal[",", ";", "\t"]
DELIMITERS: tuple[Delimiter, ...] = get_args(Delimiter)
Encoding = Literal["utf-8", "cp1252", "latin-1", "utf-16"]
SkippedRows = (
    Annotated[int, Field(ge=0, le=1000)] | Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(max_length=100)]
)
Comment = Annotated[str, Field(min_length=1, max_length=8, pattern=r"^[^\x00-\x20\x7f\"']+$")]
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


def _rising(quantiles: tuple[float, float]) -> tuple[float, float]:
    if quantiles[0] >= quantiles[1]:
        raise ValueError(f"the quantile {quantiles[0]:g} is not below {quantiles[1]:g}. Write [0.01, 0.99]")
    return quantiles


Quantiles = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, le=1)]],
    Field(strict=False),
    AfterValidator(_rising),
]
"""The lower and the upper quantile between which values are kept."""


def _declared(values: list[float | str], kind: str) -> list[str]:
    """Return the values that stand for a missing one as canonical texts, each once."""
    texts = []
    for value in values:
        if kind == "date" and not isinstance(value, str):
            raise ValueError(f"{value:g} is a number, and the column holds days. Write a day or a text in quotes")
        text = canonical(value if isinstance(value, str) else repr(float(value)))
        if not text or (kind == "numeric" and text.lower() in MISSING):
            raise ValueError(f"{value!r} is missing already. Leave it out")
        if kind == "numeric" and re.fullmatch(NUMBER, text) and number(text) is None:
            raise ValueError(f"{value!r} does not fit into 32 bits. Write one that the data may hold")
        texts.append((kind == "date" and day(text)) or text)
    return list(dict.fromkeys(texts))


def _no_truth(value: Any) -> Any:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise ValueError(f"{value!r} is neither a number nor a text. Write such as [-999, unknown]")
    if isinstance(value, int) and abs(value) > MAX_EXACT:
        raise ValueError(f"{value} has more digits than a number keeps. Write it in quotes")
    if not isinstance(value, str) and abs(value) > MAX_FLOAT32:
        raise ValueError(f"{value:g} does not fit into 32 bits. Write one that the data may hold")
    return value


_Single = Annotated[float, Field(ge=-MAX_FLOAT32, le=MAX_FLOAT32)]
Sentinel = Annotated[_Single | Annotated[str, Field(max_length=400)], BeforeValidator(_no_truth)]
_MISSING = "Values that stand for a missing one"
_PRIVATE = Field(False, description="true: `serve --log` leaves the column out.")


class Numeric(Strict):
    """A number. Missing values are imputed; z-score, range or quantile buckets are learned from the training split."""

    type: Literal["numeric"] = Field(description="The column is a number.")
    private: bool = _PRIVATE
    scale: Literal["zscore", "log", "minmax", "buckets", "none"] = Field(
        "zscore",
        description="zscore: mean 0, standard deviation 1. log: sign(x) log(1 + abs(x)), then zscore. minmax: 0 to "
        "1. buckets: the id of its quantile. none: unchanged.",
    )
    buckets: Annotated[int, Field(ge=2, le=10_000)] = Field(
        10, description="Number of quantile buckets for scale: buckets."
    )
    impute: Literal["mean", "median"] | Bound = Field(
        "mean",
        description="Replaces missing values. With scale: log, mean is of the logarithms, and a number is in the "
        "units of the data.",
    )
    indicator: bool | None = Field(
        None,
        description="true: the model also gets a feature that is 1 if the value is missing, otherwise 0. Default: if "
        "values of the training split are missing, and no other column has the feature's name.",
    )
    clip: Quantiles | None = Field(
        None,
        description="Quantiles of the training split, such as [0.01, 0.99]: numbers beyond them count as these, before "
        "the scale.",
    )

    missing: Annotated[list[Sentinel], Field(max_length=100), AfterValidator(partial(_declared, kind="numeric"))] = (
        Field([], description=f"{_MISSING}, such as [-999, unknown], beside an empty cell and NA.")
    )


class Category(Strict):
    """A string with a vocabulary from the training split."""

    type: Literal["category"] = Field(description="The column is a category.")
    private: bool = _PRIVATE
    missing: Annotated[list[Sentinel], Field(max_length=100), AfterValidator(partial(_declared, kind="category"))] = (
        Field([], description=f"{_MISSING}, such as [unknown, -1], beside an empty cell.")
    )
    vocabulary_size: Examples = Field(
        10_000, description="Maximum number of values with an id; the most frequent ones."
    )
    min_count: Count = Field(1, description="Minimum count of a value; rarer ones are out of vocabulary.")
    oov_buckets: Examples = Field(1, description="Number of ids shared by out-of-vocabulary values.")


class Date(Strict):
    """A date YYYY-MM-DD, optionally with a time: becomes days since 1970, month and weekday."""

    type: Literal["date"] = Field(description="The column is a date.")
    private: bool = _PRIVATE
    hour: bool = Field(False, description="Also use the hour; a date without a time is midnight.")
    missing: Annotated[list[Sentinel], Field(max_length=100), AfterValidator(partial(_declared, kind="date"))] = Field(
        [],
        description=f"{_MISSING}, such as [9999-12-31, unknown], beside an empty cell.",
    )
    clip: Quantiles | None = Field(
        (0.0, 1.0),
        description="Quantiles of the training split, such as [0.01, 0.99]: days beyond them count as these, before "
        "the scale. By default, days later than all of the training split count as its last. null: the network "
        "extrapolates a trend of the days. Month, weekday and hour stay.",
    )


class Text(Strict):
    """Words in any language: lower case, split at white space and punctuation, with a vocabulary.

    Emoji, emoticons and signs are words, too: C++ is c and ++. In scripts without spaces (Chinese, Japanese, Thai, Lao,
    Khmer, Burmese) each character is a word; use ngrams of 2 or 3. The network sums what it learns of a row's words.
    """

    type: Literal["text"] = Field(description="The column is text.")
    private: bool = _PRIVATE
    vocabulary_size: Examples = Field(10_000, description="Maximum number of words with an id; the most frequent ones.")
    min_count: Count = Field(2, description="Minimum count of a word; rarer ones are out of vocabulary.")
    oov_buckets: Examples = Field(1, description="Number of ids shared by out-of-vocabulary words.")
    words: Annotated[int, Field(ge=1, le=4096)] = Field(
        64, description="Maximum number of words per row; the rest is ignored."
    )
    ngrams: Annotated[int, Field(ge=1, le=3)] = Field(
        1, description="2 adds pairs of neighboring words, 3 also triples, after the single words."
    )
    separator: Separator | None = Field(
        None,
        description="Separator of a list in one cell, such as ';' in rock;pop: the text is split only there, and "
        "values stay as written.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.separator is not None and self.ngrams > 1:
            raise ValueError(f"ngrams {self.ngrams} counts neighbors, and values of a list are none. Leave one out")
        return self


class SplitRows(Strict):
    """Splits: train, eval (selects the best epoch) and test (used by the gates).

    An example's split depends on the seed and its content, or on one column; by class also on other examples of its
    class. The content of a table's row is all its columns but label and weight, so a row keeps its split if the recipe
    reads others. Every split has 0.5 to 1.5 times its share by content and group, unless single groups are larger.
    """

    by: Literal["content", "class", "group", "time", "column", "folder"] = Field(
        "content",
        description="content: equal images, and copies of rows, share a split; if the rows of a table repeat by "
        "nature, each is drawn. class: exact shares per class, at least one each if it has three different examples. "
        "group: rows with the same value of column share a split. time: by the date in column, the oldest train. "
        "column: it names the split: train, eval (validation, val, dev) or test. folder: published image splits: val/ "
        "(or validation/, test/; an archive, or a tfds split of that name) is the test split; train/ gives its share "
        "eval to the eval split, by content. If images of both val/ and test/ lie in class folders, val/ is the eval "
        "split and test/ the test split.",
    )
    column: Column | None = Field(None, description="Column for group, time or column; may be derived.")
    train: Share = Field(0.8, description="Share of the training split, for content, class and group.")
    eval: Share = Field(0.1, description="Share of the eval split, for content, class, group and folder.")
    test: Share = Field(0.1, description="Share of the test split, for content, class and group.")
    eval_from: Day | None = Field(None, description="For time: first day of the eval split, YYYY-MM-DD.")
    test_from: Day | None = Field(None, description="For time: first day of the test split.")

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
        for first in (self.eval_from, self.test_from):
            datetime.date.fromisoformat(first)
        if self.eval_from >= self.test_from:
            raise ValueError(f"test_from {self.test_from} is not later than eval_from {self.eval_from}")
        return self

    @property
    def by_value(self) -> bool:
        """True if a column or the folder decides the split."""
        return self.column is not None or self.by == "folder"

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of examples that train and that choose the epoch, unless they are split by their values."""
        return (1 - self.eval, self.eval) if self.by == "folder" else (self.train, self.eval)
