"""Drafts a recipe from a profile, for a person to read and to correct."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.contract.image_formats import ENDINGS as IMAGE_ENDINGS
from trainyard.contract.image_formats import split_of
from trainyard.errors import ConfigurationError, listed
from trainyard.quality.findings import (
    FEW_LEVELS,
    MAX_BAD,
    alike_values,
    deeper_folders,
    far_values_text,
    layout,
    likely_white,
    same_words,
    splits_of,
)
from trainyard.quality.profile import ColumnProfile, Profile, foreign_kind, how_to_write
from trainyard.quality.tables.cells import too_many_classes
from trainyard.quality.tables.tables import why_target
from trainyard.spec import columns, formula, plain_yaml
from trainyard.spec.columns import has_name, name_fault
from trainyard.spec.gates import AREA_EXAMPLES
from trainyard.spec.model import TREE_CLASSES, Trees
from trainyard.spec.networks import KERAS_APPLICATIONS, TREES, suggested
from trainyard.spec.recipe import Data
from trainyard.values.columns import LIST_SEPARATOR

_SIDES = (32, 48, 64, 96, 128, 160, 192, 224)  # chosen: what the named networks are trained at
_STEPS = 4000  # chosen: about this number of steps, but 5 to 40 epochs
_NEARLY = 0.999  # chosen, as what `findings` calls nearly constant
_RARE = 100  # chosen: with this many rows a class misses a split of a tenth once in 40,000 times
_RARE_IN_A_FIFTH = 48  # chosen: with this many rows a class misses a split of a fifth once in 45,000 times
_RARE_OF_SEVERAL = 20  # chosen: with this many rows a class misses a split of a fifth once in 87 times
_EXAMPLES = 3  # that a class needs, one in each split
_LITTLE = 0.2  # chosen: share of the rows that are left out with their rare classes
_SMALL = 100  # chosen: of fewer rows a tenth says little
_LONG = 400  # chosen: letters of their names; a longer condition is no draft to read
_SHOWN = 3
_SURE = 0.98  # chosen: of models without a signal the gate then blesses fewer than one in twenty
_MORE = 0.001  # chosen: the least that counts as more; the baseline itself differs by 0 from itself
_SKEWED = 5  # chosen: times the median that the 0.95 quantile of a skewed target is; see _target_scale
TREE_SIZES = {
    "small_trees": Trees(max_iter=300, learning_rate=0.05, max_leaf_nodes=8, min_samples_leaf=5),
    "large_trees": Trees(max_iter=300),
}
"""The trees that are compared for a table's first model. Measured: docs/how-to/own-table.md."""
NETWORK, LINEAR = "mlp", "linear"
PATIENCE = 30
"""Iterations of the trees without a smaller eval loss, before they stop growing. Chosen."""
_FEW_ROWS = 3000  # chosen: small trees were better on most tables of up to 1,500 rows; more were not compared
_LINEAR_RATE = (
    0.03  # simulated: of six tables the loss is within 2 % of scikit-learn's; with 0.001 1.1 to 9 times as large
)
_BY_ROWS = "for tables of this size, without a comparison"
_ONE_SIDED = 0.7  # chosen: with two classes a useful model then hardly has a larger accuracy; see _rare_class
_FEW_OTHERS = 0.9  # chosen: the same with more classes
_WELL_TESTED = 500  # chosen: with this many rows of a rare class a test split of a tenth holds 50
_LIST_GATES = [
    {"metric": "f1", "min_difference": _MORE, "against": "baseline", "confidence": 0.95},
    {"metric": "f1", "min_difference": -0.02},
]
_R2_GUESS = "r2 above 0, what the mean alone reaches, beyond its 95 % interval: raise it to the value you need"


