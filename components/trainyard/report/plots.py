"""The report's figures as plotly JSON: pure functions of the steps' documents.

Colors are names such as `@accent`, which the page resolves for its light or dark theme. Text from the data goes through
`plain`, because plotly interprets a subset of HTML in labels.
"""

from __future__ import annotations

from typing import Any

from trainyard.contract.artifacts.evaluate import Evaluation, SliceMetrics
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Training
from trainyard.contract.document import SPLITS
from trainyard.escape import one_line
from trainyard.spec.gates import MAIN_METRIC, METRIC_TITLES

Figure = dict[str, Any]

CELLS = 30
"""Most classes whose confusion is written into the cells. Chosen: more numbers are not readable."""

DRAWN = 100
"""Most classes whose confusion is drawn at all; the table of mistakes remains. Chosen for the size of the file."""

SLICES = 60
"""Most slices drawn; the table holds all. Chosen."""

_SPLIT_COLORS = {"train": "@accent", "eval": "@second", "test": "@third"}


def plain(text: str) -> str:
    """Escape `text` so that plotly shows it literally."""
    return one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def figures(
    examples: Examples | None, training: Training | None, evaluation: Evaluation | None, seconds: dict[str, float]
) -> dict[str, Figure]:
    """Return the figures for the available documents, by name."""
    figures: dict[str, Figure] = {}
    if examples and examples.labels:
        figures["balance"] = _balance(examples, examples.labels)
    if training and training.history:
        figures |= {"loss": _loss(training), "metric": _metric(training, examples)}
        if training.speed.examples_per_second:  # a custom program may not report it
            figures["throughput"] = _throughput(training)
    if evaluation:
        figures |= _answers(evaluation)
    if seconds:
        figures["seconds"] = _seconds(seconds)
    return figures


def _answers(evaluation: Evaluation) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    if 0 < len(evaluation.confusion) <= DRAWN:
        figures["confusion"] = _confusion(evaluation)
    if evaluation.roc:
        figures["roc"] = _roc(evaluation)
    if evaluation.calibration:
        figures["calibration"] = _calibration(evaluation)
    if evaluation.scatter:
        figures["scatter"] = _scatter(evaluation.scatter, "target")
    for index, target in enumerate(evaluation.targets):
        figures[f"scatter{index}"] = _scatter(target.scatter, plain(target.name))
    if evaluation.slices:
        figures["slices"] = _slices(evaluation)
    return figures


def _figure(data: list[Figure], x: str, y: str, height: int = 300, **layout: Any) -> Figure:
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    for name in axes:
        axes[name] |= layout.pop(name, {})
    return {"data": data, "layout": {"height": height, **axes, **layout}}


def _line(x: list[Any], y: list[Any], name: str, color: str, **more: Any) -> Figure:
    line = {"color": color, "width": 2.5, **more.pop("line", {})}
    mode = "lines" if len(x) > 1 else "markers"
    return {"type": "scatter", "mode": mode, "x": x, "y": y, "name": plain(name), "line": line, **more}


def _balance(examples: Examples, labels: list[str]) -> Figure:
    names = [plain(label) for label in labels]
    bars = [
        {
            "type": "bar",
            "x": names,
            "y": examples.splits[split].class_counts,
            "name": split,
            "marker": {"color": _SPLIT_COLORS[split]},
        }
        for split in SPLITS
        if split in examples.splits and examples.splits[split].class_counts
    ]
    axis = {"type": "category", "showgrid": False}
    return _figure(bars, plain(examples.label), "examples", barmode="stack", xaxis=axis)


def _loss(training: Training) -> Figure:
    epochs = [epoch.epoch for epoch in training.history]
    return _figure(
        [
            _line(epochs, [epoch.train_loss for epoch in training.history], "train", "@accent"),
            _line(epochs, [epoch.eval_loss for epoch in training.history], "eval", "@second"),
        ],
        "epoch",
        "loss",
        hovermode="x unified",
        **_best(training),
        yaxis={"rangemode": "tozero"},
    )


