"""Compares runs: settings that differ, metrics with their intervals, speed, and exported files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trainyard.contract.artifacts.evaluate import Evaluation, thresholds_by_id
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.artifacts.train import Epoch, Training
from trainyard.contract.document import Document
from trainyard.errors import ConfigurationError
from trainyard.graph import remedy
from trainyard.measured import metric_text
from trainyard.report.local_runs import LocalRunView
from trainyard.report.pages import in_iframe
from trainyard.report.plots import chart, page
from trainyard.spec import plain_yaml
from trainyard.spec.trees import has_setting
from trainyard.storage import storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Predictions = dict[str, NDArray[Any]]

_Document = TypeVar("_Document", bound=Document)

MISSING = "–"
_OTHER_EXAMPLES = "Their test splits hold different examples, so the metrics may differ for that alone."


class Measured(Protocol):
    """Metrics with their intervals."""

    @property
    def metrics(self) -> dict[str, float]:
        """Values by name."""

    @property
    def intervals(self) -> dict[str, Interval]:
        """95 % intervals by name."""


@dataclass(frozen=True)
class Row:
    """A row of the comparison, with a cell per run. certain: its interval shows a difference from the first run."""

    name: str
    cells: list[str]
    certain: list[bool]


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs. settings: keys of the recipe that differ. curves: epochs of each training.

    caution: another reason for different metrics than the models, '' if there is none. paired: all runs were evaluated
    on the same examples, so that differences come from resamples of the same examples.
    """

    runs: list[LocalRunView]
    settings: list[Row]
    metrics: list[Row]
    training: list[Row]
    exports: list[Row]
    curves: list[list[Epoch]]
    caution: str
    paired: bool

    @property
    def names(self) -> list[str]:
        """The names of the runs, with their recipes if they differ."""
        if len({run.recipe for run in self.runs}) == 1:
            return [run.name for run in self.runs]
        return [f"{run.recipe} {run.name}" for run in self.runs]

    @property
    def method(self) -> str:
        """The test used for differences between metrics."""
        return "paired on the same test examples" if self.paired else "their intervals do not overlap"

    def __repr__(self) -> str:
        return f"<Comparison of {' and '.join(self.names)}>"

    def _repr_html_(self) -> str:
        return in_iframe(self.page())

    def page(self) -> str:
        """Render the comparison as a page of HTML."""
        names, titles = self.names, {"eval_loss": "Eval loss", "train_loss": "Training loss", "metric": "Eval metric"}
        curves = {name: curve for name, curve in zip(names, self.curves, strict=True) if curve}
        charts = {}
        for key, title in titles.items() if curves else ():
            lines = {name: [(epoch.epoch, getattr(epoch, key)) for epoch in curve] for name, curve in curves.items()}
            charts[title] = chart(("epoch", title.lower()), [], lines)
        parts = [("setting", self.settings), ("metric, test split", self.metrics)]
        parts += [("training", self.training), ("exported file", self.exports)]
        tables = [([title, *names], [[row.name, *row.cells] for row in rows]) for title, rows in parts if rows]
        certain = [row.name for row in self.metrics if any(row.certain)]
        note = f"No metric differs from the first run's at 95 % confidence ({self.method})."
        if certain:
            note = (
                f"These metrics differ from the first run's at 95 % confidence ({self.method}): {', '.join(certain)}."
            )
        return page(" and ".join(names), [note, *filter(None, [self.caution])], charts, tables)

    def document(self) -> dict[str, Any]:
        """Return the JSON fields of the comparison."""
        parts = {name: getattr(self, name) for name in ("settings", "metrics", "training", "exports")}
        rows = {name: {row.name: row.cells for row in part} for name, part in parts.items()}
        return {"runs": [run.document() for run in self.runs], **rows}


def compare(runs: list[LocalRunView]) -> Comparison:
    """Compare two or more `runs`.

    Raises `ConfigurationError` for fewer or repeated runs, `DataError` if an output cannot be read.
    """
    if len(runs) < 2 or len({run.folder for run in runs}) < len(runs):
        raise ConfigurationError("name two or more runs, each once.")
    trainings = [_output(run, "train", Training) for run in runs]
    evaluations = [_output(run, "evaluate", Evaluation) for run in runs]
    judged = [_predictions(run) for run in runs]
    test_splits = {hashlib.sha256(b"\0".join(split["keys"].tolist())).digest() for split in judged if split}
    decided = [_thresholds(evaluation) for evaluation in evaluations]
    pairs = [
        _differences(runs[0], judged[0], split, (thresholds, decided[0]))
        for split, thresholds in zip(judged, decided, strict=True)
    ]
    return Comparison(
        runs,
        list(settings_rows([run.settings for run in runs])),
        list(metric_rows(evaluations, pairs)),
        list(_trainings(runs, trainings)),
        list(export_rows([run.record.get("exports") or [] for run in runs])),
        [training.history if training else [] for training in trainings],
        "" if len(test_splits) < 2 else _OTHER_EXAMPLES,
        None not in pairs,
    )


def settings_rows(recipes: list[dict[str, Any]]) -> Iterator[Row]:
    """Yield a row for each key that differs between `recipes`, given with every default.

    Settings that the model of one of them lacks, such as the layers of trees, are left out.
    """
    models = [recipe.get("model", {}).get("name") for recipe in recipes]
    flat = [dict(plain_yaml.flattened(recipe)) for recipe in recipes]
    for key in dict.fromkeys(key for settings in flat for key in settings):
        values = [settings.get(key, MISSING) for settings in flat]
        if len(set(values)) > 1 and all(has_setting(model, key) for model in models):
            yield Row(key, values, [value != values[0] for value in values])


