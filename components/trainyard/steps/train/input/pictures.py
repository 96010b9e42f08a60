"""The pictures of training examples: decoded, and each changed on its own before it is in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from trainyard.data.examples import ExampleFolder, Tensors
from trainyard.data.images import decode_pixels
from trainyard.spec.training.augment import Augment
from trainyard.steps.train.input import augment, crop


@dataclass(frozen=True)
class Pictures:
    """The features of `folder` that are images, changed as `options` say."""

    folder: ExampleFolder
    options: Augment

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the images, by the names of their features; empty if there are none."""
        return {feature.name: feature.shape for feature in self.folder.document.features if len(feature.shape) == 3}

    @property
    def changes_examples(self) -> bool:
        """Whether an image is changed on its own."""
        return bool(self.shapes) and augment.changes_examples(self.options)

    @property
    def cut_encoded(self) -> bool:
        """Whether windows are cut out of encoded pictures, which may be larger than the model's."""
        encoded = any(feature.encoded and not feature.pixels for feature in self.folder.document.features)
        return encoded and self.options.crop is not None

    def decode_quickly(self, record: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        """Return (features, label) of a serialized example, its image as uint8."""
        features, label = self.folder.parse(record)
        return self.folder.decode_features(features, partial(decode_pixels, quick=True)), label

    def changed(self, features: Tensors, row: tf.Tensor) -> Tensors:
        """Return an example's features, its images changed by its `row` of draws (see `augment.example_draws`)."""
        images = {name: self._changed(features[name], shape, row) for name, shape in self.shapes.items()}
        return {**features, **images}

    def _changed(self, image: tf.Tensor, shape: tuple[int, ...], row: tf.Tensor) -> tf.Tensor:
        model_shape = self.folder.document.image
        if self.options.crop is not None:
            where = augment.window_draws(row)
            if image.dtype == tf.string and model_shape is not None:
                image = crop.decode_window(image, model_shape, self.options.crop, where)
            else:
                image = crop.cut_window(image, shape[0], shape[1], self.options.crop, where)
        return augment.augment_example(image, self.options, row)