def _metric(training: Training, examples: Examples | None) -> Figure:
    name = METRIC_TITLES[MAIN_METRIC[examples.task if examples else "classification"]]
    epochs = [epoch.epoch for epoch in training.history]
    rate = [epoch.learning_rate for epoch in training.history]
    lines = [_line(epochs, [epoch.metric for epoch in training.history], f"eval {name}", "@second")]
    axis: Figure = {}
    if any(rate):  # a custom program may not report it
        lines.append(_line(epochs, rate, "learning rate", "@muted", yaxis="y2", line={"width": 1.5, "dash": "dot"}))
        axis["yaxis2"] = {
            "title": {"text": "learning rate"},
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "rangemode": "tozero",
            "tickmode": "auto",
            "nticks": 6,
            "exponentformat": "power",
        }
    return _figure(lines, "epoch", f"eval {name}", hovermode="x unified", **_best(training), **axis)


def _mark(x: float, name: str, color: str, **text: Any) -> Figure:
    """Mark the value `x` with a line and its name, as parts of a layout."""
    line = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1}
    label = {"x": x, "yref": "paper", "y": 1, "text": name, "showarrow": False, "yanchor": "bottom", **text}
    return {
        "shapes": [line | {"line": {"color": color, "width": 1.5, "dash": "dash"}}],
        "annotations": [label | {"font": {"color": color, "size": 11}}],
    }


def _best(training: Training) -> Figure:
    return _mark(training.best_epoch, "best", "@good", xanchor="right")


def _ideal(ends: list[float], name: str = "ideal") -> Figure:
    """Return the diagonal to compare points or curves with."""
    return _line(ends, ends, name, "@muted", line={"width": 1, "dash": "dot"}, hoverinfo="skip")


def _throughput(training: Training) -> Figure:
    bars = {
        "type": "bar",
        "x": [epoch.epoch for epoch in training.history],
        "y": [epoch.examples_per_second for epoch in training.history],
        "name": "examples/s",
        "marker": {"color": "@accent"},
        "hovertemplate": "epoch %{x}: %{y:,.0f} examples/s<extra></extra>",
    }
    mean = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": training.speed.examples_per_second,
        "y1": training.speed.examples_per_second,
        "line": {"color": "@second", "width": 1.5, "dash": "dash"},
    }
    return _figure([bars], "epoch", "examples per second", shapes=[mean], xaxis={"showgrid": False})


def _confusion(evaluation: Evaluation) -> Figure:
    """Draw correct and wrong predictions on separate scales, so that a few errors stay visible."""
    labels = [plain(metrics.label) for metrics in evaluation.classes]
    counts = evaluation.confusion
    size = len(labels)
    share = [[count / max(1, sum(row)) for count in row] for row in counts]
    right = [[share[i][j] if i == j else None for j in range(size)] for i in range(size)]
    wrong = [[share[i][j] if i != j and counts[i][j] else None for j in range(size)] for i in range(size)]
    worst = max(0.1, *(value or 0 for row in wrong for value in row))
    cell: Figure = {
        "type": "heatmap",
        "x": labels,
        "y": labels,
        "showscale": False,
        "xgap": 2 if size <= CELLS else 0,
        "ygap": 2 if size <= CELLS else 0,
        "zmin": 0,
        "hovertemplate": "%{y} predicted as %{x}: %{text} (%{z:.1%})<extra></extra>",
    }
    if size <= CELLS:
        cell["texttemplate"] = "%{text}"
    texts = [
        [[count if count and (i == j) is kind else "" for j, count in enumerate(row)] for i, row in enumerate(counts)]
        for kind in (True, False)
    ]
    return _figure(
        [
            {**cell, "z": right, "text": texts[0], "zmax": 1, "colorscale": [[0, "@surface"], [1, "@accent"]]},
            {**cell, "z": wrong, "text": texts[1], "zmax": worst, "colorscale": [[0, "@surface"], [1, "@bad"]]},
        ],
        "predicted",
        "true",
        height=max(430, min(900, 34 * size + 110)),
        xaxis={"type": "category", "showgrid": False},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )


