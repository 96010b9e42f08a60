"""The scale and the limits on which a regression learns its targets; all that is judged is in their original units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from keras import ops
from numpy.typing import NDArray

from trainyard.contract.document import Split
from trainyard.data.examples import ExampleFolder
from trainyard.errors import DataError
from trainyard.spec.train import Target
from trainyard.values.numbers import MOST_OF_TARGET, coarse

if TYPE_CHECKING:
    import jax
    import tensorflow as tf

Tensor = TypeVar("Tensor", "tf.Tensor", "jax.Array", NDArray[Any])
"""A tensor of the engine, or an array."""
_LEARNED: tuple[Split, ...] = ("train", "eval")  # by which the loss is computed
Moments = tuple[float, float] | tuple[list[float], list[float]]
"""Mean and standard deviation, of one or several columns."""


@dataclass(frozen=True)
class TargetScale:
    """The scale of learned targets (batch, targets), and their limits, None for no limits."""

    scale: str = "none"
    low: NDArray[np.float32] | np.float32 | None = None
    high: NDArray[np.float32] | np.float32 | None = None

    def limited(self, targets: Tensor) -> Tensor:
        """Return the targets within low..high."""
        if self.low is None or self.high is None:
            return targets
        return ops.minimum(ops.maximum(targets, self.low), self.high)

    def scaled(self, targets: Tensor) -> Tensor:
        """Return the targets on the scale."""
        if self.scale == "none":
            return targets
        return ops.log(targets) if self.scale == "log" else ops.log1p(targets)

    def original(self, outputs: Tensor) -> Tensor:
        """Return numbers on the scale in the units of the targets."""
        if self.scale == "none":
            return outputs
        return ops.exp(outputs) if self.scale == "log" else ops.expm1(outputs)


UNSCALED = TargetScale()


def learned_targets(target: Target, folder: ExampleFolder) -> tuple[TargetScale, Moments]:
    """Return the scale and the limits of a regression's training targets, and the moments of the learned ones.

    The limits are the exact quantiles of the training split, the nearest sorted values; the moments are those of
    limited targets on the scale, a deviation of constant ones 1. Raises `DataError` if the scale cannot hold them.
    """
    for split in _LEARNED if target.scale != "none" else ():
        require_above(target.scale, split, folder.labels(split), _names(folder), partial(folder.keys, split))
    labels = folder.labels("train").astype(np.float64)
    scale = TargetScale(target.scale)
    if target.clip:
        low, high = np.quantile(labels, target.clip, axis=0, method="nearest")
        labels = np.clip(labels, low, high)
        scale = TargetScale(target.scale, np.float32(low), np.float32(high))
    if target.scale != "none":
        labels = np.log(labels) if target.scale == "log" else np.log1p(labels)
        for name, column in zip(_names(folder), labels.reshape(len(labels), -1).T, strict=True):
            if coarse(column.min(), column.max(), float(column.std()), MOST_OF_TARGET):
                raise DataError(
                    f"train.target.scale: the {target.scale} of '{name}' lies from {column.min():.12g} to "
                    f"{column.max():.12g}, too close together for 32-bit floats. Set scale: none."
                )
    return scale, target_moments(labels)


def target_moments(labels: np.ndarray) -> Moments:
    """Return mean and standard deviation of the training targets, (n,) or (n, targets); 1 for constant targets."""
    mean, deviation = labels.mean(axis=0, dtype=np.float64), labels.std(axis=0, dtype=np.float64)
    if labels.ndim == 1:
        return float(mean), float(deviation) or 1.0
    return mean.tolist(), np.where(deviation > 0, deviation, 1.0).tolist()


def require_above(
    scale: str, split: Split, labels: np.ndarray, names: list[str], keys: Callable[[], list[str]]
) -> None:
    """Raise `DataError` if the logarithmic `scale` has no number for one of `labels`, (n,) or (n, targets).

    names: of the targets. keys: returns the names of the rows.
    """
    labels = labels.reshape(len(labels), -1)
    wrong = labels <= 0 if scale == "log" else labels < 0
    if not wrong.any():
        return
    row, column = np.argwhere(wrong)[0]
    raise DataError(
        f"train.target.scale: {scale} needs targets {'above 0' if scale == 'log' else 'of at least 0'}, and "
        f"{wrong.any(axis=1).sum():,} of {len(labels):,} rows of the {split} split have another one, such as "
        f"{keys()[row]} ('{names[column]}' is {labels[row, column]:g}). Leave them out by data.where, or set "
        f"scale: {'log1p or none' if scale == 'log' else 'none'}."
    )


def _names(folder: ExampleFolder) -> list[str]:
    return folder.document.targets or [folder.document.label]
