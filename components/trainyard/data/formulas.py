"""Computes with TensorFlow what a recipe derives from the columns of a table: in the graph that serves, too.

What is missing (NaN, or an empty text) makes a result missing, as it does in `quality.tables.formulas`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from trainyard.data.values import Tensors, canonical_tensor
from trainyard.spec.formula import BIN, COMPARISONS, MAX_BINS, Call, Cell, Constant, Node, parse


def computed(inputs: Mapping[str, tf.Tensor], derive: Mapping[str, str]) -> Tensors:
    """Return the columns (n,) that the formulas `derive` make of `inputs`, each (n,) float32 or string.

    A number is a float32, NaN where it is missing; a text or a condition (true, false) a string, empty where it is.
    """
    return {name: _column(parse(formula), inputs) for name, formula in derive.items()}


@dataclass(frozen=True)
class _Values:
    """Values and which of them are known; a value that is not known has the type of the others."""

    values: tf.Tensor
    known: tf.Tensor


def _column(node: Node, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
    value = _value(node, inputs)
    if node.kind == "number":
        number = tf.where(tf.math.is_finite(value.values), value.values, tf.constant(math.nan, tf.float64))
        return tf.cast(tf.where(value.known, number, tf.constant(math.nan, tf.float64)), tf.float32)
    texts = tf.where(value.values, "true", "false") if node.kind == "truth" else value.values
    return canonical_tensor(tf.where(value.known, texts, ""))


def _value(node: Node, inputs: Mapping[str, tf.Tensor]) -> _Values:
    if isinstance(node, Constant):
        value = tf.constant(node.value, tf.float64) if node.kind == "number" else tf.constant(node.value)
        return _Values(value, tf.constant(True))
    if isinstance(node, Cell):
        return _cell(inputs[node.column])
    return _called(node, [_value(argument, inputs) for argument in node.arguments])


def _cell(column: tf.Tensor) -> _Values:
    if column.dtype == tf.string:
        return _Values(column, tf.not_equal(column, ""))
    return _Values(tf.cast(column, tf.float64), tf.math.is_finite(column))


def _called(node: Call, arguments: list[_Values]) -> _Values:
    values = [argument.values for argument in arguments]
    all_known = arguments[0].known
    for argument in arguments[1:]:
        all_known = all_known & argument.known
    if node.kernel == "is_null":
        return _Values(~all_known, tf.ones_like(all_known))
    if node.kernel == "or_kleene":
        return _either(*arguments)
    if node.kernel == "and_kleene":
        return _inverted(_either(*map(_inverted, arguments)))
    if node.kernel == BIN:
        bins = tf.math.floor(_in_32_bits(values[0] / values[1]))
        fits = tf.math.abs(bins) < MAX_BINS
        whole = tf.cast(tf.where(fits, bins, tf.zeros_like(bins)), tf.int64)
        return _Values(tf.strings.as_string(whole), all_known & fits)
    if node.kernel == "binary_join_element_wise":
        *parts, joint = values
        joined = parts[0]
        for part in parts[1:]:
            joined = tf.strings.join([joined, joint, part])
        return _Values(joined, all_known)
    if node.kernel in COMPARISONS and node.arguments[0].kind == "number":
        values = [_in_32_bits(value) for value in values]
    return _Values(_KERNELS[node.kernel](*values), all_known)


def _in_32_bits(numbers: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(numbers, tf.float32), tf.float64)


def _either(left: _Values, right: _Values) -> _Values:
    """Return left or right (Kleene): true if one is, whether the other is known or not."""
    true = (left.known & left.values) | (right.known & right.values)
    return _Values(true, true | (left.known & right.known))


def _inverted(truth: _Values) -> _Values:
    return _Values(~truth.values, truth.known)


_KERNELS: dict[str, Callable[..., tf.Tensor]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "negate": operator.neg,
    "abs": tf.math.abs,
    "ln": tf.math.log,
    "equal": tf.equal,
    "not_equal": tf.not_equal,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "invert": operator.invert,
    "if_else": tf.where,
}