def _roc(evaluation: Evaluation) -> Figure:
    curves = [
        _line(
            roc.false_positive_rate,
            roc.true_positive_rate,
            roc.label,
            f"@series{index % 10}",
            line={"width": 2},
            hovertemplate="%{x:.3f}, %{y:.3f}",
        )
        for index, roc in enumerate(evaluation.roc)
    ]
    return _figure(
        [*curves, _ideal([0, 1], "chance")],
        "false positive rate",
        "true positive rate",
        height=430,
        xaxis={"range": [-0.01, 1.01]},
        yaxis={"range": [-0.01, 1.02]},
    )


def _calibration(evaluation: Evaluation) -> Figure:
    bins = evaluation.calibration
    largest = max(bin.examples for bin in bins)
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [bin.confidence for bin in bins],
        "y": [bin.accuracy for bin in bins],
        "text": [bin.examples for bin in bins],
        "marker": {"color": "@accent", "size": [6 + 22 * (bin.examples / largest) ** 0.5 for bin in bins]},
        "hovertemplate": "confidence %{x:.3f}, accuracy %{y:.3f}, %{text} examples<extra></extra>",
    }
    return _figure(
        [_ideal([0, 1]), points],
        "confidence",
        "accuracy",
        height=400,
        showlegend=False,
        xaxis={"range": [0, 1.06]},
        yaxis={"range": [-0.04, 1.09]},
    )


def _scatter(pairs: list[tuple[float, float]], name: str) -> Figure:
    targets = [target for target, _prediction in pairs]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": targets,
        "y": [prediction for _target, prediction in pairs],
        "marker": {"color": "@accent", "opacity": 0.55, "size": 7},
        "hovertemplate": "target %{x:.5g}, prediction %{y:.5g}<extra></extra>",
    }
    return _figure([_ideal([min(targets), max(targets)]), points], name, "prediction", height=400, showlegend=False)


def _slices(evaluation: Evaluation) -> Figure:
    shown = evaluation.slices[:SLICES]
    main = evaluation.main_metric
    names = [plain(part.name) for part in shown]
    value = [part.metrics[main] for part in shown]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": value,
        "y": names,
        "text": [part.examples for part in shown],
        "marker": {"color": "@accent", "size": 10},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_margin(part, main)[1] for part in shown],
            "arrayminus": [_margin(part, main)[0] for part in shown],
            "color": "@accent",
            "thickness": 2,
            "width": 5,
        },
        "hovertemplate": "%{y}: %{x:.4g} of %{text} examples<extra></extra>",
    }
    return _figure(
        [points],
        f"{METRIC_TITLES[main]}, with its 95 % interval",
        "",
        height=130 + 26 * len(shown),
        **_mark(evaluation.metrics[main], "all examples", "@second"),
        yaxis={"type": "category", "autorange": "reversed", "automargin": True},
    )


def _margin(part: SliceMetrics, main: str) -> tuple[float, float]:
    if part.interval is None:
        return 0.0, 0.0
    value = part.metrics[main]
    return max(0.0, value - part.interval.low), max(0.0, part.interval.high - value)


def _seconds(seconds: dict[str, float]) -> Figure:
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": list(seconds.values()),
        "y": [plain(step) for step in seconds],
        "text": [f"{value:,.1f} s" for value in seconds.values()],
        "textposition": "auto",
        "marker": {"color": "@accent"},
        "hovertemplate": "%{y}: %{x:.2f} s<extra></extra>",
    }
    return _figure(
        [bars],
        "seconds",
        "",
        height=90 + 34 * len(seconds),
        yaxis={"type": "category", "autorange": "reversed", "automargin": True},
    )
