"""The files in the folder of evaluate, and the decision thresholds of classes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from trainyard.contract.artifacts.gate import Interval, Verdict
from trainyard.contract.document import Document, FrozenModel, Split
from trainyard.contract.statistics.drift import Movement, UnknownValues
from trainyard.measured import metric_text
from trainyard.spec.gates import MAIN_METRIC, SMALLER_IS_BETTER

# Documents hold these, which every command reads: no NumPy here.

_TOTALS_DIFFER = 0.05  # chosen: a total that is off by less is not worth a sentence
_ROC_POINTS = 101  # chosen: as fine as the page draws


class ClassThreshold(FrozenModel):
    """The threshold of one class, with its metrics on the split that chose it.

    value: a float32 number; the class is predicted if its probability is above it.
    """

    label: str
    value: float
    precision: float
    recall: float
    f1: float


def threshold_text(value: float) -> str:
    """Return the shortest decimal number that is the same float32 number as `value`, so it decides alike.

    >>> threshold_text(0.25), threshold_text(0.9999999403953552)
    ('0.25', '0.99999994')
    """
    single = struct.pack("f", value)
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))  # 9 digits tell all float32 numbers apart
    return next(text for text in texts if struct.pack("f", float(text)) == single)


def thresholds_by_id(thresholds: Mapping[str, float], labels: Sequence[str]) -> dict[int, float]:
    """Return `thresholds`, by class, by class id, the place in `labels`. Raises ValueError for an unknown class."""
    return {labels.index(label): value for label, value in thresholds.items()}


class SliceMetrics(FrozenModel):
    """Metrics over the examples of one slice, such as `sex=female`, with the interval of the main one."""

    name: str
    examples: int
    metrics: dict[str, float]
    interval: Interval | None


class ClassMetrics(FrozenModel):
    """Precision, recall and F1 of one class, and its number of examples.

    intervals: of those by their names; {} if the split has too many examples and classes.
    """

    label: str
    precision: float
    recall: float
    f1: float
    examples: int
    intervals: dict[str, Interval] = {}


class Roc(FrozenModel):
    """One class against the rest: the curve's points in order of falling threshold."""

    label: str
    false_positive_rate: list[float]
    true_positive_rate: list[float]
    threshold: list[float]


class Confidence(FrozenModel):
    """The examples whose highest probability lies in one bin: its mean, and the share of them that is right."""

    confidence: float
    accuracy: float
    examples: int


class Mistake(FrozenModel):
    """An example with its answer. image: the path of its PNG, None if it is not an image.

    champion: the champion's answer, of an example that the two answer differently.
    """

    key: str
    label: str
    predicted: str
    loss: float
    image: str | None
    champion: str | None = Field(None, exclude_if=lambda champion: champion is None)


class Disagreement(FrozenModel):
    """The examples that model and champion answer differently: their number, and those that one answers better.

    shown: some of them, those whose losses differ most first. Better is right instead of wrong, of numbers closer.
    """

    examples: int
    model_better: int
    champion_better: int
    shown: list[Mistake]


class Baseline(FrozenModel):
    """Metrics of one constant answer; answer: the constant, as text."""

    answer: str
    metrics: dict[str, float]


class Boosted(FrozenModel):
    """Metrics of gradient-boosted trees on the same split; examples: number of training examples used.

    differences: by metric, the interval of the model's value minus theirs.
    """

    examples: int
    metrics: dict[str, float]
    differences: dict[str, Interval]


class Importance(FrozenModel):
    """Increase of the mean loss if `column` is shuffled among the examples; spread: between shuffles (1 sigma)."""

    column: str
    loss_increase: float
    spread: float


class TargetMetrics(FrozenModel):
    """Metrics of one of several targets, with the intervals of the mean absolute error and of the mean ratio.

    baseline: what its mean as the answer to everything has. scatter: as of `Evaluation`.
    """

    name: str
    metrics: dict[str, float]
    interval: Interval | None
    ratio_interval: Interval | None = None
    baseline: float
    scatter: list[tuple[float, float]]


