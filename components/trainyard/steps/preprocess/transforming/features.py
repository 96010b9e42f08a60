"""The transform of the raw features, as a graph: the recipe's own `preprocessing_fn`, or this one by type of column."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
import tensorflow_transform as tft

from trainyard.contract.artifacts.preprocess import Column, ImageShape, Unknown
from trainyard.data.formulas import computed
from trainyard.data.images import decode_image
from trainyard.spec.feature_names import date_names
from trainyard.spec.recipe import Data
from trainyard.spec.tables.columns import Category, Date, Numeric, Text
from trainyard.steps.preprocess.transforming.calendar import HOURS, MONTHS, WEEKDAYS, Calendar
from trainyard.steps.preprocess.transforming.learned import Learned, read_back
from trainyard.steps.preprocess.transforming.words import NO_WORD, word_ids

Tensors = dict[str, tf.Tensor]
MISSING = "[missing]"


def raw_spec(data: Data) -> dict[str, tf.io.FixedLenFeature]:
    """Return the parsing specification of the raw features, each a scalar: what the serving signature takes."""
    if data.is_image:
        return {"image": tf.io.FixedLenFeature((), tf.string)}
    return {
        name: tf.io.FixedLenFeature((), tf.float32 if isinstance(feature, Numeric) else tf.string)
        for name, feature in data.inputs.items()
    }


def with_computed(preprocess: Callable[[Tensors], Tensors], data: Data) -> Callable[[Tensors], Tensors]:
    """Return the transform that `preprocess` makes of the raw features and of the columns that are computed of them."""
    derive = data.derived_features
    return (lambda inputs: preprocess(inputs | computed(inputs, derive))) if derive else preprocess


def image_preprocessing(shape: ImageShape) -> Callable[[Tensors], Tensors]:
    """Return the transform of images: from (n,) strings to float32 (n, height, width, channels) in 0..255."""

    def preprocessing_fn(inputs: Tensors) -> Tensors:
        signature = tf.TensorSpec((shape.height, shape.width, shape.channels), tf.float32)
        return {
            "image": tf.map_fn(
                lambda encoded: decode_image(encoded, shape), inputs["image"], fn_output_signature=signature
            )
        }

    return preprocessing_fn


def column_preprocessing(data: Data) -> Callable[[Tensors], Tensors]:
    """Return the transform of named columns, each by its type in the recipe. What it learns, it learns from train."""

    def preprocessing_fn(inputs: Tensors) -> Tensors:
        dates = {name: Calendar(inputs[name]) for name, feature in data.features.items() if isinstance(feature, Date)}
        numbers = {
            name: _signed_log(inputs[name]) if _is_log(feature) else inputs[name]
            for name, feature in data.features.items()
            if isinstance(feature, Numeric)
        }
        learned = Learned({**numbers, **{name: calendar.days for name, calendar in dates.items()}})
        outputs: Tensors = {}
        for name, feature in data.features.items():
            if isinstance(feature, Numeric):
                outputs[name] = _numeric(name, feature, learned)
            elif isinstance(feature, Category):
                outputs[name] = _category(inputs[name], feature, _vocabulary_name(name, data))
            elif isinstance(feature, Text):
                outputs[name] = word_ids(inputs[name], feature, _vocabulary_name(name, data))
            else:
                days, *parts = date_names(name, hour=feature.hour)
                outputs |= {days: _zscore(name, learned.filled(name, "mean"), learned)}
                ids = (dates[name].month, dates[name].weekday, dates[name].hour)
                outputs |= dict(zip(parts, ids, strict=False))
        return outputs

    return preprocessing_fn


def fillers(data: Data) -> dict[str, int]:
    """Return the id that fills up a row, by feature of several ids."""
    return {name: NO_WORD for name, feature in data.features.items() if isinstance(feature, Text)}


def known_sizes(data: Data, columns: dict[str, Column]) -> dict[str, int]:
    """Return the number of different ids of the features of which tf.Transform does not say it.

    columns: what `learned_columns` gave.
    """
    sizes: dict[str, int] = {}
    for name, filler in fillers(data).items():
        if unknown := columns[name].unknown if name in columns else None:
            sizes[name] = filler + 1 + unknown.first_id + unknown.buckets
    for name, feature in data.features.items():
        if isinstance(feature, Numeric) and feature.scale == "buckets":
            sizes[name] = feature.buckets
        elif isinstance(feature, Date):
            _, *parts = date_names(name, hour=feature.hour)
            sizes |= dict(zip(parts, (MONTHS, WEEKDAYS, HOURS), strict=False))
    return sizes


def learned_columns(data: Data, saved_model: Path) -> dict[str, Column]:
    """Return the learned settings of each column in the transform graph of `column_preprocessing`."""
    numbers = read_back(saved_model)
    return {
        name: _learned_vocabulary(saved_model / "assets" / _vocabulary_name(name, data), feature)
        if isinstance(feature, Category | Text)
        else Column(log=_is_log(feature) or None, **numbers[name])
        for name, feature in data.features.items()
    }


def _learned_vocabulary(vocabulary: Path, feature: Category | Text) -> Column:
    unknown = Unknown(buckets=feature.oov_buckets, first_id=vocabulary.read_bytes().count(b"\n"))
    missing = MISSING if isinstance(feature, Category) else None
    return Column(vocabulary=vocabulary.name, missing=missing, unknown=unknown)


def _numeric(name: str, feature: Numeric, learned: Learned) -> tf.Tensor:
    """Impute, then scale by what the known values say."""
    impute = feature.impute
    if _is_log(feature) and not isinstance(impute, str):
        impute = math.copysign(math.log1p(abs(impute)), impute)
    filled = learned.filled(name, impute)
    if feature.scale in ("zscore", "log"):
        return _zscore(name, filled, learned)
    if feature.scale == "minmax":
        low, high = learned.range(name)
        return tf.cast(tf.math.divide_no_nan(filled - low, high - low), tf.float32)
    if feature.scale == "buckets":
        return tft.apply_buckets(tf.cast(filled, tf.float32), learned.boundaries(name, feature.buckets)[tf.newaxis])
    return tf.cast(filled, tf.float32)


def _signed_log(values: tf.Tensor) -> tf.Tensor:
    """Return sign(x) log(1 + |x|) of `values` (n,) in float64; what is missing (NaN) stays so."""
    exact = tf.cast(values, tf.float64)
    return tf.math.sign(exact) * tf.math.log1p(tf.math.abs(exact))


def _is_log(feature: Numeric | Date) -> bool:
    return isinstance(feature, Numeric) and feature.scale == "log"


def _zscore(name: str, filled: tf.Tensor, learned: Learned) -> tf.Tensor:
    """Return (filled - mean) / standard deviation as float32; a constant column becomes zeros."""
    scaled = tf.math.divide_no_nan(filled - learned.mean(name), learned.standard_deviation(name))
    return tf.cast(scaled, tf.float32)


def _category(values: tf.Tensor, feature: Category, vocabulary: str) -> tf.Tensor:
    named = tf.where(tf.equal(values, ""), tf.constant(MISSING), values)
    return tft.compute_and_apply_vocabulary(
        named,
        top_k=feature.vocabulary_size,
        frequency_threshold=feature.min_count,
        num_oov_buckets=feature.oov_buckets,
        vocab_filename=vocabulary,
    )


def _vocabulary_name(name: str, data: Data) -> str:
    """Return a file name for the vocabulary of the column `name`, whatever characters that has.

    The order in which a recipe names its features is not in it: keys do not change with that either.
    """
    return f"vocabulary_{sorted(data.features).index(name)}_{re.sub(r'[^A-Za-z0-9]', '_', name)}"
