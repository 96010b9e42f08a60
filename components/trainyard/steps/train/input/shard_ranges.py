"""Shard ranges: a split cut into contiguous ranges of equally many examples, read in parallel from a few files each.

The number of ranges is the caller's. The content and the order of a range do not depend on who reads it. The shards of
a bucket are fetched while they are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainyard.errors import TransientError
from trainyard.storage import storage

# Chosen: files that one process holds open. More workers share shard ranges.
_MAX_SHARD_RANGES = 64
# Chosen: size of the shuffle buffers of a split, all shard ranges together.
SHUFFLE_EXAMPLES = 8192
_OPEN_FILES = 8  # chosen: files mixed at a time if there are fewer shard ranges
# Measured: skipped records are read too if the buffer holds more than one. With 256 KiB an epoch of 15 kB records
# reads 1.6 times its bytes, with this 1.16 times, at equal CPU time.
_BUFFER_BYTES = 4 << 10
# Without AutoGraph: nothing here branches on tensors, and conversion took longer than tracing.
no_autograph = tf.autograph.experimental.do_not_convert
PARALLEL: dict[str, Any] = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
ShardSlice = tuple[int, int, int]


@dataclass(eq=False)
class Feed:
    """The shards of examples in a bucket, fetched by `files`.

    root: the local folder of the other example files; the names of shards are relative to it.
    """

    files: storage.FileStream
    root: str

    def follow(self, epochs: Iterator[list[str]], readers: int) -> None:
        """Fetch in the order of `epochs`, lists of paths below `root`, for this number of `readers`."""
        self.files.follow(([self._name(path) for path in epoch] for epoch in epochs), readers)

    def progress(self) -> dict[str, int]:
        """Return the number of shards and the number fetched so far, repeated fetches included."""
        return {"shards": self.files.files, "shards_fetched": self.files.fetched}

    def path(self, files: list[str], part: tf.Tensor, shard_range: tf.Tensor, open_files: int) -> tf.Tensor:
        """Return the path, a scalar string, of the shard slice `part` (file number, before, count) once it is local.

        open_files: number of files that `shard_range` reads at a time.
        """

        def wait(number: int, count: int, shard_range: int) -> bytes:
            if count == 0:
                return b""  # nothing opens it
            return os.fsencode(self.files.open(self._name(files[number]), (files[0], int(shard_range)), open_files))

        path = tf.numpy_function(wait, [part[0], part[2], shard_range], [tf.string])
        path[0].set_shape(())
        return path[0]

    def with_threads(self, records: tf.data.Dataset[tf.Tensor], readers: int) -> tf.data.Dataset[tf.Tensor]:
        """Return `records` with a private thread pool, so that waiting `readers` block no step."""
        options = tf.data.Options()
        options.threading.private_threadpool_size = readers + (os.cpu_count() or 1)
        return records.with_options(options)

    @contextmanager
    def errors(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Raise the error of a fetch instead of TensorFlow's; call `waiting` while a reader waits.

        Raises `TransientError` if the local copy of a shard is damaged; it is fetched again.
        """
        self.files.waiting = waiting
        try:
            yield
        except Exception as error:
            if self.files.error is not None:
                raise self.files.error from error
            if isinstance(error, tf.errors.DataLossError) and (damaged := self.files.discard_damaged()):
                raise TransientError(
                    f"{self.files.uri}: this machine's copy is damaged ({', '.join(damaged)}). "
                    "Run the same command again: it is fetched again."
                ) from error
            raise

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.root)


