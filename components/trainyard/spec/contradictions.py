"""Contradictions between parts of a recipe, found before a step starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from trainyard.errors import did_you_mean
from trainyard.spec import columns, command, documents, formula, selection, trees
from trainyard.spec.gates import (
    BASELINE_CLASS_METRICS,
    BASELINE_METRICS,
    CLASS_METRICS,
    METRIC_SPECS,
    METRICS,
    MODULE_RESAMPLES,
    Gate,
)
from trainyard.spec.model import smallest_side
from trainyard.spec.networks import (
    ANY_SIZE,
    BLOCK_SCALABLE,
    COLUMN_NETWORKS,
    DEPTH_SCALABLE,
    IMAGENET,
    KERAS_APPLICATIONS,
    MINIMUM_SIDE,
    PUBLISHED_WIDTHS,
    TREES,
    WIDTH_SCALABLE,
    Network,
)
from trainyard.spec.plain_yaml import Location
from trainyard.spec.schedule import LABEL
from trainyard.values.zones import DEFAULT_ZONE

if TYPE_CHECKING:
    from trainyard.spec.recipe import Data, Recipe


def find_contradictions(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    """Yield the location and the reason of each contradiction between sections."""
    if recipe.data.format == "none":
        yield from _no_data_faults(recipe)
        return
    if recipe.train.command is None:
        yield from _model_faults(recipe)
        if recipe.model.name == TREES:
            yield from trees.faults(recipe)
        else:
            yield from _weights_faults(recipe)
            yield from _scale_faults(recipe)
            yield from _block_faults(recipe)
        if recipe.model.name != TREES and recipe.model.trees != type(recipe.model).model_fields["trees"].default:
            yield ("model", "trees"), "are those of boosted_trees. Leave it out, or set model.name: boosted_trees"
    yield from command.faults(recipe)
    yield from ((("train", "select"), why) for why in selection.faults(recipe))
    yield from _gate_faults(recipe)
    yield from _threshold_faults(recipe)
    yield from _drift_faults(recipe)
    yield from _augment_faults(recipe)
    yield from _resizing_faults(recipe)
    yield from _label_faults(recipe)
    yield from _column_faults(recipe)
    yield from _file_faults(recipe)
    data, formats = recipe.data, recipe.export.files
    yield from ((("data", "features", name), why) for name, why in columns.faults(data))
    if data.store and not data.is_image:
        yield ("data", "store"), "is of images, not of columns. Leave it out"
    elif data.store not in (None, "original") and data.image_size is None:
        yield ("data", "store"), f"{data.store} needs to know the size. Give data.image_size"
    for name in recipe.evaluate.slices:
        if name not in data.features and ([name] != data.labels or recipe.task == "multi_label"):
            yield ("evaluate", "slices"), f"no feature '{name}'.{did_you_mean(name, data.features)}"
    if data.split.by == "folder" and (
        not data.is_image or data.format == "tfrecord" or data.window_days or data.bundled
    ):
        yield (
            ("data", "split"),
            "by: folder is for images in folders, archives or a tfds folder, without days. Name another way to split",
        )
    if "saved_model" not in formats:
        yield ("export", "formats"), "push serves the SavedModel, and evaluate compares with it. Add saved_model"
    if len({*formats}) < len(formats):
        yield ("export", "formats"), "a format is given twice. Give it once"
    if recipe.export.min_mapped_share is not None and "litert_int8" not in formats:
        yield ("export", "min_mapped_share"), "is of litert_int8. Add litert_int8 to export.formats"
    if "onnx" not in formats and documents.changed(recipe.export.onnx):
        yield ("export", "onnx"), "is of the ONNX file. Add onnx to export.formats"
    if recipe.export.demo and "onnx" not in formats:
        yield ("export", "demo"), "runs the ONNX file. Add onnx to export.formats"
    if recipe.export.demo and not data.is_image:
        yield ("export", "demo"), "is a page for images, not for columns. Leave it out; `trainyard serve` answers rows"
    for name, limits in recipe.export.devices.items():
        if limits.format not in formats:
            yield ("export", "devices", name), f"measures {limits.format}. Add {limits.format} to export.formats"
    if recipe.train.warm_start and "keras" not in formats:
        yield ("train", "warm_start"), "takes the champion's model.keras. Add keras to export.formats"


def _no_data_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    if recipe.train.result != "folder":
        yield (
            ("data",),
            "is required and missing. Say what to learn from. Only train.command with train.result: folder needs none",
        )
    elif recipe.task != "classification":
        yield ("task",), "is of the examples in data, and there are none. Leave it out"
    else:
        yield from command.faults(recipe)


def _label_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    task, data, weights = recipe.task, recipe.data, recipe.train.class_weights
    classes = {"multi_label": "an example may have several classes", "regression": "a regression has no classes"}
    if task in classes:
        if weights is not None:
            yield ("train", "class_weights"), f"{classes[task]}. Leave it out"
        if data.split.by == "class":
            yield ("data", "split"), f"by: class is for a classification, and {classes[task]}. Leave it out"
    if isinstance(weights, dict) and not any(weights.values()):
        yield ("train", "class_weights"), "no class counts. Give one a weight above 0"
    if task != "regression" and recipe.train.target != type(recipe.train.target)():
        yield ("train", "target"), f"is of the numbers of a regression, and the task is {task}. Leave it out"
    elif recipe.train.target.scale != "none" and recipe.train.teacher:
        yield ("train", "target"), "needs logarithms, and a teacher's answers may have none. Set scale: none"
    elif recipe.train.target.mean and recipe.train.target.scale == "none":
        why = "corrects a logarithmic scale, and without one the model already predicts means"
        yield ("train", "target", "mean"), f"{why}. Leave it out, or set scale: log or log1p"
    if task == "regression" and data.is_image and data.labels_file is None:
        yield ("task",), "regression takes columns, or images with a number each in data.labels"
    elif (
        task == "regression"
        and data.is_image
        and (name := next(filter(columns.IMAGE_MEASURES.__contains__, data.labels), None))
    ):
        key, why = "targets" if data.targets else "label", f"the {name} of the image file itself"
        yield ("data", key), f"'{name}' stands for {why} in statistics. Give the column another name"
    if task == "multi_label" and data.format in ("image_folder", "tfds") and data.labels_file is None:
        yield ("task",), f"{data.format} has one class an example. Name columns, data.labels, or images in tfrecord"
    if task in classes and data.is_image and data.schema_ is not None:
        yield ("data", "schema"), f"of images names the class of each, and {classes[task]}. Leave it out"
    if (task == "multi_label") != (data.label_separator is not None):
        fault = "says where the classes of a cell are cut, as ';' in rock;pop. "
        fault += "Give one" if task == "multi_label" else "It is for task: multi_label. Leave it out"
        yield ("data", "label_separator"), fault
    if task != "multi_label" and data.label_min_count > 1:
        fault = f"drops rare classes from rows with several, and the task is {task}. Leave it out"
        yield (
            ("data", "label_min_count"),
            fault
            + (", and drop rows by data.where, such as label not in ['rare']" if task == "classification" else ""),
        )
    if data.targets and task != "regression":
        yield ("data", "targets"), f"are several numbers to predict, and the task is {task}. Leave it out"
    elif data.targets and data.label != type(data).model_fields["label"].default:
        yield ("data", "label"), "is not predicted beside data.targets. Leave it out, or add it there"
    elif len(set(data.targets)) < len(data.targets):
        yield ("data", "targets"), "name a column twice. Name it once"


def _file_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    """Yield the settings of files that the format does not have."""
    data, why = recipe.data, {"encoding": "Parquet and TFRecord hold UTF-8, and images no text"}
    with_csv = ["csv", "image_folder"] if data.labels_file else ["csv"]
    formats: dict[str, list[str]] = {
        "decimal": with_csv,
        "encoding": with_csv,
        "skip_rows": with_csv,
        "comment": with_csv,
        "absent_columns": [name for name in columns.ENDINGS if name != "tfrecord"],
    }
    why["absent_columns"] = "a feature that an example lacks is missing" if data.format == "tfrecord" else ""
    for name in documents.changed(data):
        if name in formats and data.format not in formats[name]:
            reason = f": {why[name]}" if why.get(name) else ""
            yield ("data", name), f"is for {' and '.join(formats[name])}, not for {data.format}{reason}. Leave it out"
    if data.labels_file is not None:
        if data.format != "image_folder":
            yield ("data", "labels"), f"is a file beside images of format image_folder, not {data.format}. Leave it out"
        elif data.window_days is not None or data.split.by == "folder":
            key = "window_days" if data.window_days is not None else "split: by: folder"
            yield ("data", "labels"), f"is one file of all images, and {key} has several folders. Leave one out"
        elif ".." in data.labels_file.split("/"):
            yield ("data", "labels"), f"'{data.labels_file}' leads out of data.path. Put the file there"
    if data.comment is not None and data.comment[0] in (data.delimiter, data.quote):
        yield ("data", "comment"), f"{data.comment!r} begins with data.delimiter or data.quote. Name another"


def _column_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    data = recipe.data
    used = [*data.labels, data.split.column, data.weight]
    if data.time_zone != DEFAULT_ZONE and not data.counts_days and data.window_days is None:
        yield (
            ("data", "time_zone"),
            "is for features of type date, split by: time and window_days, and there is none. Leave it out",
        )
    if data.is_image:
        for name in ("derive", "where", "weight"):
            if getattr(data, name):
                yield ("data", name), "is of the columns of a table, and these are images. Leave it out"
        if data.split.column and data.labels_file is None:
            yield (
                ("data", "split"),
                f"by: {data.split.by} goes by a column, and these are images. Leave it out",
            )
        return
    if data.weight in data.labels or data.weight in data.features | data.inputs:
        yield (
            ("data", "weight"),
            f"'{data.weight}' is the label or what the model is served, and says how much a row counts, which no "
            "served row has. Name another column",
        )
    for name in data.derive:
        if name in data.declared:
            read = ", ".join(formula.columns(formula.parse(data.derive[name]))) or "no column"
            yield (
                ("data", "features", name, "missing"),
                f"is for columns of the data, and a formula computes '{name}'. Declare it for what that reads: {read}",
            )
    for name in data.derive:
        at = ("data", "derive", name)
        if name not in used and name not in data.features:
            known = [*filter(None, used), *data.features]
            yield at, f"is neither label, split.column, weight nor a feature.{did_you_mean(name, known)} Leave it out"
        elif name in data.columns:
            yield at, "is read by a formula as a column of the data, too. Give it another name"
        elif name in data.features and (why := _no_feature(name, data)):
            yield at, why


def _no_feature(name: str, data: Data) -> str | None:
    """Return the reason why the formula `name` cannot be a feature of its type, or None."""
    node, type_ = formula.parse(data.derive[name]), data.features[name].type
    made = "numeric" if node.kind == "number" else "category"
    if type_ != made and not (made == "category" and type_ == "text"):
        made_of = {"truth": "condition"}.get(node.kind, node.kind)
        return f"makes a {made_of}, which is no {type_} feature. Write type: {made}" + (
            ", or bin(x, width) for the number of its bin as a category" if made == "numeric" else ""
        )
    if formula.orders_texts(node):
        return "asks which of two texts comes first, which a served model cannot. Name the values: x in ['a', 'b']"
    if label := next((name for name in formula.columns(node) if name in data.labels), None):
        return f"reads the label '{label}', which a served model is not told. Compute it of other columns"
    read: dict[str, formula.Kind] = {
        input_name: "number" if kind.type == "numeric" else "text" for input_name, kind in data.inputs.items()
    }
    if column := formula.mixed(node, read):
        kind = read[column]
        other = "text" if kind == "number" else "number"
        return f"reads '{column}' as a {other}, and the model takes it as a {kind}. Read it alike"
    return None


def _model_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    name, data = recipe.model.name, recipe.data
    if name is None:
        if recipe.module is None:
            yield (
                ("model", "name"),
                f"is required unless module has a build_model. Known: {', '.join(get_args(Network))}",
            )
        return
    if (name in COLUMN_NETWORKS) == data.is_image:
        yield ("model", "name"), f"'{name}' does not take {'images' if data.is_image else 'columns'}"
    smallest = MINIMUM_SIDE.get(name, 0)
    if data.is_image and data.image_size and min(data.image_size) < smallest:
        yield ("data", "image_size"), f"'{name}' takes images of at least {smallest} x {smallest} pixels"


def _scale_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    model = recipe.model
    for key, value, scaled in (("width", model.width, WIDTH_SCALABLE), ("depth", model.depth, DEPTH_SCALABLE)):
        if value != 1 and model.name not in scaled:
            fault = f"'{model.name}' has none" if model.name else "the module's network has none"
            yield ("model", key), f"{fault}. Leave it out, or name one of {', '.join(scaled)}"
    published = model.weights == IMAGENET and model.name in KERAS_APPLICATIONS
    if published and model.name in WIDTH_SCALABLE and model.width not in PUBLISHED_WIDTHS:
        known = " and ".join(f"{width:g}" for width in PUBLISHED_WIDTHS)
        yield ("model", "width"), f"Keras publishes weights of {known}. Give one of them, or leave out model.weights"


def _block_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    model, data = recipe.model, recipe.data
    if model.blocks is None:
        return
    if model.name not in BLOCK_SCALABLE:
        fault = f"'{model.name}' has none" if model.name else "the module's network has none"
        yield ("model", "blocks"), f"{fault} to choose. Leave it out, or name {', '.join(BLOCK_SCALABLE)}"
    elif data.image_size and min(data.image_size) < (side := smallest_side(model.blocks)):
        height, width = data.image_size
        yield (
            ("model", "blocks"),
            f"their pools leave nothing of {height} x {width} pixels, but of {side} x {side}. Leave out a pool",
        )


def _weights_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    model, fine_tune = recipe.model, recipe.train.fine_tune
    if model.weights is None:
        if model.freeze != "none":
            yield ("model", "freeze"), "keeps weights that nobody trained. Name them in model.weights, or leave it out"
        if fine_tune:
            yield ("train", "fine_tune"), "is for trained weights. Name them in model.weights, or leave it out"
        return
    at = ("model", "weights")
    if model.name is None:
        yield at, "is for networks by name, and the module builds this one. Load its weights in build_model"
    elif model.name in COLUMN_NETWORKS:
        yield at, f"'{model.name}' takes columns, whose ids mean something else in other data. Leave it out"
    elif model.weights == IMAGENET and model.name not in KERAS_APPLICATIONS:
        known = ", ".join(KERAS_APPLICATIONS)
        yield at, f"Keras publishes none for '{model.name}', but for {known}. Name one of them, or a file of weights"
    if recipe.train.warm_start:
        yield ("train", "warm_start"), "begins with the champion's weights, and model.weights with others. Name one"
    if fine_tune and model.freeze != "none":
        yield ("train", "fine_tune"), "ends with all layers learning, and model.freeze has them never learn. Name one"
    elif fine_tune and fine_tune.head_epochs >= recipe.train.epochs:
        limit = recipe.train.epochs - 1
        yield (
            ("train", "fine_tune", "head_epochs"),
            f"leave none of the {recipe.train.epochs} epochs for all layers. Give at most {limit}, or more train.epochs"
            if limit
            else "leave no epoch for all layers. Give more train.epochs, or set model.freeze: backbone",
        )


def _gap_faults(recipe: Recipe, at: Location, feature: str, metric: str) -> Iterator[tuple[Location, str]]:
    if feature not in recipe.evaluate.slices:
        near = did_you_mean(feature, recipe.evaluate.slices)
        yield at, f"'{feature}' is not in evaluate.slices.{near} Name the feature there"
    if metric not in METRIC_SPECS:
        yield at, f"'{metric}' is the module's, and a gap is of Trainyard's metrics. Leave it out"


def _augment_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    data, options, at = recipe.data, recipe.train.augment, ("train", "augment")
    for name in ("saturation", "hue"):
        if getattr(options, name) and data.channels == 1:
            yield (*at, name), "is of colors, and data.channels: 1 reads gray images. Leave it out"
    for name in ("mixup", "cutmix"):
        if not getattr(options, name):
            continue
        if recipe.task != "classification" or not data.is_image:
            yield (*at, name), "mixes images of two classes: it is for the classification of images. Leave it out"


def _resizing_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    stages, data, name = recipe.train.progressive_resizing, recipe.data, recipe.model.name
    at = ("train", "progressive_resizing")
    if not stages:
        return
    if not data.is_image:
        yield at, "is of images, and the data are columns. Leave it out"
        return
    if (epochs := sum(stage.epochs for stage in stages)) >= recipe.train.epochs:
        yield at, f"takes {epochs} of train.epochs: {recipe.train.epochs}; the last must have the size of the data"
    if name is not None and name not in ANY_SIZE:
        yield at, f"'{name}' takes images of one size only. Leave it out, or name one of {', '.join(ANY_SIZE)}"
        return
    for number, stage in enumerate(stages):
        if data.image_size and stage.size >= min(data.image_size):
            yield (*at, number, "size"), f"{stage.size} is no less than data.image_size: {min(data.image_size)}"
        elif name is not None and stage.size < MINIMUM_SIDE[name]:
            yield (*at, number, "size"), f"'{name}' takes images of at least {MINIMUM_SIDE[name]} pixels"


def _threshold_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    if recipe.threshold is None or recipe.train.result == "folder":
        return
    if recipe.task == "regression":
        yield ("threshold",), "is of the probability of a class, and a regression has no classes. Leave it out"
    elif recipe.task == "classification" and recipe.threshold.class_name is None:
        yield (
            ("threshold", "class"),
            "is required for a classification, where one class is predicted by the threshold. Name the class",
        )


def _drift_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    """Yield the bounds that no value of their feature would be compared with."""
    features = {**recipe.data.inputs, **recipe.data.features}
    targets = recipe.data.labels if recipe.task == "regression" else [LABEL]  # their names in the statistics
    for name, bounds in recipe.drift.features.items():
        at = ("drift", "features", name)
        is_label = name in targets and name not in features
        if not is_label and name not in features and name in (LABEL, *recipe.data.labels):
            is_of = "a regression has no classes" if recipe.task == "regression" else "names the column of the classes"
            yield at, f"{is_of}. Write {' or '.join(targets[:3])}"
            continue
        if not recipe.data.is_image and not is_label and name not in features:
            yield (
                at,
                f"is no feature.{did_you_mean(name, [*features, *targets])} Name a feature, or {targets[0]} for "
                + ("the target" if recipe.task == "regression" else "the classes"),
            )
            continue
        is_number = recipe.task == "regression" if is_label else name in features and features[name].type == "numeric"
        if bounds.max_mean_shift is not None and not is_number and (is_label or name in features):
            is_date = not is_label and features[name].type == "date"
            why = "a date has none, because its days are compared as categories" if is_date else "categories have none"
            yield (*at, "max_mean_shift"), f"is of means, and {why}. Use max_frequency_change"
        if bounds.max_frequency_change is not None and is_number:
            yield (*at, "max_frequency_change"), "is of categories, and a number has none. Use max_mean_shift"


def _ratio_faults(gate: Gate, targets: list[str]) -> Iterator[str]:
    """Yield the faults of a gate whose metric has a best value."""
    spec = next((spec for name, spec in METRIC_SPECS.items() if name == gate.metric), None)
    if spec is None or spec.best is None:
        return
    if gate.min_difference is not None or gate.max_difference is not None:
        yield f"'{gate.metric}' is best at {spec.best:g}, so a difference says nothing. Give min or max"
    if targets and gate.target is None:
        yield f"'{gate.metric}' is of one target, because a mean over several hides them. Name it in target"


def _gate_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    allowed, targets = METRICS[recipe.task], recipe.data.targets
    if recipe.train.result == "folder":
        return
    if recipe.evaluate.time_to and (recipe.task != "classification" or recipe.train.command):
        why = f"a {recipe.task} has none" if recipe.task != "classification" else "train.command keeps its own time"
        yield ("evaluate", "time_to"), f"is the time to an accuracy, and {why}. Leave it out"
    for index, gate in enumerate(recipe.evaluate.gates):
        at = ("evaluate", "gates", index)
        if gate.metric not in METRIC_SPECS and recipe.module:
            if gate.class_name is not None or gate.target is not None:
                part = "class" if gate.class_name is not None else "target"
                near = did_you_mean(gate.metric, METRIC_SPECS)
                why = f"'{gate.metric}' is the module's, which gets all labels and outputs"
                yield (*at, part), f"{why}.{near} Leave {part} out"
        elif gate.metric not in METRIC_SPECS:
            known = f"{did_you_mean(gate.metric, METRIC_SPECS)} Known: {', '.join(METRIC_SPECS)}"
            yield (*at, "metric"), f"no such metric '{gate.metric}'.{known}"
        elif gate.class_name is not None:
            if recipe.task == "regression":
                yield (*at, "class"), "a regression has no classes. Leave it out"
            elif gate.metric not in CLASS_METRICS:
                yield (*at, "metric"), f"'{gate.metric}' is over all classes. One class has {', '.join(CLASS_METRICS)}"
        elif gate.metric not in allowed and gate.metric in CLASS_METRICS and recipe.task != "regression":
            yield (*at, "metric"), f"'{gate.metric}' is of one class. Name it in class"
        elif gate.metric not in allowed:
            yield (*at, "metric"), f"'{gate.metric}' is no metric of a {recipe.task}. Known: {', '.join(allowed)}"
        is_custom, resamples = gate.metric not in METRIC_SPECS, recipe.evaluate.bootstrap
        needed = math.ceil(2 / (1 - (gate.confidence or 0)) - 1e-6)
        if gate.confidence is not None and (min(resamples, MODULE_RESAMPLES) if is_custom else resamples) < needed:
            has = f"evaluate.bootstrap is {resamples:,}. Raise that"
            if is_custom and resamples >= MODULE_RESAMPLES:
                has = f"a metric of the module has {MODULE_RESAMPLES} at most. Lower it"
            yield (*at, "confidence"), f"{gate.confidence:g} needs {needed:,} resamples, and {has}"
        yield from ((at, fault) for fault in _ratio_faults(gate, targets))
        if gate.against == "boosted" and recipe.model.name == TREES:
            yield (*at, "against"), "the model is boosted trees itself. Compare with the champion or the baseline"
        elif gate.against == "boosted" and (recipe.data.is_image or not recipe.evaluate.boosted):
            yield (
                (*at, "against"),
                "boosted trees are grown for tables with evaluate.boosted. Leave it out",
            )
        constant = BASELINE_METRICS[recipe.task] if gate.class_name is None else BASELINE_CLASS_METRICS
        if gate.against == "baseline" and gate.metric not in constant:
            part = "" if gate.class_name is None else " of a class"
            yield (*at, "against"), f"one answer to every example has {' and '.join(constant)}{part} alone. Take that"
        if gate.target is not None and gate.target not in targets:
            yield (
                (*at, "target"),
                f"'{gate.target}' is not in data.targets.{did_you_mean(gate.target, targets)} Name one, or leave it "
                "out",
            )
        if (feature := gate.largest_gap_between) is not None:
            yield from _gap_faults(recipe, (*at, "largest_gap_between"), feature, gate.metric)
        sliced = [f"{name}=" for name in recipe.evaluate.slices]
        if gate.slice is not None and not gate.slice.startswith(tuple(sliced)):
            yield (
                (*at, "slice"),
                f"'{gate.slice}' is of no feature of evaluate.slices. Write feature=value, and name the feature there",
            )
