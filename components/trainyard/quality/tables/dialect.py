"""How the cells of a CSV file are separated and quoted, as each of its parsers takes it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Any

from trainyard.spec.recipe import Data
from trainyard.spec.tables.columns import Delimiter, Quote


@dataclass(frozen=True)
class Dialect:
    """Cells stand between `delimiter`, and some of them in `quote`."""

    delimiter: Delimiter = ","
    quote: Quote = '"'

    @classmethod
    def of(cls, data: Data) -> Dialect:
        """Return what the recipe says."""
        return cls(data.delimiter, data.quote)

    @property
    def quote_byte(self) -> bytes:
        """Return the quote, nothing if no cell is in quotes."""
        return b"" if self.quote == "none" else self.quote.encode()

    @property
    def python_options(self) -> dict[str, Any]:
        """Return what `csv.reader` takes."""
        if self.quote == "none":
            return {"delimiter": self.delimiter, "quoting": csv.QUOTE_NONE}
        return {"delimiter": self.delimiter, "quotechar": self.quote}

    @property
    def arrow_options(self) -> dict[str, Any]:
        """Return what `pyarrow.csv.ParseOptions` takes."""
        return {"delimiter": self.delimiter, "quote_char": False if self.quote == "none" else self.quote}
