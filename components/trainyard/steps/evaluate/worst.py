"""The examples with the largest loss, and those that the champion answers differently, with their images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainyard.contract.artifacts.evaluate import Disagreement, Mistake
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.steps.evaluate.metrics.predictions import Floats, SplitPredictions

if TYPE_CHECKING:
    import tensorflow as tf

    from trainyard.data.examples import KeyedBatch

WORST, DIFFERS = "worst", "differs"
"""Folders of images."""

SIDES = (112, 224)
"""Bounds of an image's longer side in pixels: an 8-pixel digit is enlarged, a photograph shrunk. Chosen."""

_OTHER_CLASS = "another class"
"""The answer of a champion for a class that the examples do not have."""


@dataclass(frozen=True)
class JudgedExamples:
    """The judged examples. keys: (n,). batches: the dataset of (features, labels, keys) that was predicted."""

    keys: NDArray[Any]
    examples: Examples
    batches: tf.data.Dataset[KeyedBatch]

    def shown(
        self, order: NDArray[np.int64], predictions: SplitPredictions, folder: Path, champion: SplitPredictions | None
    ) -> list[Mistake]:
        """Return the examples at `order`, and write the images that the model saw as 00.png … into `folder`."""
        images = _images(self.examples, self.batches, order)
        labels = self.examples.labels
        if images:
            folder.mkdir()
        mistakes = []
        for rank, index in enumerate(order.tolist()):
            file = None
            if index in images:
                file = f"{folder.name}/{rank:02d}.png"
                _as_image(images[index]).save(folder.parent / file)
            found = mistake(predictions, index, self.keys[index].decode("utf-8", "replace"), labels, file)
            if champion is not None:
                answer = _name(champion.predicted[index], labels and [*labels, _OTHER_CLASS])
                found = found.model_copy(update={"champion": answer})
            mistakes.append(found)
        return mistakes


def worst_examples(count: int, predictions: SplitPredictions, judged: JudgedExamples, output: Path) -> list[Mistake]:
    """Return the `count` examples of the largest loss, worst first; writes images below the folder `output`."""
    return judged.shown(predictions.largest_losses(count), predictions, output / WORST, None)


def disagreement(
    count: int, predictions: SplitPredictions, champion: SplitPredictions, judged: JudgedExamples, output: Path
) -> Disagreement:
    """Compare the answers of model and champion, and show `count` of those that differ; images as `worst_examples`."""
    differs = (predictions.predicted != champion.predicted).reshape(len(predictions), -1).any(axis=1)
    if predictions.weights is not None:
        differs &= predictions.weights > 0
    gains = champion.losses - predictions.losses
    places = np.flatnonzero(differs)
    order = places[np.argsort(-np.abs(gains[places]), kind="stable")[:count]]
    better = gains if predictions.labels.dtype.kind == "f" else predictions.right.astype(int) - champion.right
    return Disagreement(
        examples=len(places),
        model_better=int((better[places] > 0).sum()),
        champion_better=int((better[places] < 0).sum()),
        shown=judged.shown(order, predictions, output / DIFFERS, champion),
    )


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
