"""A split that is held in memory."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from trainyard.contract.document import Split
from trainyard.data.examples import ExampleFolder, Tensors


@dataclass(frozen=True)
class InMemory:
    """A split in memory, in stored order: images as uint8, or encoded."""

    features: Tensors
    labels: tf.Tensor

    @classmethod
    def read(cls, folder: ExampleFolder, split: Split, encoded: bool) -> InMemory:
        """Return the `split` of `folder`, its images still encoded if asked."""
        [(features, labels)] = cls.whole(folder, split, encoded)
        return cls(features, labels)

    @staticmethod
    def whole(folder: ExampleFolder, split: Split, encoded: bool) -> tf.data.Dataset[tuple[Tensors, tf.Tensor]]:
        """Return a data set whose only element, (features, labels), is what `read` reads."""
        size = folder.document.splits[split].examples
        return folder.parsed_batches(split, size) if encoded else folder.pixel_batches(split, size)

    def rows(self, indices: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        """Return features and labels of the examples `indices`, a vector or a scalar."""
        return {name: tf.gather(values, indices) for name, values in self.features.items()}, tf.gather(
            self.labels, indices
        )
