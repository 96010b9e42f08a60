"""The report's figures as plotly JSON, as pure functions of the steps' documents, and other pages of charts.

Colors are names such as `@accent`, which the page resolves for its light or dark theme. Text from the data goes through
`plain`, because plotly interprets a subset of HTML in labels.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainyard.contract.artifacts.evaluate import Evaluation, SliceMetrics
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Training
from trainyard.contract.document import SPLITS
from trainyard.escape import one_line
from trainyard.spec.gates import MAIN_METRIC, METRIC_TITLES

Figure = dict[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]

CELLS = 30
"""Most classes whose confusion is written into the cells. Chosen: more numbers are not readable."""

DRAWN = 100
"""Most classes whose confusion is drawn at all; the table of mistakes remains. Chosen for the size of the file."""

SLICES = 60
"""Most slices drawn; the table holds all. Chosen."""

NAME_LENGTH = 20
"""Most characters of a category's name below its axis. Chosen."""

_SILENT: Figure = {"hoverinfo": "skip", "showlegend": False}

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


@dataclass(frozen=True)
class Mark:
    """A point with a title. strong: highlighted. low, high: its interval."""

    x: float
    y: float
    title: str = ""
    strong: bool = False
    low: float | None = None
    high: float | None = None


def chart(
    names: tuple[str, str],
    marks: Sequence[Mark],
    lines: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    band: Sequence[tuple[float, float]] = (),
    *,
    log_x: bool = False,
    log_y: bool = False,
    categories: Sequence[str] = (),
    bars: bool = False,
) -> Figure:
    """Return the figure of `marks`, `lines` by name and a `band`. names: of the axes. categories: of x = 0, 1, …"""
    data: list[Figure] = []
    if band:
        area = {"x": [x for x, _ in band], "y": [y for _, y in band], "fill": "toself", "fillcolor": "@second"}
        data.append({"type": "scatter", "mode": "none", **area, "opacity": 0.15, **_SILENT})
    for index, (name, line) in enumerate((lines or {}).items(), 1):
        color, silent = f"@series{index % 10}", {} if name else _SILENT
        data.append(_line([x for x, _ in line], [y for _, y in line], name, color, line={"width": 1.5}, **silent))
    if marks:
        data.append(_marks(marks) | ({"type": "bar"} if bars else {"type": "scatter", "mode": "markers"}))
    values = ([mark.x for mark in marks], [mark.y for mark in marks])
    x, y = (_log_axis(part) if log else {} for log, part in zip((log_x, log_y), values, strict=True))
    if categories:
        x = {
            "tickvals": list(range(len(categories))),
            "ticktext": [plain(_shortened(name)) for name in categories],
            "range": [-0.5, len(categories) - 0.5],
            "ticklabeloverflow": "allow",
            "autotickangles": [0, -45, -90],
            "showgrid": False,
            "zeroline": False,
        }
    return _figure(data, plain(names[0]), plain(names[1]), xaxis=x, yaxis=y)


def _shortened(name: str) -> str:
    """Cut the middle of a long name, because names of a family differ at their ends."""
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH // 2]}…{name[-NAME_LENGTH // 2 :]}"


def _log_axis(values: list[float]) -> Figure:
    """Return a logarithmic axis with few ticks, because plotly lets them overlap, and no SI prefixes below 1."""
    return {"type": "log", "nticks": 3, "tickformat": ".6~s" if min(values, default=1) >= 1 else ".6~g"}


def _marks(marks: Sequence[Mark]) -> Figure:
    points: Figure = {
        "x": [mark.x for mark in marks],
        "y": [mark.y for mark in marks],
        "hovertext": [plain(mark.title) for mark in marks],
        "hoverinfo": "text",
        "showlegend": False,
        "marker": {"color": ["@second" if mark.strong else "@accent" for mark in marks], "size": 9},
    }
    if any(mark.low is not None for mark in marks):
        points["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [0 if mark.high is None else mark.high - mark.y for mark in marks],
            "arrayminus": [0 if mark.low is None else mark.y - mark.low for mark in marks],
            "color": "@muted",
        }
    return points


def figure_values(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Return the values with which base.html.j2 draws `figures`, by name, in the elements with that `data-figure`."""
    if not figures or find_spec("plotly") is None:  # images that only train lack it
        return {}
    from trainyard.report import pages  # with jinja2

    script = (Path(__file__).parent / "report.js").read_text(encoding="utf-8")
    plotly, plotly_hash = _plotly()
    return {
        "figures": figures,
        "script": script,
        "script_hashes": [pages.script_hash(script), plotly_hash],
        "plotly": plotly,
    }


@cache
def _plotly() -> tuple[str, str]:
    """Return plotly.js (gzip in base64: 2 MB instead of 5), and its hash for the content security policy."""
    from plotly.offline import get_plotlyjs

    from trainyard.report import pages

    source = get_plotlyjs()
    return base64.b64encode(gzip.compress(source.encode(), mtime=0)).decode(), pages.script_hash(source)


def page(title: str, notes: list[str], charts: Mapping[str, Figure], tables: Sequence[Table]) -> str:
    """Render a page of notes, tables and the figures `charts` by their titles."""
    from trainyard.report import pages

    values = {"title": title, "notes": notes, "charts": charts, "tables": tables}
    return str(pages.template(Path(__file__).parent / "page.html.j2").render(values, **figure_values(charts)))


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
