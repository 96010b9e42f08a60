"""The input of every table reader: a file, and the delimiter and quote of CSV."""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from trainyard.spec.columns import Delimiter, Encoding, Quote
from trainyard.spec.recipe import Recipe

ABSENT_HINT = ", or set data.absent_columns: missing if other files have it"
"""Advice on a column that a file lacks."""


@dataclass(frozen=True)
class Dialect:
    """Cells stand between `delimiter`, None for what the header seems to have, and some of them in `quote`.

    skip_rows: the numbers of the lines that are no rows, from 1 on. comment: what a line begins with that is no row.
    comma_numbers: the columns whose numbers have a decimal comma.
    """

    delimiter: Delimiter | None = ","
    quote: Quote = '"'
    encoding: Encoding = "utf-8"
    skip_rows: tuple[int, ...] = ()
    comment: str | None = None
    comma_numbers: tuple[str, ...] = ()

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Dialect:
        """Return the dialect of the recipe's data."""
        data = recipe.data
        return cls(data.delimiter, data.quote, data.encoding, data.skipped_rows, data.comment, recipe.comma_numbers)

    @property
    def is_plain(self) -> bool:
        """True if the file is read as it is: UTF-8, and every line is part of a row."""
        return self.encoding == "utf-8" and not self.skip_rows and self.comment is None

    @property
    def quote_byte(self) -> bytes:
        """Return the quote, nothing if no cell is in quotes."""
        return b"" if self.quote == "none" else self.quote.encode()

    @property
    def python_options(self) -> dict[str, Any]:
        """Return the arguments of `csv.reader`."""
        if self.quote == "none":
            return {"delimiter": self.delimiter, "quoting": csv.QUOTE_NONE}
        return {"delimiter": self.delimiter, "quotechar": self.quote}

    @property
    def arrow_options(self) -> dict[str, Any]:
        """Return the arguments of `pyarrow.csv.ParseOptions`."""
        return {"delimiter": self.delimiter, "quote_char": False if self.quote == "none" else self.quote}


@dataclass(frozen=True)
class TableFile:
    """A file of rows. name: stands for it in messages and in the names of rows. size: its bytes.

    numbers: the columns of texts that may be read as float64 if every cell of a batch is a plain number. may_lack: the
    columns that are read as missing if the file has none of their name.
    """

    path: str
    name: str
    size: int = 0
    dialect: Dialect = field(default_factory=Dialect)
    numbers: Collection[str] = ()
    may_lack: Collection[str] = ()
