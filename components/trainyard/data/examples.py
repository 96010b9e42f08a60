"""Reads what preprocess wrote: the example shards as tf.data, and the transform graph."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainyard.contract.artifacts.preprocess import WEIGHT, Examples
from trainyard.contract.document import Split
from trainyard.data.images import decode_image, decode_pixels, encode_pixels
from trainyard.errors import DataError, TransientError
from trainyard.graph import remedy
from trainyard.storage import cache, damage, storage

_DTYPES = {"float32": tf.float32, "int64": tf.int64, "string": tf.string}
RAW = "raw/"
"""Before the names of raw columns in the examples."""

Tensors = dict[str, tf.Tensor]
KeyedBatch = tuple[Tensors, tf.Tensor, tf.Tensor]
"""Features, labels and keys of some examples."""

_TENSORFLOWS_PLACE = re.compile(r"\}\} |Iterator::\S+: ")  # before its sentence
_READ_AHEAD = 1 << 20  # bytes; chosen


def open_examples(uri: str) -> ExampleFolder:
    """Return the committed output of preprocess at `uri`. Raises `DataError` if it is missing, cut or changed.

    What is wrong in a shard shows when it is read, within `reading`.
    """
    return ExampleFolder(str(storage.local(uri, remedy("preprocess"))))


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Name the damaged shard of the examples at `uri` if the block meets one, or the image that cannot be decoded.

    Raises `DataError`, or `TransientError` if it is a copy of a bucket's, which is then downloaded again.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if found := _undecodable_image(ExampleFolder(uri)):
            raise DataError(
                f"{uri}: the image of {found}. Remove it from the data and run the same command again."
            ) from error
        raise
    except tf.errors.DataLossError as error:
        manifest, folder = storage.require(uri, remedy("preprocess")), Path(uri)
        damaged = [name for name, file in manifest.files.items() if storage.measure(folder / name) != file]
        if cache.discard(folder):
            raise TransientError(
                f"{folder}: this machine's copy of the examples is damaged ({', '.join(damaged)}). "
                "Run the same command again: it is fetched again."
            ) from error
        if damaged:
            raise damage.changed(manifest, damaged[0], uri, remedy("preprocess")) from error
        raise DataError(
            f"{uri}: a shard was written damaged ({error.message.splitlines()[0]}). Run with --from preprocess."
        ) from error


def _undecodable_image(examples: ExampleFolder) -> str | None:
    """Return the first image on this machine that TensorFlow cannot decode, and the reason."""
    encoded = [feature for feature in examples.document.features if feature.encoded and not feature.pixels]
    if not encoded:
        return None
    for split in examples.document.splits:
        for path in filter(os.path.exists, examples.files(split)):
            decoded = 0
            try:
                for _ in examples.decoded(path):
                    decoded += 1
            except tf.errors.InvalidArgumentError as error:
                [record] = tf.data.TFRecordDataset(path).skip(decoded).take(1)
                key: Any = tf.io.parse_example(record, {"key": tf.io.FixedLenFeature((), tf.string)})["key"].numpy()
                reason = _TENSORFLOWS_PLACE.split(error.message.splitlines()[0])[-1].partition(" [Op:")[0][:200]
                return f"example {key.decode(errors='replace')} ({path}) cannot be decoded: {reason.rstrip('.')}"
    return None


class ExampleFolder:
    """The example shards of one preprocess output."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.document = Examples.read(uri)
        label = tf.float32 if self.document.task == "regression" else tf.int64
        self._label = {"label": tf.io.FixedLenFeature(self.document.label_shape, label)}
        self._features = {
            f"{RAW}{feature.name}" if feature.encoded else feature.name: tf.io.FixedLenFeature(
                () if feature.encoded else feature.shape, tf.string if feature.encoded else _DTYPES[feature.dtype]
            )
            for feature in self.document.features
        }
        weighted = self.document.mean_weight is not None
        self._weight = {WEIGHT: tf.io.FixedLenFeature((), tf.float32)} if weighted else {}
        self._raw = {
            f"{RAW}{feature.name}": tf.io.FixedLenFeature((), _DTYPES[feature.dtype])
            for feature in self.document.raw_features
        }

    def at(self, uri: str) -> ExampleFolder:
        """Return the same examples with their shards in the folder `uri`, perhaps of another machine."""
        moved = copy.copy(self)
        moved.uri = uri
        return moved

    def head(self, split: Split, examples: int) -> ExampleFolder:
        """Return the same examples with only the first shards of `split`: those of its first `examples`."""
        whole, head = self.document.splits[split], copy.copy(self)
        shards = int(np.searchsorted(np.cumsum(whole.shard_examples), examples)) + 1
        first = whole.model_copy(
            update={"files": whole.files[:shards], "shard_examples": whole.shard_examples[:shards]}
        )
        head.document = self.document.model_copy(update={"splits": {**self.document.splits, split: first}})
        return head

    def files(self, split: Split) -> list[str]:
        """Return the paths of the shards of `split`, in order."""
        return [storage.join(self.uri, file) for file in self.document.splits[split].files]

    def parse(self, serialized: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        """Return the model features and the labels of serialized tf.Examples, (n,) or a scalar string.

        Each feature has the shape and dtype that its `Feature` says, but an image is encoded, as its shard has it. A
        label is an int64 class id, bool (classes,) of multi_label, or a float32 target, several (targets,). Beside the
        features is `WEIGHT`, float32, if there are weights.
        """
        return self._parsed(serialized, {**self._features, **self._weight})

    def decode(self, serialized: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        """Parse one tf.Example, a scalar string, as `parse`, with its image as uint8 in its `Feature`'s shape."""
        features, label = self.parse(serialized)
        return self.decode_features(features), label

    def decode_features(self, features: Tensors, decode: Callable[..., tf.Tensor] = decode_pixels) -> Tensors:
        """Return one example's `features` as `parse` gives them, its image as `decode`, one of `data.images`, does."""
        image = self.document.image
        encoded = [feature for feature in self.document.features if feature.encoded and image is not None]
        return features | {item.name: decode(features[item.name], image, pixels=item.pixels) for item in encoded}

    def parsed_batches(self, split: Split, batch_size: int) -> tf.data.Dataset[tuple[Tensors, tf.Tensor]]:
        """Return `split` in stored order as `parse` gives it."""
        parse = tf.autograph.experimental.do_not_convert(self.parse)
        return self._records(split).batch(batch_size).map(parse).prefetch(tf.data.AUTOTUNE)

    def pixel_batches(self, split: Split, batch_size: int) -> tf.data.Dataset[tuple[Tensors, tf.Tensor]]:
        """Return `split` in stored order as `decode` gives it."""
        decode = tf.autograph.experimental.do_not_convert(self.decode)
        examples = self._records(split).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        return examples.batch(batch_size).prefetch(tf.data.AUTOTUNE)

    def decoded(self, path: str) -> tf.data.Dataset[tuple[Tensors, tf.Tensor]]:
        """Return the examples of the shard at `path` as `decode` gives them, in stored order."""
        decode = tf.autograph.experimental.do_not_convert(self.decode)
        return tf.data.TFRecordDataset(path).map(decode, num_parallel_calls=tf.data.AUTOTUNE)

    def batches(self, split: Split, batch_size: int, raw: Collection[str] = ()) -> tf.data.Dataset[KeyedBatch]:
        """Return `split` in stored order, the last batch kept: features (n, ...) by name, labels (n,), keys (n,).

        raw: columns that are among the features, too, each as `RAW` and its name.
        """
        columns = {f"{RAW}{name}": self._raw[f"{RAW}{name}"] for name in raw}
        spec = {**self._features, **columns, "key": tf.io.FixedLenFeature((), tf.string)}

        @tf.autograph.experimental.do_not_convert
        def decode(serialized: tf.Tensor) -> tuple[Tensors, tf.Tensor, tf.Tensor]:
            features, label = self._parsed(serialized, spec, columns)
            key = features.pop("key")
            return self.decode_features(features, decode_image), label, key

        records, parallel = self._records(split), tf.data.AUTOTUNE
        if self.document.image is None:
            return records.batch(batch_size).map(decode, num_parallel_calls=parallel).prefetch(parallel)
        return records.map(decode, num_parallel_calls=parallel).batch(batch_size).prefetch(parallel)

    def raw_batches(
        self, split: Split, batch_size: int, names: Collection[str] | None = None
    ) -> tf.data.Dataset[tuple[Tensors, tf.Tensor]]:
        """Return `split` in the order and batches of `batches`: (raw features (n,) by name, labels (n,)).

        The raw features are what the serving signature takes: encoded images, or the columns of a row. names: those of
        the columns to read; default all.
        """
        spec = {name: part for name, part in self._raw.items() if names is None or name.removeprefix(RAW) in names}

        @tf.autograph.experimental.do_not_convert
        def decode(serialized: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
            raw, label = self._parsed(serialized, spec)
            for feature in self.document.features:
                if feature.name in raw and feature.pixels and self.document.image is not None:
                    raw[feature.name] = encode_pixels(raw[feature.name], self.document.image)
            return raw, label

        return self._records(split).batch(batch_size).map(decode).prefetch(tf.data.AUTOTUNE)

    def labels(self, split: Split) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the labels of `split` in stored order, (n,) or (n, ...), each as `parse` gives it."""
        stored = self._column(split, "label", self._label["label"])
        return stored != 0 if self.document.task == "multi_label" else stored

    def keys(self, split: Split) -> list[str]:
        """Return the names of the records of `split` in stored order."""
        return [key.decode() for key in self._column(split, "key", tf.io.FixedLenFeature((), tf.string)).tolist()]

    def weights(self, split: Split) -> np.ndarray[Any, np.dtype[Any]] | None:
        """Return the sample weights of `split` in stored order, float32 (n,); None if all are equal."""
        return self._column(split, WEIGHT, self._weight[WEIGHT]) if self._weight else None

    def _column(self, split: Split, name: str, spec: tf.io.FixedLenFeature) -> np.ndarray[Any, np.dtype[Any]]:
        @tf.autograph.experimental.do_not_convert
        def decode(serialized: tf.Tensor) -> tf.Tensor:
            return tf.io.parse_example(serialized, {name: spec})[name]

        batches = list(self._records(split).batch(4096).map(decode).as_numpy_iterator())
        return np.concatenate(batches) if batches else np.zeros((0, *spec.shape), spec.dtype.as_numpy_dtype)

    def _parsed(
        self, serialized: tf.Tensor, spec: dict[str, tf.io.FixedLenFeature], stored_names: Collection[str] = ()
    ) -> tuple[Tensors, tf.Tensor]:
        """Return the features of `spec` by name, and the labels as `parse` returns them.

        stored_names: of those that keep the prefix `RAW`.
        """
        parsed = tf.io.parse_example(serialized, {**spec, **self._label})
        stored = parsed.pop("label")
        labels = tf.not_equal(stored, 0) if self.document.task == "multi_label" else stored
        named = {name if name in stored_names else name.removeprefix(RAW): each for name, each in parsed.items()}
        return named, labels

    def _records(self, split: Split) -> tf.data.Dataset[tf.Tensor]:
        return tf.data.TFRecordDataset(self.files(split), buffer_size=_READ_AHEAD)


def load_transform(uri: str) -> Transform:
    """Return the transform graph of the preprocess output at `uri`, without importing tf.Transform."""
    return Transform(storage.join(uri, "transform", "transform_fn"))


class Transform(tf.Module):
    """tf.Transform's graph as a module: attached to a serving module, it is exported with its vocabularies."""

    def __init__(self, saved_model: str) -> None:
        super().__init__(name="transform")
        self._loaded = tf.saved_model.load(saved_model)
        function: Any = self._loaded.transform_fn
        (concrete,) = getattr(function, "concrete_functions", [function])  # tf.Transform itself saves a concrete one
        self._takes_weight = WEIGHT in concrete.structured_input_signature[0][0]  # a dict is its only argument

    def __call__(self, raw: Tensors) -> Tensors:
        """Return the model features (n, ...) of the raw features `raw`, each (n,)."""
        if self._takes_weight:  # what was learned by it is a constant
            raw = raw | {WEIGHT: tf.zeros(tf.shape(next(iter(raw.values()))))}
        return dict(self._loaded.transform_fn(raw))