@dataclass(frozen=True)
class Comparison:
    """The mean loss of each model on folds of the training rows that it was not trained on, by name.

    loss: "log loss" of classes, or "squared error" of numbers, by that of the mean. rows: that were compared.
    """

    loss: str
    rows: int
    losses: dict[str, float]

    @property
    def best(self) -> str:
        """The name of the model with the smallest loss."""
        return min(self.losses, key=lambda name: self.losses[name])

    @property
    def text(self) -> str:
        """The losses, the smallest first."""
        shown = ", ".join(
            f"{name} {self.losses[name]:.3g}" for name in sorted(self.losses, key=self.losses.__getitem__)
        )
        return f"cross-validated {self.loss} on {self.rows:,} training rows: {shown}"


def draft_recipe(
    name: str, path: str, profile: Profile, comparison: Comparison | None = None, *, no_trees: str = ""
) -> tuple[str, list[str]]:
    """Return a recipe called `name` for the data at `path`, as YAML, and what was guessed, a sentence each.

    Columns that tell the label alone or nothing are left out. comparison: names the model of a table. no_trees: why
    boosted trees cannot be trained. Raises `ConfigurationError` if there is no label to predict or no column to learn
    from.
    """
    if profile.kind == "image_folder":
        content = _image_content(profile)
    else:
        content = _table_content(profile)
        if content["task"] != "multi_label":
            if len(profile.classes) > TREE_CLASSES:
                no_trees = f"boosted trees of more than {TREE_CLASSES} classes can diverge"
            content = _with_first_model(content, profile.rows, comparison, no_trees)
    guesses = content.pop("guesses")
    delimiter = {} if profile.delimiter == "," else {"delimiter": profile.delimiter}
    content["data"] = {"format": profile.kind, "path": path, **delimiter, **_layout(profile), **content["data"]}
    guesses = [*layout(profile), *guesses]
    unit = "images" if profile.images else "rows"
    head = [plain_yaml.comment(f"Drafted from {profile.rows:,} {unit}; correct what is wrong:")]
    head += [plain_yaml.comment(guess, indent=3) for guess in guesses]
    return "\n".join(
        [*head, plain_yaml.dump({"name": name, **content}, allow_unicode=True, inline_leaves=True)]
    ), guesses


def _with_first_model(
    content: dict[str, Any], rows: int, comparison: Comparison | None, no_trees: str
) -> dict[str, Any]:
    """Return the draft of a table with the model that the comparison names, by default with trees of the usual size."""
    if "text" in {feature["type"] for feature in content["data"]["features"].values()}:
        no_trees = "boosted trees take no text"
    name = comparison.best if comparison else NETWORK if no_trees else usual_size(rows)
    why = comparison.text if comparison else f"{no_trees}" if no_trees else _BY_ROWS
    label, *guesses = content["guesses"]
    shown = f"model {name}: {why}"
    described = {"description": f"First model by {comparison.text}"} if comparison else {}
    train = {key: value for key, value in content["train"].items() if key not in ("epochs", "batch_size")}
    if name in TREE_SIZES:
        model: dict[str, Any] = {"name": TREES, "trees": TREE_SIZES[name].model_dump(exclude_defaults=True)}
        train = {"early_stopping": {"patience": PATIENCE}, **train}
    elif name == LINEAR:
        model = {"name": NETWORK, "hidden": []}
        train = {**_train(rows), "optimizer": {"learning_rate": _LINEAR_RATE}, **train}
    else:
        return content | {"guesses": [label, shown, *guesses]}
    head = {"task": content["task"], "data": content["data"]}
    return described | head | content | {"model": model, "train": train, "guesses": [label, shown, *guesses]}


def usual_size(rows: int) -> str:
    """Return the name of the trees for a table of `rows` rows, if they were not compared."""
    return "small_trees" if rows < _FEW_ROWS else "large_trees"


