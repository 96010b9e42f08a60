"""Compares exported files with the trained model, measures latency and size, and refuses files that differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from trainyard import events
from trainyard.contract.artifacts.export import EdgeTpu, ExportedFile, Latency
from trainyard.contract.artifacts.gate import Threshold, Verdict
from trainyard.contract.statistics.scores import example_scores
from trainyard.data.examples import ExampleFolder
from trainyard.data.trained import Replicas, Tensors
from trainyard.errors import DataError
from trainyard.models.costs.speed import latency
from trainyard.spec.gates import MAIN_METRIC, Task
from trainyard.spec.recipe import Format

Array = np.ndarray[Any, np.dtype[Any]]
Predictor = Callable[[Tensors, Tensors], Array]
"""(model features (n, ...), raw features (n,)) -> probabilities (n, classes) or predictions (n,), float32"""

_Batch = tuple[Tensors, Tensors, Array, Array]
_IMAGE_BATCH, _ROW_BATCH = 64, 1024  # examples at once: bounds the memory of 224-pixel images to 40 MB; chosen
_PROGRESS_SECONDS = 0.5
_ROUNDING = 1e-5  # of the largest output; chosen: float32 files that compute the same differ by less
MAX_SKEW = 1e-5
"""Largest difference of a float32 file that computes the same function: rounding in another order of operations.

Measured: 2e-7 to 1e-6 on the probabilities of small networks. An error of the transform is orders of magnitude larger.
"""

MAX_NOISE: dict[Task, float] = {"regression": 0.05, "classification": 0.1, "multi_label": 0.1}
"""Largest root mean square difference of a file in fewer bits or in other operations; chosen.

Of a regression in standard deviations of the trained model's predictions, else of the probability that differs most. A
mean error that stays the same does not show it: what is too high in one row is too low in another.
"""

MAX_FURTHEST = 0.5
"""Largest difference of one prediction of a regression, in the same unit; chosen.

