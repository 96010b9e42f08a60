"""What was found, as one HTML page that opens offline and asks nobody for anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.quality.page import template_of
from trainyard_control.search.chart import HEIGHT, WIDTH, Chart, Mark, chart

if TYPE_CHECKING:  # one of them imports Optuna, which the others do without
    from trainyard_control.search.certificate import Certificate
    from trainyard_control.search.comparison import Comparison
    from trainyard_control.search.learning_curve import Point, PowerLaw
    from trainyard_control.search.space import Dimension
    from trainyard_control.search.sweep import Result
    from trainyard_control.search.trials import Trial

_DRAWN = 40  # points along a curve


def sweep_page(result: Result) -> str:
    """Return the page of a sweep as HTML."""
    metric = "eval accuracy" if result.larger_is_better else "eval mean absolute error"
    done = [trial for trial in result.trials if trial.state == "complete" and trial.metric is not None]
    charts = [_cost(result, done, metric), _history(result, done, metric)]
    charts += [_by_value(dimension, done, result, metric) for dimension in result.dimensions]
    notes = [f"{key}: {share:.0%} of the differences" for key, share in result.importance.items()]
    keys = [dimension.key for dimension in result.dimensions]
    head = ["trial", "state", metric, "best epoch", "seconds", "parameters", *keys]
    return _page(
        f"{result.recipe.name}: {len(result.trials)} trials",
        notes,
        charts,
        [(head, list(map(_row, result.trials)))],
    )


def curve_page(name: str, points: list[Point], law: PowerLaw, text: str, error: str) -> str:
    """Return the page of a learning curve as HTML; error: what it is."""
    marks = [
        Mark(point.examples, point.error, f"{point.fraction:g} of the data", True, point.low, point.high)
        for point in points
    ]
    first, last = points[0].examples, 4 * points[-1].examples
    along = [first * (last / first) ** (step / _DRAWN) for step in range(_DRAWN + 1)]
    drawn = [law.error(examples) for examples in along]
    band = [(x, low) for x, (_, low, _) in zip(along, drawn, strict=True)]
    band += [(x, high) for x, (_, _, high) in reversed(list(zip(along, drawn, strict=True)))]
    line = [(x, value) for x, (value, _, _) in zip(along, drawn, strict=True)]
    curve = chart("Error and examples", ("training examples", error), marks, {"": line}, band, log_x=True, log_y=True)
    head = ["share", "examples", error, "95 %, from", "to"]
    rows = [
        [f"{each.fraction:g}", f"{each.examples:,}", *(f"{value:.4f}" for value in (each.error, each.low, each.high))]
        for each in points
    ]
    return _page(f"{name}: how far data goes", [text], [curve], [(head, rows)])


def certificate_page(certificate: Certificate) -> str:
    """Return the page of a certificate as HTML."""
    speeds = certificate.speeds
    marks = [
        Mark(place, speed.examples_per_second, f"{speed.examples_per_second:,.0f}", place == 0, speed.low, speed.high)
        for place, speed in enumerate(speeds)
    ]
    names = tuple(speed.setting for speed in speeds)
    drawn = chart(
        "Speed, with the range of the epochs", ("setting", "examples/s"), marks, categories=names, from_zero=True
    )
    devices = ", ".join(f"{device.name} ({device.product})" for device in certificate.devices)
    notes = [
        f"{certificate.model}, {certificate.parameters:,} parameters, on {devices}, {certificate.cores} cores, "
        f"{certificate.machine}",
        *certificate.sentences,
        *(f"{setting}: left out. {why}" for setting, why in certificate.left_out.items()),
        f"measured {certificate.measured}; digest {certificate.digest}",
    ]
    head = ["setting", "examples/s", "from", "to", "GFLOP/s", "of the measured peak", "first step, s"]
    rows = [
        [
            speed.setting,
            *(f"{value:,.0f}" for value in (speed.examples_per_second, speed.low, speed.high)),
            f"{1000 * speed.tflops:,.3g}",
            f"{speed.peak_share:.1%}",
            f"{speed.first_step_seconds:.1f}",
        ]
        for speed in speeds
    ]
    return _page(f"{certificate.recipe}: how fast it trains", notes, [drawn], [(head, rows)])


def comparison_page(compared: Comparison) -> str:
    """Return the page of a comparison as HTML."""
    names = compared.names
    curves = dict(zip(names, compared.curves, strict=True))
    charts = []
    for title, attribute in (("Eval loss", "eval_loss"), ("Training loss", "train_loss"), ("Eval metric", "metric")):
        lines = {name: [(epoch.epoch, getattr(epoch, attribute)) for epoch in curve] for name, curve in curves.items()}
        drawn = {name: line for name, line in lines.items() if line}
        if drawn:
            charts.append(chart(title, ("epoch", title.lower()), [], drawn))
    parts = [("setting", compared.settings), ("metric, test split", compared.metrics)]
    parts += [("training", compared.training), ("exported file", compared.exports)]
    tables = [([title, *names], [[row.name, *row.cells] for row in rows]) for title, rows in parts if rows]
    certain = [row.name for row in compared.metrics if any(row.certain)]
    note = "No interval of 95 % is apart from the first run's: the differences may be noise."
    if certain:
        note = f"By their intervals of 95 % these differ from the first run: {', '.join(certain)}. Others may be noise."
    return _page(" and ".join(names), [note], charts, tables)


def _cost(result: Result, done: list[Trial], metric: str) -> Chart:
    front = result.front
    costs = all(trial.operations for trial in done)
    at = (lambda trial: trial.operations) if costs else (lambda trial: float(trial.parameters))
    names = {trial.number for trial in front}
    marks = [Mark(at(trial), trial.metric or 0, _title(trial), trial.number in names) for trial in done]
    line = [(at(trial), trial.metric or 0) for trial in front]
    title = "operations of a training step, an example" if costs else "parameters"
    return chart(
        "What it costs; on the line no other is better and cheaper", (title, metric), marks, {"": line}, log_x=True
    )


def _history(result: Result, done: list[Trial], metric: str) -> Chart:
    marks = [Mark(trial.number + 1, trial.metric or 0, _title(trial), trial is result.best) for trial in done]
    best, line = [], []
    for mark in marks:
        best.append(mark.y)
        line.append((mark.x, (max if result.larger_is_better else min)(best)))
    return chart("The search", ("trial", metric), marks, {"": line})


def _by_value(dimension: Dimension, done: list[Trial], result: Result, metric: str) -> Chart:
    values = [trial.values[dimension.key] for trial in done]
    categories = tuple(str(value) for value in dimension.values)
    places = [float(dimension.values.index(value)) if categories else float(value) for value in values]
    marks = [
        Mark(place, trial.metric or 0, _title(trial), trial is result.best)
        for place, trial in zip(places, done, strict=True)
    ]
    return chart(dimension.key, (dimension.key, metric), marks, log_x=dimension.log, categories=categories)


def _title(trial: Trial) -> str:
    return f"trial {trial.number + 1}: {trial.metric:.4f} ({', '.join(f'{k}={v}' for k, v in trial.values.items())})"


def _row(trial: Trial) -> list[str]:
    metric = "" if trial.metric is None else f"{trial.metric:.4f}"
    epoch = f"{trial.best_epoch} of {len(trial.epochs)}" if trial.best_epoch else f"{len(trial.epochs)} done"
    values = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in trial.values.values()]
    return [str(trial.number + 1), trial.state, metric, epoch, f"{trial.seconds:.1f}", f"{trial.parameters:,}", *values]


def _page(title: str, notes: list[str], charts: list[Chart], tables: list[tuple[Any, Any]]) -> str:
    template = template_of(Path(__file__).parent / "page.html.j2")
    return template.render(title=title, notes=notes, charts=charts, tables=tables, width=WIDTH, height=HEIGHT)
