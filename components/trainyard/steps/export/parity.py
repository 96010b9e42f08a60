"""Does each exported file predict like the model that was trained, how fast, and how large is it?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainyard import events
from trainyard.contract.artifacts.export import ExportedFile, Latency
from trainyard.contract.statistics.scores import example_scores
from trainyard.data.examples import ExampleFolder
from trainyard.data.trained import Tensors
from trainyard.errors import DataError
from trainyard.models.costs.latency import latency

Array = np.ndarray[Any, np.dtype[Any]]
Predictor = Callable[[Tensors, Tensors], Array]
"""(model features (n, ...), raw features (n,)) -> probabilities (n, classes) or predictions (n,), float32"""

_IMAGE_BATCH, _ROW_BATCH = 64, 1024  # examples at once: bounds the memory of 224-pixel images to 40 MB; chosen
_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class ExportedModel:
    """An exported file and how it predicts.

    ready: makes of one example, ready as the file takes it, the call whose latency is measured.
    """

    format: str
    path: Path
    predict: Predictor
    ready: Callable[[Tensors, Tensors], Callable[[], object]]


@dataclass(frozen=True)
class ParityFigures:
    """The figures of one exported file.

    skew: largest difference to the trained model computed in float32, as a share of its largest output, of several
    targets each by its own, if that is above 1 (probabilities never are); `export` compares with the trained model in
    the precision it was trained in.
    rise: by how much of the trained model's the main metric is larger; of several targets that with the largest rise.
    """

    export: ExportedFile
    skew: float
    rise: float


def measure(
    candidates: Sequence[ExportedModel], trained: Predictor, float32: Predictor, folder: ExampleFolder
) -> list[ParityFigures]:
    """Return the figures of every candidate on the whole eval split, in their order.

    trained, float32: the trained model in its own precision and in float32.
    Raises `DataError` if a prediction is not a number.
    """
    task = folder.document.task
    totals = {candidate.format: _Totals() for candidate in candidates}
    reference = _Totals()
    first: tuple[Tensors, Tensors] | None = None
    reported_at = time.monotonic()
    for features, raw, labels, weights in _batches(folder):
        first = first or (_one(features), _one(raw))
        expected = trained(features, raw)
        exact = expected if float32 is trained else float32(features, raw)
        scores = partial(example_scores, task, labels)
        reference.add("the trained model", expected, expected, exact, scores, weights)
        for candidate in candidates:
            outputs = candidate.predict(features, raw)
            totals[candidate.format].add(candidate.format, outputs, expected, exact, scores, weights)
        if time.monotonic() - reported_at > _PROGRESS_SECONDS:
            reported_at = time.monotonic()
            events.progress(reference.examples, folder.document.splits["eval"].examples, "examples")
    if first is None:
        raise DataError(f"{folder.uri}: the eval split is empty. Run with --from preprocess.")
    return [
        _measured(candidate, totals[candidate.format], reference, latency(candidate.ready(*first)))
        for candidate in candidates
    ]


@dataclass
class _Totals:
    """Sums over the batches: the examples' scores by their weights, and each output's largest differences."""

    examples: int = 0
    weight: float = 0.0
    score: Array = field(default_factory=lambda: np.zeros(()))
    difference: float = 0.0
    difference_in_float32: Array = field(default_factory=lambda: np.zeros(()))
    largest: Array = field(default_factory=lambda: np.ones(()))

    def add(
        self,
        name: str,
        outputs: Array,
        expected: Array,
        exact: Array,
        scores: Callable[[Array], Array],
        weights: Array,
    ) -> None:
        if not np.isfinite(outputs).all():
            raise DataError(
                f"{name}: gives NaN or infinity on the eval split. Look for such values in the data, "
                "or train with a smaller learning rate."
            )
        self.examples += len(weights)
        self.weight += float(weights.sum())
        self.score = self.score + weights @ scores(outputs)
        self.difference = max(self.difference, float(np.abs(outputs - expected).max()))
        self.difference_in_float32 = np.maximum(self.difference_in_float32, np.abs(outputs - exact).max(axis=0))
        self.largest = np.maximum(self.largest, np.abs(exact).max(axis=0))

    @property
    def means(self) -> Array:
        """The mean score, of several targets that of each."""
        return np.asarray(self.score / self.weight)


def _measured(candidate: ExportedModel, totals: _Totals, reference: _Totals, milliseconds: Latency) -> ParityFigures:
    trained = reference.means
    export = ExportedFile(
        format=candidate.format,
        path=candidate.path.name,
        bytes=_size(candidate.path),
        accuracy=float(totals.means.mean()),
        accuracy_difference=float((totals.means - trained).mean()),
        max_abs_difference=totals.difference,
        latency_ms=milliseconds,
    )
    rise = float(((totals.means - trained) / np.maximum(trained, 1e-12)).max())
    return ParityFigures(export=export, skew=float((totals.difference_in_float32 / totals.largest).max()), rise=rise)


def _batches(folder: ExampleFolder) -> Iterator[tuple[Tensors, Tensors, Array, Array]]:
    """Yield features, raw features, labels (n, ...) and how much each example counts, (n,) float64."""
    weights, first = folder.weights("eval"), 0
    size = _ROW_BATCH if folder.document.image is None else _IMAGE_BATCH
    both = zip(folder.batches("eval", size), folder.raw_batches("eval", size), strict=True)
    for (features, labels, _keys), (raw, _labels) in both:
        count = len(labels)
        counted = np.ones(count) if weights is None else weights[first : first + count].astype(np.float64)
        yield features, raw, labels.numpy(), counted
        first += count


def _one(tensors: Tensors) -> Tensors:
    return {name: tensor[:1] for name, tensor in tensors.items()}


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