class Evaluation(Document):
    """Output of evaluate on one split. The folder holds, beside this document:

    predictions.npz   keys (n,) bytes, labels (n,) int64 class ids, bool (n, classes) of multi_label, or float32 targets
        (n,), of several (n, targets); outputs (n, classes) float32 probabilities, or predictions as the targets;
        weights (n,) if the recipe has data.weight
    verdict.json      `gate` alone
    worst/*.png       the images of `worst`
    differs/*.png     the images of `disagreement`

    confusion[i][j] (classification) counts the examples of class i that were taken for class j. metrics and intervals
    hold the same names, less those that have no interval. calibration (classification) holds the bins of confidence
    that have examples; scatter (regression) holds (target, prediction) of up to 1,000 examples. champion is the folder
    of the model last pushed, champion_metrics its metrics on the same examples, disagreement where its answers differ,
    drift how far the training data moved from those that it learnt from, baseline what one answer to everything reaches
    (None: written by an earlier version). boosted and importance, the column that counts most first, are of tables
    alone; targets if there are several; unknown, what training never saw, of a table's categories and texts. thresholds
    are the model's decision thresholds, with their values on the eval split. Of a folder that a program left, split is
    None, examples 0 and metrics what the program says: it judged.
    """

    file = "evaluation.json"
    made_by = "evaluate"

    split: Split | None
    examples: int
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    classes: list[ClassMetrics]
    confusion: list[list[int]]
    roc: list[Roc]
    slices: list[SliceMetrics]
    worst: list[Mistake]
    champion: str | None
    gate: Verdict
    champion_metrics: dict[str, float] = {}
    disagreement: Disagreement | None = None
    drift: list[Movement] = []
    calibration: list[Confidence] = []
    scatter: list[tuple[float, float]] = []
    baseline: Baseline | None = None
    boosted: Boosted | None = None
    importance: list[Importance] = []
    targets: list[TargetMetrics] = []
    unknown: dict[str, UnknownValues] = {}
    thresholds: list[ClassThreshold] = []

    @property
    def decisions(self) -> str:
        """The values of the `thresholds` by class as JSON, which export takes."""
        return json.dumps({each.label: each.value for each in self.thresholds})

    @property
    def main_metric(self) -> str:
        """The name of the metric that stands for the model, `spec.gates.MAIN_METRIC`, or the first; '' of none."""
        return next((name for name in MAIN_METRIC.values() if name in self.metrics), next(iter(self.metrics), ""))

    @property
    def remark(self) -> str:
        """Sentences on its `thresholds`, its `baseline` and `boosted`, and its totals; '' if nothing is known."""
        return " ".join(
            filter(None, (*self._decisions(), self._beside_constant(), self._beside_boosted(), *self._totals()))
        )

    def _decisions(self) -> Iterator[str]:
        for each in self.thresholds:
            yield (
                f"'{each.label}' is predicted if its probability is above {threshold_text(each.value)} "
                f"(eval split: precision {metric_text(each.precision)}, recall {metric_text(each.recall)}, "
                f"F1 {metric_text(each.f1)})."
            )

    def _beside_boosted(self) -> str:
        for name in ("roc_auc", self.main_metric):
            larger = -1 if name in SMALLER_IS_BETTER else 1
            if self.boosted and name in self.boosted.differences and name in self.metrics:
                interval = self.boosted.differences[name]
                text = f"Gradient-boosted trees on the same split have {name} {metric_text(self.boosted.metrics[name])}"
                if max(larger * interval.low, larger * interval.high) < 0:
                    apart = abs(interval.low + interval.high) / 2
                    several = self.targets or self.main_metric == MAIN_METRIC["multi_label"]
                    advice = "" if several else " Try --set model.name=boosted_trees."
                    return f"{text}: they are significantly better, by {metric_text(apart)}.{advice}"
                return f"{text}, the model {metric_text(self.metrics[name])}."
        return ""

    def _totals(self) -> Iterator[str]:
        """Yield a sentence for each target whose predictions have another total than it."""
        judged = [(f" of '{each.name}'", each.metrics, each.ratio_interval) for each in self.targets]
        if "mean_ratio" in self.metrics:
            judged.append(("", self.metrics, self.intervals.get("mean_ratio")))
        for part, metrics, interval in judged:
            if interval and not interval.low <= 1 <= interval.high and abs(metrics["mean_ratio"] - 1) > _TOTALS_DIFFER:
                yield (
                    f"The mean prediction{part} is {metric_text(metrics['mean_ratio'])} times the mean target (95 %: "
                    f"{metric_text(interval.low)} to {metric_text(interval.high)}). A logarithmic train.target.scale "
                    "predicts medians; train.target.mean: true predicts means."
                )

    def _beside_constant(self) -> str:
        name = self.main_metric
        if self.baseline is None or name not in self.baseline.metrics:
            return ""
        constant, interval = self.baseline.metrics[name], self.intervals.get(name)
        text = f"{self.baseline.answer} as the answer to everything has {name} {metric_text(constant)}"
        smaller = name in SMALLER_IS_BETTER
        if self.thresholds and name == MAIN_METRIC["classification"]:
            return f"{text}; a threshold may have less, because it finds more of its class."
        if interval is None or (interval.high < constant if smaller else interval.low > constant):
            return f"{text}."
        bounds = f"an interval of 95 % from {metric_text(interval.low)} to {metric_text(interval.high)}"
        return f"{text}: the model is not significantly better, {metric_text(self.metrics[name])} with {bounds}."


def mean_roc(curves: list[Roc]) -> tuple[list[float], list[float], list[float]]:
    """Return the points of one curve: false positive rates, true positive rates, thresholds.

    The pages of Kubeflow and Vertex AI draw a single curve. With several it is the mean of the true positive rates over
    the classes, each against the rest (macro average), read off every curve at the same false positive rates. Such a
    mean has no thresholds; the pages require some that fall, so they get 1 - false positive rate.
    """
    if len(curves) == 1:
        return curves[0].false_positive_rate, curves[0].true_positive_rate, curves[0].threshold
    import numpy as np  # which a program that judges itself does without

    rates = np.arange(_ROC_POINTS) / (_ROC_POINTS - 1)
    read = [np.interp(rates, curve.false_positive_rate, curve.true_positive_rate, left=0.0) for curve in curves]
    return rates.tolist(), np.mean(read, axis=0).tolist(), (1 - rates).tolist()
