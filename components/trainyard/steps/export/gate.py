"""The gate of exported files: refuses those much worse than, or different from, the trained model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trainyard.contract.artifacts.export import EdgeTpu
from trainyard.contract.artifacts.gate import Threshold, Verdict
from trainyard.spec.gates import MAIN_METRIC, Task
from trainyard.spec.recipe import Format
from trainyard.steps.export.parity import ParityFigures

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
