"""The examples that the model got most wrong, as pictures where they are images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trainyard.contract.artifacts import Examples, Mistake
from trainyard.steps.evaluate.metrics import Answers, Floats

FOLDER = "worst"

SIDES = (112, 224)
"""Smallest and largest longer side of a picture in pixels: an 8-pixel digit is enlarged, a photograph shrunk. Chosen."""


def worst_examples(
    count: int,
    answers: Answers,
    keys: NDArray[Any],
    examples: Examples,
    batches: Any,
    folder: Path,
) -> list[Mistake]:
    """Return the `count` examples of the largest loss, worst first; writes worst/00.png … below `folder` for images.

    `batches` is the dataset of (features, labels, keys) that the answers are to. The pictures are what the model saw:
    decoded and resized.
    """
    losses = answers.losses
    order = np.argsort(-losses, kind="stable")[:count]
    images = _images(examples, batches, order)
    if images:
        (folder / FOLDER).mkdir()
    mistakes = []
    for rank, index in enumerate(order.tolist()):
        picture = None
        if index in images:
            picture = f"{FOLDER}/{rank:02d}.png"
            _picture(images[index]).save(folder / picture)
        mistakes.append(
            Mistake(
                key=keys[index].decode("utf-8", "replace"),
                label=_name(answers.labels[index], examples.labels),
                predicted=_name(_predicted(answers, index), examples.labels),
                loss=float(losses[index]),
                picture=picture,
            )
        )
    return mistakes


def _images(examples: Examples, batches: Any, wanted: NDArray[np.int64]) -> dict[int, NDArray[np.float32]]:
    """Return the wanted examples' pictures by place in the split; none where the examples are no images."""
    feature = next((feature.name for feature in examples.features if feature.encoded), None)
    if feature is None or len(wanted) == 0:
        return {}
    found: dict[int, NDArray[np.float32]] = {}
    first = 0
    for features, label, _key in batches:
        here = wanted[(wanted >= first) & (wanted < first + len(label))]
        found.update({int(index): features[feature][index - first].numpy() for index in here})
        first += len(label)
        if len(found) == len(wanted):
            break
    return found


def _picture(pixels: Floats) -> Image.Image:
    values = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    image = Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)
    longest = max(image.size)
    if longest < SIDES[0]:
        factor = -(-SIDES[0] // longest)
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.thumbnail((SIDES[1], SIDES[1]))
    return image


def _predicted(answers: Answers, index: int) -> float:
    return float(answers.outputs[index] if answers.outputs.ndim == 1 else np.argmax(answers.outputs[index]))


def _name(value: float, labels: list[str] | None) -> str:
    return labels[int(value)] if labels is not None else f"{value:.6g}"
