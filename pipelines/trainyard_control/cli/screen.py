"""The final screen of `trainyard run`, on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.padding import Padding
from rich.table import Table

from trainyard.contract.artifacts.export import DeviceTiming
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.artifacts.train import Prediction
from trainyard.escape import shell
from trainyard.measured import interval_text, metric_text
from trainyard.spec.gates import METRIC_LABELS
from trainyard.spec.networks import TREES
from trainyard.storage import storage
from trainyard_control.api.drawing import Console, key_value_table, markup, plain_table, table_console
from trainyard_control.api.run import Run
from trainyard_control.search.comparison import Row


def show(run: Run, *, curves: bool = True) -> None:
    """Print the final screen of an evaluated run. curves: whether TensorBoard may read them from this machine."""
    record = run.record
    console = table_console()
    gate = record["gate"]
    blessed = gate["verdict"] == "blessed"
    badge = "[bold green]✓ blessed[/]" if blessed else "[bold red]✗ refused[/]"
    console.print()
    console.rule(f"[bold]{markup(run.recipe)}[/] · {badge}", align="left")
    console.print(_summary(record, run.settings["model"].get("name"), curves))
    console.print(metrics_table(record["metrics"], run.intervals, _on("test" if record["data"] else None)))
    if record.get("remark"):
        console.print(_remark(record["remark"]))
    for table in gate_tables(gate["thresholds"]):
        console.print(table)
    if record["exports"]:
        console.print(exports_table(record["exports"]))


def _summary(record: dict[str, Any], network: str | None, with_curves: bool = True) -> Table:
    data, train = record["data"], record["train"]
    table = key_value_table()
    if data:
        counts = [f"{data[name]:,} {name}" for name in ("train", "eval", "test", "quarantined")]
        counts += [f"{left_out:,} left out by data.where"] if (left_out := data.get("unselected")) else []
        table.add_row("data", " · ".join(counts))
    bound = "bound unclear" if train["bottleneck"] == "unclear" else f"{train['bottleneck']}-bound"
    speed = f", {train['examples_per_second']:,.0f} examples/s" if train["examples_per_second"] else ""
    bound = "" if train.get("command") else f", {bound}"
    trained = f"{network or 'own model'}, {train['epochs']} epochs, {train['steps']:,} steps{speed}{bound}"
    table.add_row("training", f"{network}, {train['epochs']} iterations" if network == TREES else trained)
    if record.get("predicted"):
        predicted = Prediction.model_validate(record["predicted"])
        table.add_row("plan", predicted.beside(train["examples_per_second"]))
    if train.get("command"):
        table.add_row("by", markup(" ".join(train["command"])))
    else:
        input_workers = f" · {train['input_workers']} input workers" if train.get("input_workers") else ""
        table.add_row("devices", markup(", ".join(train["devices"])) + input_workers)
    if reached := record.get("time_to"):
        table.add_row("time to", markup(_reached(reached)))
        if published := reached.get("published"):
            table.add_row("published", markup(_published(published)))
    if record["pushed"]:
        waits = "; waits for approval" if record["pushed"].get("waits") else ""
        table.add_row("pushed", markup(f"version {record['pushed']['version']} → {record['pushed']['path']}{waits}"))
        if override := record["pushed"].get("override"):
            table.add_row("override", markup(f"{override['name']}: {override['reason']}"))
    table.add_row("report", markup(record["report"]))
    curves = storage.join(record["folders"]["train"], "tensorboard")
    if with_curves and storage.children(curves):  # a custom program may write none
        table.add_row("curves", markup(f"tensorboard --logdir {shell(curves)}"))
    table.add_row("seconds", " · ".join(f"{step} {seconds:.1f}" for step, seconds in record["seconds"].items()))
    return table


def _reached(reached: dict[str, Any]) -> str:
    goal = f"{reached['metric']} {reached['reach']:g} on {reached['split']}"
    if reached["seconds"] is None:
        best = "which no epoch measured" if reached["best"] is None else f"the best was {metric_text(reached['best'])}"
        return f"{goal}: not reached, {best}"
    cost = "" if reached["dollars"] is None else f", ${reached['dollars']:.4g}"
    return f"{goal}: {reached['seconds']:.1f} s, epoch {reached['epoch']}{cost}"


def _published(rows: list[dict[str, Any]]) -> str:
    first, last = rows[0], rows[-1]
    return f"{first['hours'] * 60:.3g} min, {first['hardware']}, to {last['hours']:.3g} h, {last['hardware']}"


def _remark(text: str) -> Padding:
    return Padding(f"[dim]{markup(text)}[/]", (0, 0, 0, 2))


def metrics_table(metrics: dict[str, float], intervals: dict[str, Interval], measured_on: str) -> Table:
    """Create a table of metrics with their intervals."""
    table = plain_table(f"metric ({measured_on})", "value", "95 % interval")
    for name, value in metrics.items():
        interval = intervals.get(name)
        label = METRIC_LABELS.get(name, name)
        table.add_row(markup(label), metric_text(value), interval_text(interval.low, interval.high) if interval else "")
    return table


def gate_tables(thresholds: list[dict[str, Any]]) -> list[Table]:
    """Create a table of gate conditions for each split: the model's, then the exported files'."""
    splits = dict.fromkeys(threshold["split"] for threshold in thresholds)
    return [_gate(split, [threshold for threshold in thresholds if threshold["split"] == split]) for split in splits]


def _on(split: str | None) -> str:
    return f"{split} split" if split else "as reported"


def _gate(split: str | None, thresholds: list[dict[str, Any]]) -> Table:
    intervals = any(threshold["interval"] for threshold in thresholds)
    table = plain_table(f"gate ({_on(split)})", "value", "interval" if intervals else "", "")
    for threshold in thresholds:
        interval, value = threshold["interval"], threshold["value"]
        mark = "[green]✓[/]" if threshold["passed"] else "[red]✗[/]"
        table.add_row(
            markup(threshold["name"]),
            "–" if value is None else f"{value:.4g}",
            interval_text(interval["low"], interval["high"]) if interval else "",
            mark,
        )
        if threshold["note"]:
            table.add_row(f"  [dim]{markup(threshold['note'])}[/]")
    return table


def exports_table(exports: list[dict[str, Any]]) -> Table:
    """Create a table of exported files."""
    table = plain_table("exported", "size", "p50 ms", "p95 ms", f"eval {exports[0]['metric']}", "change", "output ±")
    for export in exports:
        latency = export["latency_ms"]
        table.add_row(
            export["format"],
            size(export["bytes"]),
            _milliseconds(latency["p50"]),
            _milliseconds(latency["p95"]),
            metric_text(export["accuracy"]),
            metric_text(export["accuracy_difference"], "+"),
            f"{export['max_abs_difference']:.1e}",
        )
        for timed in map(DeviceTiming.model_validate, export["devices"]):
            times = map(_milliseconds, (timed.fastest.p50, timed.fastest.p95))
            table.add_row(f"  [dim]on {markup(timed.device)}, {markup(timed.machine)}[/]", "", *times)
    return table


def print_rows(console: Console, names: Sequence[str], parts: Mapping[str, Sequence[Row]]) -> bool:
    """Print a table for each part of a comparison; `*` marks a metric that differs from the first column's.

    Returns True if a metric is marked, so that a legend is needed.
    """
    for title, rows in parts.items():
        if rows:
            table = plain_table(title, *map(markup, names))
            for row in rows:
                marks = [" *" if certain and title.startswith("metrics") else "" for certain in row.certain]
                cells = [markup(f"{cell}{mark}") for cell, mark in zip(row.cells, marks, strict=True)]
                table.add_row(markup(row.name), *cells)
            console.print(table)
    return any(any(row.certain) for title, rows in parts.items() if title.startswith("metrics") for row in rows)


def size(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 1024:,.0f} KiB" if count < 10 << 20 else f"{count / (1 << 20):,.0f} MiB"


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:,.0f}"