def _layout(profile: Profile) -> dict[str, Any]:
    """Return the settings of how the files are read."""
    rows = list(profile.skip_rows)
    skipped = len(rows) if rows == list(range(1, len(rows) + 1)) else rows
    settings = {
        "encoding": profile.encoding if profile.encoding != "utf-8" else None,
        "skip_rows": skipped or None,
        "comment": profile.comment,
        "decimal": "," if profile.decimal == "," else None,
        "absent_columns": "missing" if profile.absent_columns else None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _image_content(profile: Profile) -> dict[str, Any]:
    if not profile.labels_file and profile.classes and all(map(split_of, profile.classes)):
        shown = " and ".join(sorted(profile.classes)[:_SHOWN])
        raise ConfigurationError(
            f"{profile.source}: its folders {shown} are named like splits, and not all of their images lie in class "
            "folders. Put the images of each class into a folder of its own in each, or name the one that has class "
            "folders."
        )
    if not profile.labels_file and len(profile.classes) < 2:
        raise ConfigurationError(
            f"{profile.source}: the images lie in {len(profile.classes)} class folders, and a classifier needs two "
            "or more. Put the images of each class into a separate folder, or write their names and labels into a CSV "
            "file beside them, with the columns file and label."
        )
    sides = {column.name: column.quantiles["0.5"] for column in profile.columns if column.name in ("height", "width")}
    side = max((side for side in _SIDES if side <= min(sides.values())), default=_SIDES[0])
    network = suggested(side)
    gray = profile.images is not None and set(profile.images.modes) <= {"1", "L", "LA", "I", "I;16", "F"}
    level = profile.images.level if profile.images else -1
    white = {"white_level": likely_white(level)} if 0 <= level <= FEW_LEVELS else {}
    target = _listed_target(profile) if profile.labels_file else _folder_target(profile)
    return {
        "task": target["task"],
        "data": {
            **target.get("label", {}),
            "image_size": [side, side],
            **({"channels": 1} if gray else {}),
            **white,
            **target["split"],
        },
        "model": {"name": network},
        "train": {**_train(profile.rows), **target["train"], "augment": {"flip": True, "shift": 0.1}},
        "evaluate": {"gates": target["gates"]},
        **target.get("threshold", {}),
        "guesses": [
            *target["why"],
            *([deeper_folders(profile.deeper_folders)[:-1]] if profile.deeper_folders else []),
            f"image_size {side}: the median image has {sides['height']:g} x {sides['width']:g} pixels",
            *(f"white_level {value}: 16 bits a channel, of which few are used" for value in white.values()),
            "flip: the mirror image of an image has the same label; of letters and digits it has not",
            *(["model.weights: imagenet would begin with trained weights"] if network in KERAS_APPLICATIONS else []),
            *target["guesses"],
        ],
    }


def _folder_target(profile: Profile) -> dict[str, Any]:
    """Return the draft's settings for images in class folders."""
    return _class_target(profile) | {
        "why": [f"{len(profile.classes)} classes, by the folders: {listed(sorted(profile.classes), _SHOWN)}"]
    }


def _class_target(profile: Profile) -> dict[str, Any]:
    return {
        "task": "classification",
        "split": _split(profile),
        "train": _class_weights(profile),
        "gates": _gates(profile, True),
        "threshold": _threshold(profile),
        "guesses": [*_split_guesses(profile), *_class_guesses(profile)],
    }


def _listed_target(profile: Profile) -> dict[str, Any]:
    """Return the draft's settings for images whose labels are in a CSV file."""
    place, separator = f"'{profile.label or 'label'}' of {profile.labels_file}", profile.label_separator
    named = {"labels": profile.labels_file, "label": profile.label}
    beside = "a file beside the images, which has nearly all of their names"
    if label := next((column for column in profile.columns if column.name == profile.label), None):
        return {
            "task": "regression",
            "label": named,
            "split": _split(profile),
            "train": _target(label, is_class=False),
            "gates": _gates(profile, False),
            "why": [f"{place}: {_why_regression(label)}; {beside}"],
            "guesses": [*_split_guesses(profile), *_target_guesses(label), _R2_GUESS],
        }
    if separator:
        listing = _Listing(profile, separator)
        return {
            "task": "multi_label",
            "label": named | listing.settings,
            "split": listing.split,
            "train": {},
            "gates": _LIST_GATES,
            "why": [
                f"{len(listing.counts)} classes, by {place}: {listed(sorted(listing.counts), _SHOWN)}, several per "
                f"image, '{separator}' between them; {beside}"
            ],
            "guesses": listing.guesses,
        }
    if len(profile.classes) < 2 or too_many_classes(len(profile.classes), profile.rows) or _hardly_repeats(profile):
        raise ConfigurationError(
            f"{profile.source}: {place} has {len(profile.classes):,} different values for {profile.rows:,} images, "
            f"too {'few' if len(profile.classes) < 2 else 'many'} for classes. Name another column by --label."
        )
    why = f"{len(profile.classes)} classes, by {place}: {listed(sorted(profile.classes), _SHOWN)}; {beside}"
    return _class_target(profile) | {"label": named, "why": [why]}


def _table_content(profile: Profile) -> dict[str, Any]:
    if profile.label is None:
        names = ", ".join(column.name for column in profile.columns)
        raise ConfigurationError(
            f"{profile.source}: no column looks like the label. Name it by --label; there are: {names[:400]}."
        )
    if fault := name_fault(profile.label):
        raise ConfigurationError(f"{profile.source}: the label '{profile.label[:80]}' cannot be used: {fault}.")
    why = {column.name: _useless(column, profile) for column in profile.columns if column.name != profile.label}
    why |= dict.fromkeys(profile.target_leakage, "tells the label alone")
    types = {column.name: _TYPES.get(column.type) for column in profile.columns}
    types |= {column.name: "text" for column in profile.columns if column.is_prose}
    features: dict[str, dict[str, Any]] = {
        name: {"type": "text", "separator": LIST_SEPARATOR} if name in profile.lists else {"type": types[name]}
        for name in why
        if not why[name]
    }
    if features:
        data = Data.model_validate({"format": profile.kind, "path": "-", "label": profile.label, "features": features})
        why |= {name: f"{fault}" for name, fault in columns.faults(data)}
    features = {name: feature for name, feature in features.items() if not why[name]}
    indicated = _numbers_with_gaps(profile, features)
    features |= {name: features[name] | {"indicator": True} for name in indicated}
    why |= {name: f"{kind}, which is read by nothing" for name, kind in profile.unread.items()}
    excluded = [f"left out: {name} ({reason})" for name, reason in why.items() if reason]
    label = next(column for column in profile.columns if column.name == profile.label)
    is_class = bool(profile.classes)
    if label.distinct < 2:
        how = f"has one value in all rows, {label.top[0].value[:40]!r}" if label.top else "is missing in all rows"
        raise ConfigurationError(f"{profile.source}: the label '{profile.label}' {how}. Name another by --label.")
    separator = profile.label_separator
    if is_class and not separator and (too_many_classes(label.distinct, profile.rows) or _hardly_repeats(profile)):
        hint = "Name another column by --label."
        if label.foreign:
            such_as = next((entry.value for entry in label.top if foreign_kind([entry.value])), "")
            shown = f"It holds {label.foreign}, such as {such_as}, which are read as texts"
            hint = f"{shown}: {how_to_write(label.foreign)}; or n{hint[1:]}"
        raise ConfigurationError(
            f"{profile.source}: the label '{profile.label}' has {label.distinct:,} different values in "
            f"{profile.rows:,} rows, too many for classes. {hint}"
        )
    if not features:
        if any(map(_names_images, profile.columns)):
            raise ConfigurationError(
                f"{profile.source}: its rows name images, and no other column is left to learn from. Name their "
                "folder: this file says their labels."
            )
        left = "; ".join(excluded)[:400] or "the label is the only one"
        raise ConfigurationError(
            f"{profile.source}: no column to learn from is left ({left}). To learn from one of them all the same, list "
            "it in data.features of a recipe: trainyard recipe new --table writes an example."
        )
    if separator:
        return _list_content(profile, separator, features, [*excluded, *_missing_guesses(profile, features, indicated)])
    rare = _too_rare(profile)
    if rare:
        kept = {name: count for name, count in profile.classes.items() if name not in rare}
        profile = profile.model_copy(update={"classes": kept})
    how = _why_classes(profile, label) if is_class else _why_regression(label)
    guessed = ", a guess by its name or place" if profile.label_is_guessed else ""
    row_filter = {"where": condition} if (condition := _row_filter(label, rare, is_class=is_class)) else {}
    return {
        "task": "classification" if is_class else "regression",
        "data": {
            "label": profile.label,
            **row_filter,
            "features": features,
            **_split(profile),
        },
        "model": {"name": "mlp"},
        "train": {**_train(profile.rows), **_class_weights(profile), **_target(label, is_class=is_class)},
        "evaluate": {"gates": _gates(profile, is_class)},
        **_threshold(profile),
        "guesses": [
            f"label '{profile.label}'{guessed}: {how}",
            *_label_guesses(label, rare, profile),
            *_split_guesses(profile),
            *excluded,
            *_missing_guesses(profile, features, indicated),
            *(
                f"{column.name}: {column.zoned:,} times have a zone; days are counted in UTC, time_zone sets another"
                for column in profile.columns
                if column.zoned and column.name in features
            ),
            *(
                f"{name}: prose, read by its words"
                for name, kind in types.items()
                if kind == "text" and name in features
            ),
            *(
                f"{column.name}: {alike_values(column) or same_words(column)}"
                for column in profile.columns
                if column.name in features and (column.alike or column.same_words)
            ),
            *(
                _class_guesses(profile)
                if is_class
                else [
                    *_target_guesses(label),
                    _R2_GUESS,
                ]
            ),
        ],
    }


def _target(label: ColumnProfile, *, is_class: bool) -> dict[str, Any]:
    scale = "" if is_class else _target_scale(label)
    return {"target": {"scale": scale, "mean": True}} if scale else {}


def _target_scale(label: ColumnProfile) -> str:
    """Return the logarithmic scale of a skewed target of at least 0, such as a price or a count, or ''.

    Measured with 1,000 and 5,000 simulated rows, means of three draws: with such targets, the scale and `mean` lower
    the mlp's mean absolute error by 1 to 18 % and change its rmse by -24 to +3 %; with a ratio of 3 or less they change
    neither by more than 2 %. Near 0 a logarithm has a long lower tail, which log1p cuts off if 1 is small beside the
    median.
    """
    low, median, high = (label.quantiles.get(share, 0.0) for share in ("0.01", "0.5", "0.95"))
    least = label.statistics.min
    if least is None or least < 0 or median <= 0 or high < _SKEWED * median:
        return ""
    if least > 0 and median / low <= (high / median) ** 2:
        return "log"
    return "log1p" if median >= 1 else ""


def _target_guesses(label: ColumnProfile) -> Iterator[str]:
    if scale := _target_scale(label):
        ratio = label.quantiles["0.95"] / label.quantiles["0.5"]
        yield (
            f"train.target: '{label.name[:40]}' is skewed, its 0.95 quantile is {ratio:.3g} times the median, so "
            f"{scale} learns relative errors; mean: true keeps the total, without it predictions are medians"
        )


class _Listing:
    """The draft's settings for a label with several classes in a cell, between them the `separator`."""

    def __init__(self, profile: Profile, separator: str) -> None:
        counts = Counter[str]()
        for cell, times in profile.classes.items():
            counts.update(dict.fromkeys({part.strip() for part in cell.split(separator)} - {""}, times))
        rare = sorted(name for name, count in counts.items() if count < _RARE_OF_SEVERAL)
        rare = rare if len(counts) - len(rare) >= 2 else []
        is_small = any(count < _RARE for name, count in counts.items() if name not in rare)
        self.counts = counts
        self.settings = {"label_separator": separator, **({"label_min_count": _RARE_OF_SEVERAL} if rare else {})}
        self.split = {"split": {"train": 0.6, "eval": 0.2, "test": 0.2}} if is_small else {}
        unit = "images" if profile.images else "rows"
        self.guesses = [
            *(
                [
                    f"label_min_count: classes with fewer than {_RARE_OF_SEVERAL} {unit} are dropped, their {unit} "
                    f"stay: {listed([repr(name[:40]) for name in rare], _SHOWN)}"
                ]
                if rare
                else []
            ),
            *(["split 60 : 20 : 20: a split of a tenth may miss a class"] if is_small else []),
            "a larger f1 on the test split than the most frequent classes as the answer to everything, beyond the "
            "difference's 95 % interval",
        ]


def _list_content(profile: Profile, separator: str, features: dict[str, Any], excluded: list[str]) -> dict[str, Any]:
    """Return the draft of a table whose label holds several classes a cell, between them the `separator`."""
    listing = _Listing(profile, separator)
    return {
        "task": "multi_label",
        "data": {"label": profile.label, **listing.settings, "features": features, **listing.split},
        "model": {"name": "mlp"},
        "train": _train(profile.rows),
        "evaluate": {"gates": _LIST_GATES},
        "guesses": [
            f"label '{profile.label}': any of {len(listing.counts)} classes a row, '{separator}' between them; "
            "for one class a cell task: classification",
            *excluded,
            *listing.guesses,
        ],
    }


def _numbers_with_gaps(profile: Profile, features: dict[str, Any]) -> list[str]:
    """Return the numbers that lack values, whose missing ones the model is told of."""
    if not features:
        return []
    data = Data.model_validate({"format": profile.kind, "path": "-", "label": profile.label, "features": features})
    return columns.indicators(data, [column.name for column in profile.columns if column.statistics.missing])


def _missing_guesses(profile: Profile, features: dict[str, Any], indicated: list[str]) -> Iterator[str]:
    """Yield sentences about missing values, and about values that lie far from all others."""
    if indicated:
        yield f"indicator: the model is told which values of {listed(indicated, _SHOWN)} are missing"
    for column in profile.columns:
        if column.far and column.name in features and features[column.name]["type"] in ("numeric", "date"):
            yield far_values_text(column.name, column.far, column.statistics.count, column.type)
        elif column.far and column.name == profile.label and not profile.classes:
            yield far_values_text(column.name, column.far, column.statistics.count, column.type, "target")


def _label_guesses(label: ColumnProfile, rare: list[str], profile: Profile) -> Iterator[str]:
    if label.statistics.missing:
        yield f"where: {label.statistics.missing:,} rows without '{label.name}' are left out"
    if rare:
        shown = listed([f"'{name[:40]}'" for name in rare], _SHOWN)
        yield f"where: classes with fewer than {_EXAMPLES} examples are left out: {shown}"
    if label.mistyped > MAX_BAD * profile.rows and not profile.classes:
        yield (
            f"label: {label.mistyped:,} cells are no number, such as {label.mistyped_such_as[0]}, more than "
            "data.max_bad_fraction allows: empty or correct them"
        )


def _hardly_repeats(profile: Profile) -> bool:
    """Return True if most rows belong to classes with too few examples for three splits."""
    few = sum(count for count in profile.classes.values() if count < _EXAMPLES)
    return 2 * few > sum(profile.classes.values())


def _too_rare(profile: Profile) -> list[str]:
    """Return the classes that cannot be in all three splits, if they are few rows and two others remain."""
    rare = [name for name, count in profile.classes.items() if count < _EXAMPLES]
    rows = sum(profile.classes[name] for name in rare)
    is_little = rows <= _LITTLE * sum(profile.classes.values()) and sum(map(len, rare)) < _LONG
    return rare if is_little and len(profile.classes) - len(rare) >= 2 else []


def _row_filter(label: ColumnProfile, rare: list[str], *, is_class: bool) -> str:
    """Return the condition that a row has a label of none of the classes `rare`; '' if all have.

    NA is no value if the label holds numbers.
    """
    name, conditions = formula.reference(label.name), []
    has_numbers = label.type in ("integer", "number") and not (label.mistyped and is_class)
    if label.statistics.missing:
        conditions.append(f"not missing({name}{' + 0' if has_numbers else ''})")
    if rare:
        conditions.append(f"{name} not in [{', '.join(rare if has_numbers else map(repr, rare))}]")
    return " and ".join(conditions)


def _why_classes(profile: Profile, label: ColumnProfile) -> str:
    number = len(profile.classes)
    if label.type != "integer" or number == 2:
        return f"{number} classes"
    return f"{number} classes, because it holds few different integers; to predict the number task: regression"


def _why_regression(column: ColumnProfile) -> str:
    why = why_target(column, {entry.value: entry.count for entry in column.top})
    hint = "; for classes task: classification" if column.type == "integer" else ""
    return f"{why}, so a regression{hint}"


_TYPES = {"integer": "numeric", "number": "numeric", "date": "date", "category": "category"}


def _names_images(column: ColumnProfile) -> bool:
    return any(entry.value.lower().endswith(IMAGE_ENDINGS) for entry in column.top)


def _useless(column: ColumnProfile, profile: Profile) -> str:
    """Return the reason why nothing can be learned from `column`, or ''."""
    present = column.statistics.count + column.mistyped
    if not has_name(column.name):
        how = "rename it" if column.name.startswith("_") else f"name it '{column.name}'"
        return f"has no name, so it is an index. To learn from it, {how}"
    if fault := name_fault(column.name):
        return fault
    if column.type == "empty":
        return "empty"
    if column.distinct == 1 or (column.top and column.top[0].count >= _NEARLY * present):
        return "the same value in nearly every row"
    if column.name in profile.lists:
        return ""
    if column.foreign and not column.mistyped:
        such_as = next(entry.value for entry in column.top if foreign_kind([entry.value]))
        return f"{column.foreign}, which are read by nothing, such as {such_as}: {how_to_write(column.foreign)}"
    if _names_images(column):
        return "names of images; to learn from the images, draft a recipe from their folder instead"
    if column.is_id:
        return "an id: all of its values differ"
    if column.type == "text" and not column.is_prose:
        return "short text; use {type: text} to learn from its words"
    if column.mistyped > MAX_BAD * profile.rows:
        such_as = column.mistyped_such_as[0]
        how = how_to_write(column.foreign) if column.foreign else "empty or correct them"
        return f"{column.mistyped:,} cells are no {_TYPES[column.type]} value, such as {such_as}: {how}"
    return "missing in most rows" if present < profile.rows / 2 else ""


def _train(examples: int) -> dict[str, Any]:
    batch = min(256, max(16, 2 ** int(math.log2(max(1, examples / 40)))))
    return {"epochs": min(40, max(5, round(_STEPS * batch / max(1, examples)))), "batch_size": batch}


def _split(profile: Profile) -> dict[str, Any]:
    """Return the split settings; a small table, or a rare class, gets splits that are unlikely to miss it."""
    if profile.splits:
        return {"split": {"by": "folder", **_eval_share(profile)}}
    by = {"by": "class"} if _rarest(profile) or _hardly_tested(profile) else {}
    needs_more = profile.rows < _SMALL or _hardly_tested(profile)
    split = by | ({"train": 0.6, "eval": 0.2, "test": 0.2} if needs_more else {})
    return {"split": split} if split else {}


def _eval_share(profile: Profile) -> dict[str, float]:
    """Return the share of the training folder for the eval split, unless a folder has that or a tenth is enough."""
    fewest = min(profile.classes.values(), default=_RARE)
    if "eval" in profile.splits.values() or fewest >= _RARE:
        return {}
    return {"eval": 0.2 if fewest >= _RARE_IN_A_FIFTH else 0.3}


def _split_guesses(profile: Profile) -> Iterator[str]:
    split = _split(profile).get("split", {})
    if profile.splits:
        share = (
            "" if "eval" in profile.splits.values() else f"; {split.get('eval', 0.1):.0%} of train is the eval split"
        )
        yield f"split by folder: {splits_of(profile.splits)}{share}"
        return
    if rarest := _rarest(profile):
        number = f"{profile.classes[rarest]:,}"
        yield f"split by class: '{rarest[:40]}' has {number} examples, which a split by content may miss"
    if "train" in split and profile.rows < _SMALL:
        unit = "images" if profile.images else "rows"
        yield f"split 60 : 20 : 20: of {profile.rows:,} {unit} a split of a tenth is small"
    elif _hardly_tested(profile):
        rare = _rare_class(profile)
        count = profile.classes[rare]
        yield (
            f"split 60 : 20 : 20: the test split holds about {0.2 * count:,.0f} of the {count:,} examples of "
            f"'{rare[:40]}', a tenth half as many"
            + (f"; with fewer than {AREA_EXAMPLES} no model is blessed" if 0.2 * count < AREA_EXAMPLES + 2 else "")
        )


def _rarest(profile: Profile) -> str:
    """Return the class with fewest examples if a split may miss it, or ''."""
    rarest = min(profile.classes, key=lambda name: profile.classes[name], default="")
    return rarest if profile.classes and profile.classes[rarest] < _RARE else ""


def _gates(profile: Profile, is_class: bool) -> list[dict[str, Any]]:
    if not is_class:
        return [{"metric": "r2", "min": 0, "confidence": 0.95}, {"metric": "r2", "min_difference": -0.02}]
    if rare := _rare_class(profile):
        return [
            {"metric": "pr_auc", "class": rare, "min_difference": _MORE, "against": "baseline"},
            {"metric": "roc_auc", "class": rare, "min": 0.5, "confidence": _SURE},
            {"metric": "pr_auc", "class": rare, "min_difference": -0.02},
        ]
    if _has_few_others(profile):
        return [
            {"metric": "macro_f1", "min_difference": _MORE, "against": "baseline"},
            {"metric": "roc_auc", "min": 0.5, "confidence": _SURE},
            {"metric": "roc_auc", "min_difference": -0.01},
        ]
    return [
        {"metric": "accuracy", "min_difference": _MORE, "against": "baseline", "confidence": 0.95},
        {"metric": "accuracy", "min_difference": -0.01},
    ]


def _class_guesses(profile: Profile) -> Iterator[str]:
    majority = max(profile.classes, key=lambda name: profile.classes[name])[:40]
    share = _majority(profile)
    constant = f"'{majority}' as the answer to everything has accuracy {share:.3f}"
    if rare := _rare_class(profile)[:40]:
        yield (
            f"pr_auc (average precision) of '{rare}' above its share, about {1 - share:.3f}, which chance reaches, and "
            f"its roc_auc above 0.5 beyond the {100 * _SURE:g} % interval"
        )
        yield (
            f"threshold: '{rare}' is predicted above the probability with the highest F1 on the eval split; "
            f"{{recall: 0.9, class: …}} sets another aim. {constant}"
        )
    elif _has_few_others(profile):
        yield f"macro_f1 above that of one answer, and roc_auc above 0.5 beyond the {100 * _SURE:g} % interval"
        yield f"class_weights balanced: otherwise rare classes may never be predicted. {constant}"
    else:
        yield (
            f"more accurate on the test split than '{majority}' as the answer to everything (about {share:.3f}), "
            "beyond the difference's 95 % interval; add a min for the accuracy you need"
        )


def _threshold(profile: Profile) -> dict[str, Any]:
    rare = _rare_class(profile)
    return {"threshold": {"maximize": "f1", "class": rare}} if rare else {}


def _class_weights(profile: Profile) -> dict[str, Any]:
    return {"class_weights": "balanced"} if _has_few_others(profile) else {}


def _rare_class(profile: Profile) -> str:
    """Return the rarer of two classes if accuracy says little about it, or ''.

    Measured with a share of 0.3 and 500 test rows: a model with a roc_auc of 0.76 has a larger accuracy than the
    majority, beyond the interval, in 75 % of draws, with a share of 0.2 in 14 %.
    """
    is_rare = len(profile.classes) == 2 and _majority(profile) >= _ONE_SIDED
    return min(profile.classes, key=lambda name: profile.classes[name]) if is_rare else ""


def _hardly_tested(profile: Profile) -> bool:
    rare = _rare_class(profile)
    return bool(rare) and profile.classes[rare] < _WELL_TESTED


def _has_few_others(profile: Profile) -> bool:
    """Return True if one of three or more classes has nearly all rows."""
    return len(profile.classes) > 2 and _majority(profile) >= _FEW_OTHERS


def _majority(profile: Profile) -> float:
    return max(profile.classes.values()) / sum(profile.classes.values())
