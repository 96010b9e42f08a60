"""Inspects a source before training, and reads the profiles or written statistics of two data sets to compare."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pydantic import ValidationError

from trainyard import uris
from trainyard.contract import version, window
from trainyard.contract.answer_log import FORMAT, HOUR, AnswersDescription
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.statistics.drift import Statistics
from trainyard.contract.version import EXTRA
from trainyard.errors import ConfigurationError, DataError, InfrastructureError
from trainyard.quality.images import profile_images
from trainyard.quality.profile import LABEL_SEPARATORS, Profile
from trainyard.quality.source import Kind, SourceFiles, find_source, with_labels
from trainyard.quality.tables.tables import profile_table
from trainyard.readers.image_labels import FILE_COLUMNS
from trainyard.readers.parquet_rows import opened_parquet
from trainyard.readers.table_file import Dialect
from trainyard.spec.recipe import Data, Declared, Recipe
from trainyard.storage.listing import SourceFile, list_files
from trainyard.values.columns import block_pandas_import
from trainyard.values.zones import DEFAULT_ZONE

_HOUR = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}")
"""The start of the name of a file in a log: its hour in UTC."""

_KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}


def inspect(
    path: str,
    label: str | None = None,
    *,
    requires_label: bool = True,
    time_zone: str = DEFAULT_ZONE,
    declared: Declared = MappingProxyType({}),
    comma_numbers: tuple[str, ...] | None = None,
) -> Profile:
    """Return the profile of the tables or images at `path`: a folder, a file or a glob, local, gs:// or s3://.

    requires_label: else rows that lack `label` have none. time_zone: in which days are counted. declared: what counts
    as missing. comma_numbers: as of `Dialect`, by default those that the first file shows. Raises `DataError` if there
    are no tables or images or they cannot be read, `ConfigurationError` if no column is named `label`.
    """
    block_pandas_import()
    source = find_source(path, label=label)
    if comma_numbers is not None:
        source = replace(source, dialect=replace(source.dialect, comma_numbers=comma_numbers))
    if source.is_table:
        return profile_table(source, label, requires_label=requires_label, time_zone=time_zone, declared=declared)
    if label is not None and requires_label and not source.labels:
        raise ConfigurationError(
            f"--label {label}: {path} holds images, and no CSV file beside them has this column and their names, which "
            f"stand in a column {' or '.join(FILE_COLUMNS)}. Leave --label out if their class is the folder that they "
            "lie in."
        )
    return profile_images(source)


def inspect_recipe(recipe: Recipe) -> Profile:
    """Return the profile of the data that `recipe` names. Raises as `inspect`."""
    block_pandas_import()
    source = recipe_source(recipe)
    if source.is_table:
        return profile_table(source, recipe.data.labels[0], recipe.task == "regression", recipe.data)
    return profile_images(source, recipe.data.white_level, is_number=recipe.task == "regression")


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
    source = find_source(path, kind, limit=limit, has_splits=has_splits)
    if data.labels_file is not None:
        return with_labels(source, data.labels_file, data.labels, Dialect.from_recipe(recipe))
    return replace(source, dialect=replace(Dialect.from_recipe(recipe), delimiter=None), may_lack=data.may_lack)


def _latest_day(data: Data) -> str:
    """Return the path of the window's latest day with files, otherwise of its latest day."""
    days = [*reversed(window.paths(data, "").values())]
    return next((path for path in days if list_files(path).files), days[0])


def statistics_of(
    before: str, now: str, label: str | None = None, recipe: Recipe | None = None
) -> tuple[Statistics, Statistics]:
    """Return the statistics of `before` and `now`: a source as of `inspect`, or what says what one was like.

    That is statistics.json, a folder with one (an output of preprocess, a pushed version), or what `trainyard data
    inspect -o json` wrote; days of rows are counted in its time zone, otherwise in that of `recipe`. If `now` lacks the
    label, as rows do that a server was asked about, nothing of `before` is compared with it. In the log of a server the
    answers are compared with the label, and columns that it leaves out with nothing. recipe: says which
    column is the label, how several classes stand in one cell, and which features are computed; otherwise the
    data and the folders say it. Features that were computed are not compared with rows that lack them. Raises
    `DataError` if there is nothing of the kind.
    """
    asked, data = label is not None, recipe.data if recipe else None
    if data and not asked and not data.is_image and not data.targets:
        label = data.label
    documents = _document(before), _document(now)
    zones = [document.time_zone for document in documents if document]
    zone = [*zones, data.time_zone if data else DEFAULT_ZONE][0]
    declared = data.declared if data else _declared(before)
    commas = recipe.comma_numbers if recipe else _comma_numbers(before)
    old = documents[0] or inspect(
        before, label, requires_label=asked, time_zone=zone, declared=declared, comma_numbers=commas
    )
    label = label or (old.label if isinstance(old, Profile) else None)
    by_folder = isinstance(old, Profile) and old.kind == "image_folder" and not old.labels_file
    found = None if documents[1] or by_folder else _answers_source(now)
    logged: AnswersDescription | None = None
    new: Profile | Statistics
    if found:
        logged, source = found
        block_pandas_import()
        profile = profile_table(source, logged.predictions[0], time_zone=zone, declared=declared)
        new = _answers(profile, logged, label)
    else:
        new = documents[1] or (inspect(now) if by_folder else _served(now, label, zone, declared, commas))
    return _aligned(old, new, label, logged, data, (_computed(before), _computed(now)))


