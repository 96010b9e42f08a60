"""The learning curve: the recipe trained on nested parts of its data, and a power law through the errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.errors import ConfigurationError
from trainyard.measured import metric_text
from trainyard.report.plots import Mark, chart, page
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard.spec.gates import SMALLER_IS_BETTER
from trainyard.storage import storage
from trainyard_control.local.local_run import Listener, LocalRun
from trainyard_control.search.search_space import override

_DRAWS = 2000  # chosen: each end of a 95 % interval then rests on 50 samples
_CURVE_POINTS = 40  # points along a curve
_Z = 1.96  # 95 % of a normal distribution lie within this number of deviations
_SMALLEST = 1e-6  # chosen: minimum error, because its logarithm is taken


@dataclass(frozen=True)
class CurvePoint:
    """A training on `examples` examples, the share `fraction` of the training split.

    error: on the test split (one minus accuracy or F1, or the mean absolute error), with its 95 % interval. classes:
    one minus the recall of each class. log_deviation: standard deviation of the error's logarithm.
    """

    fraction: float
    examples: int
    error: float
    low: float
    high: float
    log_deviation: float
    classes: dict[str, float]


@dataclass(frozen=True)
class PowerLaw:
    """error = scale * examples ** -exponent. draws: (n, 2) samples of both, for intervals."""

    scale: float
    exponent: float
    draws: NDArray[np.float64]

    def error(self, examples: float) -> tuple[float, float, float]:
        """Return the error at `examples` examples, with its 95 % interval."""
        samples = self.draws[:, 0] * examples ** -self.draws[:, 1]
        low, high = np.quantile(samples, [0.025, 0.975])
        return self.scale * examples**-self.exponent, float(low), float(high)

    def gain(self, examples: float) -> tuple[float, float, float]:
        """Return the decrease of the error with twice as many examples, with its 95 % interval."""
        samples = self.draws[:, 0] * examples ** -self.draws[:, 1] * (1 - 2 ** -self.draws[:, 1])
        low, high = np.quantile(samples, [0.025, 0.975])
        return self.error(examples)[0] * (1 - 2**-self.exponent), float(low), float(high)


def fractions(text: str) -> list[float]:
    """Parse the shares in `text`, ascending. Raises `ConfigurationError` for fewer than three."""
    try:
        shares = sorted({float(part) for part in text.split(",")})
    except ValueError as error:
        raise ConfigurationError(f"fractions {text[:200]!r}: not a list of numbers such as 0.1,0.3,1.") from error
    if len(shares) < 3 or not all(0 < share <= 1 for share in shares):
        raise ConfigurationError(
            f"fractions {text[:200]!r}: a power law needs three or more different shares above 0 and up to 1, "
            "such as 0.1,0.3,1."
        )
    return shares


def measure(
    name: str, overrides: list[str], shares: list[float], environment: Environment, listener: Listener
) -> Iterator[CurvePoint]:
    """Train and evaluate the recipe `name` on each share of its training split.

    Each training takes about as many steps as the one on all examples, so that a smaller share is not trained less.
    """
    recipe = recipes.load(name, overrides)
    variants = [
        recipes.load(name, [*overrides, override("data.fraction", share), override("train.epochs", epochs)])
        for share in shares
        for epochs in [max(1, round(recipe.train.epochs / share))]
    ]
    outputs = storage.join(environment.storage, recipe.name)
    with storage.reading(outputs):
        for share, variant in zip(shares, variants, strict=True):
            folder = storage.join(outputs, "learning-curve", f"{share:g}")
            run = LocalRun(variant, environment, "", None, listener, folder=folder)
            examples = Examples.read(run.preprocess())
            run.train(None)
            yield _point(share, examples.splits["train"].examples, Evaluation.read(run.evaluate(None)))


def fit(points: list[CurvePoint], seed: int = 1) -> PowerLaw:
    """Fit the power law to the points, weighted by the precision of their errors.

    Source: Hestness et al., "Deep learning scaling is predictable, empirically" (2017): in its power-law region the
    error falls as a power of the number of examples. The interval comes from fits to errors resampled around the
    points, with a larger deviation if the points lie off the line by more than their own intervals explain.
    """
    x = np.log([point.examples for point in points])
    y = np.log([point.error for point in points])
    deviations = np.array([point.log_deviation for point in points])
    line = _line(x, y, deviations)
    misfit = np.sqrt((((y - line[0] - line[1] * x) / deviations) ** 2).sum() / max(1, len(points) - 2))
    random = np.random.default_rng(seed)
    redrawn = y + random.normal(size=(_DRAWS, len(points))) * deviations * max(1.0, float(misfit))
    lines = np.array([_line(x, row, deviations) for row in redrawn])
    return PowerLaw(math.exp(line[0]), -float(line[1]), np.stack([np.exp(lines[:, 0]), -lines[:, 1]], axis=1))


def sentence(points: list[CurvePoint], law: PowerLaw, *, is_percentage: bool) -> str:
    """Say what twice the data would gain, and which class gained most so far."""
    last = points[-1]
    gain, low, high = (value * (100 if is_percentage else 1) for value in law.gain(last.examples))
    unit = " percentage points" if is_percentage else ""
    text = f"twice the data: {gain:.2g}{unit} less error (95 %: {low:.2g} to {high:.2g})"
    if low <= 0:
        text += ", which may be nothing: the points do not tell"
    fallen = {
        name: points[0].classes[name] - error for name, error in last.classes.items() if name in points[0].classes
    }
    if len(fallen) > 2 and max(fallen.values()) > 0:
        name = max(fallen, key=lambda name: fallen[name])
        text += f"; class {name} gained most so far, {points[0].classes[name]:.1%} to {last.classes[name]:.1%}"
    return f"{text}."


def _point(share: float, examples: int, evaluation: Evaluation) -> CurvePoint:
    main = evaluation.main_metric
    classes = {measured.label: 1 - measured.recall for measured in evaluation.classes if measured.examples}
    if main != "accuracy":
        error = evaluation.metrics[main]
        interval = evaluation.intervals.get(main) or Interval(low=error, high=error)
        low, high = interval.low, interval.high
        if main not in SMALLER_IS_BETTER:
            error, low, high = 1 - error, 1 - high, 1 - low
        error, low, high = (max(value, _SMALLEST) for value in (error, low, high))
        deviation = (math.log(high) - math.log(low)) / (2 * _Z)
        return CurvePoint(share, examples, error, low, high, max(deviation, 1e-3), classes)
    count = evaluation.examples
    # No error among n does not prove zero: add half an error (about the mean with Jeffreys' prior).
    error = (round((1 - evaluation.metrics["accuracy"]) * count) + 0.5) / (count + 1)
    deviation = math.sqrt((1 - error) / (count * error))
    low, high = (error * math.exp(sign * _Z * deviation) for sign in (-1, 1))
    return CurvePoint(share, examples, error, low, min(1.0, high), deviation, classes)


def _line(x: NDArray[np.float64], y: NDArray[np.float64], deviations: NDArray[np.float64]) -> NDArray[Any]:
    """Fit a line by weighted least squares; return intercept and slope."""
    slope, intercept = np.polyfit(x, y, 1, w=1 / deviations)
    return np.array([intercept, slope])


def curve_page(name: str, points: list[CurvePoint], law: PowerLaw, text: str, error: str) -> str:
    """Render the page of a learning curve. error: the name of the error."""
    marks = [
        Mark(point.examples, point.error, f"{point.fraction:g} of the data", True, point.low, point.high)
        for point in points
    ]
    first, last = points[0].examples, 4 * points[-1].examples
    along = [first * (last / first) ** (step / _CURVE_POINTS) for step in range(_CURVE_POINTS + 1)]
    samples = [(examples, *law.error(examples)) for examples in along]
    band = [(x, low) for x, _, low, _ in samples] + [(x, high) for x, _, _, high in reversed(samples)]
    line = [(x, value) for x, value, _, _ in samples]
    curve = chart(("training examples", error), marks, {"": line}, band, log_x=True, log_y=True)
    head = ["share", "examples", error, "95 %, from", "to"]
    rows = [
        [f"{row.fraction:g}", f"{row.examples:,}", *(metric_text(value) for value in (row.error, row.low, row.high))]
        for row in points
    ]
    return page(f"{name}: how far data goes", [text], {"Error and examples": curve}, [(head, rows)])
