"""The recipe's own metrics: `metrics(labels, outputs, predicted) -> dict[str, float]` of its module."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np

from trainyard import events
from trainyard.contract.artifacts.gate import Interval
from trainyard.errors import ConfigurationError, module_line
from trainyard.runtime.recipe_module import load_module
from trainyard.spec.code import Files
from trainyard.spec.gates import ALL_METRICS, MODULE_RESAMPLES
from trainyard.spec.packages import Wheels
from trainyard.steps.evaluate.gate import MetricPair
from trainyard.steps.evaluate.metrics.bootstrap import percentiles
from trainyard.steps.evaluate.metrics.predictions import Floats, SplitPredictions

Metrics = Callable[..., Mapping[str, float]]


def find(module: str, files: Files, packages: Wheels) -> Metrics | None:
    """Return the function `metrics` of the recipe's file `module`, None if it has none.

    Raises `ConfigurationError` if the file cannot be loaded.
    """
    return getattr(load_module(module, files, packages), "metrics", None)


def measure(
    metrics: Metrics, predictions: SplitPredictions, resamples: int, seed: int
) -> tuple[dict[str, float], dict[str, Interval]]:
    """Return the values of the recipe's own metrics and their intervals, from at most `MODULE_RESAMPLES` resamples.

    A resample in which one is not defined, as an area under a curve is not for a single class, is left out of its own.
    Raises `ConfigurationError` if the function fails, or returns something else than finite numbers by new names.
    """
    values = _call(metrics, predictions)
    _require_own(values)
    if predictions.thresholds and not _takes_predicted(metrics):
        events.warn(
            "module: metrics(labels, outputs) is not told which classes the recipe's threshold predicts. Write "
            "metrics(labels, outputs, predicted), unless it needs the probabilities alone."
        )
    draws = _draws(metrics, predictions, resamples, seed)
    bounds = {name: percentiles(_values(name, draws)) for name in values}
    return values, {name: bound for name, bound in bounds.items() if bound is not None}


def compare(
    metrics: Metrics,
    name: str,
    candidate: SplitPredictions,
    rival: SplitPredictions | None,
    resamples: int,
    seed: int,
    confidence: float,
) -> MetricPair | None:
    """Return one of the recipe's own metrics of a candidate beside a rival's, None if it is not defined."""
    value = _call_if_defined(metrics, candidate).get(name)
    if value is None:
        return None
    draws = _values(name, _draws(metrics, candidate, resamples, seed))
    interval = percentiles(draws, confidence)
    if rival is None:
        return MetricPair(value, interval)
    paired = percentiles(draws - _values(name, _draws(metrics, rival, resamples, seed)), confidence)
    return MetricPair(value, interval, _call_if_defined(metrics, rival).get(name), paired)


def _draws(metrics: Metrics, predictions: SplitPredictions, resamples: int, seed: int) -> list[dict[str, float]]:
    """Return the metrics of each resample; equal seeds draw the same examples."""
    generator = np.random.default_rng(seed)
    count = len(predictions.labels)
    resampled = (predictions.take(generator.integers(0, count, count)) for _ in range(min(resamples, MODULE_RESAMPLES)))
    return [_call_if_defined(metrics, resample) for resample in resampled]


def _values(name: str, draws: list[dict[str, float]]) -> Floats:
    return np.array([draw.get(name, math.nan) for draw in draws])


def _call(metrics: Metrics, predictions: SplitPredictions) -> dict[str, float]:
    try:
        more = {"predicted": predictions.predicted.copy()} if _takes_predicted(metrics) else {}
        values = metrics(predictions.labels.copy(), predictions.outputs.copy(), **more)  # which it may write into
        return {str(name): float(value) for name, value in values.items()}
    except Exception as error:
        raise ConfigurationError(
            f"module: metrics(labels, outputs) failed ({type(error).__name__}: {error}{module_line(error)}). "
            f"It gets labels {predictions.labels.shape} and outputs {predictions.outputs.shape} and returns a dict "
            "of numbers."
        ) from error


def _takes_predicted(metrics: Metrics) -> bool:
    return "predicted" in inspect.signature(metrics).parameters


def _call_if_defined(metrics: Metrics, predictions: SplitPredictions) -> dict[str, float]:
    with suppress(ConfigurationError):
        return _call(metrics, predictions)
    return {}


def _require_own(values: dict[str, float]) -> None:
    reserved = sorted(set(values) & {*ALL_METRICS})
    broken = sorted(name for name, value in values.items() if not math.isfinite(value))
    if reserved or broken:
        fault = f"'{reserved[0]}' is Trainyard's own name" if reserved else f"'{broken[0]}' is {values[broken[0]]}"
        raise ConfigurationError(f"module: metrics: {fault}. Finite numbers with distinct names are allowed.")
