"""Judges what was collected, also by the schema, before anything is trained, and describes it: statistics, warnings."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainyard.contract.artifacts.preprocess import Anomaly
from trainyard.contract.document import SPLITS, Split
from trainyard.contract.statistics.drift import FeatureStatistics, Histogram, Statistics
from trainyard.errors import DataError, listed
from trainyard.quality.conformity import Conformity, anomalies
from trainyard.quality.far_values import far_values
from trainyard.quality.findings import (
    FEW_LEVELS,
    HALF,
    alike_names,
    constant_images,
    deeper_folders,
    far_values_text,
    is_bounded,
    like_splits,
    little_of_the_range,
)
from trainyard.quality.tables.cells import too_many_classes
from trainyard.readers.rows import BadRow
from trainyard.spec import formula
from trainyard.spec.columns import Date, Numeric, SplitRows
from trainyard.spec.formula import Call, Cell, parse
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.collect import Collected
from trainyard.steps.preprocess.readers.records import LABELS_APART
from trainyard.storage.listing import copy_advice
from trainyard.values.numbers import MOST_OF_FEATURE, MOST_OF_TARGET, coarse

_SHOWN, _ANOMALIES_SHOWN = 5, 20
_NARROW = 1.2  # simulated: an interval of 95 % then covers 89 %


def _more_for_split(split: SplitRows) -> str:
    if split.by == "time":
        return f"They begin on {split.eval_from} (eval_from) and {split.test_from} (test_from): name other days"
    if split.by == "column":
        return f"Have more rows of '{split.column}' name it"
    if split.by == "folder":
        return "Add images to the folder, or give eval a larger share of train"
    return "Add data or give the split a larger fraction"


def require_usable(collected: Collected, recipe: Recipe) -> None:
    """Refuse examples that cannot be trained on and judged.

    Raises `DataError` with the counts if too many records are bad, a split is empty, images of 16 bits use next to
    nothing of their range, all images are one color, a column of the training split holds nothing, or (but for a
    regression) there is one class, a class with one example, or a class that a split lacks.
    """
    _require_few_bad(collected, recipe)
    counts = {split: collected.splits[split].examples for split in SPLITS}
    shown = ", ".join(f"{split} {count}" for split, count in counts.items())
    empty = [split for split, count in counts.items() if not count]
    if empty:
        shown += f", left out by data.where {collected.unselected}" if collected.unselected else ""
        raise DataError(
            f"data.split: the split '{empty[0]}' is empty; examples: {shown}. Every split needs some. "
            f"{_more_for_split(recipe.data.split)}."
        )
    _require_levels(collected)
    _require_values(collected, recipe)
    _require_told_apart(collected, recipe)
    _require_weights(collected, recipe.data.weight)
    if recipe.task != "regression":
        _require_classes(collected, recipe.data)


def without_rare_classes(collected: Collected, minimum: int) -> Collected:
    """Return `collected` without the classes that fewer than `minimum` examples of all splits have."""
    totals = _class_counts(collected)
    rare = {name: count for name, count in totals.items() if count < minimum}
    splits = {
        split: summary.model_copy(
            update={"labels": {name: count for name, count in summary.labels.items() if name not in rare}}
        )
        for split, summary in collected.splits.items()
    }
    return replace(collected, splits=splits, rare_classes=dict(sorted(rare.items()))) if rare else collected


def _class_counts(collected: Collected) -> Counter[str]:
    totals: Counter[str] = Counter()
    for summary in collected.splits.values():
        totals.update(summary.labels)
    return totals


def require_fitting(conformity: Conformity, data: Data) -> None:
    """Raise `DataError` with every anomaly if what was found does not fit the recipe's schema."""
    schema = data.expected
    if schema is None:
        return
    found: list[Anomaly] = anomalies(schema, conformity)
    if found:
        count = f"{len(found)} {'anomaly' if len(found) == 1 else 'anomalies'}"
        sentences = (f"{entry.sentence}." for entry in found[:_ANOMALIES_SHOWN])
        raise DataError(f"data.schema: the data do not fit, {count}:", *sentences)


