"""Says in sentences what is suspicious about data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from trainyard.contract.image_formats import Role, split_of
from trainyard.errors import listed
from trainyard.quality.far_values import FarValues
from trainyard.quality.figures import format_value
from trainyard.quality.profile import ColumnProfile, Profile, foreign_kind, how_to_write
from trainyard.spec import formula
from trainyard.spec.columns import Category, Date, Numeric, Text
from trainyard.spec.recipe import Data
from trainyard.values.numbers import MOST_OF_FEATURE, MOST_OF_TARGET, coarse
from trainyard.values.text import alike
from trainyard.values.zones import DEFAULT_ZONE

MAX_BAD: float = Data.model_fields["max_bad_fraction"].default
"""The largest share of bad records in a drafted recipe."""

FEW_LEVELS = 15
"""Images of 16 bits whose largest value after decoding is at most this hold 12 bits, or fewer: they are refused."""

HALF = 127
"""Images of 16 bits whose largest value after decoding is at most this are warned of."""

_SHOWN = 5
_MISSING = 0.5  # chosen: a column that lacks more tells little
_ONE_VALUE = 0.999  # chosen: nearly constant
_IMBALANCE = 0.01  # chosen: share of a class that a split of a tenth may hardly hold
_FEW = 10  # chosen: examples of a class that three splits can share


def table_findings(profile: Profile, leaks: dict[str, float], exact: bool, data: Data | None = None) -> list[str]:
    """Return findings about rows, most severe first. leaks: columns that predict the label alone.

    data: of the recipe that reads them.
    """
    is_utc = data is None or data.time_zone == DEFAULT_ZONE
    sentences = [] if data else [f"data.{sentence}." for sentence in layout(profile)]
    sentences += _leakage(profile, leaks)
    sentences += _classes(profile)
    for column in profile.columns:
        sentences += _column(column, profile, data)
        if column.zoned and is_utc:
            count = column.statistics.count + column.mistyped
            sentences.append(f"{zoned_times(column.name, column.zoned, count)}.")
    about = "" if exact else "about "
    repeated = profile.repeated
    if profile.ragged:
        sentences.append(
            f"{_count(profile.ragged, 'row', 'rows')} cannot be read, and {'is' if profile.ragged == 1 else 'are'} "
            f"counted nowhere else: {'; '.join(profile.ragged_such_as)}."
        )
    if repeated.repeats:
        first = ", ".join(f"{name} ({times})" for name, times in repeated.such_as)
        sentences.append(
            f"{about}{_count(repeated.repeats, 'row repeats', 'rows repeat')} another one, such as {first}."
        )
    if repeated.conflicts:
        sentences.append(
            f"{about}{_count(repeated.conflicts, 'row is', 'rows are')} equal to another one in all but the label "
            f"'{profile.label}'. No model can tell them apart; check which label is right."
        )
    if profile.label_errors:
        such_as = "; ".join(
            f"{name} ('{label}', rather '{likely}')" for name, label, likely in profile.label_errors[:_SHOWN]
        )
        sentences.append(
            f"{_count(len(profile.label_errors), 'row looks', 'rows look')} mislabeled or rare: rows with similar "
            f"values nearly all have another label, such as {such_as}. Check which is right."
        )
    sentences += [
        f"'{name}' is {kind}, which is not read. Write its parts as separate columns."
        for name, kind in profile.unread.items()
    ]
    return sentences + _other_files(profile)


def image_findings(profile: Profile) -> list[str]:
    """Return findings about images, most severe first."""
    sentences = []
    images = profile.images
    assert images is not None  # noqa: S101 - of images alone
    if images.broken:
        total = sum(images.broken.values())
        why = ", ".join(f"{reason} {count}" for reason, count in images.broken.items())
        sentences.append(
            f"{_count(total, 'file is', 'files are')} no image that can be read ({why}), such as "
            f"{'; '.join(images.broken_such_as)}. Preprocess sets them aside."
        )
    if 0 <= images.level <= HALF:
        sentences.append(little_of_the_range(images.level))
    if images.constant:
        sentences.append(constant_images(images.constant, ", ".join(images.constant_such_as)))
    if profile.splits:
        sentences.append(
            f"The first folders are splits: {splits_of(profile.splits)}. data.split: {{by: folder}} keeps them."
        )
    if not profile.labels_file and (why := like_splits(profile.classes)):
        sentences.append(why)
    if profile.deeper_folders:
        sentences.append(deeper_folders(profile.deeper_folders))
    sentences += _classes(profile)
    repeated = profile.repeated
    if repeated.conflicts:
        such_as = "; ".join(" = ".join(names) for names in repeated.conflicts_such_as)
        if profile.labels_file:
            images_have = _count(repeated.conflicts, "image equals another", "images equal others")
            sentences.append(f"{images_have} with a different label, such as {such_as}. Keep one of them.")
        else:
            images_lie = _count(repeated.conflicts, "image lies", "images lie")
            sentences.append(f"{images_lie} in several classes, such as {such_as}. Keep each in one.")
    if repeated.repeats:
        such_as = "; ".join(" = ".join(names) for names in repeated.such_as)
        sentences.append(f"{_count(repeated.repeats, 'file repeats', 'files repeat')} another one, such as {such_as}.")
    if images.near_count:
        such_as = "; ".join(" ≈ ".join(names) for names in images.near[:_SHOWN])
        sentences.append(
            f"{_count(images.near_count, 'pair of images looks', 'pairs of images look')} the same, such as "
            f"{such_as}. In different splits they make a model look better than it is."
        )
    if len(images.modes) > 1:
        modes = ", ".join(f"{mode} {count}" for mode, count in images.modes.items())
        sentences.append(f"The images are of different kinds: {modes}. data.channels decides what all are read as.")
    sentences += _other_files(profile)
    bad = sum(images.broken.values()) + len(profile.other_files)
    if bad > MAX_BAD * (profile.files + len(profile.other_files)):
        sentences.append(
            f"{_count(bad, 'file is', 'files are')} bad for preprocess, broken ones and others, more than "
            f"data.max_bad_fraction allows by default ({MAX_BAD:.0%}), and a run ends. Repair or remove them, or "
            "raise it."
        )
    return sentences


def splits_of(splits: Mapping[str, Role]) -> str:
    """Return the folders of splits and what each is for."""
    aims = {"train": "training", "eval": "the eval split", "test": "the test split"}
    order = sorted(splits, key=lambda folder: [*aims].index(splits[folder]))
    return ", ".join(f"{folder} for {aims[splits[folder]]}" for folder in order)


def like_splits(classes: Collection[str]) -> str:
    """Return the sentence about classes that are all named like splits, '' if one is not."""
    if not classes or not all(map(split_of, classes)):
        return ""
    shown = " and ".join(sorted(classes))
    return f"The classes {shown} are named like splits. If they are, set data.split: {{by: folder}}."


def deeper_folders(folders: Sequence[str]) -> str:
    """Return the sentence about the folders in class folders."""
    classes = sorted({folder.partition("/")[0] for folder in folders})
    return (
        f"The class of an image is the first folder that it lies in ({listed(classes, _SHOWN)}), and {len(folders):,} "
        f"deeper folders say nothing, such as {listed(list(folders), _SHOWN)}. If those are the classes, move them up."
    )


def layout(profile: Profile) -> Iterator[str]:
    """Yield the settings of a recipe that the files of a table need to be read."""
    if profile.encoding != "utf-8":
        yield f"encoding {profile.encoding}: the first file is not UTF-8; look at letters with accents"
    if profile.skip_rows:
        numbers = listed(list(map(str, profile.skip_rows)), 10)
        yield f"skip_rows: a title, notes or units, and no rows, are in line {numbers} of the first file"
    if profile.comment:
        yield f"comment: lines that begin with {profile.comment} are no rows"
    if profile.decimal == ",":
        yield "decimal ',': numbers have a comma, such as 1234,5; with a point they are refused"
    if profile.absent_columns:
        shown = listed([f"{name[:40]} in {files:,}" for name, files in profile.absent_columns.items()], _SHOWN)
        yield f"absent_columns: columns that some of the {profile.files:,} files lack are missing there: {shown}"


def alike_names(classes: Iterable[str]) -> str:
    """Return the end of a sentence about the classes that differ in their writing alone, '' if none do."""
    shown = _in_one_way(alike(classes))
    return f"differ in their writing alone: {shown}. If they are one class, write it in one way." if shown else ""


def alike_values(column: ColumnProfile) -> str:
    """Return the clause about the values of a category that differ in their writing alone, '' if none do."""
    return (
        f"{_in_one_way(column.alike)} differ in their writing alone, and a category takes them for different values. "
        "If they are one value, write it in one way"
        if column.alike
        else ""
    )


def same_words(column: ColumnProfile) -> str:
    """Return the clause about the texts of a column that give the same words as another one, '' if none do."""
    shown = " and ".join(repr(text[:40]) for text in column.same_words_such_as)
    return (
        f"{column.same_words:,} different texts give the same words as another one, such as {shown}: case and "
        "punctuation are no words. If they say something, write them as a word, or into another column"
        if column.same_words
        else ""
    )


def _in_one_way(groups: list[list[str]]) -> str:
    return listed([" = ".join(repr(name[:40]) for name in group) for group in groups], _SHOWN)


def zoned_times(column: str, zoned: int, count: int) -> str:
    """Return the clause about the times with an offset in `column`, in which days are counted in UTC by default."""
    return (
        f"'{column}': {zoned:,} of {count:,} times have a zone, and their days, hours and weekdays are counted in UTC; "
        "data.time_zone in the recipe sets another zone, such as Asia/Tokyo"
    )


def is_bounded(feature: Numeric | Category | Date | Text) -> bool:
    """Return True if far values do not flatten the others: the feature is clipped, or its scale is of ranks or logs."""
    if isinstance(feature, Numeric) and feature.scale in ("log", "buckets"):
        return True
    return not isinstance(feature, Numeric | Date) or feature.clip not in (None, (0, 1))


def far_values_text(
    name: str, far: FarValues, count: int, kind: str, role: Literal["feature", "target"] = "feature"
) -> str:
    """Return a sentence about the far values of the column `name`, which has `count` values, without its period."""
    low, high = (_plain(value, kind, 6) for value in (far.low, far.high))
    if not far.counts:
        how = "train.target: {scale: log}" if role == "target" else "scale: log, or clip: [0.01, 0.99]"
        return (
            f"'{name}': nine tenths of its values lie from {low} to {high}, and are {far.deviations:.2g} standard "
            f"deviations apart, because others are far away: a network hardly tells them apart. Set "
            f"{'clip: [0.01, 0.99]' if kind == 'date' else how}"
        )
    values = [_plain(value, kind) for value in far.counts]
    shown = " and ".join(f"{_plain(value, kind)} in {times / count:.1%}" for value, times in far.counts.items())
    meant = "these stand for a missing value" if len(values) > 1 else "it stands for a missing value"
    how = f"declare it, missing: [{', '.join(values)}]"
    if role == "target":
        how = (
            f"leave these rows out, where: {' and '.join(f'{formula.reference(name)} != {value}' for value in values)}"
        )
    return f"'{name}' is {shown} of its cells, far from the others, {low} to {high}. If {meant}, {how}"


def _plain(value: float, kind: str, digits: int = 12) -> str:
    return format_value(value, kind) if kind == "date" else f"{value:.{digits}g}"


def likely_white(level: int) -> int:
    """Return the white level that images of 16 bits probably have whose largest value is `level` in 8 bits."""
    return (1 << ((level + 1) * 256 - 1).bit_length()) - 1


def little_of_the_range(level: int) -> str:
    """Return the sentence about images of 16 bits whose largest value is `level` after decoding to 8 bits."""
    largest = (level + 1) * 256 - 1
    levels = "1 level is" if level == 0 else f"{level + 1} levels are"
    return (
        f"Images of 16 bits a channel use values up to about {largest} of 65535, so {levels} left of them in 8 bits. "
        f"Set data.white_level to the value that stands for white, such as {likely_white(level)}; 65535 keeps "
        "them as they are."
    )


def constant_images(count: int, names: str) -> str:
    """Return the sentence about images that are one color."""
    counted = _count(count, "image is", "images are")
    return f"{counted} one color after decoding, such as {names}: transparent pixels become white."


def _leakage(profile: Profile, leaks: dict[str, float]) -> Iterator[str]:
    for name, share in leaks.items():
        how = f"tells '{profile.label}' in {share:.1%} of the rows" if profile.classes else f"correlates by {share:.4f}"
        yield (
            f"'{name}' alone predicts the label (target leakage): it {how}. If it is unknown before the label, a model "
            "that learns from it is useless. Leave it out."
        )


def _classes(profile: Profile) -> Iterator[str]:
    if profile.label is None or not profile.classes:
        return
    if len(profile.classes) == 1:
        yield f"Every example has the class '{next(iter(profile.classes))}'. At least two are needed."
        return
    if why := alike_names(profile.classes):
        yield f"Classes {why}"
    single = [name for name, count in profile.classes.items() if count == 1]
    if single:
        yield (
            f"{_count(len(single), 'class has', 'classes have')} one example: {listed(single, _SHOWN)}. "
            "A class needs examples in every split."
        )
    few = [f"{name} {count}" for name, count in profile.classes.items() if 1 < count < _FEW]
    if few:
        yield f"{_count(len(few), 'class has', 'classes have')} fewer than {_FEW} examples: {listed(few, _SHOWN)}."
    total = sum(profile.classes.values())
    rare = [
        f"{name} {count / total:.2%}" for name, count in profile.classes.items() if _FEW <= count < _IMBALANCE * total
    ]
    if rare:
        yield f"Rare classes: {listed(rare, _SHOWN)}. See train.class_weights."


def _column(column: ColumnProfile, profile: Profile, data: Data | None) -> Iterator[str]:
    count = column.statistics.count + column.mistyped
    rows = count + column.statistics.missing
    name = f"'{column.name}'"
    if column.type == "empty":
        yield f"{name} is empty in all {rows:,} rows. Leave it out."
        return
    if column.statistics.missing > _MISSING * rows:
        yield f"{name} is missing in {column.statistics.missing / rows:.1%} of the rows."
    top = column.top[0] if column.top else None
    if column.distinct == 1 and top is not None:
        yield f"{name} is constant: {top.value!r} in every row that has one. Leave it out."
    elif top is not None and top.count >= _ONE_VALUE * count:
        yield f"{name} is nearly constant: {top.value!r} in {top.count / count:.2%} of its cells."
    elif column.foreign:
        such_as = column.mistyped_such_as or [entry.value for entry in column.top if foreign_kind([entry.value])]
        fate = "rows that preprocess sets aside" if column.mistyped else "read as texts"
        yield f"{name} holds {column.foreign}, such as {such_as[0]}, {fate}: {how_to_write(column.foreign)}."
    elif column.name != profile.label and column.is_id:
        yield (
            f"{name} looks like an id: all of its {count:,} values differ. A model would learn them by heart; "
            "leave it out."
        )
    if column.name != profile.label and column.alike:
        yield f"{name}: {alike_values(column)}."
    if column.same_words:
        yield f"{name}: {same_words(column)}."
    numbers = column.statistics
    if numbers.std and not (column.name == profile.label and profile.classes):
        bound = MOST_OF_TARGET if column.name == profile.label else MOST_OF_FEATURE
        if why := coarse(numbers.min or 0.0, numbers.max or 0.0, numbers.std, bound):
            yield f"{name} {why}, or leave it out: preprocess refuses it as a number."
    if column.far and not (column.name == profile.label and profile.classes):
        feature = data.features.get(column.name) if data else None
        target = data.labels if data else [profile.label]
        if column.far.counts or feature is None or not is_bounded(feature):
            role: Literal["feature", "target"] = "target" if column.name in target else "feature"
            yield f"{far_values_text(column.name, column.far, column.statistics.count, column.type, role)}."
    if column.mistyped and not column.foreign:
        yield (
            f"{name} is {_article(column.type)}, but {_count(column.mistyped, 'cell is', 'cells are')} not: "
            f"{', '.join(column.mistyped_such_as)}. Preprocess sets such rows aside."
        )


def _other_files(profile: Profile) -> list[str]:
    return [
        f"{_count(len(names), one, several)} not read: {listed(names, _SHOWN)}."
        for names, one, several in (
            (profile.other_files, "other file is", "other files are"),
            (profile.hidden, "hidden image is", "hidden images are"),
        )
        if names
    ]


def _article(kind: str) -> str:
    return {"integer": "a whole number", "number": "a number", "date": "a date"}.get(kind, kind)


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
