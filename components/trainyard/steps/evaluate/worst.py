"""The examples with the largest loss, with the images that the model saw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainyard.contract.artifacts.evaluate import Mistake
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.steps.evaluate.metrics.predictions import Floats, SplitPredictions

if TYPE_CHECKING:
    import tensorflow as tf

    from trainyard.data.examples import KeyedBatch

FOLDER = "worst"

SIDES = (112, 224)
"""Bounds of an image's longer side in pixels: an 8-pixel digit is enlarged, a photograph shrunk. Chosen."""


def worst_examples(
    count: int,
    predictions: SplitPredictions,
    keys: NDArray[Any],
    examples: Examples,
    batches: tf.data.Dataset[KeyedBatch],
    folder: Path,
) -> list[Mistake]:
    """Return the `count` examples of the largest loss, worst first; writes worst/00.png … below `folder` for images.

    `batches` is the dataset of (features, labels, keys) that was predicted. The images are what the model saw:
    decoded and resized.
    """
    order = predictions.largest_losses(count)
    images = _images(examples, batches, order)
    if images:
        (folder / FOLDER).mkdir()
    mistakes = []
    for rank, index in enumerate(order.tolist()):
        file = None
        if index in images:
            file = f"{FOLDER}/{rank:02d}.png"
            _as_image(images[index]).save(folder / file)
        key = keys[index].decode("utf-8", "replace")
        mistakes.append(mistake(predictions, index, key, examples.labels, file))
    return mistakes


def mistake(
    predictions: SplitPredictions, index: int, key: str, labels: Sequence[str] | None, image: str | None = None
) -> Mistake:
    """Return the example at `index`. labels: the names of the classes, None for regression."""
    return Mistake(
        key=key,
        label=_name(predictions.labels[index], labels),
        predicted=_name(predictions.predicted[index], labels),
        loss=float(predictions.losses[index]),
        image=image,
    )


def _images(
    examples: Examples, batches: tf.data.Dataset[KeyedBatch], indices: NDArray[np.int64]
) -> dict[int, NDArray[np.float32]]:
    """Return the images of the examples at `indices`, by index in the split; {} if the examples are not images."""
    feature = next((feature.name for feature in examples.features if feature.encoded), None)
    if feature is None or len(indices) == 0:
        return {}
    images: dict[int, NDArray[np.float32]] = {}
    first = 0
    for features, label, _key in batches:
        in_batch = indices[(indices >= first) & (indices < first + len(label))]
        images.update({int(index): features[feature][index - first].numpy() for index in in_batch})
        first += len(label)
        if len(images) == len(indices):
            break
    return images


def _as_image(pixels: Floats) -> Image.Image:
    values = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    image = Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)
    longest = max(image.size)
    if longest < SIDES[0]:
        factor = -(-SIDES[0] // longest)
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.thumbnail((SIDES[1], SIDES[1]))
    return image


def _name(label: NDArray[Any], labels: Sequence[str] | None) -> str:
    if labels is None:
        return ", ".join(f"{value:.6g}" for value in np.atleast_1d(label))
    if np.ndim(label) == 0:
        return labels[int(label)]
    return ", ".join(labels[index] for index in np.flatnonzero(label).tolist()) or "none"
