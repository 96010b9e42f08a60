"""Training batches whose content is a pure function of (seed, step), and the batches of the eval split.

A batch is (features, labels (batch,), weights float32 (batch,)) of static shape. The last batch of an epoch is filled
up with examples of weight zero, so that every example counts exactly once an epoch. Each replica of a gang takes its own
part of every global batch, so the global batches are the same for any number of replicas. Where gradients are accumulated,
a global batch comes in several slices, and each replica takes its part of every slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainyard.core import events
from trainyard.core.artifacts import Split
from trainyard.core.errors import ConfigurationError, did_you_mean
from trainyard.core.recipe import Recipe
from trainyard.data.examples import ExampleFolder
from trainyard.train.augment import augment, drawn

# Chosen: a split whose decoded features take less than this is held in memory.
MEMORY_BYTES = 512 << 20
# Chosen: examples among which a streamed split is shuffled, after its files were.
SHUFFLE_EXAMPLES = 8192

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
    def slices(self) -> int:
        """Slices of a global batch, which are computed one after the other."""
        return self.recipe.train.accumulation_steps

    @property
    def slice_size(self) -> int:
        """Examples a slice, over all replicas."""
        return self.batch_size // self.slices

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold every training example once."""
        return math.ceil(self._count("train") / self.batch_size)

    def train(self, start: int) -> tf.data.Dataset:
        """Return this process's parts of the batches from step `start` on; a batch's weights add up to 1 over the gang.

        With `class_weights` their mean over the examples is what adds up to 1.
        """
        total, local = self.recipe.train.epochs * self.steps_per_epoch, self.share.local
        # Which slice since the first step a part belongs to, and which replica takes it.
        parts = tf.data.Dataset.range(start * self.slices * local, total * self.slices * local).map(
            _plain(lambda part: (part // local, self.share.first + part % local))
        )
        if self._fits("train"):
            held = _Held.read(self.folder, "train")
            batches = parts.map(
                _plain(lambda number, replica: (number, replica, *self._drawn(held, number, replica))), **_PARALLEL
            )
        else:
            events.emit("streaming", split="train", shuffle_examples=SHUFFLE_EXAMPLES)
            batches = tf.data.Dataset.zip(parts, self._streamed(start))
            batches = batches.map(_plain(lambda part, batch: (*part, *batch)))
        return batches.map(_plain(self._finish), **_PARALLEL).prefetch(tf.data.AUTOTUNE)

    @property
    def evaluation_steps(self) -> int:
        """Slices that hold every eval example once."""
        return math.ceil(self._count("eval") / self.slice_size)

    def evaluation(self) -> tf.data.Dataset:
        """Return this process's parts of the eval split in stored order; weights are 1, and 0 for what fills it up."""
        # As large a part for every replica, and no larger batch than the split needs.
        part = math.ceil(min(self.slice_size, self._count("eval")) / self.share.replicas)
        if self._fits("eval"):
            held = _Held.read(self.folder, "eval")
            numbers = tf.data.Dataset.range(self.evaluation_steps * self.share.local)
            batches = numbers.map(_plain(lambda number: self._stored(held, number, part)), **_PARALLEL)
        else:
            batches = self._decoded(tf.data.TFRecordDataset(self.folder.files("eval")), part)
        return batches.prefetch(tf.data.AUTOTUNE)

    def _drawn(self, held: _Held, number: tf.Tensor, replica: tf.Tensor) -> Batch:
        """Return the part of `replica` in slice `number`: a part of the epoch's own permutation of the split."""
        each = self.steps_per_epoch * self.slices
        epoch, position = number // each, number % each
        part = self.slice_size // self.share.replicas
        places = position * self.slice_size + replica * part + tf.range(part, dtype=tf.int64)
        count = self._count("train")
        chosen = tf.random.experimental.index_shuffle(
            places % count, seed=tf.stack([np.int64(self.recipe.seed), epoch]), max_index=count - 1
        )
        features = {name: tf.gather(values, chosen) for name, values in held.features.items()}
        return features, tf.gather(held.labels, chosen), tf.cast(places < count, tf.float32)

    def _stored(self, held: _Held, number: tf.Tensor, part: int) -> Batch:
        """Return element `number` of the eval split's parts, `part` examples in stored order."""
        batch, replica = number // self.share.local, self.share.first + number % self.share.local
        places = (batch * self.share.replicas + replica) * part + tf.range(part, dtype=tf.int64)
        count = self._count("eval")
        again = places % count
        features = {name: tf.gather(values, again) for name, values in held.features.items()}
        return features, tf.gather(held.labels, again), tf.cast(places < count, tf.float32)

    def _streamed(self, start: int) -> tf.data.Dataset:
        """Return batches out of shuffled files and a shuffled buffer, each epoch in its own order.

        Every process reads all records, for the order does not depend on the gang, and decodes its own part alone.
        """
        files = self.folder.files("train")
        first, skipped = divmod(start, self.steps_per_epoch)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            order = tf.random.experimental.stateless_shuffle(files, seed=[self.recipe.seed, number])
            records = tf.data.Dataset.from_tensor_slices(order).interleave(
                tf.data.TFRecordDataset, cycle_length=min(len(files), 8), **_PARALLEL
            )
            records = records.shuffle(
                SHUFFLE_EXAMPLES, seed=self.recipe.seed + number, reshuffle_each_iteration=False
            ).skip(tf.where(number == first, np.int64(skipped * self.batch_size), np.int64(0)))
            return self._decoded(records, self.slice_size // self.share.replicas)

        return tf.data.Dataset.range(first, self.recipe.train.epochs).flat_map(_plain(epoch))

    def _decoded(self, records: tf.data.Dataset, part: int) -> tf.data.Dataset:
        """Return this process's parts, `part` examples each, of the batches of the serialized `records`."""
        first, size = self.share.first * part, self.share.local * part
        batches = records.batch(self.share.replicas * part)
        mine = batches.map(_plain(lambda batch: _filled(batch, first, size))).unbatch()
        rows = mine.map(_plain(lambda record, real: (*self.folder.decode(record), real)), **_PARALLEL)
        return rows.batch(part, drop_remainder=True)

    def _finish(
        self, number: tf.Tensor, replica: tf.Tensor, features: dict[str, tf.Tensor], labels: tf.Tensor, real: tf.Tensor
    ) -> Batch:
        step, place = number // self.slices, number % self.slices
        options = self.recipe.train.augment
        if options.model_dump() != type(options)().model_dump():
            part = self.slice_size // self.share.replicas
            first = tf.cast(place * self.slice_size + replica * part, tf.int32)
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


# AutoGraph is left out: nothing here branches on tensors, and the conversion took longer than the tracing itself.
_plain = tf.autograph.experimental.do_not_convert
_PARALLEL: dict[str, Any] = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


def _filled(records: tf.Tensor, first: int, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return records `first` to `first + size`, again from the start where there are fewer, and 1, or 0 for those."""
    count = tf.shape(records)[0]
    places = first + tf.range(size)
    return tf.gather(records, places % count), tf.cast(places < count, tf.float32)