def class_names(collected: Collected) -> list[str]:
    """Return the classes of the training split in the order of their ids: by number if all are numbers, or by name."""
    names = list(collected.splits["train"].labels)
    if all(name.isdecimal() and name.isascii() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def warnings(collected: Collected, data: Data) -> list[str]:
    """Return warnings that do not stop the run: repeats, contradicting labels, files that are not read."""
    warnings = list(far_value_warnings(collected, data))
    repeats = sum(group.times - 1 for group in collected.repeated)
    if repeats:
        first = collected.repeated[0]
        apart = [group for group in collected.repeated if len(group.splits) > 1]
        fate = "kept" if apart else "kept, and in the same split"
        warnings.append(f"{repeats:,} examples repeat another one ({fate}), such as {' = '.join(first.sources)}.")
        if collected.is_split_by_row:
            warnings.append(
                f"{len(apart)} groups of equal examples lie in different splits, because rows repeat by nature: few "
                "values are possible. A model is judged by combinations that it has seen; data.split.by: group keeps "
                "groups together."
            )
        elif apart:
            warnings.append(
                f"{len(apart)} groups of equal examples lie in different splits, so a model is judged by what it has "
                f"seen, such as {' = '.join(apart[0].sources)} ({', '.join(apart[0].splits)})."
            )
        else:
            warnings += _narrow_intervals(collected)
    if collected.window and collected.window.missing:
        missing = collected.window.missing
        warnings.append(
            f"{len(missing)} days from {collected.window.first} to {collected.window.last} hold no files: "
            f"{listed(missing, _SHOWN)}."
        )
    if collected.ignored:
        names = collected.ignored
        why = "hidden, or not of the data's format"
        warnings.append(f"{len(names):,} files are not read ({why}): {listed(names, _SHOWN)}.")
    if rare := collected.rare_classes:
        counts = f"{len(rare):,} with {sum(rare.values()):,} examples"
        warnings.append(f"classes rarer than data.label_min_count are dropped ({counts}): {listed([*rare], _SHOWN)}.")
    labels = dict.fromkeys(name for summary in collected.splits.values() for name in summary.labels)
    if why := alike_names(labels):
        warnings.append(f"classes {why}")
    if collected.is_folder and (why := like_splits(labels)):
        warnings.append(why)
    if collected.deeper_folders:
        warnings.append(deeper_folders(collected.deeper_folders))
    warnings += collected.near
    warnings += _about_pixels(collected)
    conflicts = [group for group in collected.repeated if len(group.labels) > 1]
    for group in conflicts[:_SHOWN]:
        given = listed([" and ".join(label.split(LABELS_APART)) for label in group.labels], _SHOWN)
        warnings.append(f"equal examples with different labels {given}: {', '.join(group.sources)}.")
    if len(conflicts) > _SHOWN:
        warnings.append(f"{len(conflicts) - _SHOWN} more groups of equal examples with different labels.")
    return warnings


def far_value_warnings(collected: Collected, data: Data) -> Iterator[str]:
    """Yield a sentence for each feature with values that may stand for a missing one, or that flatten the others."""
    train = collected.splits["train"]
    for name, feature in data.features.items():
        statistics = train.days.get(name) if isinstance(feature, Date) else train.statistics.get(name)
        if statistics is None or not statistics.get("std") or not isinstance(feature, Numeric | Date):
            continue
        known = {statistics["min"]: 1, statistics["max"]: 1}
        far = far_values(Histogram.model_validate(statistics["histogram"]), statistics["std"], known)
        if far and (far.counts or not is_bounded(feature)):
            kind = "date" if isinstance(feature, Date) else "number"
            yield f"{far_values_text(name, far, statistics['count'], kind)}."


def _narrow_intervals(collected: Collected) -> list[str]:
    """Return a sentence if the intervals of metrics, which count each copy, are clearly too narrow."""
    examples = collected.splits["test"].examples
    times = [group.times for group in collected.repeated if group.splits == ["test"]]
    factor = math.sqrt(1 + sum(count * (count - 1) for count in times) / max(1, examples))
    if factor < _NARROW:
        return []
    return [
        f"{sum(times):,} of {examples:,} test examples are copies of each other. Intervals of metrics count each, so "
        f"they are about {factor:.1f} times too narrow. Remove the copies."
    ]


def fingerprint(collected: Collected) -> str:
    """Return the SHA-256 that stands for all examples and labels, in whatever files and order they come."""
    digests = [f"{split} {collected.splits[split].examples} {collected.splits[split].digests}" for split in SPLITS]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def write_statistics(collected: Collected, time_zone: str, folder: Path) -> None:
    """Write statistics.json: of each feature and split the count, missing values, spread or most frequent values."""
    features: dict[str, dict[Split, FeatureStatistics]] = {}
    for split in SPLITS:
        for name, statistics in collected.splits[split].statistics.items():
            features.setdefault(name, {})[split] = FeatureStatistics.model_validate(statistics)
    classes = {
        name: {split: collected.splits[split].labels.get(name, 0) for split in SPLITS}
        for name in class_names(collected)
    }
    counts = {split: collected.splits[split].examples for split in SPLITS}
    Statistics(examples=counts, classes=classes, features=features, time_zone=time_zone).write(folder)


def _require_few_bad(collected: Collected, recipe: Recipe) -> None:
    bad = len(collected.bad)
    total = bad + sum(summary.examples for summary in collected.splits.values())
    if total == 0 and collected.unselected:
        raise DataError(
            f"data.where: '{recipe.data.where}' is true of none of {collected.unselected:,} rows. Correct it."
        )
    if total == 0:
        raise DataError("data.path: no records found in the files. Correct data.path in the recipe.")
    if bad > recipe.data.max_bad_fraction * total:
        reasons = Counter(item.reason for item in collected.bad)
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        firsts: dict[str, BadRow] = {}
        for item in collected.bad:
            firsts.setdefault(item.detail, item)
        shown = list(firsts.values())[:_SHOWN]
        examples = "; ".join(f"{item.key} ({item.reason}: {item.detail})" for item in shown)
        raise DataError(
            f"data: {bad:,} of {total:,} records are bad ({bad / total:.2%}): {counts}. "
            f"data.max_bad_fraction allows {recipe.data.max_bad_fraction:.2%}. Such as {examples}. "
            f"Repair or remove them.{copy_advice(reasons, recipe.data.path or '')}"
        )


def _require_levels(collected: Collected) -> None:
    train = collected.splits["train"]
    level = max(summary.level for summary in collected.splits.values())
    if 0 <= level <= FEW_LEVELS:
        raise DataError(f"data.white_level: {little_of_the_range(level)}")
    count, name = train.constant
    if count and count == train.examples:
        raise DataError(
            f"data: all {count} training images are one color after decoding, such as {name}. Transparent pixels "
            "become white. Look at the images; docs/reference/images.md says how they are decoded."
        )


def _about_pixels(collected: Collected) -> list[str]:
    sentences = []
    level = max(summary.level for summary in collected.splits.values())
    if FEW_LEVELS < level <= HALF:
        sentences.append(little_of_the_range(level))
    constant = [summary.constant for summary in collected.splits.values() if summary.constant[0]]
    if constant:
        names = ", ".join(name for _, name in constant)
        sentences.append(constant_images(sum(count for count, _ in constant), names))
    return sentences


def _require_values(collected: Collected, recipe: Recipe) -> None:
    train = collected.splits["train"]
    empty = [name for name in recipe.data.features if train.statistics[name]["count"] == 0]
    if empty:
        raise DataError(
            f"data.features: the column '{empty[0]}' is missing in all {train.examples} training examples "
            f"(empty columns: {', '.join(empty)}). A column needs values to learn from. Remove it from the recipe."
        )


def _require_told_apart(collected: Collected, recipe: Recipe) -> None:
    """Refuse numbers that a 32-bit float cuts: a model would learn little of them, and metrics would be of cut ones."""
    statistics = collected.splits["train"].statistics
    inputs = [name for name, feature in recipe.data.inputs.items() if isinstance(feature, Numeric)]
    targets = recipe.data.labels if recipe.task == "regression" else []
    for field, names, limit in (("features", inputs, MOST_OF_FEATURE), ("label", targets, MOST_OF_TARGET)):
        for name in names:
            column = statistics[name]
            if column["count"] and (why := coarse(column["min"], column["max"], column["std"], limit)):
                raise DataError(f"data.{field}: '{name}' {why}, or leave it out.")
    for name, text in recipe.data.derived_features.items():
        node = parse(text)
        if isinstance(node, Call) and node.kernel == "subtract" and statistics[name]["count"]:
            for cell in (cell for cell in node.arguments if isinstance(cell, Cell)):
                column, std = statistics[cell.column], statistics[name]["std"]
                if why := coarse(column["min"], column["max"], std, MOST_OF_FEATURE):
                    raise DataError(f"data.derive: {name}: '{cell.column}' {why}, or leave it out.")


def _require_weights(collected: Collected, weight: str | None) -> None:
    for split in SPLITS if weight else ():
        if not collected.splits[split].statistics[weight or ""].get("max"):
            raise DataError(
                f"data.weight: '{weight}' is 0 in all {collected.splits[split].examples:,} examples of the split "
                f"'{split}', so none of them counts. Give some of them a weight above 0."
            )


def _without(name: str, data: Data) -> str:
    """Return the advice on leaving out the class `name`, which has one example."""
    if data.label_separator:
        return "drop such classes by data.label_min_count: 2"
    if data.is_image:
        return "remove the class"
    condition = f"{formula.reference(data.label)} not in [{name!r}]"
    return f"leave the class out by data.where: {condition}"


def _require_classes(collected: Collected, data: Data) -> None:
    totals = _class_counts(collected)
    if len(totals) < 2:
        only = f"every example has the class '{next(iter(totals))}'" if totals else "no example has a class"
        raise DataError(f"data.label: {only}. At least two are needed.")
    single = sorted(name for name, count in totals.items() if count == 1)
    hint = " Is this task: regression?" if _look_measured(totals) else ""
    if single:
        raise DataError(
            f"data.label: the class '{single[0]}' has one example ({len(single)} such classes). "
            f"A class needs examples in every split. Add examples, or {_without(single[0], data)}.{hint}"
        )
    if data.split.by == "class":
        advice = "By class, three different examples of it suffice while data.fraction is 1. Add examples."
    elif data.label_separator:
        advice = "Add examples, give the split a larger fraction, or drop rare classes by data.label_min_count."
    elif data.split.by == "folder":
        advice = "Add examples to its folder, or give data.split.eval a larger share."
    else:
        advice = "Add examples, give the split a larger fraction, or set data.split.by to class."
    for split in SPLITS:
        lacking = sorted(set(totals) - set(collected.splits[split].labels))
        if lacking:
            name = lacking[0]
            counts = ", ".join(f"{other} {collected.splits[other].labels.get(name, 0)}" for other in SPLITS)
            raise DataError(
                f"data.split: the split '{split}' has no example of class '{name}' ({counts}; {len(lacking)} classes "
                f"lack there). Every split needs every class. {advice}{hint}"
            )


def _look_measured(totals: Counter[str]) -> bool:
    """Return True if the classes, with their counts, look like measured numbers."""
    if not too_many_classes(len(totals), totals.total()):
        return False
    with suppress(ValueError):
        return all(math.isfinite(float(name)) for name in totals)
    return False