def _aligned(
    old: Profile | Statistics,
    new: Profile | Statistics,
    label: str | None,
    logged: AnswersDescription | None,
    data: Data | None,
    computed: tuple[Collection[str], Collection[str]],
) -> tuple[Statistics, Statistics]:
    """Return the statistics of both, of what can be compared. computed: the features that each computed of others."""
    separator = (data and data.label_separator) or _separator(old, new)
    derived = {*data.derive} if data else set[str]()
    first = _beside(old, new, separator, derived.union(computed[0]))
    second = _beside(new, old, separator, derived.union(computed[1]))
    if logged:
        kept = {name: feature for name, feature in first.features.items() if name not in logged.left_out}
        first = first.model_copy(update={"features": kept})
    if isinstance(new, Profile) and new.label is None:
        features = {name: feature for name, feature in first.features.items() if name != label}
        first = first.model_copy(update={"features": features, "classes": {}})
    return first, second


@dataclass(frozen=True)
class Served:
    """The answers of one model in the log of a server, beside its training. rows: the number of answers."""

    before: Statistics
    now: Statistics
    rows: int


def served_statistics(log: str, digest: str, before: Statistics, data: Data, least_rows: int) -> Served | None:
    """Return the newest answers in `log` of the model with `digest`, beside the statistics `before` of its training.

    Those of the last day in the log, and of earlier hours until there are `least_rows`. data: of the model's recipe.
    None if the model has no answers there. Raises `DataError` if a file cannot be read.
    """
    block_pandas_import()
    if not list_files(log).files:
        return None
    source = find_source(log, FORMAT)
    newest = sorted(zip(source.files, source.tables, strict=True), key=lambda pair: pair[0].name.rpartition("/")[2])
    files, rows, logged, first_hour = [], 0, None, ""
    for file, table in reversed(newest):
        hour = _HOUR.match(file.name.rpartition("/")[2])
        if hour and rows >= least_rows and hour[0] < first_hour:
            break
        with opened_parquet(table) as (opened, _):
            about = AnswersDescription.from_metadata(opened.schema_arrow.metadata, table.name)
            count = opened.metadata.num_rows
        if about is None or about.digest != digest:
            continue
        if hour and not first_hour:
            day_before = datetime.fromisoformat(f"{hour[0]}:00") - timedelta(days=1)
            first_hour = day_before.strftime(HOUR)
        files.append(file)
        rows, logged = rows + count, about
    if logged is None:
        return None
    prediction, zone = logged.predictions[0], before.time_zone
    chosen = replace(source, files=files, count=len(files))
    profile = profile_table(chosen, prediction, time_zone=zone, declared=data.declared)
    label = None if data.is_image or data.targets else data.label
    new = _answers(profile, logged, label)
    return Served(*_aligned(before, new, label, logged, data, ((), ())), rows)


def _beside(
    source: Profile | Statistics, other: Profile | Statistics, separator: str, computed: Collection[str]
) -> Statistics:
    """Return the statistics of `source` to compare with `other`."""
    if isinstance(source, Profile):
        return source.statistics(other if isinstance(other, Statistics) else None, separator)
    if isinstance(other, Statistics):
        return source
    columns = {column.name for column in other.columns}
    known = {name: each for name, each in source.features.items() if name in columns or name not in computed}
    return source.model_copy(update={"features": known})


def _separator(old: Profile | Statistics, new: Profile | Statistics) -> str:
    """Return the separator of several classes in one cell of a profile's label; '' if each cell is one class."""
    if isinstance(old, Profile) and isinstance(new, Profile):
        return old.label_separator
    profile, trained = (old, new) if isinstance(old, Profile) else (new, old)
    if not isinstance(profile, Profile) or not isinstance(trained, Statistics):
        return ""
    unknown = [cell for cell in profile.classes if cell not in trained.classes]
    for separator in LABEL_SEPARATORS:
        if any(separator in cell for cell in unknown) and not any(separator in name for name in trained.classes):
            return separator
    return ""


