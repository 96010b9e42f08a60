"""The transform of the raw features, as a graph: the recipe's own `preprocessing_fn`, or this one by type of column."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf
import tensorflow_transform as tft

from trainyard.contract.artifacts.preprocess import WEIGHT, Column, ImageShape, Unknown
from trainyard.data.formulas import computed
from trainyard.data.images import decode_image
from trainyard.data.values import day_text, days_since_1970
from trainyard.spec.columns import Category, Date, Numeric, Text, date_names, indicator_name
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.statistics import Limits
from trainyard.steps.preprocess.transforming.vocabularies import MISSING, vocabulary_names, words
from trainyard.values.patterns import DATE, TIME_OF_DAY

Tensors = dict[str, tf.Tensor]
_NO_WORD = 0  # the id that fills up a row of fewer words
_MONTHS, _WEEKDAYS, _HOURS = 13, 8, 25  # id 0 stands for a missing date or time
_TIME = ".{10}" + TIME_OF_DAY
_SCOPE = "learned"  # of the constants, in the graph
_EPSILON = 0.0001  # chosen: rank error of the quantiles, as a share of the examples
_ROUNDING = 1e-9  # chosen: of a mean, far above what sums in float64 lose, and below what float32 tells apart
_NAMED = re.compile(rf"(?:.*/)?{_SCOPE}/(?:([0-9a-f]+)/)?(\w+)")
_Impute = Literal["mean", "median"] | float


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


def without_weight(inputs: Tensors) -> Tensors:
    """Return the raw features alone, without the sample weights that the analysis gets with them."""
    return {name: values for name, values in inputs.items() if name != WEIGHT}


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


def column_preprocessing(
    data: Data, clips: Limits, indicators: Collection[str], folder: Path
) -> Callable[[Tensors], Tensors]:
    """Return the transform of named columns, each by its type in the recipe. What it learns, it learns from train.

    Numbers count by the sample weights if the inputs have `WEIGHT`, categories and words by rows. clips: the limits of
    those with `clip`. indicators: the numbers with a feature that tells which are missing. folder: where
    `write_vocabularies` wrote.
    """

    def preprocessing_fn(inputs: Tensors) -> Tensors:
        dates = {name: Calendar(inputs[name]) for name, feature in data.features.items() if isinstance(feature, Date)}
        numbers = {name: inputs[name] for name, feature in data.features.items() if isinstance(feature, Numeric)}
        days = {name: calendar.days for name, calendar in dates.items()}
        numbers |= {name: _clipped(name, numbers[name], *clips[name]) for name in numbers if name in clips}
        days |= {name: _clipped(name, days[name], *clips[name]) for name in days if name in clips}
        numbers = {
            name: _signed_log(values) if _is_log(data.features[name]) else values for name, values in numbers.items()
        }
        learned = _Learned({**numbers, **days}, inputs.get(WEIGHT))
        zscores = learned.zscores(_zscored(data))
        vocabularies = vocabulary_names(data)
        outputs: Tensors = {}
        for name, feature in data.features.items():
            if isinstance(feature, Numeric):
                outputs[name] = zscores[name] if name in zscores else _numeric(name, feature, learned)
                if name in indicators:
                    known = tf.math.is_finite(inputs[name])
                    outputs[indicator_name(name)] = tf.where(known, tf.zeros_like(inputs[name]), 1.0)
            elif isinstance(feature, Category):
                outputs[name] = _category(inputs[name], feature, folder / vocabularies[name])
            elif isinstance(feature, Text):
                outputs[name] = _word_ids(inputs[name], feature, folder / vocabularies[name])
            else:
                since_1970, *parts = date_names(name, hour=feature.hour)
                outputs[since_1970] = zscores[name]
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


def learned_columns(data: Data, saved_model: Path, indicators: Collection[str]) -> dict[str, Column]:
    """Return the learned settings of each column in the transform graph of `column_preprocessing`."""
    vocabularies = vocabulary_names(data)
    has_numbers = any(isinstance(feature, Numeric | Date) for feature in data.features.values())
    # Measured: to load the graph takes 0.05 CPU seconds a category.
    numbers = _read_back(saved_model, list(_zscored(data))) if has_numbers else {}
    return {
        name: _learned_vocabulary(saved_model / "assets" / vocabularies[name], feature)
        if isinstance(feature, Category | Text)
        else Column(
            log=_is_log(feature) or None,
            indicator=indicator_name(name) if name in indicators else None,
            **numbers[name],
        )
        for name, feature in data.features.items()
    }


def _learned_vocabulary(vocabulary: Path, feature: Category | Text) -> Column:
    unknown = Unknown(buckets=feature.oov_buckets, first_id=vocabulary.read_bytes().count(b"\n"))
    missing = MISSING if isinstance(feature, Category) else None
    return Column(vocabulary=vocabulary.name, missing=missing, unknown=unknown)


def _zscored(data: Data) -> dict[str, _Impute]:
    """Return the columns that are scaled by mean and deviation, and what each has for missing values."""
    return {
        name: "mean" if isinstance(feature, Date) else _imputed(feature)
        for name, feature in data.features.items()
        if isinstance(feature, Date) or (isinstance(feature, Numeric) and feature.scale in ("zscore", "log"))
    }


def _imputed(feature: Numeric) -> _Impute:
    """Return the number for missing values of a z-score, on the scale on which it is learned."""
    impute = feature.impute
    if isinstance(impute, str) or not _is_log(feature):
        return impute
    return math.copysign(math.log1p(abs(impute)), impute)


def _numeric(name: str, feature: Numeric, learned: _Learned) -> tf.Tensor:
    """Impute, then scale by what the known values say."""
    filled = learned.filled(name, feature.impute)
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


def _category(values: tf.Tensor, feature: Category, vocabulary: Path) -> tf.Tensor:
    named = tf.where(tf.equal(values, ""), tf.constant(MISSING), values)
    return _ids(named, feature, vocabulary)


def _word_ids(texts: tf.Tensor, feature: Text, vocabulary: Path) -> tf.Tensor:
    """Return the ids (n, feature.words) int64 of the first words of `texts` (n,): 1 + that of the vocabulary's file."""
    ids = _ids(words(texts, feature).to_sparse(), feature, vocabulary)
    return tf.sparse.to_dense(
        tf.SparseTensor(ids.indices, ids.values + 1, [tf.shape(texts, tf.int64)[0], feature.words]), _NO_WORD
    )


