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
from trainyard.data.values import day_text, days_since_1970
from trainyard.spec.feature_names import date_names
from trainyard.spec.recipe import Data
from trainyard.spec.tables.columns import Category, Date, Numeric, Text
from trainyard.steps.preprocess.statistics.quantiles import Limits
from trainyard.steps.preprocess.transforming.learned import Learned, clipped, read_back
from trainyard.values.patterns import BETWEEN_WORDS, DATE, TIME_OF_DAY, WORD_OF_ITS_OWN

Tensors = dict[str, tf.Tensor]
MISSING = "[missing]"
_NO_WORD = 0  # the id that fills up a row of fewer words
_MONTHS, _WEEKDAYS, _HOURS = 13, 8, 25  # id 0 stands for a missing date or time
_TIME = ".{10}" + TIME_OF_DAY


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


def column_preprocessing(data: Data, clips: Limits) -> Callable[[Tensors], Tensors]:
    """Return the transform of named columns, each by its type in the recipe. What it learns, it learns from train.

    clips: the limits of those with `clip`.
    """

    def preprocessing_fn(inputs: Tensors) -> Tensors:
        dates = {name: Calendar(inputs[name]) for name, feature in data.features.items() if isinstance(feature, Date)}
        numbers = {name: inputs[name] for name, feature in data.features.items() if isinstance(feature, Numeric)}
        numbers |= {name: clipped(name, numbers[name], *limits) for name, limits in clips.items()}
        numbers = {
            name: _signed_log(values) if _is_log(data.features[name]) else values for name, values in numbers.items()
        }
        learned = Learned({**numbers, **{name: calendar.days for name, calendar in dates.items()}})
        outputs: Tensors = {}
        for name, feature in data.features.items():
            if isinstance(feature, Numeric):
                outputs[name] = _numeric(name, feature, learned)
            elif isinstance(feature, Category):
                outputs[name] = _category(inputs[name], feature, _vocabulary_name(name, data))
            elif isinstance(feature, Text):
                outputs[name] = _word_ids(inputs[name], feature, _vocabulary_name(name, data))
            else:
                days, *parts = date_names(name, hour=feature.hour)
                outputs |= {days: _zscore(name, learned.filled(name, "mean"), learned)}
                ids = (dates[name].month, dates[name].weekday, dates[name].hour)
                outputs |= dict(zip(parts, ids, strict=False))
        return outputs

    return preprocessing_fn


def fillers(data: Data) -> dict[str, int]:
    """Return the id that fills up a row, by feature of several ids."""
    return {name: _NO_WORD for name, feature in data.features.items() if isinstance(feature, Text)}


def known_sizes(data: Data, columns: dict[str, Column]) -> dict[str, int]:
    """Return the number of ids of features for which tf.Transform does not report it.

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
            sizes |= dict(zip(parts, (_MONTHS, _WEEKDAYS, _HOURS), strict=False))
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


def _is_log(feature: Numeric | Category | Date | Text) -> bool:
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


def _word_ids(texts: tf.Tensor, feature: Text, vocabulary: str) -> tf.Tensor:
    """Return the ids (n, feature.words) int64 of the first words of `texts` (n,): 1 + that of the vocabulary's file."""
    words = _plain_words(texts) if feature.separator is None else _values(texts, feature.separator)
    if feature.ngrams > 1:
        words = tf.strings.ngrams(words, [*range(1, feature.ngrams + 1)])
    ids = tft.compute_and_apply_vocabulary(
        words[:, : feature.words].to_sparse(),
        top_k=feature.vocabulary_size,
        frequency_threshold=feature.min_count,
        num_oov_buckets=feature.oov_buckets,
        vocab_filename=vocabulary,
    )
    return tf.sparse.to_dense(
        tf.SparseTensor(ids.indices, ids.values + 1, [tf.shape(texts, tf.int64)[0], feature.words]), _NO_WORD
    )


def _plain_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Return the words of each text in lower case."""
    cut = tf.strings.regex_replace(tf.strings.lower(texts, encoding="utf-8"), BETWEEN_WORDS, " ")
    return tf.strings.split(tf.strings.regex_replace(cut, WORD_OF_ITS_OWN, r" \0 "))


def _values(texts: tf.Tensor, separator: str) -> tf.RaggedTensor:
    """Split each text at the separators, without surrounding white space and empty parts."""
    cut = tf.strings.split(texts, separator)
    values = cut.with_flat_values(tf.strings.strip(cut.flat_values))
    return tf.ragged.boolean_mask(values, values.with_flat_values(tf.not_equal(values.flat_values, "")))


class Calendar:
    """A batch of dates (n,): `days` since 1970-01-01 (float64, NaN if missing), `month` 1..12, `weekday` 1..7 from
    Monday and `hour` 1..24, the first of a day is 1 (int64, 0 if missing). What is no day YYYY-MM-DD of the calendar
    counts as missing, and so does one before another text than a time.
    """

    def __init__(self, texts: tf.Tensor) -> None:
        formed = tf.strings.regex_full_match(texts, DATE)
        timed = tf.strings.regex_full_match(texts, _TIME)
        hours = _number(tf.where(timed, texts, tf.constant("1970-01-01T00")), 11, 2)
        dates = tf.strings.substr(tf.where(formed, texts, tf.constant("1970-01-01")), 0, 10)
        year, month, day = (_number(dates, start, length) for start, length in ((0, 4), (5, 2), (8, 2)))
        days = days_since_1970(year, month, day)
        written, in_range = day_text(days)
        known = formed & in_range & tf.equal(written, dates)  # 2024-02-30 is no day
        never = tf.zeros_like(hours)
        self.hour = tf.where(known, tf.where(timed, hours + 1, never), never)
        nothing = tf.zeros_like(days)
        self.days = tf.where(known, tf.cast(days, tf.float64), tf.constant(math.nan, tf.float64))
        self.month = tf.where(known, month, nothing)
        self.weekday = tf.where(known, tf.math.floormod(days + 3, 7) + 1, nothing)  # 1970-01-01 was a Thursday


def _number(texts: tf.Tensor, start: int, length: int) -> tf.Tensor:
    return tf.strings.to_number(tf.strings.substr(texts, start, length), tf.int64)