def _computed(name: str) -> set[str]:
    """Return the features that the preprocess output or the pushed version at `name` computed of others."""
    place = Path(name)
    for folder in (place, place.parent) if not uris.path_error(name) else ():
        with suppress(OSError, ValidationError):
            examples = Examples.model_validate_json((folder / Examples.file).read_bytes())
            return {feature.name for feature in examples.computed_features}
        with suppress(DataError, InfrastructureError):
            return {*version.record(str(folder)).recipe.get("data", {}).get("derive", {})}
    return set()


def _declared(name: str) -> Declared:
    """Return the values that the recipe of the pushed version at `name` declares as missing."""
    features = _pushed_recipe(name).get("data", {}).get("features", {})
    return {
        column: (feature["type"], feature["missing"]) for column, feature in features.items() if feature.get("missing")
    }


def _comma_numbers(name: str) -> tuple[str, ...] | None:
    """Return the columns whose numbers have a decimal comma for the pushed version at `name`, None for other data."""
    with suppress(ValidationError):
        return Recipe.model_validate(_pushed_recipe(name)).comma_numbers
    return None


def _pushed_recipe(name: str) -> dict[str, Any]:
    """Return the recipe of the pushed version at `name`, empty for other data."""
    place = Path(name)
    for folder in (place, place.parent) if not uris.path_error(name) else ():
        with suppress(DataError, InfrastructureError):
            if recipe := version.record(str(folder)).recipe:
                return recipe
    return {}


def _document(name: str) -> Profile | Statistics | None:
    """Return the statistics or the profile that was written at `name`, None if other data are there."""
    for file in (Path(name), Path(name) / Statistics.file, Path(name) / EXTRA / Statistics.file):
        with suppress(OSError):  # a name too long for a path is no path
            if file.suffix == ".json" and file.is_file():
                return _read(file)
    return None


def _served(
    name: str, label: str | None, time_zone: str, declared: Declared, commas: tuple[str, ...] | None
) -> Profile:
    """Return the profile of rows that may lack the `label`."""
    profile = inspect(name, label, requires_label=False, time_zone=time_zone, declared=declared, comma_numbers=commas)
    # A guess may name a feature of a model whose label the rows lack, and folders of images may be no classes.
    lacks_label = label is None or (profile.kind == "image_folder" and not profile.labels_file)
    return profile.model_copy(update={"label": None, "classes": {}}) if lacks_label else profile


def _answers_source(path: str) -> tuple[AnswersDescription, SourceFiles] | None:
    """Return the files of the log of a server's answers at `path` and the description of the first, None of other data.

    Those of a shadow are left out unless there are no others: it was asked what the version that served was asked.
    Raises `DataError` if models of different inputs or answers wrote them.
    """
    source = find_source(path)
    if source.kind != FORMAT:
        return None
    described: list[tuple[SourceFile, AnswersDescription]] = []
    for file, table in zip(source.files, source.tables, strict=True):
        with opened_parquet(table) as (opened, _):
            about = AnswersDescription.from_metadata(opened.schema_arrow.metadata, table.name)
        if about is None:
            return None
        described.append((file, about))
    kept = [(file, about) for file, about in described if not about.shadow] or described
    form = attrgetter("labels", "label_separator", "targets", "own", "left_out")
    for file, about in kept:
        if form(about) != form(kept[0][1]):
            raise DataError(
                f"{path}: {kept[0][0].name} and {file.name} are of models with different inputs or answers, "
                f"{kept[0][1].folder} and {about.folder}. Name the files of one by a glob."
            )
    return kept[0][1], replace(source, files=[file for file, _ in kept], count=len(kept))


def _answers(profile: Profile, logged: AnswersDescription, label: str | None) -> Profile:
    """Return the profile of a log of answers as that of rows with the `label`, which the model answered."""
    own, prediction = {*logged.own.values()}, logged.predictions[0]
    name = label or prediction
    if logged.targets or (logged.labels is None and label is None):
        prediction = name = ""
    columns = [
        column.model_copy(update={"name": name if column.name == prediction else column.name})
        for column in profile.columns
        if column.name == prediction or column.name not in own
    ]
    classes = profile.classes if logged.labels is not None else {}
    return profile.model_copy(update={"label": name or None, "classes": classes, "columns": columns})


def _read(file: Path) -> Profile | Statistics:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}). Check its permissions.") from error
    for kind in (Statistics, Profile):
        with suppress(ValidationError):
            return kind.model_validate_json(content)
    raise DataError(
        f"{file}: is neither statistics.json of a preprocess step of this version nor what `trainyard data inspect "
        "-o json` writes. Name one of them, or the data themselves."
    )
