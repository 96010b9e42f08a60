"""Computes the columns that a recipe derives from others: trees of what Arrow's kernels do, without any parsing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainyard.values.text import canonical

_MOST_BINS = 2.0**53


def computed(tree: list[Any], row: Mapping[str, Any]) -> Any:
    """Evaluate `tree` for `row`: float32, NaN if missing, or a text, empty if missing; truths are texts too.

    row: float32 numbers and canonical texts by column.
    """
    with np.errstate(all="ignore"):
        value, known = _value(tree, row)
    if isinstance(value, (str, bool, np.bool_)):
        text = value if isinstance(value, str) else "true" if value else "false"
        return canonical(text) if known else ""
    return np.float32(value) if known and np.isfinite(value) else np.float32("nan")


def _value(tree: list[Any], row: Mapping[str, Any]) -> tuple[Any, bool]:
    kind, *rest = tree
    if kind == "constant":
        (value,) = rest
        return (np.float64(value) if isinstance(value, float) else value), True
    if kind == "cell":
        cell = row[rest[0]]
        if isinstance(cell, str):
            return cell, cell != ""
        return np.float64(cell), bool(np.isfinite(cell))
    kernel, *arguments = rest
    pairs = [_value(argument, row) for argument in arguments]
    values, all_known = [value for value, _ in pairs], all(known for _, known in pairs)
    if kernel == "is_null":
        return not all_known, True
    if kernel in ("or_kleene", "and_kleene"):
        decides = kernel == "or_kleene"  # whatever the other is
        decided = any(known and bool(value) == decides for value, known in pairs)
        return (decides if decided else not decides), decided or all_known
    if kernel == "bin":
        number = np.float64(np.floor(np.float32(values[0] / values[1])))
        fits = bool(np.abs(number) < _MOST_BINS)
        return str(int(number)) if fits else "0", all_known and fits
    if kernel == "binary_join_element_wise":
        return values[-1].join(values[:-1]), all_known
    if kernel in _COMPARISONS:
        values = [np.float32(value) if isinstance(value, float) else value for value in values]
    return _KERNELS[kernel](*values), all_known


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_KERNELS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "negate": operator.neg,
    "abs": abs,
    "ln": np.log,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "invert": operator.not_,
    "if_else": lambda truth, yes, no: yes if truth else no,
}
