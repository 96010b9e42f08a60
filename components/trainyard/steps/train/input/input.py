"""Training batches whose content is a pure function of (seed, step), and the batches of the eval split.

A batch is (features, labels (batch,), weights float32 (batch,)) of static shape. The last batch of an epoch is filled
up with examples of weight zero, so that every example counts exactly once an epoch. Each replica of a gang takes its own
part of every global batch, so the global batches are the same for any number of replicas; where gradients are accumulated,
its part of each of the slices that a global batch comes in. A split that memory does not hold is read in lanes, by each replica
those that its part comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from trainyard import events
from trainyard.contract.artifacts import Split
from trainyard.data.examples import ExampleFolder
from trainyard.errors import ConfigurationError, did_you_mean
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.gang.place import Place
from trainyard.steps.train.input.augment import augment, drawn
from trainyard.steps.train.input.lanes import PARALLEL, Lanes, count_lanes, plain
from trainyard.storage import storage

# Chosen: a split whose decoded features take less than this is held in memory.
MEMORY_BYTES = 512 << 20

Batch = tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]


@dataclass(frozen=True)
class Share:
    """Which replicas of the gang this process feeds: `local` ones from number `first` on, of `replicas` in all."""

    replicas: int = 1
    first: int = 0
    local: int = 1


@dataclass(frozen=True)
class Input:
    """The batches of one run.

    class_weights: (classes,) float32, or None where each example counts the same.
    share: a slice takes `share.local` elements of each data set here, one a replica.
    """

    recipe: Recipe
    folder: ExampleFolder
    class_weights: np.ndarray | None
    share: Share = Share()

    @property
    def batch_size(self) -> int:
        """Examples a global batch."""
        return self.recipe.train.batch_size

    @property
    def _slices(self) -> int:
        """Slices of a global batch, which are computed one after the other."""
        return self.recipe.train.accumulation_steps

    @property
    def _slice_size(self) -> int:
        """Examples a slice, over all replicas."""
        return self.batch_size // self._slices

    @property
    def _slices_per_epoch(self) -> int:
        return self.steps_per_epoch * self._slices

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold every training example once."""
        return math.ceil(self._count("train") / self.batch_size)

    def train(self, start: int) -> tf.data.Dataset:
        """Return this process's parts of the slices from step `start` on; a batch's weights add up to 1 over the gang.

        With `class_weights` their mean over the examples is what adds up to 1.
        """
        begin = start * self._slices
        parts = self._parts(begin, self.recipe.train.epochs * self._slices_per_epoch)
        if self._fits("train"):
            held = _Held.read(self.folder, "train")
            batches = parts.map(
                plain(lambda number, replica: (number, replica, *self._drawn(held, number, replica))), **PARALLEL
            )
        else:
            batches = self._streamed(parts, begin)
        return batches.map(plain(self._finish), **PARALLEL).prefetch(tf.data.AUTOTUNE)

    @property
    def evaluation_steps(self) -> int:
        """Slices that hold every eval example once."""
        return math.ceil(self._count("eval") / self._slice_size)

    def evaluation(self) -> tf.data.Dataset:
        """Return this process's parts of the eval split in stored order; weights are 1, and 0 for what fills it up."""
        part = self._part("eval")
        parts = self._parts(0, self.evaluation_steps)
        if self._fits("eval"):
            held = _Held.read(self.folder, "eval")
            batches = parts.map(plain(lambda number, replica: self._stored(held, number, replica, part)), **PARALLEL)
        else:
            lanes = self._lanes("eval")
            rows = self._decoded(lanes.stored(*self._rows("eval")), part)
            batches = tf.data.Dataset.zip(parts, rows).map(
                plain(lambda place, batch: (*batch, lanes.real(place[0], place[1] * part, part)))
            )
        return batches.prefetch(tf.data.AUTOTUNE)

    def shards(self, split: Split) -> list[str]:
        """Return the paths of the shards of `split` that this process reads."""
        return self.folder.files(split) if self._fits(split) else self._lanes(split).touched(*self._rows(split))

    def _parts(self, start: int, end: int) -> tf.data.Dataset:
        """Return (number, replica) of this process's parts of the slices from `start` to `end`, both int64."""
        local = self.share.local
        return tf.data.Dataset.range(start * local, end * local).map(
            plain(lambda part: (part // local, self.share.first + part % local))
        )

    def _drawn(self, held: _Held, number: tf.Tensor, replica: tf.Tensor) -> Batch:
        """Return the part of `replica` in slice `number`: a part of the epoch's own permutation of the split."""
        epoch, position = number // self._slices_per_epoch, number % self._slices_per_epoch
        part = self._part("train")
        places = position * self._slice_size + replica * part + tf.range(part, dtype=tf.int64)
        count = self._count("train")
        chosen = tf.random.experimental.index_shuffle(
            places % count, seed=tf.stack([np.int64(self.recipe.seed), epoch]), max_index=count - 1
        )
        features = {name: tf.gather(values, chosen) for name, values in held.features.items()}
        return features, tf.gather(held.labels, chosen), tf.cast(places < count, tf.float32)

    def _stored(self, held: _Held, number: tf.Tensor, replica: tf.Tensor, part: int) -> Batch:
        """Return the `part` examples of `replica` in slice `number` of the eval split, in stored order."""
        places = (number * self.share.replicas + replica) * part + tf.range(part, dtype=tf.int64)
        count = self._count("eval")
        again = places % count
        features = {name: tf.gather(values, again) for name, values in held.features.items()}
        return features, tf.gather(held.labels, again), tf.cast(places < count, tf.float32)

    def _streamed(self, parts: tf.data.Dataset, start: int) -> tf.data.Dataset:
        """Return (number, replica, features, labels, real) of `parts`, which begin with slice `start`."""
        lanes, rows, part = self._lanes("train"), self._rows("train"), self._part("train")
        events.emit("streaming", split="train", lanes=lanes.count, files=len(lanes.touched(*rows)), of=len(lanes.files))
        first, skipped = divmod(start, self._slices_per_epoch)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            begin = tf.where(number == first, np.int64(skipped), np.int64(0))
            return lanes.shuffled(*rows, self.recipe.seed, number, begin)

        records = tf.data.Dataset.range(first, self.recipe.train.epochs).flat_map(plain(epoch))

        return tf.data.Dataset.zip(parts, self._decoded(records, part)).map(
            plain(
                lambda place, batch: (
                    *place,
                    *batch,
                    lanes.real(place[0] % self._slices_per_epoch, place[1] * part, part),
                )
            )
        )

    def _lanes(self, split: Split) -> Lanes:
        """Return the lanes of a streamed split: of eval one a replica, for the order of its sums is nobody's matter."""
        files, held = self.folder.files(split), self.folder.document.splits[split].shard_examples
        if split == "eval":
            return Lanes(files, held, self.share.replicas, self._part(split), self.evaluation_steps)
        count = count_lanes(self._slice_size, len(files))
        return Lanes(files, held, count, self._slice_size // count, self._slices_per_epoch)

    def _part(self, split: Split) -> int:
        """Return how many rows of a slice each replica takes: of eval no more than the split needs."""
        rows = min(self._slice_size, self._count("eval")) if split == "eval" else self._slice_size
        return math.ceil(rows / self.share.replicas)

    def _rows(self, split: Split) -> tuple[int, int]:
        """Return the first row of a slice that this process takes, and the one after its last."""
        part = self._part(split)
        return self.share.first * part, (self.share.first + self.share.local) * part

    def _decoded(self, records: tf.data.Dataset, part: int) -> tf.data.Dataset:
        """Return (features, labels) of the serialized `records`, `part` at a time."""
        return records.map(plain(self.folder.decode), **PARALLEL).batch(part, drop_remainder=True)

    def _finish(
        self, number: tf.Tensor, replica: tf.Tensor, features: dict[str, tf.Tensor], labels: tf.Tensor, real: tf.Tensor
    ) -> Batch:
        step, place = number // self._slices, number % self._slices
        options = self.recipe.train.augment
        if options.model_dump() != type(options)().model_dump():
            first = tf.cast(place * self._slice_size + replica * self._part("train"), tf.int32)
            for feature in self.folder.document.features:
                if len(feature.shape) == 3:
                    draws = drawn(self.recipe.seed, step, self.batch_size, first, tf.shape(labels)[0])
                    features[feature.name] = augment(features[feature.name], options, draws)
        before = step % self.steps_per_epoch * self.batch_size
        weights = real / tf.cast(tf.minimum(np.int64(self.batch_size), self._count("train") - before), tf.float32)
        if self.class_weights is not None:
            weights *= tf.gather(self.class_weights, labels)
        return features, labels, weights

    def _count(self, split: Split) -> int:
        return self.folder.document.splits[split].examples

    def _fits(self, split: Split) -> bool:
        bytes_each: int = sum(math.prod(f.shape) * tf.as_dtype(f.dtype).size for f in self.folder.document.features)
        return self._count(split) * bytes_each <= MEMORY_BYTES


def needed(recipe: Recipe, examples: str, place: Place) -> Callable[[str], bool] | None:
    """Return which files of the preprocess output `examples` the worker at `place` reads; None where it is all of them."""
    folder = ExampleFolder(examples)
    if place.workers == 1 or folder.document.task == "regression":  # whose targets' mean is that of all
        return None
    data = Input(recipe, folder, None, Share(place.workers, place.index))
    shards = {storage.join(examples, file) for split in folder.document.splits.values() for file in split.files}
    unread = shards.difference(data.shards("train"), data.shards("eval"))
    return lambda name: storage.join(examples, name) not in unread


def class_weights(recipe: Recipe, labels: Sequence[str] | None, counts: Sequence[int] | None) -> np.ndarray | None:
    """Return one float32 weight a class, or None where the recipe asks for none.

    balanced: examples / (classes * examples of the class), so that the weights' mean over the examples is 1.
    Raises `ConfigurationError` where a weight is given for a label that the data does not have.
    """
    wanted = recipe.train.class_weights
    if wanted is None or labels is None or counts is None:
        return None
    if wanted == "balanced":
        each = np.asarray(counts, np.float64)
        return np.asarray(each.sum() / (len(each) * np.maximum(each, 1)), np.float32)
    unknown = [name for name in wanted if name not in labels]
    if unknown:
        raise ConfigurationError(
            f"train.class_weights: no label '{unknown[0]}'.{did_you_mean(unknown[0], labels)} "
            f"The data has {', '.join(labels[:20])}."
        )
    return np.asarray([wanted.get(label, 1.0) for label in labels], np.float32)


@dataclass(frozen=True)
class _Held:
    """A split in memory, in stored order."""

    features: dict[str, tf.Tensor]
    labels: tf.Tensor

    @classmethod
    def read(cls, folder: ExampleFolder, split: Split) -> _Held:
        parts = [(features, labels) for features, labels, _ in folder.batches(split, 1024)]
        names = parts[0][0]
        return cls(
            features={name: tf.concat([features[name] for features, _ in parts], axis=0) for name in names},
            labels=tf.concat([labels for _, labels in parts], axis=0),
        )
