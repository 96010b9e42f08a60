"""Cuts a split into lanes: contiguous parts of as many examples, which are read side by side, a few files each.

How many lanes there are is the caller's to say; what is in them and in which order does not depend on who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

# Chosen: files that one process holds open. More workers than that share lanes.
_MOST = 64
# Chosen: examples among which a split is shuffled, all lanes together.
SHUFFLE_EXAMPLES = 8192
_OPEN = 8  # chosen: files that are mixed at any time where there are fewer lanes
# Measured: what is skipped is read too where the buffer holds more than a record. With 256 KiB an epoch of 15 kB records
# reads 1.6 times its bytes, with this 1.16 times, at equal CPU time.
_BUFFER_BYTES = 4 << 10

# AutoGraph is left out: nothing here branches on tensors, and the conversion took longer than the tracing itself.
plain = tf.autograph.experimental.do_not_convert
PARALLEL: dict[str, Any] = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}

Piece = tuple[int, int, int]


@dataclass(frozen=True)
class Lanes:
    """A split of `shard_examples` in `files`, cut into `count` lanes that each give `rows` examples a step for `steps`.

    A lane that ends before is filled up with examples of its own, which are not `real`.
    """

    files: list[str]
    shard_examples: list[int]
    count: int
    rows: int
    steps: int

    def real(self, step: tf.Tensor, first: tf.Tensor, count: int) -> tf.Tensor:
        """Return float32 (count,): 1 for what is no filling among the rows from number `first` on of batch `step`."""
        row = first + tf.range(count, dtype=tf.int64)
        sizes = tf.constant(np.diff(self._bounds), tf.int64)
        return tf.cast(step * self.rows + row % self.rows < tf.gather(sizes, row // self.rows), tf.float32)

    def stored(self, first: int, end: int) -> tf.data.Dataset:
        """Return rows `first` to `end` of every batch, serialized: the lanes in stored order."""
        read = self._reader(first, end)
        return self._merged(first, end, lambda lane: self._filled(read(lane), read(lane)))

    def shuffled(self, first: int, end: int, seed: int, epoch: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
        """Return rows `first` to `end` of every batch from `start` on, serialized: each lane in an order of its own."""
        read = self._reader(first, end)

        def source(lane: tf.Tensor) -> tf.data.Dataset:
            seeds = tf.random.split(tf.stack([np.int64(seed), epoch * self.count + lane]), 3)
            records = read(lane, seeds).shuffle(
                max(1, SHUFFLE_EXAMPLES // self.count), seed=seeds[2, 0], reshuffle_each_iteration=False
            )
            return self._filled(records, read(lane)).skip(start * self.rows)

        return self._merged(first, end, source)

    def touched(self, first: int, end: int) -> list[str]:
        """Return the files that rows `first` to `end` of the batches are in."""
        lanes = range(first // self.rows, -(-end // self.rows))
        return [self.files[number] for number in sorted({piece[0] for lane in lanes for piece in self._pieces(lane)})]

    @property
    def _bounds(self) -> list[int]:
        total = sum(self.shard_examples)
        return [lane * total // self.count for lane in range(self.count + 1)]

    def _pieces(self, lane: int) -> list[Piece]:
        """Return the pieces of files that are `lane`; of one without examples, an example to fill it up with."""
        first, end = self._bounds[lane : lane + 2]
        return _pieces(self.shard_examples, first, max(end, first + 1))

    def _filled(self, records: tf.data.Dataset, more: tf.data.Dataset) -> tf.data.Dataset:
        return records.concatenate(more.repeat()).take(self.steps * self.rows)

    def _reader(self, first: int, end: int) -> Callable[..., tf.data.Dataset]:
        """Return a function that reads a lane of those that rows `first` to `end` are in, given its number."""
        low, high = first // self.rows, -(-end // self.rows)
        pieces = tf.ragged.constant(
            [self._pieces(lane) for lane in range(low, high)], tf.int64, ragged_rank=1, inner_shape=(3,)
        )
        files = tf.constant(self.files)

        @plain
        def piece(each: tf.Tensor) -> tf.data.Dataset:
            # No tf.unstack here: as a count, an output that is not an op's first crashes TensorFlow 2.20's optimizer.
            return tf.data.TFRecordDataset(files[each[0]], buffer_size=_BUFFER_BYTES).skip(each[1]).take(each[2])

        def read(lane: tf.Tensor, seeds: tf.Tensor | None = None) -> tf.data.Dataset:
            own = pieces[lane - low]
            if seeds is None:
                return tf.data.Dataset.from_tensor_slices(own).flat_map(piece)
            mixed = tf.random.experimental.stateless_shuffle(_halved(own, seeds[0]), seed=seeds[1])
            return tf.data.Dataset.from_tensor_slices(mixed).interleave(piece, cycle_length=max(1, _OPEN // self.count))

        return read

    def _merged(self, first: int, end: int, source: Callable[[tf.Tensor], tf.data.Dataset]) -> tf.data.Dataset:
        """Return the rows `first` to `end` of what the lanes give each step, one lane after another."""
        low, high = first // self.rows, -(-end // self.rows)
        records = tf.data.Dataset.range(low, high).interleave(
            plain(source), cycle_length=high - low, block_length=self.rows, **PARALLEL
        )
        if (first, end) == (low * self.rows, high * self.rows):
            return records
        offset = low * self.rows
        steps = records.batch((high - low) * self.rows)
        return steps.map(plain(lambda rows: rows[first - offset : end - offset])).unbatch()


def count_lanes(batch_size: int, shards: int) -> int:
    """Return into how many lanes `shards` files are cut for batches of `batch_size`: as many rows of each, and few files."""
    return max(lanes for lanes in range(1, min(shards, _MOST) + 1) if batch_size % lanes == 0)


def _pieces(shard_examples: Sequence[int], first: int, end: int) -> list[Piece]:
    """Return (file's number, examples before, examples) of the files that hold the examples `first` to `end`."""
    found, start = [], 0
    for number, count in enumerate(shard_examples):
        low, high = max(first, start), min(end, start + count)
        if low < high:
            found.append((number, low - start, high - low))
        start += count
    return found


def _halved(pieces: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return `pieces`, each cut in two where `seed` says, so that not even one file begins in the same place twice."""
    number, before, count = tf.unstack(pieces, axis=1)
    cut = tf.random.stateless_uniform(tf.shape(count), seed, maxval=1.0, dtype=tf.float64)
    cut = tf.cast(cut * tf.cast(count, tf.float64), tf.int64)
    return tf.stack(
        [tf.concat(each, 0) for each in ((number, number), (before, before + cut), (cut, count - cut))], axis=1
    )