def metric_rows(evaluations: Sequence[Measured | None], pairs: list[dict[str, Interval] | None]) -> Iterator[Row]:
    """Yield a row for each metric; pairs: the intervals of differences from the first, None if they are unknown."""
    for name in dict.fromkeys(name for evaluation in evaluations if evaluation for name in evaluation.metrics):
        values = [evaluation.metrics.get(name) if evaluation else None for evaluation in evaluations]
        intervals = [evaluation.intervals.get(name) if evaluation else None for evaluation in evaluations]
        cells = [
            MISSING if value is None else f"{metric_text(value)}{_difference(value, values[0])}" for value in values
        ]
        certain = [
            _apart(interval, intervals[0]) if pair is None or name not in pair else _excludes_zero(pair[name])
            for interval, pair in zip(intervals, pairs, strict=True)
        ]
        yield Row(name, cells, certain)


def _difference(value: float, first: float | None) -> str:
    return f" ({metric_text(value - first, '+')})" if first is not None and value != first else ""


def _apart(interval: Interval | None, first: Interval | None) -> bool:
    """Return True if both intervals are known and do not overlap."""
    return bool(interval and first and (interval.low > first.high or interval.high < first.low))


def _excludes_zero(difference: Interval) -> bool:
    return difference.low > 0 or difference.high < 0


def _trainings(runs: list[LocalRunView], trainings: list[Training | None]) -> Iterator[Row]:
    def row(name: str, cells: list[str]) -> Row:
        return Row(name, cells, [False] * len(cells))

    def cell(training: Training | None, text: str) -> str:
        return MISSING if training is None else text.format(training)

    data = [run.record.get("data") or {} for run in runs]
    yield row("training examples", [f"{examples['train']:,}" if examples else MISSING for examples in data])
    yield row("parameters", [cell(training, "{0.parameters:,}") for training in trainings])
    yield row("best epoch", [cell(training, "{0.best_epoch} of {0.epochs}") for training in trainings])
    fed = [training if training and training.speed.examples_per_second else None for training in trainings]  # not trees
    yield row("examples/s", [cell(training, "{0.speed.examples_per_second:,.0f}") for training in fed])
    for step in dict.fromkeys(step for run in runs for step in run.record.get("seconds", {})):
        cells = [run.record.get("seconds", {}).get(step) for run in runs]
        yield row(f"{step}, s", [MISSING if cell is None else f"{cell:.1f}" for cell in cells])


def export_rows(exports: list[list[dict[str, Any]]]) -> Iterator[Row]:
    """Yield the rows of each exported format: size and latency."""
    files = [{file["format"]: file for file in exported} for exported in exports]
    for name in dict.fromkeys(name for exported in files for name in exported):
        named = [exported.get(name) for exported in files]
        sizes = [f"{file['bytes'] / 1024:,.0f}" if file else MISSING for file in named]
        latencies = [f"{file['latency_ms']['p50']:.3f}" if file else MISSING for file in named]
        for unit, cells in (("KiB", sizes), ("p50 ms", latencies)):
            yield Row(f"{name}, {unit}", cells, [False] * len(cells))


def _predictions(run: LocalRunView) -> _Predictions | None:
    """Return the run's predictions of the test split by name, sorted by key; None if it has none."""
    folder = run.record.get("folders", {}).get("evaluate")
    content = storage.read(folder, "predictions.npz", remedy("evaluate")) if folder else None
    if content is None:
        return None
    import numpy as np  # imported late, because every command loads this module

    with np.load(io.BytesIO(content)) as saved:
        order = np.argsort(saved["keys"], kind="stable")
        return {name: saved[name][order] for name in saved.files}


def _thresholds(evaluation: Evaluation | None) -> dict[int, float]:
    """Return the decision thresholds of a run's model by class id."""
    if evaluation is None:
        return {}
    labels = [each.label for each in evaluation.classes]
    return thresholds_by_id({each.label: each.value for each in evaluation.thresholds}, labels)


def _differences(
    run: LocalRunView,
    first: _Predictions | None,
    other: _Predictions | None,
    thresholds: tuple[dict[int, float], dict[int, float]],
) -> dict[str, Interval] | None:
    """Return the paired interval of other - first of each metric; None if the examples differ.

    run: the first run, whose recipe gives the task and the number of resamples. thresholds: of other and of first.
    """
    if not first or not other or first.keys() != other.keys():
        return None
    import numpy as np

    if any(not np.array_equal(first[name], other[name]) for name in first.keys() - {"outputs"}):
        return None
    from trainyard.steps.evaluate.metrics.bootstrap import differences  # scikit-learn: a second
    from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
    from trainyard.steps.evaluate.metrics.registry import measure

    settings = run.settings
    task, resamples, seed = settings["task"], settings["evaluate"]["bootstrap"], settings["seed"]
    candidate, rival = (
        SplitPredictions(part["labels"], part["outputs"], part.get("weights"), decided)
        for part, decided in zip((other, first), thresholds, strict=True)
    )
    return differences(task, measure(task, candidate).keys(), candidate, rival, resamples, seed)


def _output(run: LocalRunView, step: str, document: type[_Document]) -> _Document | None:
    folder = run.record.get("folders", {}).get(step)
    return document.read(folder) if folder else None
