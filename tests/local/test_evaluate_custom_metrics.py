"""The recipe module's own metrics."""

from dataclasses import replace

import numpy as np
import pytest

from trainyard.errors import ConfigurationError
from trainyard.steps.evaluate.metrics import custom as custom_metrics
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions

PREDICTIONS = SplitPredictions(np.array([0, 1, 1]), np.float32([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))


def find(body):
    return custom_metrics.find("own.py", {"own.py": body}, {})


def test_own_metrics_are_measured_with_intervals():
    body = "def metrics(labels, outputs):\n    return {'misses': float((outputs.argmax(1) != labels).sum())}\n"
    metrics = find(body)
    values, bounds = custom_metrics.measure(metrics, PREDICTIONS, 50, seed=1)
    assert values == {"misses": 1.0}
    assert 0 <= bounds["misses"].low <= 1 <= bounds["misses"].high <= 3


def test_own_metrics_may_take_the_predictions_which_follow_the_threshold(capsys):
    body = "def metrics(labels, outputs, predicted):\n    return {'found': float(predicted.sum())}\n"
    metrics = find(body)
    assert custom_metrics.measure(metrics, PREDICTIONS, 5, seed=1)[0] == {"found": 1.0}
    lower = replace(PREDICTIONS, thresholds={1: 0.3})
    assert custom_metrics.measure(metrics, lower, 5, seed=1)[0] == {"found": 2.0}
    assert "warning" not in capsys.readouterr().err
    custom_metrics.measure(lambda labels, outputs: {"found": 1.0}, lower, 5, seed=1)
    assert "is not told which classes the recipe's threshold predicts" in capsys.readouterr().err


def test_an_own_metric_that_writes_into_its_arrays_changes_no_other_metric():
    body = "def metrics(labels, outputs, predicted):\n    labels[:] = outputs[:] = predicted[:] = 1\n    return {}\n"
    custom_metrics.measure(find(body), PREDICTIONS, 5, seed=1)
    assert PREDICTIONS.labels.tolist() == [0, 1, 1] and PREDICTIONS.outputs.sum() == pytest.approx(3)
    assert PREDICTIONS.predicted.tolist() == [0, 1, 0]


@pytest.mark.parametrize("undefined", ["raise ValueError('one class')", "return {'area': float('nan')}"])
def test_a_resample_in_which_an_own_metric_is_not_defined_is_left_out(undefined):
    """As of an area under a curve: a third of the resamples of one example and two of another class have one class."""
    body = f"def metrics(labels, outputs):\n    if len(set(labels.tolist())) < 2:\n        {undefined}\n"
    body += "    return {'area': float(labels.mean())}\n"
    values, bounds = custom_metrics.measure(find(body), PREDICTIONS, 50, seed=1)
    assert values["area"] == pytest.approx(2 / 3)
    assert (bounds["area"].low, bounds["area"].high) == pytest.approx((1 / 3, 2 / 3))


def test_a_module_without_metrics_has_none():
    assert find("def build_model():\n    pass\n") is None


def test_a_module_that_cannot_be_imported_is_the_recipes_fault():
    with pytest.raises(ConfigurationError, match=r"own\.py: .*ZeroDivisionError"):
        find("1 / 0\n")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("return {'accuracy': 1.0}", "'accuracy' is Trainyard's own name"),
        ("return {'mine': float('nan')}", "'mine' is nan"),
        ("return [1]", "AttributeError"),
        ("raise KeyError('x')", "KeyError"),
    ],
)
def test_what_own_metrics_do_wrong_is_told(body, fault):
    metrics = find(f"def metrics(labels, outputs):\n    {body}\n")
    with pytest.raises(ConfigurationError, match=fault):
        custom_metrics.measure(metrics, PREDICTIONS, 10, seed=1)
