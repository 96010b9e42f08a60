"""The report of a run: one HTML file with all its styles, images, data and plotly."""

from __future__ import annotations

import base64
import json
import math
import os
import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import Evaluation, Mistake
from trainyard.contract.artifacts.train import Prediction, Training
from trainyard.contract.gang import training_needs
from trainyard.contract.statistics.drift import FeatureStatistics, Histogram, Statistics
from trainyard.contract.time_to_accuracy import time_to_accuracy
from trainyard.errors import TrainyardError
from trainyard.graph import remedy
from trainyard.report import plots
from trainyard.report.outputs import Outputs
from trainyard.spec.gates import ALL_METRICS, MAIN_METRIC, METRIC_LABELS, METRIC_SPECS, METRIC_TITLES, MetricSpec
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

QUARANTINE_ROWS = 20
"""Quarantined records that are listed; quarantine.jsonl holds all. Chosen."""

_QUOTING = frozenset({"contradicting_labels", "mistyped_value", "unknown_label", "unknown_split", "bad_weight"})
"""The reasons whose detail quotes up to 40 characters of a cell."""

BARS = 32
"""Of a histogram as it is drawn. Chosen: three pixels each fit a narrow cell."""

_TOP = 4  # most frequent texts that are shown; chosen

PACKAGES = (
    "trainyard",
    "tensorflow",
    "keras",
    "tensorflow-transform",
    "apache-beam",
    "ai-edge-litert",
    "scikit-learn",
    "numpy",
    "kfp",
)


@dataclass(frozen=True)
class Ending:
    """The end of a run before its last step: the sentence of its failure, or why a scheduled run was not due.

    predicted: the forecast of its training, None without one or if an earlier training was reused. attempts: those of
    the steps on lists of pools, each as `StepTask.note_attempts`.
    """

    failure: str | None = None
    not_due: str | None = None
    predicted: Prediction | None = None
    attempts: Sequence[dict[str, Any]] = ()


def render(
    title: str,
    recipe: Recipe,
    outputs: Outputs,
    seconds: dict[str, float],
    ending: Ending = Ending(),
    usd_per_hour: float | None = None,
) -> str:
    """Render the report as one HTML document, without the parts of steps that did not run.

    seconds: wall time of each step. usd_per_hour: as in `summary.write`.
    """
    training, evaluation = outputs.training, outputs.evaluation
    page: str = _template().render(
        title=title,
        recipe=recipe,
        ending=ending,
        status=_status(ending, outputs),
        examples=outputs.examples,
        quarantined=_quarantined(outputs.folders, samples=recipe.data.samples),
        columns=summaries(outputs.folders.get("preprocess")) if outputs.examples and not outputs.examples.image else [],
        training=training,
        input_workers_needed=training_needs(training) if training else None,
        scaling=scaling(training, outputs.folders["train"]) if training else None,
        reached=time_to_accuracy(training, recipe.evaluate.time_to, usd_per_hour, outputs.examples)
        if training
        else None,
        evaluation=evaluation,
        mistakes=_mistakes(evaluation.worst if evaluation else [], outputs.folders),
        differing=_mistakes(evaluation.disagreement.shown, outputs.folders)
        if evaluation and evaluation.disagreement
        else [],
        confused=_confused(evaluation),
        gates=outputs.gates,
        exports=outputs.exports,
        pushed=outputs.pushed,
        seconds=seconds,
        environment=_environment(),
        recipe_yaml=yaml.safe_dump(recipe.model_dump(mode="json", exclude_defaults=True), sort_keys=False),
        better={name: _better(METRIC_SPECS[name]) for name in ALL_METRICS},
        main_metric=MAIN_METRIC,
        metric_labels=METRIC_LABELS,
        metric_titles=METRIC_TITLES,
        **plots.figure_values(plots.figures(outputs.examples, training, evaluation, seconds)),
    )
    return page


def _better(spec: MetricSpec) -> str:
    if spec.best is not None:
        return f"{spec.best:g}"
    return "smaller" if spec.smaller_is_better else "larger"


def _status(ending: Ending, outputs: Outputs) -> str:
    """Return the state of the badge: failed, idle, unjudged, blessed or refused."""
    if ending.failure:
        return "failed"
    if ending.not_due:
        return "idle"
    return "unjudged" if outputs.evaluation is None else outputs.verdict


def _quarantined(folders: dict[str, str], *, samples: bool) -> list[dict[str, str]]:
    """Return the first records; samples: with a cell's content even if one row alone has it (see `is_common`)."""
    if "preprocess" not in folders:
        return []
    text = (storage.read(folders["preprocess"], "quarantine.jsonl", remedy("preprocess")) or b"").decode()
    lines = [line for line in text.split("\n") if line]
    records = [json.loads(line) for line in lines[:QUARANTINE_ROWS]]
    quoting = {record["detail"] for record in records if record["reason"] in _QUOTING and not samples}
    times = Counter(detail for line in lines if (detail := json.loads(line)["detail"]) in quoting) if quoting else {}
    rare = {detail for detail in quoting if times[detail] == 1}
    return [record | {"detail": "see quarantine.jsonl"} if record["detail"] in rare else record for record in records]


