"""Micro-batches: which examples of a split each replica of a gang takes, in numbers alone.

A global batch comes in micro-batches, whose rows the replicas share. Their numbers run on over the epochs:

    number                  0                         1                  …   per_epoch - 1         per_epoch, …
    position in its epoch   0 …                size - 1 | size …         …   … examples - 1 | padding    0 …
    replica                 0 | 1 | … | total - 1       | 0 | 1 | …

A key (number, replica), int64 scalars, names the rows of one replica.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow as tf

from trainyard.steps.train.input.service.client import Turn
from trainyard.steps.train.input.shard_ranges import no_autograph

Key = tuple[tf.Tensor, tf.Tensor]


@dataclass(frozen=True)
class LocalReplicas:
    """The replicas of this process: `count` from number `first` on, of `total` in the gang."""

    total: int = 1
    first: int = 0
    count: int = 1


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of a split: `per_epoch` hold each of its `examples` once, `size` of them each."""

    examples: int
    per_epoch: int
    size: int
    replicas: LocalReplicas

    @property
    def replica_size(self) -> int:
        """The rows of each replica."""
        return math.ceil(self.size / self.replicas.total)

    @property
    def local_rows(self) -> tuple[int, int]:
        """The first row of a micro-batch that this process takes, and the row after its last."""
        first = self.replicas.first * self.replica_size
        return first, first + self.replicas.count * self.replica_size

    def keys(self, start: int, end: int, turn: Turn) -> tf.data.Dataset[Key]:
        """Return the keys of the micro-batches of `turn` from `start` to `end`, for each local replica."""
        local, first = self.replicas.count, turn.first(start)
        return tf.data.Dataset.range(len(range(first, end, turn.count)) * local).map(
            no_autograph(lambda index: (first + index // local * turn.count, self.replicas.first + index % local))
        )

    def rows(self, number: tf.Tensor, replica: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the positions (replica_size,) of a key, int64 in 0..examples - 1, and float32 0 for padding, else 1.

        Padding takes positions from the beginning again.
        """
        size = self.replica_size
        first = number % self.per_epoch * self.size + replica * size
        positions = first + tf.range(size, dtype=tf.int64)
        return positions % self.examples, tf.cast(positions < self.examples, tf.float32)