int8 clips what no calibration example reached.
"""


@dataclass(frozen=True)
class ExportedModel:
    """An exported file and how it predicts.

    ready: makes of one example, ready as the file takes it, the call whose latency is measured.
    """

    format: Format
    path: Path
    predict: Predictor
    ready: Callable[[Tensors, Tensors], Callable[[], object]]


@dataclass(frozen=True)
class Compared:
    """The exported files on one device, and the trained model in its own precision and in float32."""

    candidates: Sequence[ExportedModel]
    trained: Predictor
    float32: Predictor

    def answers(self, batch: _Batch) -> tuple[Array, Array, list[Array]]:
        """Return the answers of the trained model, of it in float32, and of each candidate."""
        features, raw = batch[:2]
        expected = self.trained(features, raw)
        exact = expected if self.float32 is self.trained else self.float32(features, raw)
        return expected, exact, [candidate.predict(features, raw) for candidate in self.candidates]


@dataclass(frozen=True)
class ParityFigures:
    """The figures of one exported file.

    skew: largest difference to the trained model computed in float32, as a share of its largest output, of several
    targets each by its own, if that is above 1 (probabilities never are); `export` compares with the trained model in
    the precision it was trained in.
    rise: by how much of the trained model's the main metric is larger; of several targets that with the largest rise.
    noise: root mean square over the examples of the difference to the trained model in float32: of classes the largest
    of an example, of a regression in standard deviations of the trained model's predictions, of several targets that
    with the largest. furthest: as that, of the one example that differs most.
    """

    export: ExportedFile
    skew: float
    rise: float
    noise: float
    furthest: float


def measure(
    replicas: Replicas[Compared], folder: ExampleFolder, thresholds: Mapping[int, float] = MappingProxyType({})
) -> list[ParityFigures]:
    """Return the figures of every candidate on the whole eval split, in their order.

    thresholds: of decisions, by class id. Raises `DataError` if a prediction is not a number.
    """
    candidates = replicas.first.candidates
    task = folder.document.task
    by_target = task == "regression"
    totals = {candidate.format: _Totals(by_target) for candidate in candidates}
    reference, spread = _Totals(by_target), _Spread()
    first: tuple[Tensors, Tensors] | None = None
    reported_at = time.monotonic()
    for (features, raw, labels, weights), answers in replicas.map(Compared.answers, _batches(folder)):
        first = first or (_one(features), _one(raw))
        expected, exact, exported = answers
        scores = partial(example_scores, task, labels, thresholds=thresholds)
        reference.add("the trained model", expected, expected, exact, scores, weights)
        spread.add(exact)
        for candidate, outputs in zip(candidates, exported, strict=True):
            totals[candidate.format].add(candidate.format, outputs, expected, exact, scores, weights)
        if time.monotonic() - reported_at > _PROGRESS_SECONDS:
            reported_at = time.monotonic()
            events.progress(reference.examples, folder.document.splits["eval"].examples, "examples")
    if first is None:
        raise DataError(f"{folder.uri}: the eval split is empty. Run with --from preprocess.")
    unit = spread.deviation if by_target else np.ones(())
    return [
        _measured(candidate, totals[candidate.format], reference, unit, latency(candidate.ready(*first)))
        for candidate in candidates
    ]


@dataclass
class _Totals:
    """Sums over the batches: the examples' scores by their weights, and each output's differences.

    by_target: whether each output is a number, as in a regression, not the probability of a class.
    """

    by_target: bool
    examples: int = 0
    weight: float = 0.0
    score: Array = field(default_factory=lambda: np.zeros(()))
    difference: float = 0.0
    difference_in_float32: Array = field(default_factory=lambda: np.zeros(()))
    largest: Array = field(default_factory=lambda: np.ones(()))
    squares: Array = field(default_factory=lambda: np.zeros(()))

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
        differences = np.abs(outputs - exact).astype(np.float64)
        self.difference_in_float32 = np.maximum(self.difference_in_float32, differences.max(axis=0))
        self.squares = self.squares + np.square(differences if self.by_target else differences.max(axis=1)).sum(axis=0)
        self.largest = np.maximum(self.largest, np.abs(exact).max(axis=0))

    @property
    def means(self) -> Array:
        """The mean score, of several targets that of each."""
        return np.asarray(self.score / self.weight)


@dataclass
class _Spread:
    """Sums over the batches of outputs, and of their squares, less the first: how far they lie from each other."""

    count: int = 0
    first: Array = field(default_factory=lambda: np.zeros(()))
    total: Array = field(default_factory=lambda: np.zeros(()))
    squares: Array = field(default_factory=lambda: np.zeros(()))
    largest: Array = field(default_factory=lambda: np.zeros(()))

    def add(self, outputs: Array) -> None:
        if not self.count:
            self.first = outputs[0].astype(np.float64)
        shifted = outputs - self.first
        self.count += len(outputs)
        self.total, self.squares = self.total + shifted.sum(axis=0), self.squares + np.square(shifted).sum(axis=0)
        self.largest = np.maximum(self.largest, np.abs(outputs).max(axis=0))

    @property
    def deviation(self) -> Array:
        """The standard deviation of each output, at least what float32 tells apart."""
        variance = self.squares / self.count - np.square(self.total / self.count)
        return np.maximum(np.sqrt(np.maximum(variance, 0)), np.maximum(_ROUNDING * self.largest, 1e-12))


def _measured(
    candidate: ExportedModel, totals: _Totals, reference: _Totals, unit: Array, milliseconds: Latency
) -> ParityFigures:
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
    return ParityFigures(
        export=export,
        skew=float((totals.difference_in_float32 / totals.largest).max()),
        rise=rise,
        noise=float((np.sqrt(totals.squares / totals.examples) / unit).max()),
        furthest=float((totals.difference_in_float32 / unit).max()),
    )


def _batches(folder: ExampleFolder) -> Iterator[_Batch]:
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


def judge(measured: Sequence[ParityFigures], task: Task, max_metric_drop: float, exact: Collection[Format]) -> Verdict:
    """Return the verdict over all files; each must hold every threshold that applies to its format.

    exact: the formats that compute the function of the trained model.
    max_metric_drop: by how much the main metric may be worse; of a regression's error the share by which it may rise.
    """
    thresholds = [_metric_threshold(file, task, max_metric_drop) for file in measured]
    thresholds += [_skew_threshold(file, task) for file in measured if file.export.format in exact]
    for file in measured:
        if file.export.format not in exact:
            thresholds += _noise_thresholds(file, task)
    passed = all(threshold.passed for threshold in thresholds)
    return Verdict(verdict="blessed" if passed else "refused", thresholds=thresholds)


def judge_mapping(mapping: EdgeTpu, minimum: float) -> Threshold:
    """Return the condition on the share of an int8 file that an Edge TPU runs."""
    share = mapping.mapped_share
    note = mapping.first_unmapped if share is not None else "the multiply-adds in its loops cannot be counted"
    name = f"litert_int8 share of operations and of multiply-adds on an Edge TPU >= {minimum:g}"
    return Threshold(name=name, value=share, bound=minimum, passed=(share or 0) >= minimum, note=note)


def extend(verdict: Verdict, *thresholds: Threshold) -> Verdict:
    """Return the verdict with more conditions."""
    passed = verdict.verdict == "blessed" and all(threshold.passed for threshold in thresholds)
    return Verdict(verdict="blessed" if passed else "refused", thresholds=[*verdict.thresholds, *thresholds])


def _metric_threshold(file: ParityFigures, task: Task, drop: float) -> Threshold:
    name, difference = f"{file.export.format} {MAIN_METRIC[task]}", file.export.accuracy_difference
    # a hair of slack: 0.99 - 1.0 is -0.010000000000000009 in floating point
    if task != "regression":
        name = f"{name} - trained >= {0 - drop:g}"
        return Threshold(name=name, value=difference, bound=0 - drop, passed=difference >= -drop - 1e-9)
    name = f"{name} / trained - 1 <= {drop:g}"
    return Threshold(name=name, value=file.rise, bound=drop, passed=file.rise <= drop + 1e-9)


def _skew_threshold(file: ParityFigures, task: Task) -> Threshold:
    difference = "max |prediction - trained| / largest" if task == "regression" else "max |probability - trained|"
    return _at_most(f"{file.export.format} {difference}", file.skew, MAX_SKEW)


def _noise_thresholds(file: ParityFigures, task: Task) -> list[Threshold]:
    bound = MAX_NOISE[task]
    if task != "regression":
        return [_at_most(f"{file.export.format} rms |probability - trained|", file.noise, bound)]
    return [
        _at_most(f"{file.export.format} rms (prediction - trained) / deviation", file.noise, bound),
        _at_most(f"{file.export.format} max |prediction - trained| / deviation", file.furthest, MAX_FURTHEST),
    ]


def _at_most(name: str, value: float, bound: float) -> Threshold:
    return Threshold(name=f"{name} <= {bound:g}", value=value, bound=bound, passed=value <= bound)
