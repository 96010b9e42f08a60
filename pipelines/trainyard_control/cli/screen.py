"""What `trainyard run` shows: a line a step while it works, on stderr, and the last screen, on stdout."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from trainyard.contract.artifacts.gate import Interval
from trainyard.graph import OUTPUTS
from trainyard.spec.recipe import Recipe
from trainyard_control.cluster.durations import duration_text

_WIDTH = max(map(len, OUTPUTS))
_EPOCH_SECONDS = 10.0  # chosen: a line so often while a training goes on
_PLAIN_WIDTH = 120  # columns; chosen, for files and pipes


class Screen:
    """Progress bars on a terminal; elsewhere a plain line when a step starts and when it ends."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._first_epoch: tuple[float, int] | None = None
        self._epoch_shown = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step_started(self, step: str) -> None:
        """Show that the step begins."""
        if self._console.is_terminal:
            self._task = self._progress.add_task(step.ljust(_WIDTH), total=None, text="starting")
        else:
            self._console.print(f"· {step}")

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        """Show progress as it comes, and decisions as lines."""
        fields = {
            name: value for name, value in event.items() if name not in ("event", "step", "done", "total", "unit")
        }
        if event["event"] == "progress" and self._task is not None:
            of = f"/{event['total']}" if event["total"] else ""  # not known of the rows of a file
            text = " ".join([f"{event['done']}{of} {event['unit']}", *_facts(fields)])
            self._progress.update(self._task, completed=event["done"], total=event["total"] or None, text=text)
        elif event["event"] == "epoch":
            self._show_epoch(step, event)
        elif event["event"] == "runs_again":
            self._console.print(f"· {step.ljust(_WIDTH)}  runs again: {escape(str(event.get('because', '')))}")
        elif event["event"] == "warning":
            self._console.print(f"[yellow]![/] {step}: {escape(str(event.get('message', '')))}")

    def _show_epoch(self, step: str, event: dict[str, Any]) -> None:
        """Print how the training stands, at most every ten seconds; the time left is that of epochs after the first."""
        now = time.monotonic()
        since, first = self._first_epoch = self._first_epoch or (now, event["epoch"])
        if now - self._epoch_shown < _EPOCH_SECONDS:
            return
        self._epoch_shown = now
        text = (
            f"epoch {event['epoch']}/{event['of']}  loss {event['train_loss']:.4f}  "
            f"eval loss {event['eval_loss']:.4f}  metric {event['metric']:.4f}  "
            f"{event['examples_per_second']:,.0f} examples/s"
        )
        if done := event["epoch"] - first:
            text += f"  {duration_text((now - since) / done * (event['of'] - event['epoch']))} left at most"
        self._console.print(f"  {step.ljust(_WIDTH)}  {text}", soft_wrap=True)

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """Show that the step's output is there."""
        self._forget_task()
        self._first_epoch = None
        text = "used again" if reused else f"{seconds:.1f} s"
        self._console.print(f"[green]✓[/] {step.ljust(_WIDTH)}  {text}")

    def step_skipped(self, step: str, why: str) -> None:
        """Show that the step is left out."""
        self._console.print(f"[yellow]–[/] {step.ljust(_WIDTH)}  left out: {escape(why)}")

    def _forget_task(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


class TrialScreen(Screen):
    """As `Screen` for one training of many: no line for a step but for warnings and for examples that were made."""

    def step_started(self, step: str) -> None:
        """Show a bar, on a terminal."""
        if self._console.is_terminal:
            super().step_started(step)

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        """Show progress and warnings."""
        if event["event"] not in ("runs_again", "epoch"):
            super().step_event(step, event)

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """Say when the examples were made."""
        if step == "preprocess" and not reused:
            super().step_ended(step, seconds, reused)
        self._forget_task()


def table_console() -> Console:
    """Return the console that an answer's tables are printed on: stdout, of a fixed width if it is no terminal."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def show(record: dict[str, Any], recipe: Recipe, intervals: dict[str, Interval]) -> None:
    """Print the last screen of a run from its record (see `trainyard.report.summary`) and its metrics' intervals."""
    console = table_console()
    gate = record["gate"]
    blessed = gate["verdict"] == "blessed"
    badge = "[bold green]✓ blessed[/]" if blessed else "[bold red]✗ refused[/]"
    console.print()
    console.rule(f"[bold]{escape(recipe.name)}[/] · {badge}", align="left")
    console.print(_facts_of(record, recipe))
    console.print(_metrics(record, intervals))
    if record.get("remark"):
        console.print(f"  [dim]{escape(record['remark'])}[/]", soft_wrap=True)
    for table in _gates(gate):
        console.print(table)
    if record["exports"]:
        console.print(_exports(record["exports"]))


def _facts_of(record: dict[str, Any], recipe: Recipe) -> Table:
    data, train = record["data"], record["train"]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")  # a path is never cut
    counts = (
        f"{data['train']:,} train · {data['eval']:,} eval · {data['test']:,} test · {data['quarantined']:,} quarantined"
    )
    facts.add_row("data", counts)
    bound = "bound unclear" if train["bottleneck"] == "unclear" else f"{train['bottleneck']}-bound"
    speed = f"{train['examples_per_second']:,.0f} examples/s, {bound}"
    facts.add_row(
        "training", f"{recipe.model.name or 'own model'}, {train['epochs']} epochs, {train['steps']:,} steps, {speed}"
    )
    facts.add_row("devices", escape(", ".join(train["devices"])))
    if record["pushed"]:
        facts.add_row("pushed", escape(f"version {record['pushed']['version']} → {record['pushed']['path']}"))
    facts.add_row("report", escape(record["report"]))
    facts.add_row("seconds", " · ".join(f"{step} {seconds:.1f}" for step, seconds in record["seconds"].items()))
    return facts


def _metrics(record: dict[str, Any], intervals: dict[str, Interval]) -> Table:
    table = plain_table("metric (test split)", "value", "95 % interval")
    for name, value in record["metrics"].items():
        interval = intervals.get(name)
        table.add_row(escape(name), f"{value:.4f}", _between(interval.low, interval.high) if interval else "")
    return table


def _gates(gate: dict[str, Any]) -> list[Table]:
    """Return a table of the conditions on each split: the model's, then those of the exported files."""
    splits = dict.fromkeys(threshold["split"] for threshold in gate["thresholds"])
    return [
        _gate(split, [threshold for threshold in gate["thresholds"] if threshold["split"] == split]) for split in splits
    ]


def _gate(split: str, thresholds: list[dict[str, Any]]) -> Table:
    intervals = any(threshold["interval"] for threshold in thresholds)
    table = plain_table(f"gate ({split} split)", "value", "95 % interval" if intervals else "", "")
    for threshold in thresholds:
        interval, value = threshold["interval"], threshold["value"]
        mark = "[green]✓[/]" if threshold["passed"] else "[red]✗[/]"
        table.add_row(
            escape(threshold["name"]),
            "–" if value is None else f"{value:.4g}",
            _between(interval["low"], interval["high"]) if interval else "",
            mark,
        )
        if threshold["note"]:
            table.add_row(f"  [dim]{escape(threshold['note'])}[/]")
    return table


def _between(low: float, high: float) -> str:
    return f"{low:.4f} – {high:.4f}"


def _exports(exports: list[dict[str, Any]]) -> Table:
    table = plain_table("exported", "size", "p50 ms", "p95 ms", f"eval {exports[0]['metric']}", "change", "output ±")
    for export in exports:
        latency = export["latency_ms"]
        table.add_row(
            export["format"],
            size(export["bytes"]),
            _milliseconds(latency["p50"]),
            _milliseconds(latency["p95"]),
            f"{export['accuracy']:.4f}",
            f"{export['accuracy_difference']:+.4f}",
            f"{export['max_abs_difference']:.1e}",
        )
    return table


def size(count: int) -> str:
    """Return a number of bytes as a person reads it."""
    return f"{count / 1024:,.0f} KiB" if count < 10 << 20 else f"{count / (1 << 20):,.0f} MiB"


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:,.0f}"


def plain_table(first: str, *others: str) -> Table:
    """Return a table without lines: the first column left, the others right. What tells rows apart is never cut."""
    table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _facts(fields: dict[str, Any]) -> list[str]:
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in fields.items()]
