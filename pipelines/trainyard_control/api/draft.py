"""Drafts a recipe from data."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trainyard import uris
from trainyard.spec.recipe import BUNDLED

_SUFFIXES = (".yaml", ".yml")


def is_data(name: str) -> bool:
    """Return True if `name`, given as a recipe, is the path of existing data."""
    is_there = uris.is_bucket(name) or os.path.exists(name)  # noqa: PTH110 - False for impossible names
    return is_there and not name.endswith(_SUFFIXES) and not (BUNDLED / f"{name}.yaml").is_file()


def recipe_file(source: str) -> Path:
    """Return the YAML file in the current folder that stores the recipe for the data at `source`."""
    return Path(f"{recipe_name(source.rstrip('/').rpartition('/')[2].partition('.')[0])}.yaml")


def recipe_name(stem: str) -> str:
    """Convert a file's stem to a recipe name."""
    return re.sub("[^a-z0-9]+", "-", stem.lower()).lstrip("-0123456789")[:40].strip("-") or "recipe"


def draft(source: str, file: Path, label: str | None) -> tuple[str, list[str]]:
    """Draft a recipe for the data at `source`: its YAML, to be saved as `file`, and a list of the guesses.

    Raises `DataError` if the data cannot be read, `ConfigurationError` if a library is missing or no recipe fits.
    """
    from trainyard.quality.source import require_libraries

    require_libraries()
    from trainyard.quality.inspect import inspect
    from trainyard.quality.recipe_draft import draft_recipe

    profile = inspect(source, label)
    path = source if uris.is_bucket(source) else os.path.relpath(source, file.parent)
    return draft_recipe(recipe_name(file.stem), path, profile)
