"""Shard ranges: a split cut into contiguous ranges of equally many examples, read in parallel from a few files each.

    shards           0          │ 1      │ 2                    │ 3
    ranges           0                │ 1              │ 2                count = 3
    slices           0          │ 0   │ 1  │ 1         │ 2      │ 3       the part of one shard in one range
    rows of a step   rows of 0        │ rows of 1      │ rows of 2        each range in turn, for `steps` steps

In a shuffled epoch every slice is cut in two at a random place, the halves are read in random order, a few at a time,
and their records go through a shuffle buffer. The content and the order of a range do not depend on who reads it. The
shards of a bucket are fetched while they are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainyard.errors import TransientError
from trainyard.storage import storage

# Chosen: files that one process holds open. More workers share shard ranges.
_MAX_SHARD_RANGES = 64
# Chosen: size of the shuffle buffers of a split, all shard ranges together.
SHUFFLE_EXAMPLES = 8192
_OPEN_FILES = 8  # chosen: files mixed at a time if there are fewer shard ranges
# Without AutoGraph: nothing here branches on tensors, and conversion took longer than tracing.
no_autograph = tf.autograph.experimental.do_not_convert
PARALLEL: dict[str, Any] = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


class ShardSlice(NamedTuple):
    """A part of a shard: the number of its file, the examples before it in the file, and its examples."""

    file: int
    before: int
    examples: int


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
        slices, files = self._slice_table(first, end), tf.constant(self.files)

        def records(shard_range: tf.Tensor) -> tf.data.Dataset[tf.Tensor]:
            stored = self._read(files, slices(shard_range), shard_range)
            return stored.concatenate(stored.repeat()).take(self.steps * self.rows)

        return self._interleaved(first, end, records)

    def shuffled(
        self, first: int, end: int, seed: int, epoch: tf.Tensor, start: tf.Tensor
    ) -> tf.data.Dataset[tf.Tensor]:
        """Return rows `first` to `end` of every batch from `start` on, serialized, each range in a shuffled order."""
        slices, files = self._slice_table(first, end), tf.constant(self.files)
        buffer = max(1, SHUFFLE_EXAMPLES // self.count)

        def records(shard_range: tf.Tensor) -> tf.data.Dataset[tf.Tensor]:
            seeds = self._seeds(seed, epoch, shard_range)
            halves = _shuffled_halves(slices(shard_range), seeds)
            examples = self._read(files, halves, shard_range, self._open_files)
            shuffled = examples.shuffle(buffer, seed=seeds[2, 0], reshuffle_each_iteration=False)
            padding = self._read(files, slices(shard_range), shard_range).repeat()
            return shuffled.concatenate(padding).take(self.steps * self.rows).skip(start * self.rows)

        return self._interleaved(first, end, records)

    def reading_order(self, first: int, end: int, seed: int, epoch: int) -> list[str]:
        """Return the files in the order, and as often, as `shuffled` opens them if the ranges advance at one pace."""
        opened: list[tuple[int, int, int, int]] = []  # examples of the range read before, place in it, range, file
        with tf.device("CPU"):
            for shard_range in self._of_rows(first, end):
                seeds = self._seeds(seed, tf.constant(epoch, tf.int64), tf.constant(shard_range, tf.int64))
                slices = _shuffled_halves(tf.constant(self._slices(shard_range), tf.int64), seeds).numpy()
                begins = np.cumsum(slices[:, 2]) - slices[:, 2]
                for place, (file, _, examples) in enumerate(slices):
                    if examples:
                        before = begins[max(0, place - self._open_files + 1)]  # when a slice ends, the next is opened
                        opened.append((before, place, shard_range, file))
        return [self.files[file] for *_, file in sorted(opened)]

    def files_of_rows(self, first: int, end: int) -> list[str]:
        """Return the files that hold rows `first` to `end` of the batches."""
        slices = [part for shard_range in self._of_rows(first, end) for part in self._slices(shard_range)]
        return [self.files[number] for number in sorted({part.file for part in slices})]

    @property
    def _bounds(self) -> list[int]:
        """The first example of each range, and the number of all examples."""
        total = sum(self.shard_examples)
        return [shard_range * total // self.count for shard_range in range(self.count + 1)]

    @property
    def _open_files(self) -> int:
        """The number of files that a range holds open at a time."""
        return max(1, _OPEN_FILES // self.count)

    def _of_rows(self, first: int, end: int) -> range:
        """Return the ranges that give rows `first` to `end` of a step."""
        return range(first // self.rows, -(-end // self.rows))

    def _seeds(self, seed: int, epoch: tf.Tensor, shard_range: tf.Tensor) -> tf.Tensor:
        """Return int64 (3, 2): the seeds of cuts, of the order of halves, and of the shuffle buffer."""
        return tf.random.split(tf.stack([np.int64(seed), epoch * self.count + shard_range]), 3)

    def _slices(self, shard_range: int) -> list[ShardSlice]:
        """Return the shard slices of a range; an empty range gets one example as padding."""
        first, end = self._bounds[shard_range : shard_range + 2]
        return _shard_slices(self.shard_examples, first, max(end, first + 1))

    def _slice_table(self, first: int, end: int) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return a function from a range that gives some of the rows to its slices, int64 (slices, 3)."""
        ranges = self._of_rows(first, end)
        slices = [self._slices(shard_range) for shard_range in ranges]
        table = tf.ragged.constant(slices, tf.int64, ragged_rank=1, inner_shape=(3,))
        return lambda shard_range: table[shard_range - ranges.start]

    def _read(
        self, files: tf.Tensor, slices: tf.Tensor, shard_range: tf.Tensor, open_files: int | None = None
    ) -> tf.data.Dataset[tf.Tensor]:
        """Return the records of the `slices` of a range, of `open_files` at a time, by default one after another."""

        @no_autograph
        def read_slice(part: tf.Tensor) -> tf.data.Dataset[tf.Tensor]:
            # No tf.unstack: TensorFlow 2.20's optimizer crashes if a count is not the first output of an op.
            if self.feed is None:
                path = files[part[0]]
            else:
                path = self.feed.path(self.files, part, shard_range, self._open_files)
            return tf.data.TFRecordDataset(path).skip(part[1]).take(part[2])

        parts = tf.data.Dataset.from_tensor_slices(slices)
        return parts.interleave(read_slice, cycle_length=open_files) if open_files else parts.flat_map(read_slice)

    def _interleaved(
        self, first: int, end: int, source: Callable[[tf.Tensor], tf.data.Dataset[tf.Tensor]]
    ) -> tf.data.Dataset[tf.Tensor]:
        """Return rows `first` to `end` of each step, one range after another."""
        ranges = self._of_rows(first, end)
        records = tf.data.Dataset.range(ranges.start, ranges.stop).interleave(
            no_autograph(source), cycle_length=len(ranges), block_length=self.rows, **PARALLEL
        )
        before, rows = first - ranges.start * self.rows, len(ranges) * self.rows
        if end - first == rows:
            return records
        steps = records.batch(rows)
        return steps.map(no_autograph(lambda step: step[before : before + end - first])).unbatch()


