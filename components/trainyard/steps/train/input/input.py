"""Training batches, a pure function of (seed, step), and the batches of the eval split.

    MicroBatches ── keys (number, replica) ──▶ InMemory: examples by a permutation of the epoch ─┐
                                          └──▶ ShardRanges: records as the shards are read ──────┤ (a split too large)
                                                                                                 ▼
    batch ◀── weights ◀── resampled and mixed ◀── micro-batch ◀── decoded, images changed one by one

A batch is (features, labels (batch,), weights float32 (batch,)) of static shape. Images are uint8; `on_device` turns
them into floats and augments them by the random parameters that come along. Labels of mixed images are targets, float32
(batch, classes). The last batch of an epoch is padded with examples of weight zero, so that every example counts once
an epoch.

The global batches are the same for any number of replicas. With input workers, each worker prepares the micro-batches
of its turn, with the same content.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainyard import events
from trainyard.contract.artifacts.preprocess import WEIGHT, Examples
from trainyard.contract.document import Split
from trainyard.contract.epochs import MEMORY_BYTES
from trainyard.data.examples import ExampleFolder, Tensors
from trainyard.process import memory
from trainyard.spec.recipe import Recipe
from trainyard.spec.train import MEAN_EXAMPLES
from trainyard.steps.train.input import augment, on_device
from trainyard.steps.train.input.augment import AugmentedImages, RandomParams
from trainyard.steps.train.input.micro_batches import Key, LocalReplicas, MicroBatches
from trainyard.steps.train.input.service.client import InputService, InputWorker, Turn, in_turn
from trainyard.steps.train.input.shard_ranges import PARALLEL, Feed, ShardRanges, count_shard_ranges, no_autograph
from trainyard.steps.train.peers.settings import Rank
from trainyard.storage import storage


@dataclass(frozen=True)
class InMemory:
    """A split in memory, in stored order: images as uint8, or encoded."""

    features: Tensors
    labels: tf.Tensor

    @classmethod
    def read(cls, folder: ExampleFolder, split: Split, encoded: bool) -> InMemory:
        """Return the `split` of `folder`, with encoded images if `encoded`."""
        [(features, labels)] = cls.whole(folder, split, encoded)
        return cls(features, labels)

    @staticmethod
    def whole(folder: ExampleFolder, split: Split, encoded: bool) -> tf.data.Dataset[tuple[Tensors, tf.Tensor]]:
        """Return a data set with one element: (features, labels) of the whole split."""
        size = folder.document.splits[split].examples
        return folder.parsed_batches(split, size) if encoded else folder.pixel_batches(split, size)

    def rows(self, indices: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        """Return features and labels of the examples `indices`, a vector or a scalar."""
        return {name: tf.gather(values, indices) for name, values in self.features.items()}, tf.gather(
            self.labels, indices
        )


# Chosen: share of the container's memory limit for prefetched batches.
_PREPARED_SHARE = 1 / 4
# Rounds of the cipher that permutes a split. Measured: with the 4 of index_shuffle (TensorFlow 2.21), epoch 12 of
# every seed correlates with the stored order, by 0.2 of 1,797 examples and 0.7 of 100; with 8, no epoch of 1,200 does.
_SHUFFLE_ROUNDS = 12

Batch = tuple[Tensors, tf.Tensor, tf.Tensor]
_KeyedBatch = tuple[tf.Tensor, tf.Tensor, Tensors, tf.Tensor, tf.Tensor]
_Load = Callable[[tf.Tensor], tuple[Tensors, tf.Tensor]]
_Rows: TypeAlias = tf.data.Dataset[tuple[Tensors, tf.Tensor]]


@dataclass(frozen=True)
class Input:
    """The batches of one run.

    class_weights: (classes,) float32, or None. replicas: a micro-batch takes `replicas.count` elements of a data set,
    one a replica. feed: fetches the shards of a split that does not fit in memory; None if they are local. service: the
    input workers that prepare the training batches; None if this process does. memory_bytes: limit of a split in
    memory; None: MEMORY_BYTES.
    """

    recipe: Recipe
    folder: ExampleFolder
    class_weights: np.ndarray | None
    replicas: LocalReplicas = field(default_factory=LocalReplicas)
    feed: Feed | None = None
    memory_bytes: int | None = None
    service: InputService | None = None

    @property
    def input_workers(self) -> int:
        """The number of input workers that prepare the training batches."""
        return len(self.service.workers) if self.service else 0

    @property
    def batch_size(self) -> int:
        """Examples a global batch."""
        return self.recipe.train.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold every training example once."""
        return math.ceil(self._count("train") / self.batch_size)

    @property
    def _end(self) -> int:
        """The number of micro-batches of the whole training."""
        return self.recipe.train.epochs * self._micro_batches("train").per_epoch

    @property
    def evaluation_steps(self) -> int:
        """Micro-batches that hold every eval example once."""
        return self._micro_batches("eval").per_epoch

    def _micro_batches(self, split: Split) -> MicroBatches:
        parts, examples = self.recipe.train.accumulation_steps, self._count(split)
        size = self.batch_size // parts
        if split == "train":
            return MicroBatches(examples, self.steps_per_epoch * parts, size, self.replicas)
        return MicroBatches(examples, math.ceil(examples / size), min(size, examples), self.replicas)

    def train(self, start: int) -> tf.data.Dataset[Batch]:
        """Return this process's rows of the micro-batches from step `start` on, a replica at a time.

        The weights of a global batch sum to 1; with sample or class weights their mean over the examples does.
        """
        first = start * self.recipe.train.accumulation_steps
        if self.service is None:
            batches = self._training_batches(first, Turn())
            return _prefetch(batches.map(no_autograph(self._augment_and_weigh), **PARALLEL))
        parts = [self._served_batches(worker, first) for worker in self.service.workers]
        return _prefetch(in_turn(parts, first, self._end, self.replicas.count))

    def _served_batches(self, worker: InputWorker, first: int) -> tf.data.Dataset[tuple[tf.Tensor, Batch]]:
        """Yield (number, batch) of the micro-batches that `worker` prepares, starting at `first`."""

        def numbered(number: tf.Tensor, *rest: Any) -> tuple[tf.Tensor, Batch]:
            return number, self._augment_and_weigh(number, *rest)

        theirs = replace(self, folder=self.folder.at(worker.examples), feed=None)
        batches = theirs._training_batches(first, worker.turn).map(no_autograph(numbered), **PARALLEL)
        return worker.prepare(batches)

    def _training_batches(self, first: int, turn: Turn) -> tf.data.Dataset[_KeyedBatch]:
        """Return (number, replica, features, labels, example_mask) of the micro-batches of `turn` from `first` on."""
        if not self.fits("train"):
            return self._streamed_batches(first, turn)
        encoded = self._images.cut_encoded
        if self.service is None:
            return self._shuffled_batches(InMemory.read(self.folder, "train", encoded), first, turn)
        # As an element instead of a constant, the split is read by the input worker and not sent there.
        split = InMemory.whole(self.folder, "train", encoded)

        def shuffled(features: Tensors, labels: tf.Tensor) -> tf.data.Dataset[_KeyedBatch]:
            return self._shuffled_batches(InMemory(features, labels), first, turn)

        return split.flat_map(no_autograph(shuffled))

    def evaluation(self) -> tf.data.Dataset[Batch]:
        """Return this process's rows of the eval split in stored order, with sample weights, 0 for padding."""
        micro_batches = self._micro_batches("eval")
        keys = micro_batches.keys(0, micro_batches.per_epoch, Turn())
        if self.fits("eval"):
            examples = InMemory.read(self.folder, "eval", encoded=False)

            def stored(number: tf.Tensor, replica: tf.Tensor) -> Batch:
                positions, example_mask = micro_batches.rows(number, replica)
                return *examples.rows(positions), example_mask

            batches = keys.map(no_autograph(stored), **PARALLEL)
        else:
            ranges, size = self._shard_ranges("eval"), micro_batches.replica_size
            rows = self._decode(ranges.stored(*micro_batches.local_rows), size, self.folder.decode)

            def masked(key: Key, row: tuple[Tensors, tf.Tensor]) -> Batch:
                number, replica = key
                return *row, ranges.example_mask(number, replica * size, size)

            batches = tf.data.Dataset.zip(keys, rows).map(no_autograph(masked))
        if self.folder.document.mean_weight is not None:
            batches = batches.map(no_autograph(self._weigh), **PARALLEL)
        return _prefetch(batches)

    def shards(self, split: Split) -> list[str]:
        """Return the paths of the shards of `split` that this process reads."""
        if self.fits(split):
            return self.folder.files(split)
        return self._shard_ranges(split).files_of_rows(*self._micro_batches(split).local_rows)

    def streamed_shards(self) -> list[str]:
        """Return the paths of the shards that this process streams in every epoch."""
        splits: tuple[Split, ...] = ("train", "eval")
        return [path for split in splits if not self.fits(split) for path in self.shards(split)]

    def _shuffled_batches(self, examples: InMemory, first: int, turn: Turn) -> tf.data.Dataset[_KeyedBatch]:
        """Return the batches of `_training_batches` for a split in memory."""
        micro_batches = self._micro_batches("train")
        keys = micro_batches.keys(first, self._end, turn)

        def shuffled(number: tf.Tensor, replica: tf.Tensor) -> _KeyedBatch:
            indices, example_mask = self._shuffled_rows(number, replica)
            return number, replica, *examples.rows(indices), example_mask

        if not self._images.changes_examples:
            return keys.map(no_autograph(shuffled), **PARALLEL)
        indices = keys.map(no_autograph(lambda *key: self._shuffled_rows(*key)[0])).unbatch()
        rows = self._changed(indices, examples.rows, keys)
        return tf.data.Dataset.zip(keys, rows).map(
            no_autograph(lambda key, row: (*key, *row, micro_batches.rows(*key)[1]))
        )

    def _shuffled_rows(self, number: tf.Tensor, replica: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return `MicroBatches.rows`, its positions permuted, in another way in each epoch."""
        micro_batches = self._micro_batches("train")
        positions, example_mask = micro_batches.rows(number, replica)
        indices = tf.raw_ops.RandomIndexShuffle(
            index=positions,
            seed=tf.stack([np.int64(0), np.int64(self.recipe.seed), number // micro_batches.per_epoch]),
            max_index=np.int64(micro_batches.examples - 1),
            rounds=_SHUFFLE_ROUNDS,
        )
        return indices, example_mask

    def _streamed_batches(self, start: int, turn: Turn) -> tf.data.Dataset[_KeyedBatch]:
        """Return the batches of `_training_batches` for a streamed split."""
        micro_batches, ranges = self._micro_batches("train"), self._shard_ranges("train")
        size, rows = micro_batches.replica_size, micro_batches.local_rows
        keys = micro_batches.keys(start, self._end, turn)
        files, total = len(ranges.files_of_rows(*rows)), len(ranges.files)
        events.emit("streaming", split="train", shard_ranges=ranges.count, files=files, total_files=total)
        first_epoch, skipped = divmod(start, micro_batches.per_epoch)

        def epoch_records(epoch: tf.Tensor) -> tf.data.Dataset[tf.Tensor]:
            begin = tf.where(epoch == first_epoch, np.int64(skipped), np.int64(0))
            return ranges.shuffled(*rows, self.recipe.seed, epoch, begin)

        records = tf.data.Dataset.range(first_epoch, self.recipe.train.epochs).flat_map(no_autograph(epoch_records))
        if self.feed is not None:
            self.feed.follow(self._reading_order(ranges, first_epoch), ranges.count)
            records = self.feed.with_threads(records, ranges.count)
        if turn.count > 1:
            batches = records.batch(size * self.replicas.count)
            records = batches.shard(turn.count, turn.first(start) - start).unbatch()

        def masked(key: Key, row: tuple[Tensors, tf.Tensor]) -> _KeyedBatch:
            number, replica = key
            return *key, *row, ranges.example_mask(number % micro_batches.per_epoch, replica * size, size)

        return tf.data.Dataset.zip(keys, self._training_rows(records, keys)).map(no_autograph(masked))

    def _reading_order(self, ranges: ShardRanges, first: int) -> Iterator[list[str]]:
        """Yield the shards in the order in which each epoch from `first` on opens them, those of eval last."""
        rows, eval_shards = self._micro_batches("train").local_rows, [] if self.fits("eval") else self.shards("eval")
        for epoch in range(first, self.recipe.train.epochs):
            yield ranges.reading_order(*rows, self.recipe.seed, epoch) + eval_shards

    def _shard_ranges(self, split: Split) -> ShardRanges:
        """Return the shard ranges of a streamed split: one a replica for eval, whose order does not matter."""
        files, shard_examples = self.folder.files(split), self.folder.document.splits[split].shard_examples
        batches = self._micro_batches(split)
        if split == "eval":
            count, rows = self.replicas.total, batches.replica_size
        else:
            count = count_shard_ranges(batches.size, len(files))
            rows = batches.size // count
        return ShardRanges(files, shard_examples, count, rows, batches.per_epoch, self.feed)

    def _decode(self, records: tf.data.Dataset[tf.Tensor], size: int, decode: _Load) -> _Rows:
        """Return (features, labels) of the serialized `records`, `size` at a time, with images decoded by `decode`."""
        if self.folder.document.image is None:
            # One call for all rows.
            return records.batch(size, drop_remainder=True).map(no_autograph(self.folder.parse), **PARALLEL)
        return records.map(no_autograph(decode), **PARALLEL).batch(size, drop_remainder=True)

    def _training_rows(self, records: tf.data.Dataset[tf.Tensor], keys: tf.data.Dataset[Key]) -> _Rows:
        """Return the rows of `_decode` for `keys`, with images augmented by their parameters."""
        images = self._images
        if images.changes_examples:
            return self._changed(records, self.folder.parse if images.cut_encoded else images.decode_quickly, keys)
        return self._decode(records, self._micro_batches("train").replica_size, images.decode_quickly)

    def _changed(self, examples: tf.data.Dataset[tf.Tensor], load: _Load, keys: tf.data.Dataset[Key]) -> _Rows:
        """Load the `examples` of `keys` by `load` and augment their images by the parameters of the keys."""

        def params(number: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
            return augment.example_params(self.recipe.train.augment, self._random_params(number, replica))

        def changed(example: tf.Tensor, row: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
            features, label = load(example)
            return self._images.changed(features, row), label

        rows = tf.data.Dataset.zip(examples, keys.map(no_autograph(params)).unbatch())
        size = self._micro_batches("train").replica_size
        return rows.map(no_autograph(changed), **PARALLEL).batch(size, drop_remainder=True)

    def _random_params(self, number: tf.Tensor, replica: tf.Tensor) -> RandomParams:
        """Return the random parameters for the rows of `replica` in micro-batch `number`."""
        parts, batches = self.recipe.train.accumulation_steps, self._micro_batches("train")
        size = batches.replica_size
        first = tf.cast(number % parts * batches.size + replica * size, tf.int32)
        return RandomParams(self.recipe.seed, number // parts, self.batch_size, first, size)

    def _augment_and_weigh(
        self, number: tf.Tensor, replica: tf.Tensor, features: Tensors, labels: tf.Tensor, example_mask: tf.Tensor
    ) -> Batch:
        """Augment a micro-batch as a whole, and divide its weights by the examples of its global batch."""
        preceding = number // self.recipe.train.accumulation_steps % self.steps_per_epoch * self.batch_size
        examples = tf.minimum(np.int64(self.batch_size), self._count("train") - preceding)
        features, labels, weights = self._weigh(features, labels, example_mask / tf.cast(examples, tf.float32))
        options, params, shapes = self.recipe.train.augment, self._random_params(number, replica), self._images.shapes
        if options.resamples:
            draws = params.uniform(6)
            features = features | {name: augment.resample(features[name], options, draws) for name in shapes}
        if shapes and options.on_device:
            height, width, _ = next(iter(shapes.values()))
            device = augment.device_params(options, params, height, width)
            features = {**features, on_device.PARAMS: device}
            if options.mixes:
                share, classes = augment.mixed_share(device, height, width), len(self.folder.document.labels or [])
                class_weights = np.ones(classes, np.float32) if self.class_weights is None else self.class_weights
                targets, counts = augment.mix_targets(labels, share, classes, class_weights)
                return features, targets, weights * counts
        if self.class_weights is not None:
            weights *= tf.gather(self.class_weights, labels)
        return features, labels, weights

    def _weigh(self, features: Tensors, labels: tf.Tensor, weights: tf.Tensor) -> Batch:
        """Multiply `weights` by the sample weights, if there are any, relative to their mean."""
        mean = self.folder.document.mean_weight
        if mean is None:
            return features, labels, weights
        inputs = {name: values for name, values in features.items() if name != WEIGHT}
        return inputs, labels, weights * features[WEIGHT] / mean

    @property
    def _images(self) -> AugmentedImages:
        return AugmentedImages(self.folder, self.recipe.train.augment)

    def _count(self, split: Split) -> int:
        return self.folder.document.splits[split].examples

    def fits(self, split: Split) -> bool:
        """Return True if `split` is held in memory; otherwise it is streamed in every epoch."""
        limit = MEMORY_BYTES if self.memory_bytes is None else self.memory_bytes
        features = self.folder.document.features
        example_bytes: int = sum(
            math.prod(feature.shape) * (1 if feature.encoded else tf.as_dtype(feature.dtype).size)
            for feature in features
        )
        return self._count(split) * example_bytes <= limit


def _prefetch(batches: tf.data.Dataset[Batch]) -> tf.data.Dataset[Batch]:
    """Return `batches`, prefetched.

    TensorFlow chooses the number, within half of the machine's memory, of which a container may have a small part.
    """
    options = tf.data.Options()
    if limit := memory.limit_mib():
        options.autotune.ram_budget = int(_PREPARED_SHARE * (limit << 20))
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def streamed_files(recipe: Recipe, examples: str, rank: Rank) -> set[str]:
    """Return the files of the preprocess output `examples` that the worker `rank` streams.

    Empty if the moments of targets need all examples.
    """
    folder = ExampleFolder(examples)
    if _reads_targets(recipe, folder.document):
        return set()
    data = Input(recipe, folder, None, LocalReplicas(rank.workers, rank.index))
    return {path.removeprefix(storage.join(examples, "")) for path in data.streamed_shards()}


def _reads_targets(recipe: Recipe, document: Examples) -> bool:
    """Return True if the moments of a regression's targets need all examples: see `learned_targets`."""
    is_known = document.moments(recipe.train.target) and document.eval_target_moments
    return document.task == "regression" and not is_known


def needed_files(
    recipe: Recipe, examples: str, rank: Rank, streamed: bool = False, served: bool = False
) -> Callable[[str], bool] | None:
    """Return a predicate for the files of the preprocess output `examples` that the worker `rank` reads; None for all.

    streamed: leave out `streamed_files`. served: leave out files that input workers read.
    """
    folder = ExampleFolder(examples)
    reads_all = (rank.workers == 1 and not served) or _reads_targets(recipe, folder.document)
    if reads_all and not streamed:
        return None
    data = Input(recipe, folder, None, LocalReplicas(rank.workers, rank.index))
    read = set(data.shards("eval"))
    if not served:
        read.update(data.shards("train"))
    if streamed:
        read.difference_update(data.streamed_shards())
    if recipe.train.target.mean:
        read.update(folder.head("train", MEAN_EXAMPLES).files("train"))
    unread = {path for split in folder.document.splits for path in folder.files(split)} - read
    return lambda name: storage.join(examples, name) not in unread
