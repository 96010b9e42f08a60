"""Inspects a source before training."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from trainyard.contract import window
from trainyard.errors import ConfigurationError
from trainyard.quality.arrow import block_pandas_import
from trainyard.quality.images.profiling import profile_images
from trainyard.quality.profile import Profile
from trainyard.quality.source import Kind, SourceFiles, find_source
from trainyard.quality.tables.tables import profile_table
from trainyard.spec.recipe import Data, Recipe
from trainyard.storage.listing import list_files
from trainyard.values.zones import DEFAULT_ZONE

_KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}


def inspect(
    path: str, label: str | None = None, *, requires_label: bool = True, time_zone: str = DEFAULT_ZONE
) -> Profile:
    """Return the profile of the tables or images at `path`: a folder, a file or a glob, local, gs:// or s3://.

    requires_label: else rows that lack `label` have none. time_zone: in which days are counted. Raises `DataError` if
    there are no tables or images or they cannot be read, `ConfigurationError` if no column is named `label`.
    """
    block_pandas_import()
    source = find_source(path)
    if source.is_table:
        return profile_table(source, label, requires_label=requires_label, time_zone=time_zone)
    if label is not None:
        raise ConfigurationError(
            f"--label {label}: {path} holds images, whose class is the folder that they lie in. Leave --label out."
        )
    return profile_images(source)


def inspect_recipe(recipe: Recipe) -> Profile:
    """Return the profile of the data that `recipe` names. Raises as `inspect`."""
    block_pandas_import()
    source = recipe_source(recipe)
    if source.is_table:
        return profile_table(source, recipe.data.labels[0], recipe.task == "regression", recipe.data)
    return profile_images(source, recipe.data.white_level)


def recipe_source(recipe: Recipe, limit: int | None = None) -> SourceFiles:
    """Return the files of the data that `recipe` names; limit: headers of archives that are read, by default each.

    Raises `ConfigurationError` if they cannot be inspected.
    """
    data = recipe.data
    if data.format == "none":
        raise ConfigurationError(f"{recipe.name}: data: the recipe has none; train.command reads its own.")
    kind = _KINDS.get(data.format)
    if data.path is None:
        raise ConfigurationError(
            f"{recipe.name}: data.bundled: {data.bundled} has no files before a run, which writes and checks them. "
            "Inspect or validate data at a path; `recipe validate` without --data checks this recipe."
        )
    if kind is None:
        raise ConfigurationError(
            f"{recipe.name}: data: the format {data.format} cannot be inspected. Name files: CSV, Parquet, or folders "
            "of images."
        )
    has_splits = kind == "image_folder" and data.split.by == "folder"
    path = data.path if data.window_days is None else _latest_day(data)
    return replace(find_source(path, kind, limit=limit, has_splits=has_splits), quote=data.quote)


def _latest_day(data: Data) -> str:
    """Return the path of the window's latest day with files, otherwise of its latest day."""
    days = [*reversed(window.paths(data, "").values())]
    return next((path for path in days if list_files(path).files), days[0])
