"""Who prepares which micro-batches, and how they come together again in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import tensorflow as tf

from trainyard.steps.train.input.lanes import no_autograph

_Batch = TypeVar("_Batch")


@dataclass(frozen=True)
class Turn:
    """Of `of` input workers the one that prepares each micro-batch whose number leaves the remainder `number`."""

    number: int = 0
    of: int = 1

    def first(self, start: int) -> int:
        """Return the first number of this turn from `start` on."""
        return start + (self.number - start) % self.of


def in_turn(
    parts: Sequence[tf.data.Dataset[tuple[tf.Tensor, _Batch]]], first: int, end: int, local: int
) -> tf.data.Dataset[_Batch]:
    """Return the batches of the micro-batches `first` to `end`, `local` of each number, from the parts in turn.

    A part gives (number, batch). One that gives another number than expected, because it began anew or left some out,
    raises InvalidArgumentError: no batch is trained on twice or left out in silence.
    """
    numbers = tf.data.Dataset.range(first * local, end * local).map(no_autograph(lambda key: key // local))
    batches = tf.data.Dataset.choose_from_datasets(parts, numbers.map(no_autograph(lambda number: number % len(parts))))

    @no_autograph
    def checked(expected: tf.Tensor, numbered: tuple[tf.Tensor, _Batch]) -> _Batch:
        number, batch = numbered
        message = f"an input worker of {len(parts)} gave the micro-batch of another number"
        tf.debugging.assert_equal(number, expected, message)
        return batch

    return tf.data.Dataset.zip(numbers, batches).map(checked)