def _mistakes(shown: Sequence[Mistake], folders: dict[str, str]) -> list[dict[str, Any]]:
    """Return the examples, each with its image as a data URI."""
    mistakes = []
    for mistake in shown:
        source = None
        if mistake.image is not None:
            content = storage.read(folders["evaluate"], mistake.image, remedy("evaluate")) or b""
            source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        mistakes.append({"champion": mistake.champion, **mistake.model_dump(), "source": source})
    return mistakes


def _confused(evaluation: Evaluation | None) -> list[tuple[int, str, str]]:
    """Return up to ten most frequent confusions: (count, true label, predicted label)."""
    if evaluation is None:
        return []
    labels = [metrics.label for metrics in evaluation.classes]
    pairs = [
        (count, labels[row], labels[column])
        for row, counts in enumerate(evaluation.confusion)
        for column, count in enumerate(counts)
        if row != column and count
    ]
    return sorted(pairs, key=lambda pair: -pair[0])[:10]


def _environment() -> dict[str, str]:
    versions = {"Python": platform.python_version(), "System": f"{platform.platform()}, {os.cpu_count()} processors"}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


@cache
def _template() -> Any:
    from trainyard.report import pages  # with jinja2

    return pages.template(Path(__file__).parent / "report.html.j2", number=_number, bytes=_bytes)


def _number(value: float | None) -> str:
    """Format a number with four decimals up to 1, and commas from 1,000 on."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if 0.0001 <= abs(value) <= 1:
        return f"{value:.4f}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _bytes(value: int) -> str:
    size = float(value)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


@dataclass(frozen=True)
class ColumnSummary:
    """A column of the training split. missing: a share. top: the most frequent texts with their shares of all rows, or
    words with their shares of all words.

    bars: the histogram of a number from its minimum to its maximum, each bar as a share of the highest.
    """

    name: str
    missing: float
    statistics: FeatureStatistics
    top: list[tuple[str, float]]
    bars: list[float]


def summaries(folder: str | None) -> list[ColumnSummary]:
    """Return the columns counted in the preprocess output `folder`; empty without one."""
    if folder is None or storage.read(folder, Statistics.file, remedy("preprocess")) is None:
        return []
    features = Statistics.read(folder).features
    return [_summary(name, splits["train"]) for name, splits in features.items() if "train" in splits]


def _summary(name: str, column: FeatureStatistics) -> ColumnSummary:
    rows = column.count + column.missing
    total = rows if column.words is None else column.words
    return ColumnSummary(
        name=name,
        missing=column.missing / max(rows, 1),
        statistics=column,
        top=[(value.value, value.count / max(total, 1)) for value in (column.top or [])[:_TOP]],
        bars=_bars(column.histogram) if column.histogram else [],
    )


def _bars(histogram: Histogram) -> list[float]:
    """Return a bar per bin; of few values far apart, each at its position."""
    reduced = histogram.limited(BARS)
    if not reduced.starts:
        return []
    low, span = reduced.starts[0], reduced.starts[-1] - reduced.starts[0]
    last = min(round(math.ldexp(span, -reduced.exponent)), BARS - 1)
    counts = [0] * (last + 1)
    for start, count in zip(reduced.starts, reduced.counts, strict=True):
        counts[round((start - low) / span * last) if span else 0] += count
    return [count / max(counts) for count in counts]


@dataclass(frozen=True)
class Scaling:
    """`efficiency` is the gang's examples a second over `workers` times the recorded one worker's.

    same_part: the one worker had the batch that each worker of the gang has; otherwise the whole gang's.
    """

    workers: int
    efficiency: float
    one_worker: float
    same_part: bool


def scaling(training: Training, folder: str) -> Scaling | None:
    """Compare `training`, in `folder`, with a one-worker training in the same storage; None without one.

    It must be of the same model, precision, engine and hardware, with an equal batch a worker or, failing that, the
    same batch. None too if the number of workers changed.
    """
    if training.gang.workers == 1 or len(training.gang.worker_counts) > 1 or not training.speed.examples_per_second:
        return None
    batch = training.speed.batch_size
    parent, own = keys.split(folder)
    by_batch: dict[bool, Training] = {}
    for name in storage.children(parent):
        path = storage.join(parent, name)
        with suppress(TrainyardError, ValueError):  # of another version
            if name == own or not storage.committed(path):
                continue
            other = Training.read(path)
            steady = other.gang.workers == 1 and len(other.gang.worker_counts) < 2
            if steady and _alike(other, training) and other.speed.batch_size in (batch, batch // training.gang.workers):
                by_batch[other.speed.batch_size != batch] = other
    if not by_batch:
        return None
    same_part = True in by_batch
    one = by_batch[same_part].speed.examples_per_second
    return Scaling(
        training.gang.workers, training.speed.examples_per_second / training.gang.workers / one, one, same_part
    )


def _alike(one: Training, other: Training) -> bool:
    first, second = (
        (each.model, each.parameters, each.precision, each.machine.engine, each.machine.hardware, each.machine.cores)
        for each in (one, other)
    )
    return first == second