def _ids(values: Any, feature: Category | Text, vocabulary: Path) -> Any:
    tft.annotate_asset(vocabulary.name, vocabulary.name)
    return tft.apply_vocabulary(values, str(vocabulary), num_oov_buckets=feature.oov_buckets)


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


def _read_back(saved_model: Path, zscored: list[str]) -> dict[str, dict[str, Any]]:
    """Return by column what the transform graph `saved_model` computes with: numbers and lists of them, by name.

    zscored: the columns whose statistics are in one vector.
    """
    function = tf.saved_model.load(str(saved_model)).transform_fn
    constants = function.captured_inputs
    inputs = function.inputs[len(function.inputs) - len(constants) :]
    feeds = {
        tensor.name: constant.numpy()
        for tensor, constant in zip(inputs, constants, strict=True)
        if constant.dtype != tf.resource
    }
    matches = {
        name: re.fullmatch(_NAMED, name) for name in (operation.name for operation in function.graph.get_operations())
    }
    learned = {f"{name}:0": match.groups() for name, match in matches.items() if match}
    columns: dict[str, dict[str, Any]] = {}
    with tf.compat.v1.Session(graph=function.graph) as session:
        for (column, statistic), value in zip(learned.values(), session.run(list(learned), feeds), strict=True):
            names, values = ([bytes.fromhex(column).decode()], [value]) if column else (zscored, value)
            for name, learned_value in zip(names, values, strict=True):
                columns.setdefault(name, {})[statistic] = learned_value.tolist()
    return columns


