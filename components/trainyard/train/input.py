"""Training batches whose content is a pure function of (seed, step), and the batches of the eval split.

A batch is (features, labels (batch,), weights float32 (batch,)) of static shape. The last batch of an epoch is filled
up with examples of weight zero, so that every example counts exactly once an epoch.
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
from trainyard.train.augment import augment

# Chosen: a split whose decoded features take less than this is held in memory.
MEMORY_BYTES = 512 << 20
# Chosen: examples among which a streamed split is shuffled, after its files were.
SHUFFLE_EXAMPLES = 8192

Batch = tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]


@dataclass(frozen=True)
class Input:
    """The batches of one run.

    class_weights: (classes,) float32, or None where each example counts the same.
    """

    recipe: Recipe
    folder: ExampleFolder
    class_weights: np.ndarray | None

    @property
    def batch_size(self) -> int:
        """Examples a global batch."""
        return self.recipe.train.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold every training example once."""
        return math.ceil(self._count("train") / self.batch_size)

    def train(self, start: int) -> tf.data.Dataset:
        """Return the batches of step `start` and all that follow; weights add up to 1 a batch (see `class_weights`)."""
        total = self.recipe.train.epochs * self.steps_per_epoch
        steps = tf.data.Dataset.range(start, total)
        if self._fits("train"):
            held = _Held.read(self.folder, "train")
            batches = steps.map(_plain(lambda step: (step, *self._drawn(held, step))), **_PARALLEL)
        else:
            events.emit("streaming", split="train", shuffle_examples=SHUFFLE_EXAMPLES)
            batches = tf.data.Dataset.zip(steps, self._streamed(start))
            batches = batches.map(_plain(lambda step, batch: (step, *batch)))
        return batches.map(_plain(self._finish), **_PARALLEL).prefetch(tf.data.AUTOTUNE)

    @property
    def evaluation_steps(self) -> int:
        """Batches that hold every eval example once."""
        return math.ceil(self._count("eval") / self.batch_size)

    def evaluation(self) -> tf.data.Dataset:
        """Return the eval split in stored order; weights are 1, and 0 for what fills up the last batch."""
        size = min(self.batch_size, self._count("eval"))
        if self._fits("eval"):
            held = _Held.read(self.folder, "eval")
            batches = tf.data.Dataset.from_tensor_slices((held.features, held.labels)).batch(size)
        else:
            batches = self.folder.batches("eval", size).map(_plain(lambda features, labels, _: (features, labels)))
        return batches.map(_plain(lambda *batch: _filled(batch, size))).prefetch(tf.data.AUTOTUNE)

    def _drawn(self, held: _Held, step: tf.Tensor) -> Batch:
        """Return the batch of `step`: a part of the epoch's own permutation of the split."""
        epoch, position = step // self.steps_per_epoch, step % self.steps_per_epoch
        places = position * self.batch_size + tf.range(self.batch_size, dtype=tf.int64)
        count = self._count("train")
        chosen = tf.random.experimental.index_shuffle(
            places % count, seed=tf.stack([np.int64(self.recipe.seed), epoch]), max_index=count - 1
        )
        features = {name: tf.gather(values, chosen) for name, values in held.features.items()}
        return features, tf.gather(held.labels, chosen), tf.cast(places < count, tf.float32)

    def _streamed(self, start: int) -> tf.data.Dataset:
        """Return batches out of shuffled files and a shuffled buffer, each epoch in its own order."""
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
            examples = records.map(_plain(self.folder.decode), **_PARALLEL)
            return examples.batch(self.batch_size).map(_plain(lambda *batch: _filled(batch, self.batch_size)))

        return tf.data.Dataset.range(first, self.recipe.train.epochs).flat_map(_plain(epoch))

    def _finish(self, step: tf.Tensor, features: dict[str, tf.Tensor], labels: tf.Tensor, real: tf.Tensor) -> Batch:
        options = self.recipe.train.augment
        if options.model_dump() != type(options)().model_dump():
            for feature in self.folder.document.features:
                if len(feature.shape) == 3:
                    features[feature.name] = augment(features[feature.name], options, self.recipe.seed, step)
        weights = real / tf.reduce_sum(real)
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


def _filled(batch: tuple[dict[str, tf.Tensor], tf.Tensor], size: int) -> Batch:
    """Return `batch`, of 1 to `size` examples, repeated up to `size`; the repeated ones weigh nothing."""
    features, labels = batch
    count = tf.shape(labels)[0]
    places = tf.range(size)
    again = places % count
    return (
        {name: tf.gather(values, again) for name, values in features.items()},
        tf.gather(labels, again),
        tf.cast(places < count, tf.float32),
    )
