"""Arguments that several functions share, checked as the CLI checks its options, and recipes drafted from data."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard import uris
from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.graph import OUTPUTS
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import BUNDLED
from trainyard_control.cluster import environments

if TYPE_CHECKING:
    from trainyard.quality.recipe_draft import Comparison

LOCAL = "local"  # the default environment
_SUFFIXES = (".yaml", ".yml")


def local_environment(name: str, sentence: str) -> Environment:
    """Load the environment `name`, which must be local. Otherwise raise `ConfigurationError` with `sentence` as the
    reason.
    """
    environment = environments.load(name)
    if environment.target != "local":
        raise ConfigurationError(f"environment {name}: its target is {environment.target}. {sentence}")
    return environment


def known_step(name: str | None) -> str | None:
    """Return the step to start from. Raises `ConfigurationError` for an unknown step."""
    if name is not None and name not in OUTPUTS:
        raise ConfigurationError(
            f"from_step {name!r}: unknown step. Known: {', '.join(OUTPUTS)}.{did_you_mean(name, OUTPUTS)}"
        )
    return name


def at_least_one(name: str, count: int | None) -> None:
    """Raise `ConfigurationError` for a count below 1."""
    if count is not None and count < 1:
        raise ConfigurationError(f"{name} {count}: below 1. Give a whole number of at least 1.")


def overrides(set_: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Format `settings` as values of `--set`, after those of `set_`. Raises `ConfigurationError` if YAML cannot hold a
    value.

    >>> overrides(["seed=1"], {"train__epochs": 3, "export__formats": ("saved_model",)})
    ['seed=1', 'train.epochs=3', 'export.formats=["saved_model"]']
    """
    return [*set_, *(f"{key.replace('__', '.')}={_text(key, value)}" for key, value in settings.items())]


def _text(key: str, value: Any) -> str:
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{key}: a recipe cannot hold a value of type {type(value).__name__}. Write a number, a text, a list or a "
            "dict."
        ) from error


def _plain(value: Any) -> Any:
    """Convert a path to text, and a scalar or array of NumPy to numbers."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError


def is_data(name: str) -> bool:
    """Return True if `name`, given as a recipe, is the path of existing data."""
    is_there = uris.is_bucket(name) or os.path.exists(name)  # noqa: PTH110 - False for impossible names
    return is_there and not name.endswith(_SUFFIXES) and not (BUNDLED / f"{name}.yaml").is_file()


def recipe_file(source: str) -> Path:
    """Return the YAML file in the current folder that stores the recipe for the data at `source`."""
    return Path(f"{recipe_name(source.rstrip('/').rpartition('/')[2].partition('.')[0])}.yaml")


def recipe_name(stem: str) -> str:
    """Convert a file's stem to a recipe name: letters lose their accents, all that is no letter or digit is a dash."""
    plain = re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFKD", stem))
    return re.sub("[^a-z0-9]+", "-", plain.lower()).lstrip("-0123456789")[:40].strip("-") or "recipe"


_COMPARED = 20_000  # chosen: of a table with more rows the usual trees are the first model; reading it takes a second


def draft(source: str, file: Path, label: str | None, *, no_trees: str = "") -> tuple[str, list[str]]:
    """Draft a recipe for the data at `source`: its YAML, to be saved as `file`, and a list of the guesses.

    no_trees: why boosted trees cannot be trained. Raises `DataError` if the data cannot be read, `ConfigurationError`
    if a library is missing or no recipe fits.
    """
    from trainyard.quality.source import require_libraries

    require_libraries()
    from trainyard.quality.inspect import inspect
    from trainyard.quality.recipe_draft import draft_recipe

    profile = inspect(source, label)
    path = source if uris.is_bucket(source) else os.path.relpath(source, file.parent)
    name = recipe_name(file.stem)
    text, guesses = draft_recipe(name, path, profile, no_trees=no_trees)
    if comparison := _compared(text, file.parent, profile.rows):
        return draft_recipe(name, path, profile, comparison)
    return text, guesses


def _compared(text: str, folder: Path, rows: int) -> Comparison | None:
    """Return the comparison of first models on the training rows of the drafted recipe; None if there is none."""
    from trainyard.spec import documents
    from trainyard.spec.networks import TREES
    from trainyard.spec.recipe import Recipe

    recipe = documents.parse(text, Recipe, name="the draft")
    if recipe.model.name != TREES or rows > _COMPARED or find_spec("sklearn") is None:
        return None
    from trainyard.models.first_model import compare  # scikit-learn: a second
    from trainyard.steps.preprocess.training_rows import training_rows

    path = uris.resolve(folder, recipe.data.path or "")
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": path})})
    table = training_rows(recipe, _COMPARED)
    return None if table is None else compare(table, recipe)
