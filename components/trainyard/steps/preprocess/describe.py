"""Writes what says what the shards hold: the document, the schema, the labels, statistics and quarantine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import tensorflow as tf
import tensorflow_transform as tft
from google.protobuf import text_format
from tensorflow_transform.tf_metadata import schema_utils

from trainyard import events
from trainyard.contract.artifacts.preprocess import (
    Column,
    ComputedFeature,
    Examples,
    Feature,
    ImageShape,
    RawFeature,
    SplitFiles,
)
from trainyard.contract.document import SPLITS, Split
from trainyard.errors import ConfigurationError
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess import quality
from trainyard.steps.preprocess.collect import Collected
from trainyard.steps.preprocess.shards import shard_name
from trainyard.steps.preprocess.transforming.features import fillers, known_sizes
from trainyard.steps.preprocess.transforming.transform import TransformSettings
from trainyard.steps.preprocess.transforming.vocabularies import NO_VALUES


def write_description(
    recipe: Recipe,
    collected: Collected,
    settings: TransformSettings,
    image: ImageShape | None,
    columns: dict[str, Column],
    output: Path,
) -> None:
    """Write examples.json, schema.pbtxt, labels.txt, statistics.json and quarantine.jsonl into `output`.

    columns: what the transform learned, by raw feature, if it is that by type of column.
    """
    labels = list(settings.label_ids) if settings.label_ids is not None else None
    warnings, weight = quality.warnings(collected, recipe.data) + _without_words(columns, output), recipe.data.weight
    train, evaluated = (collected.splits[split].target_moments for split in ("train", "eval"))
    document = Examples(
        task=recipe.task,
        label=", ".join(recipe.data.labels),
        targets=recipe.data.targets,
        target_moments=train.get("none", []),
        target_log_moments={scale: train[scale] for scale in ("log", "log1p") if scale in train and scale in evaluated},
        eval_target_moments=evaluated.get("none", []),
        labels=labels,
        splits={split: _split_files(split, collected, settings, labels) for split in SPLITS},
        features=_features(recipe, settings, columns, output),
        raw_features=[
            RawFeature(name=name, dtype=spec.dtype.name, learned=columns.get(name))
            for name, spec in settings.raw_spec.items()
        ],
        computed_features=[
            ComputedFeature(name=name, formula=formula, learned=columns.get(name))
            for name, formula in recipe.data.derived_features.items()
        ],
        mean_weight=float(collected.splits["train"].statistics[weight]["mean"]) if weight else None,
        image=image,
        quarantined=len(collected.bad),
        unselected=collected.unselected,
        quarantine=dict(sorted(Counter(item.reason for item in collected.bad).items())),
        warnings=warnings,
        fingerprint=quality.fingerprint(collected),
        window=collected.window,
    )
    document.write(output)
    for warning in warnings:
        events.warn(warning)
    (output / "labels.txt").write_text("".join(f"{label}\n" for label in labels or []), encoding="utf-8")
    schema = schema_utils.schema_from_feature_spec(settings.raw_spec)
    (output / "schema.pbtxt").write_text(text_format.MessageToString(schema), encoding="utf-8")
    quality.write_statistics(collected, recipe.data.time_zone, output)
    bad = [{"source": item.key, "reason": item.reason, "detail": item.detail} for item in collected.bad]
    lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in bad)
    (output / "quarantine.jsonl").write_text(lines, encoding="utf-8")


def _without_words(columns: dict[str, Column], output: Path) -> list[str]:
    """Return a sentence for each column whose vocabulary is empty: the model can tell none of its values apart."""
    assets = output / "transform" / "transform_fn" / "assets"
    vocabularies = {name: assets / column.vocabulary for name, column in columns.items() if column.vocabulary}
    return [
        f"'{name}': no value or word occurs as often as min_count asks, so the model learns nothing of it. Lower "
        "min_count, or leave the column out."
        for name, path in vocabularies.items()
        if path.read_text(encoding="utf-8").strip() in ("", NO_VALUES)
    ]


def _split_files(
    split: Split, collected: Collected, settings: TransformSettings, labels: list[str] | None
) -> SplitFiles:
    summary, layout = collected.splits[split], settings.layouts[split]
    return SplitFiles(
        examples=summary.examples,
        files=[f"examples/{shard_name(split, index, layout.shards)}" for index in range(layout.shards)],
        shard_examples=layout.examples,
        class_counts=[summary.labels[label] for label in labels] if labels is not None else None,
        class_weights=[summary.label_weights[label] for label in labels] if labels and settings.weight else None,
    )


def _features(recipe: Recipe, settings: TransformSettings, columns: dict[str, Column], output: Path) -> list[Feature]:
    """Return the features of the transform graph, by name."""
    transformed = tft.TFTransformOutput(str(output / "transform"))
    domains = {feature.name: feature.int_domain for feature in transformed.transformed_metadata.schema.feature}
    sizes, filled = known_sizes(recipe.data, columns), fillers(recipe.data) if columns else {}
    missing_of = {column.indicator: name for name, column in columns.items()}
    features = []
    for name, spec in sorted(transformed.transformed_feature_spec().items()):
        learned = domains[name].max + 1 if domains[name].is_categorical else None
        size = sizes.get(name, learned)
        if spec.dtype == tf.int64 and size is None:
            raise ConfigurationError(
                f"module: {recipe.module}: preprocessing_fn: the output '{name}' is int64 of unknown range. Ids come "
                "from tft.compute_and_apply_vocabulary or tft.bucketize. Use these, or cast it to float32."
            )
        features.append(
            Feature(
                name=name,
                dtype=spec.dtype.name,
                shape=tuple(spec.shape),
                vocabulary_size=size if spec.dtype == tf.int64 else None,
                encoded=not settings.materialize,
                filler=filled.get(name),
                missing_of=missing_of.get(name),
                pixels=not settings.materialize and recipe.data.stored == "raw",
            )
        )
    return features
