"""Learned constants of numeric columns, with few analyzers for any number of columns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf
import tensorflow_transform as tft

_SCOPE = "learned"
_EPSILON = 0.0001  # chosen: rank error of the quantiles, as a share of the examples
_ROUNDING = 1e-9  # chosen: of a mean, far above what sums in float64 lose, and below what float32 tells apart
_NAMED = re.compile(rf"(?:.*/)?{_SCOPE}/([0-9a-f]+)/(\w+)")


def read_back(saved_model: Path) -> dict[str, dict[str, Any]]:
    """Return by column what the transform graph `saved_model` computes with: numbers and lists of them, by name."""
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
        for (column, what), value in zip(learned.values(), session.run(list(learned), feeds), strict=True):
            columns.setdefault(bytes.fromhex(column).decode(), {})[what] = value.tolist()
    return columns


def clipped(column: str, values: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Return the `values` of the column within low..high, in float64; missing ones (NaN) stay."""
    exact = tf.cast(values, tf.float64)
    lowest, highest = (
        tf.identity(tf.constant(limit, tf.float64), name=_name(column, what))
        for what, limit in (("clip_low", low), ("clip_high", high))
    )
    exact = tf.where(exact < lowest, lowest, exact)
    return tf.where(exact > highest, highest, exact)


def _name(column: str, what: str) -> str:
    return f"{_SCOPE}/{column.encode().hex()}/{what}"


class Learned:
    """Statistics of columns (n,) by name, missing values (NaN) left out; all in float64, since magnitudes differ.

    Columns are analysed as one matrix: an analyzer costs tf.Transform 0.2 s whatever its width (measured), so one a
    column made 30 columns take 25 s.
    """

    def __init__(self, columns: dict[str, tf.Tensor]) -> None:
        self._names = list(columns)
        self._by_buckets: dict[int, tf.Tensor] = {}
        self._known: dict[str, tf.Tensor] = {}
        self._columns = {name: tf.cast(values, tf.float64) for name, values in columns.items()}

    def filled(self, name: str, impute: Literal["mean", "median"] | float) -> tf.Tensor:
        """Return the column with its mean, its median or a number if it is missing.

        Of an even number of values the median is one of the middle two.
        """
        index, column = self._names.index(name), self._columns[name]
        if impute == "mean":
            value = self._means[index]
        elif impute == "median":
            value = tf.cast(self._quantiles(2)[index, 0], tf.float64)
        else:
            value = tf.constant(impute, tf.float64)
        return tf.where(tf.math.is_finite(column), column, self._named(name, "imputed", lambda: value))

    def mean(self, name: str) -> tf.Tensor:
        """Return the mean, a scalar."""
        return self._named(name, "mean", lambda: self._means[self._names.index(name)])

    def standard_deviation(self, name: str) -> tf.Tensor:
        """Return the standard deviation of the population, a scalar; 0 if it is no more than a rounding error."""
        deviation = tf.sqrt(self._variances[self._names.index(name)])
        known = deviation > _ROUNDING * tf.math.abs(self.mean(name))
        return self._named(name, "standard_deviation", lambda: tf.where(known, deviation, tf.zeros_like(deviation)))

    def range(self, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the least and the largest value, scalars."""
        index = self._names.index(name)
        low = self._named(name, "low", lambda: -self._extremes[index, 0])
        return low, self._named(name, "high", lambda: self._extremes[index, 1])

    def boundaries(self, name: str, buckets: int) -> tf.Tensor:
        """Return the boundaries of `buckets` buckets of equal size: float32 (buckets - 1,)."""
        return self._named(name, "boundaries", lambda: self._quantiles(buckets)[self._names.index(name)])

    def _named(self, name: str, what: str, value: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Return value(), made once, under the name in the graph by which `read_back` finds it."""
        key = _name(name, what)
        if key not in self._known:
            self._known[key] = tf.identity(value(), name=key)
        return self._known[key]

    def _quantiles(self, buckets: int) -> tf.Tensor:
        if buckets not in self._by_buckets:
            self._by_buckets[buckets] = tft.quantiles(self._matrix, buckets, _EPSILON, reduce_instance_dims=False)
        return self._by_buckets[buckets]

    @cached_property
    def _matrix(self) -> tf.Tensor:
        return tf.stack(list(self._columns.values()), axis=1)

    @cached_property
    def _means(self) -> tf.Tensor:
        return tft.mean(self._matrix, reduce_instance_dims=False)

    @cached_property
    def _variances(self) -> tf.Tensor:
        return tft.var(self._matrix, reduce_instance_dims=False)

    @cached_property
    def _extremes(self) -> tf.Tensor:
        both = tf.stack([-self._matrix, self._matrix], axis=2)
        lowest = tf.constant(-math.inf, tf.float64)
        return tft.max(tf.where(tf.math.is_finite(both), both, lowest), reduce_instance_dims=False)