def _clipped(column: str, values: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Return the `values` of the column within low..high, in float64; missing ones (NaN) stay."""
    exact = tf.cast(values, tf.float64)
    lowest, highest = (
        tf.identity(tf.constant(limit, tf.float64), name=_node_name(column, statistic))
        for statistic, limit in (("clip_low", low), ("clip_high", high))
    )
    exact = tf.where(exact < lowest, lowest, exact)
    return tf.where(exact > highest, highest, exact)


def _node_name(column: str, statistic: str) -> str:
    return f"{_SCOPE}/{column.encode().hex()}/{statistic}"


class _Learned:
    """Statistics of columns (n,) by name, missing values (NaN) left out; all in float64, since magnitudes differ.

    weights: (n,) float32, all above 0, by which the rows count. Columns are analysed as one matrix: an analyzer costs
    tf.Transform 0.2 s whatever its width (measured), so one a column made 30 columns take 25 s. Columns that become
    z-scores are scaled as one matrix too: each operation is traced six times.
    """

    def __init__(self, columns: dict[str, tf.Tensor], weights: tf.Tensor | None) -> None:
        self._index, self._weights = {name: index for index, name in enumerate(columns)}, weights
        self._by_buckets: dict[int, tf.Tensor] = {}
        self._known: dict[str, tf.Tensor] = {}
        self._columns = columns

    def zscores(self, imputes: dict[str, _Impute]) -> Tensors:
        """Return (value - mean) / standard deviation of columns as float32; a constant column becomes zeros.

        imputes: what each column has for missing values, as `filled`. The deviation is that of the population, 0 if it
        is no more than a rounding error.
        """
        if not imputes:
            return {}
        order, settings = [self._index[name] for name in imputes], list(imputes.values())
        values = tf.gather(self._matrix, order, axis=1)
        imputed = means = tf.identity(tf.gather(self._means, order), name=f"{_SCOPE}/mean")
        deviations = tf.sqrt(tf.gather(self._variances, order))
        known = deviations > _ROUNDING * tf.math.abs(means)
        deviations = tf.where(known, deviations, tf.zeros_like(deviations))
        if "median" in settings:
            medians = tf.cast(tf.gather(self._quantiles(2)[:, 0], order), tf.float64)
            imputed = tf.where([impute == "median" for impute in settings], medians, imputed)
        given = [not isinstance(impute, str) for impute in settings]
        if any(given):
            numbers = [0.0 if isinstance(impute, str) else impute for impute in settings]
            imputed = tf.where(given, tf.constant(numbers, tf.float64), imputed)
        imputed = tf.identity(imputed, name=f"{_SCOPE}/imputed")
        deviations = tf.identity(deviations, name=f"{_SCOPE}/standard_deviation")
        filled = tf.where(tf.math.is_finite(values), values, imputed)
        scaled = tf.cast(tf.math.divide_no_nan(filled - means, deviations), tf.float32)
        return dict(zip(imputes, tf.unstack(scaled, len(imputes), axis=1), strict=True))

    def filled(self, name: str, impute: _Impute) -> tf.Tensor:
        """Return the column with its mean, its median or a number if it is missing.

        Of an even number of values the median is one of the middle two.
        """
        index, column = self._index[name], tf.cast(self._columns[name], tf.float64)
        if impute == "mean":
            value = self._means[index]
        elif impute == "median":
            value = tf.cast(self._quantiles(2)[index, 0], tf.float64)
        else:
            value = tf.constant(impute, tf.float64)
        return tf.where(tf.math.is_finite(column), column, self._named(name, "imputed", lambda: value))

    def range(self, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the least and the largest value, scalars."""
        index = self._index[name]
        low = self._named(name, "low", lambda: -self._extremes[index, 0])
        return low, self._named(name, "high", lambda: self._extremes[index, 1])

    def boundaries(self, name: str, buckets: int) -> tf.Tensor:
        """Return the boundaries of `buckets` buckets of equal size: float32 (buckets - 1,)."""
        return self._named(name, "boundaries", lambda: self._quantiles(buckets)[self._index[name]])

    def _named(self, name: str, statistic: str, value: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Return value(), made once, under the name in the graph by which `_read_back` finds it."""
        key = _node_name(name, statistic)
        if key not in self._known:
            self._known[key] = tf.identity(value(), name=key)
        return self._known[key]

    def _quantiles(self, buckets: int) -> tf.Tensor:
        if buckets not in self._by_buckets:
            self._by_buckets[buckets] = tft.quantiles(
                self._matrix, buckets, _EPSILON, self._weights, reduce_instance_dims=False
            )
        return self._by_buckets[buckets]

    @cached_property
    def _matrix(self) -> tf.Tensor:
        columns = list(self._columns.values())
        if len({column.dtype for column in columns}) > 1:
            columns = [tf.cast(column, tf.float64) for column in columns]
        return tf.cast(tf.stack(columns, axis=1), tf.float64)

    @cached_property
    def _means(self) -> tf.Tensor:
        if self._weights is None:
            return tft.mean(self._matrix, reduce_instance_dims=False)
        return self._mean_by(self._weights, self._matrix)

    @cached_property
    def _variances(self) -> tf.Tensor:
        if self._weights is None:
            return tft.var(self._matrix, reduce_instance_dims=False)
        return self._mean_by(self._weights, tf.square(self._matrix - self._means))

    @staticmethod
    def _mean_by(weights: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        exact = tf.cast(weights, tf.float64)[:, tf.newaxis]
        both = tf.stack([exact * values, exact * tf.ones_like(values)], axis=2)
        known = tf.math.is_finite(values)[:, :, tf.newaxis]
        sums = tft.sum(tf.where(known, both, tf.zeros_like(both)), reduce_instance_dims=False)
        return tf.math.divide_no_nan(sums[:, 0], sums[:, 1])

    @cached_property
    def _extremes(self) -> tf.Tensor:
        both = tf.stack([-self._matrix, self._matrix], axis=2)
        lowest = tf.constant(-math.inf, tf.float64)
        return tft.max(tf.where(tf.math.is_finite(both), both, lowest), reduce_instance_dims=False)
