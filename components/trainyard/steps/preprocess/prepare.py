"""From the recipe's data to examples that train, evaluate and export share."""

from __future__ import annotations

import time
from pathlib import Path

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported
from trainyard import events
from trainyard.contract.artifacts.preprocess import ImageShape
from trainyard.contract.document import SPLITS
from trainyard.contract.window import day_of
from trainyard.errors import ConfigurationError
from trainyard.spec import code, packages
from trainyard.spec.columns import indicators
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess import quality
from trainyard.steps.preprocess.attempt import Attempt, attempt_of
from trainyard.steps.preprocess.collect import Collected, collect
from trainyard.steps.preprocess.describe import write_description
from trainyard.steps.preprocess.readers.bundled import write_breast_cancer, write_digits
from trainyard.steps.preprocess.readers.files import find_files, with_listed_labels
from trainyard.steps.preprocess.readers.official import with_official
from trainyard.steps.preprocess.readers.tfds import read_dataset
from trainyard.steps.preprocess.shards import plan_layout
from trainyard.steps.preprocess.statistics import clip_limits
from trainyard.steps.preprocess.transforming.features import (
    column_preprocessing,
    image_preprocessing,
    learned_columns,
    raw_spec,
    with_computed,
    without_weight,
)
from trainyard.steps.preprocess.transforming.module import Preprocessing, label_types, load_preprocessing
from trainyard.steps.preprocess.transforming.transform import TransformSettings, transform
from trainyard.steps.preprocess.transforming.vocabularies import VOCABULARIES, write_vocabularies
from trainyard.storage import globs

_BATCH_ROWS, _BATCH_IMAGES = 1000, 64  # chosen: a batch of decoded images stays below 100 MB at 224 x 224


def prepare(recipe: Recipe, output: Path, beam_options: str, day: str) -> None:
    """Read, check, split and transform the recipe's data into `output`; the rest as `run`."""
    _require_literal(output)
    custom = load_preprocessing(recipe.module, code.files(recipe), packages.wheels(recipe)) if recipe.module else None
    if custom is not None and recipe.data.stored == "raw":
        raise ConfigurationError(
            "data.store: raw leaves the module's preprocessing_fn no encoded images. Use original or training_size."
        )
    indicated = [
        name for name, feature in recipe.data.features.items() if feature.type == "numeric" and feature.indicator
    ]
    if custom is not None and indicated:
        raise ConfigurationError(
            f"data.features.{indicated[0]}.indicator: the module's preprocessing_fn makes the features, and gets NaN "
            "for a missing number. Leave indicator out, and return such a feature there."
        )
    with attempt_of(recipe, output, beam_options) as attempt:
        _preprocess(recipe, custom, output, attempt, day_of(day, recipe.data))


def _preprocess(recipe: Recipe, custom: Preprocessing | None, output: Path, attempt: Attempt, day: str) -> None:
    start = time.monotonic()
    collected = quality.without_rare_classes(_collect(recipe, attempt, day), recipe.data.label_min_count)
    collected_at = time.monotonic()
    quality.require_usable(collected, recipe)
    quality.require_fitting(collected.conformity, recipe.data)
    image = _image_shape(collected, recipe)
    labels = quality.class_names(collected) if recipe.task != "regression" else None
    by_column = custom is None and image is None
    clips = clip_limits(recipe.data, collected.parts) if by_column else {}
    indicated = _indicators(collected, recipe) if by_column else []
    vocabularies = attempt.folder / VOCABULARIES
    if by_column:
        counted = attempt.work.below("counts")
        write_vocabularies(recipe.data, collected.parts, counted, attempt.beam_options, collected.bytes, vocabularies)
    default = image_preprocessing(image) if image else column_preprocessing(recipe.data, clips, indicated, vocabularies)
    types = label_types(recipe.data, labels)
    own = (lambda inputs: custom(without_weight(inputs), types)) if custom else None
    settings = TransformSettings(
        parts=collected.parts,
        raw_spec=raw_spec(recipe.data),
        preprocessing_fn=with_computed(own or default, recipe.data),
        materialize=custom is not None or image is None,
        rounds=custom is None,
        task=recipe.task,
        label_ids={name: index for index, name in enumerate(labels)} if labels is not None else None,
        weight=recipe.data.weight,
        layouts={split: plan_layout(collected.splits[split], recipe.data.shard_examples) for split in SPLITS},
        examples=sum(collected.splits[split].examples for split in SPLITS),
        source_bytes=collected.bytes,
        batch_size=_BATCH_IMAGES if image else _BATCH_ROWS,
        beam_options=attempt.beam_options,
    )
    shards = sum(layout.shards for layout in settings.layouts.values())
    events.emit("transforming", shards=shards, classes=len(labels or []), own_preprocessing_fn=custom is not None)
    transform(settings, collected.name, output)
    columns = learned_columns(recipe.data, output / "transform" / "transform_fn", indicated) if by_column else {}
    write_description(recipe, collected, settings, image, columns, output)
    events.emit(
        "preprocessed",
        collect_seconds=round(collected_at - start, 2),
        transform_seconds=round(time.monotonic() - collected_at, 2),
    )


def _indicators(collected: Collected, recipe: Recipe) -> list[str]:
    train = collected.splits["train"].statistics
    return indicators(recipe.data, [name for name, statistics in train.items() if statistics["missing"]])


def _require_literal(output: Path) -> None:
    if globs.literal(str(output)) != str(output):
        raise ConfigurationError(
            f"{output}: holds one of the characters * ? [, which Beam takes for a pattern in the name of what it "
            "writes. Name a storage without them."
        )


def _collect(recipe: Recipe, attempt: Attempt, day: str) -> Collected:
    path = recipe.data.path or _write_bundled(recipe, attempt)
    files = find_files(recipe.data, path, day)
    if recipe.data.split.by == "folder":
        files = with_official(files, recipe.data)
    if recipe.data.labels_file is not None:
        files = with_listed_labels(files, recipe)
    events.emit("reading", format=recipe.data.format, path=recipe.data.bundled or path, files=len(files.paths))
    dataset = read_dataset(recipe.data, files) if recipe.data.format == "tfds" else None
    collected = collect(recipe, files, dataset, attempt)
    counts = {split: collected.splits[split].examples for split in SPLITS}
    left_out = {"quarantined": len(collected.bad), "unselected": collected.unselected}
    events.emit("checked", **counts, **left_out, repeated=len(collected.repeated))
    return collected


def _write_bundled(recipe: Recipe, attempt: Attempt) -> str:
    folder = attempt.folder / "bundled"
    {"digits": write_digits, "breast_cancer": write_breast_cancer}[recipe.data.bundled or ""](folder)
    return attempt.work.shared_copy(folder)


def _image_shape(collected: Collected, recipe: Recipe) -> ImageShape | None:
    if not recipe.data.is_image:
        return None
    first = min(summary.first for summary in collected.splits.values() if summary.first)
    height, width = recipe.data.image_size or first[1:]
    return ImageShape(height=height, width=width, channels=recipe.data.channels, white_level=recipe.data.white_level)