@dataclass(frozen=True)
class ShardRanges:
    """A split cut into `count` ranges, each of which gives `rows` examples a step, for `steps` steps.

    A range that ends early is padded with its own examples, which `example_mask` leaves out. feed: fetches the files;
    None if they are local.
    """

    files: list[str]
    shard_examples: list[int]
    count: int
    rows: int
    steps: int
    feed: Feed | None = None

    def example_mask(self, step: tf.Tensor, first: tf.Tensor, count: int) -> tf.Tensor:
        """Return float32 (count,): 0 for padding, 1 otherwise, of `count` rows of batch `step` from row `first` on."""
        row = first + tf.range(count, dtype=tf.int64)
        sizes = tf.constant(np.diff(self._bounds), tf.int64)
        return tf.cast(step * self.rows + row % self.rows < tf.gather(sizes, row // self.rows), tf.float32)

    def stored(self, first: int, end: int) -> tf.data.Dataset[tf.Tensor]:
        """Return rows `first` to `end` of every batch, serialized, each range in stored order."""
        read = self._reader(first, end)
        return self._interleaved(first, end, lambda shard_range: self._padded(read(shard_range), read(shard_range)))

    def shuffled(
        self, first: int, end: int, seed: int, epoch: tf.Tensor, start: tf.Tensor
    ) -> tf.data.Dataset[tf.Tensor]:
        """Return rows `first` to `end` of every batch from `start` on, serialized, each range in a shuffled order."""
        read = self._reader(first, end)

        def source(shard_range: tf.Tensor) -> tf.data.Dataset[tf.Tensor]:
            seeds = self._seeds(seed, epoch, shard_range)
            records = read(shard_range, seeds).shuffle(
                max(1, SHUFFLE_EXAMPLES // self.count), seed=seeds[2, 0], reshuffle_each_iteration=False
            )
            return self._padded(records, read(shard_range)).skip(start * self.rows)

        return self._interleaved(first, end, source)

    def reading_order(self, first: int, end: int, seed: int, epoch: int) -> list[str]:
        """Return the files in the order, and as often, as `shuffled` opens them if the ranges advance at one pace."""
        opened = []
        with tf.device("CPU"):
            for shard_range in range(first // self.rows, -(-end // self.rows)):
                seeds = self._seeds(seed, tf.constant(epoch, tf.int64), tf.constant(shard_range, tf.int64))
                slices = _shuffled_halves(tf.constant(self._shard_slices(shard_range), tf.int64), seeds).numpy()
                begins = np.cumsum(slices[:, 2]) - slices[:, 2]
                for turn, (number, _, count) in enumerate(slices):
                    if count:
                        opened.append((begins[max(0, turn - self._open_files + 1)], turn, shard_range, number))
        return [self.files[number] for _, _, _, number in sorted(opened)]

    def files_of_rows(self, first: int, end: int) -> list[str]:
        """Return the files that hold rows `first` to `end` of the batches."""
        shard_ranges = range(first // self.rows, -(-end // self.rows))
        numbers = {number for shard_range in shard_ranges for number, _, _ in self._shard_slices(shard_range)}
        return [self.files[number] for number in sorted(numbers)]

    @property
    def _bounds(self) -> list[int]:
        total = sum(self.shard_examples)
        return [shard_range * total // self.count for shard_range in range(self.count + 1)]

    @property
    def _open_files(self) -> int:
        """The number of files that a range holds open at a time."""
        return max(1, _OPEN_FILES // self.count)

    def _seeds(self, seed: int, epoch: tf.Tensor, shard_range: tf.Tensor) -> tf.Tensor:
        return tf.random.split(tf.stack([np.int64(seed), epoch * self.count + shard_range]), 3)

    def _shard_slices(self, shard_range: int) -> list[ShardSlice]:
        """Return the shard slices of a range; an empty range gets one example as padding."""
        first, end = self._bounds[shard_range : shard_range + 2]
        return _shard_slices(self.shard_examples, first, max(end, first + 1))

    def _padded(
        self, records: tf.data.Dataset[tf.Tensor], padding: tf.data.Dataset[tf.Tensor]
    ) -> tf.data.Dataset[tf.Tensor]:
        return records.concatenate(padding.repeat()).take(self.steps * self.rows)

    def _reader(self, first: int, end: int) -> Callable[..., tf.data.Dataset[tf.Tensor]]:
        """Return a function that reads a range by its number, for the ranges of rows `first` to `end`."""
        low, high = first // self.rows, -(-end // self.rows)
        slices = tf.ragged.constant(
            [self._shard_slices(shard_range) for shard_range in range(low, high)],
            tf.int64,
            ragged_rank=1,
            inner_shape=(3,),
        )
        files = tf.constant(self.files)

        def read(shard_range: tf.Tensor, seeds: tf.Tensor | None = None) -> tf.data.Dataset[tf.Tensor]:
            @no_autograph
            def read_slice(part: tf.Tensor) -> tf.data.Dataset[tf.Tensor]:
                # No tf.unstack: TensorFlow 2.20's optimizer crashes if a count is not the first output of an op.
                path = (
                    files[part[0]]
                    if self.feed is None
                    else self.feed.path(self.files, part, shard_range, self._open_files)
                )
                return tf.data.TFRecordDataset(path, buffer_size=_BUFFER_BYTES).skip(part[1]).take(part[2])

            slices_of_range = slices[shard_range - low]
            if seeds is None:
                return tf.data.Dataset.from_tensor_slices(slices_of_range).flat_map(read_slice)
            shuffled = tf.data.Dataset.from_tensor_slices(_shuffled_halves(slices_of_range, seeds))
            return shuffled.interleave(read_slice, cycle_length=self._open_files)

        return read

    def _interleaved(
        self, first: int, end: int, source: Callable[[tf.Tensor], tf.data.Dataset[tf.Tensor]]
    ) -> tf.data.Dataset[tf.Tensor]:
        """Return rows `first` to `end` of each step, one range after another."""
        low, high = first // self.rows, -(-end // self.rows)
        records = tf.data.Dataset.range(low, high).interleave(
            no_autograph(source), cycle_length=high - low, block_length=self.rows, **PARALLEL
        )
        if (first, end) == (low * self.rows, high * self.rows):
            return records
        offset = low * self.rows
        steps = records.batch((high - low) * self.rows)
        return steps.map(no_autograph(lambda rows: rows[first - offset : end - offset])).unbatch()


def count_shard_ranges(batch_size: int, shards: int) -> int:
    """Return the number of ranges for `shards` files: each gives equally many rows of a batch, from few files."""
    return max(
        shard_ranges for shard_ranges in range(1, min(shards, _MAX_SHARD_RANGES) + 1) if batch_size % shard_ranges == 0
    )


def _shard_slices(shard_examples: Sequence[int], first: int, end: int) -> list[ShardSlice]:
    """Return (file number, examples before, examples) of the files that hold the examples `first` to `end`."""
    slices, start = [], 0
    for number, count in enumerate(shard_examples):
        low, high = max(first, start), min(end, start + count)
        if low < high:
            slices.append((number, low - start, high - low))
        start += count
    return slices


def _shuffled_halves(slices: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    return tf.random.experimental.stateless_shuffle(_split_in_two(slices, seeds[0]), seed=seeds[1])


def _split_in_two(slices: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Cut each slice at a random place, so that even a single file begins elsewhere in each epoch."""
    number, before, count = tf.unstack(slices, axis=1)
    cut = tf.random.stateless_uniform(tf.shape(count), seed, maxval=1.0, dtype=tf.float64)
    cut = tf.cast(cut * tf.cast(count, tf.float64), tf.int64)
    return tf.stack(
        [tf.concat(halves, 0) for halves in ((number, number), (before, before + cut), (cut, count - cut))], axis=1
    )