def count_shard_ranges(batch_size: int, shards: int) -> int:
    """Return the number of ranges for `shards` files: each gives equally many rows of a batch, from few files."""
    return max(count for count in range(1, min(shards, _MAX_SHARD_RANGES) + 1) if batch_size % count == 0)


def _shard_slices(shard_examples: Sequence[int], first: int, end: int) -> list[ShardSlice]:
    """Return the slices that hold the examples `first` to `end` of a split."""
    slices, start = [], 0
    for number, count in enumerate(shard_examples):
        low, high = max(first, start), min(end, start + count)
        if low < high:
            slices.append(ShardSlice(number, low - start, high - low))
        start += count
    return slices


def _shuffled_halves(slices: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Return the slices (2 * n, 3), each of `slices` cut at a random place, in random order.

    Without the cut a single file would begin with the same examples in each epoch.
    """
    file, before, count = tf.unstack(slices, axis=1)
    share = tf.random.stateless_uniform(tf.shape(count), seeds[0], maxval=1.0, dtype=tf.float64)
    cut = tf.cast(share * tf.cast(count, tf.float64), tf.int64)
    head, tail = tf.stack([file, before, cut], axis=1), tf.stack([file, before + cut, count - cut], axis=1)
    return tf.random.experimental.stateless_shuffle(tf.concat([head, tail], 0), seed=seeds[1])
