"""The metrics of a constant answer: the minimum that a model has to beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.artifacts.evaluate import Baseline
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.statistics.scores import example_scores
from trainyard.spec.gates import BASELINE_METRICS
from trainyard.steps.evaluate.metrics.measure import measure
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions

_MOST_CLASSES = 20  # in the answer; chosen


def baseline(candidate: SplitPredictions, examples: Examples) -> Baseline:
    """Return the metrics of the training split's most frequent class, or of the mean of the judged targets.

    The mean is that of the examples that are judged, which no other constant beats in its squared error. Of
    multi_label the answer is as many of the most frequent classes as score best.
    """
    counts = examples.splits["train"].class_counts
    if not examples.labels or not counts:
        answers = _mean_answer(candidate, examples)
        values = measure("regression", answers)
        answer = "Each target's mean" if examples.targets else f"The mean {answers.outputs[0]:.6g}"
        return Baseline(answer=answer, metrics={name: values[name] for name in BASELINE_METRICS["regression"]})
    if examples.task == "multi_label":
        return _most_frequent(candidate, examples.labels, counts)[0]
    count = int(np.argmax(counts))
    return Baseline(
        answer=f"'{examples.labels[count]}'", metrics={"accuracy": candidate.mean(candidate.labels == count)}
    )


def baseline_predictions(candidate: SplitPredictions, examples: Examples) -> SplitPredictions:
    """Return the answer of `baseline` to every example."""
    counts = examples.splits["train"].class_counts
    if not examples.labels or not counts:
        return _mean_answer(candidate, examples)
    if examples.task == "multi_label":
        answer = _most_frequent(candidate, examples.labels, counts)[1]
    else:
        answer = np.arange(candidate.outputs.shape[1]) == np.argmax(counts)
    return replace(candidate, outputs=np.broadcast_to(answer.astype(np.float32), candidate.outputs.shape))


def _mean_answer(candidate: SplitPredictions, examples: Examples) -> SplitPredictions:
    labels = candidate.labels if examples.targets else candidate.labels.astype(np.float64)
    mean = np.average(labels, axis=0, weights=candidate.weights)
    return replace(candidate, outputs=np.broadcast_to(mean.astype(np.float32), labels.shape))


def _most_frequent(
    candidate: SplitPredictions, labels: list[str], counts: list[int]
) -> tuple[Baseline, NDArray[np.bool_]]:
    order = np.argsort(-np.asarray(counts), kind="stable")[:_MOST_CLASSES]
    scores = []
    for count in range(len(order) + 1):
        answer = np.isin(np.arange(len(labels)), order[:count])
        answers = np.broadcast_to(answer.astype(np.float32), candidate.labels.shape)
        scores.append(candidate.mean(example_scores("multi_label", candidate.labels, answers)))
    best = int(np.argmax(scores))
    answer_text = " and ".join(f"'{labels[index]}'" for index in order[:best]) or "no class"
    baseline = Baseline(answer=answer_text, metrics={"f1": scores[best]})
    return baseline, np.isin(np.arange(len(labels)), order[:best])
