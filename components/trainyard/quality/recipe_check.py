"""Compares a recipe with its first data, so that a wrong name or type is found early."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np
import pyarrow as pa

from trainyard.contract.image_formats import EVAL_SPLITS, split_of
from trainyard.errors import DataError, did_you_mean, listed
from trainyard.quality.findings import like_splits, zoned_times
from trainyard.quality.images import SizedImage, measure
from trainyard.quality.inspect import recipe_source
from trainyard.quality.profile import foreign_kind, how_to_write
from trainyard.quality.source import SourceFiles
from trainyard.quality.tables.cells import Cells, Mask, cells, too_many_classes
from trainyard.quality.tables.formulas import with_derived
from trainyard.quality.tables.tables import all_columns, nested, read_table
from trainyard.readers.csv_rows import find_delimiter
from trainyard.readers.image_labels import ImageLabels
from trainyard.readers.rows import RowBatch
from trainyard.spec.gates import unknown_class
from trainyard.spec.recipe import Data, Recipe
from trainyard.storage.listing import copy_advice
from trainyard.values.columns import as_texts, block_pandas_import, days
from trainyard.values.text import canonical
from trainyard.values.zones import DEFAULT_ZONE

_ROWS = 10_000  # chosen: parsed in some tens of milliseconds
_HEADERS = 2_048  # of archives; chosen: ImageNet's thousand classes and an image of each, in some 100 ms
_IMAGES = 64  # chosen: by their headers, also from a bucket in a second
_SUCH_AS = 3


def check_first(recipe: Recipe) -> str:
    """Check the first data of `recipe`, and return a description of the part that was read.

    Raises `DataError` with each fault in a line, `ConfigurationError` if the data are not files.
    """
    block_pandas_import()
    source = recipe_source(recipe, _HEADERS)
    faults, looked_at = _check_table(recipe, source) if source.is_table else _check_images(recipe, source)
    if faults:
        raise DataError(f"{source.path}: does not fit the recipe (looked at {looked_at}):", *faults)
    return looked_at


def _check_table(recipe: Recipe, source: SourceFiles) -> tuple[list[str], str]:
    columns, absent = all_columns(source) if recipe.data.may_lack else ([], {})
    items = read_table(source, recipe.data.columns, columns if absent else [])
    batches = (item for item in items if isinstance(item, RowBatch) and item.columns.num_rows)
    batch = next(batches, None)
    if batch is None:
        raise DataError(f"{source.path}: there are no rows below the header. Name a file with data.")
    is_whole = len(batch.rows) <= _ROWS and recipe.data.window_days is None and next(batches, None) is None
    batch = RowBatch(batch.file, batch.columns.slice(0, _ROWS), batch.rows[:_ROWS])
    names, data = batch.columns.schema.names, recipe.data
    count = batch.columns.num_rows
    looked_at = f"the first {count:,} {'row' if count == 1 else 'rows'} of {batch.file}"
    faults = []
    if source.kind == "csv" and (delimiter := find_delimiter(source.tables[0])) != data.delimiter:
        faults.append(f"data.delimiter: is {data.delimiter!r}, and it looks as if {delimiter!r} separates the cells.")
    for name in data.columns:
        if name not in names:
            known = did_you_mean(name, names)
            faults.append(f"{_place(name, data)}: no column '{name}'.{known} The header has: {', '.join(names)[:400]}.")
    if not faults:
        batch = with_derived(batch, data)
        names = batch.columns.schema.names
    if not batch.columns.num_rows:
        return [f"data.where: '{data.where}' is true of no row."], looked_at
    kinds = nested(source)
    for name, feature in data.features.items():
        if name in kinds and not (feature.type == "text" and feature.separator):
            faults.append(f"data.features.{name}: is {kinds[name]}, which {{type: text, separator: ;}} alone can read.")
        elif name in names and feature.type == "numeric":
            faults += _no_numbers(f"data.features.{name}", "numeric", cells(batch.columns[name]), batch, recipe)
        elif name in names and feature.type == "date":
            faults += _no_days(f"data.features.{name}", name, batch, recipe)
    if data.weight in names:
        faults += _no_numbers("data.weight", "numeric", cells(batch.columns[data.weight]), batch, recipe)
    if data.split.by == "time" and data.split.column in {*names} - {*data.dates}:
        faults += _no_days("data.split.column", data.split.column, batch, recipe)
    for name in data.labels:
        if name in names:
            faults += _label_faults(name, cells(batch.columns[name]), batch, recipe, is_whole)
    dates = {*data.dates} | ({data.split.column or ""} if data.split.by == "time" else set())
    for name in sorted(dates & {*names}) if data.time_zone == DEFAULT_ZONE else ():
        if zoned := (column := cells(batch.columns[name])).zoned:
            looked_at += f" ({zoned_times(name, zoned, int((~column.empty).sum()))})"
    return faults, looked_at


def _place(column: str, data: Data) -> str:
    """Return the recipe key that reads `column`."""
    if column in data.features:
        return f"data.features.{column}"
    if column in (data.split.column, data.weight):
        return "data.split.column" if column == data.split.column else "data.weight"
    if column in data.labels:
        return "data.targets" if data.targets else "data.label"
    return "data.derive or data.where"


def _no_numbers(place: str, kind: str, column: Cells, batch: RowBatch, recipe: Recipe) -> Iterator[str]:
    return _mistyped(f"{place}: is {kind}", "number", column.no_numbers & ~column.truths, column.texts, batch, recipe)


def _no_days(place: str, name: str, batch: RowBatch, recipe: Recipe) -> Iterator[str]:
    texts = batch.columns[name]
    wrong = days(texts, hour=False, zone=recipe.data.zone).is_null().to_numpy(zero_copy_only=False)
    return _mistyped(
        f"{place}: is a date", "day YYYY-MM-DD, alone or before a time", wrong, as_texts(texts), batch, recipe
    )


def _mistyped(problem: str, kind: str, wrong: Mask, texts: pa.Array, batch: RowBatch, recipe: Recipe) -> Iterator[str]:
    """Yield a sentence if more cells are `wrong` than records may be bad."""
    rows = np.flatnonzero(wrong).tolist()
    if len(rows) > recipe.data.max_bad_fraction * len(wrong):
        shown = ", ".join(f"{batch.name(row)} '{texts[row].as_py()[:40]}'" for row in rows[:_SUCH_AS])
        foreign = foreign_kind(texts[row].as_py() for row in rows)
        yield (
            f"{problem}, but {len(rows):,} of {len(wrong):,} cells are no {kind}, such as {shown}. "
            f"Give it another type, or correct the data{f': {how_to_write(foreign)}' if foreign else ''}."
        )


def _label_faults(name: str, column: Cells, batch: RowBatch, recipe: Recipe, is_whole: bool) -> Iterator[str]:
    if recipe.task == "multi_label":  # an empty cell has no class, and any text is a list
        separator = recipe.data.label_separator or ";"
        parts = {canonical(part) for cell in column.texts.unique().to_pylist() for part in cell.split(separator)}
        yield from _class_faults(recipe, parts - {""}, is_whole)
        return
    key = _place(name, recipe.data)
    rows, place = len(column.missing), f"{key}: '{name}'"
    is_number = recipe.task == "regression"
    missing = int((np.isnan(column.numbers) & ~column.no_numbers if is_number else column.empty).sum())
    if missing > recipe.data.max_bad_fraction * rows:
        yield f"{place} is missing in {missing:,} of {rows:,} rows, and such rows are bad. Leave them out of the data."
    if is_number:
        yield from _no_numbers(key, "a number", column, batch, recipe)
        return
    classes = column.texts.unique().to_pylist()
    distinct = len(classes)
    yield from _class_faults(recipe, classes, is_whole)
    all_numbers = not (np.isnan(column.numbers) & ~column.missing).any()
    if too_many_classes(distinct, rows):
        hint = "Is this task: regression?" if all_numbers else "Name another column."
        yield f"{place} has {distinct:,} different values in {rows:,} rows, too many for classes. {hint}"


def _class_faults(recipe: Recipe, classes: Collection[str], is_whole: bool) -> Iterator[str]:
    """Yield a sentence for each class that a gate or the threshold names and that is none of the `classes`.

    is_whole: these are all classes of the data. Otherwise only one that nearly has the name of a class is a fault:
    another one may be in later data.
    """
    for key, name in recipe.named_classes.items():
        if name is not None and name not in classes and (is_whole or did_you_mean(name, classes)):
            yield unknown_class(key, name, sorted(classes))


def _check_images(recipe: Recipe, source: SourceFiles) -> tuple[list[str], str]:
    classes: set[str] = set()
    faults = _lacking_splits(source) if recipe.data.split.by == "folder" else []
    if source.labels is not None:
        faults += _listed_faults(recipe, source, source.labels)
        shown = listed([f"'{name}'" for name in recipe.data.labels], _SUCH_AS)
        described = f"with {shown} of {source.labels.file}"
    else:
        named = {source.label(file.name) for file in source.files if not file.reason}
        classes = {name for name in named if name is not None}
        described = f"in {len(classes)} classes"
        if len(classes) < 2:
            faults.append(
                f"data.path: the images lie in {len(classes)} class folders. Put those of each class into a folder of "
                "its own, and at least two beside each other."
            )
        if recipe.data.split.by != "folder" and (why := like_splits(classes)):
            faults.append(f"data.split: {why}")
        faults += _class_faults(recipe, classes, source.is_whole)
    step = max(1, len(source.files) // _IMAGES)
    files = list(islice(source.files, 0, None, step))[:_IMAGES]
    measured = [(file.name, measure(source, file)) for file in files]
    broken = [(why, name) for name, why in measured if not isinstance(why, SizedImage)]
    if len(broken) > recipe.data.max_bad_fraction * len(files):
        first: dict[str, str] = {}  # the first file with each fault
        for why, name in broken:
            first.setdefault(why, name)
        shown = ", ".join([f"{name} ({why})" for why, name in first.items()][:_SUCH_AS])
        parts = f"{len(broken):,} of {len(files):,} images"
        advice = copy_advice((file.reason for file in files), source.path)
        faults.append(f"data.path: {parts} cannot be read, such as {shown}. Repair them.{advice}")
    about = "" if source.is_whole else "about "
    return faults, f"{len(files):,} of {about}{source.count:,} images {described}"


def _listed_faults(recipe: Recipe, source: SourceFiles, labels: ImageLabels) -> Iterator[str]:
    """Yield the faults of the labels in a file beside images."""
    names = [file.name for file in source.files]
    faulty = [name for name in names if labels.fault(name)]
    if len(faulty) > recipe.data.max_bad_fraction * len(names):
        shown = ", ".join(faulty[:_SUCH_AS])
        yield (
            f"data.labels: {len(faulty):,} of {len(names):,} images have no row in {labels.file}, or rows that differ, "
            f"such as {shown}. Add them."
        )
    for index, column in enumerate(labels.columns):
        texts = pa.array([row[index] for row in labels.cells.values()], pa.string())
        batch = RowBatch(labels.file, pa.RecordBatch.from_pydict({column: texts}), np.array([*labels.rows.values()]))
        yield from _label_faults(column, cells(texts), batch, recipe, is_whole=True)
    if recipe.task != "regression" and len({*labels.cells.values()}) < 2:
        yield f"data.label: '{recipe.data.label}' of {labels.file} is the same for all images. Name another column."


def _lacking_splits(source: SourceFiles) -> list[str]:
    splits = {split_of(file.name.partition("/")[0]) for file in source.files}
    lacking = [] if "train" in splits else ["trains (train)"]
    lacking += [] if splits & {*EVAL_SPLITS} else [f"judges ({', '.join(EVAL_SPLITS)})"]
    return [
        f"data.split: by: folder finds no folder or archive that {role}. Name the folder that holds both as data.path, "
        "or split by content."
        for role in lacking
    ]
