"""The schema of data: expected columns or images. Keep it next to the recipe, in git."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainyard.errors import ConfigurationError
from trainyard.spec import documents
from trainyard.spec.columns import Column as Name
from trainyard.spec.documents import Strict
from trainyard.spec.plain_yaml import YamlText

Value = Annotated[float, Field(ge=-3.5e38, le=3.5e38)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[int, Field(ge=0, le=1 << 20)]
Pixels = Annotated[int, Field(ge=1, le=100_000)]
Day = Annotated[str, Field(max_length=10, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]

_MISSING = Field(0.0, description="Maximum share of missing values.")


class NumberColumn(Strict):
    """A number."""

    type: Literal["integer", "number"] = Field(description="integer: without a fraction.")
    min: Value | None = Field(None, description="Minimum value.")
    max: Value | None = Field(None, description="Maximum value.")
    max_missing: Fraction = _MISSING

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is greater than max {self.max:g}")
        return self


class DateColumn(Strict):
    """A date YYYY-MM-DD, optionally with a time."""

    type: Literal["date"] = Field(description="The column is a date.")
    min: Day | None = Field(None, description="Earliest date.")
    max: Day | None = Field(None, description="Latest date.")
    max_missing: Fraction = _MISSING

    @model_validator(mode="after")
    def _days(self) -> Self:
        days = [datetime.date.fromisoformat(day) for day in (self.min, self.max) if day is not None]
        if len(days) == 2 and days[0] > days[1]:
            raise ValueError(f"min {self.min} is after max {self.max}")
        return self


class CategoryColumn(Strict):
    """One of several texts."""

    type: Literal["category"] = Field(description="The column is one of `values`.")
    values: list[Annotated[str, Field(max_length=1000)]] = Field(
        min_length=1, max_length=10_000, description="Allowed values."
    )
    max_missing: Fraction = _MISSING


class TextColumn(Strict):
    """Any text."""

    type: Literal["text"] = Field(description="The column is text.")
    max_length: Length | None = Field(None, description="Maximum number of characters.")
    max_missing: Fraction = _MISSING


Column = Annotated[NumberColumn | DateColumn | CategoryColumn | TextColumn, Field(discriminator="type")]


class TableSchema(Strict):
    """Expected columns of a table."""

    schema_of: Literal["table"] = Field(description="The schema of a table.")
    columns: dict[Name, Column] = Field(
        min_length=1, max_length=10_000, description="Required columns, by their names in the header."
    )
    other_columns: Literal["allowed", "refused"] = Field("allowed", description="Whether other columns are allowed.")


class ImageSchema(Strict):
    """Expected images, with one folder per class."""

    schema_of: Literal["images"] = Field(description="The schema of images.")
    classes: list[Name] = Field(min_length=1, max_length=10_000, description="Allowed classes.")
    min_side: Pixels = Field(1, description="Minimum pixels of a side.")
    max_side: Pixels = Field(100_000, description="Maximum pixels of a side.")


_KINDS: dict[str, type[TableSchema] | type[ImageSchema]] = {"table": TableSchema, "images": ImageSchema}


def load_schema(path: Path) -> TableSchema | ImageSchema:
    """Return the schema in the file at `path`. Raises `ConfigurationError` with the line of every fault."""
    return parse_schema(documents.read_text(path), str(path))


def is_schema(text: str) -> bool:
    """Return True if `text` is a schema and not a file name."""
    return "schema_of:" in text


def parse_schema(text: str, name: str) -> TableSchema | ImageSchema:
    """Parse a schema; `name` stands for it in messages. Raises as `load_schema`."""
    content = YamlText(text, name).content
    kind = content.get("schema_of") if isinstance(content, dict) else None
    if isinstance(content, dict) and kind not in _KINDS:
        keys = documents.safe(", ".join(content) or "nothing")
        received = f"'{documents.safe(kind)}'" if "schema_of" in content else f"no such key, but {keys}"
        raise ConfigurationError(
            f"{name}: schema_of: {received}. Allowed: {', '.join(_KINDS)}. "
            "`trainyard data schema SOURCE --write FILE` writes a schema."
        )
    return documents.parse(text, _KINDS.get(str(kind), TableSchema), name=name)
