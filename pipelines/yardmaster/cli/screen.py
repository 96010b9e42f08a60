"""What `trainyard run` shows: a line a step while it works, on stderr, and the last screen, on stdout."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from trainyard.core.artifacts import Interval
from trainyard.core.keys import STEPS
from trainyard.core.recipe import Recipe

_WIDTH = max(map(len, STEPS))
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
            text = " ".join([f"{event['done']}/{event['total']} {event['unit']}", *_facts(fields)])
            self._progress.update(self._task, completed=event["done"], total=event["total"], text=text)
        elif event["event"] == "warning":
            self._console.print(f"[yellow]![/] {step}: {event.get('message', '')}")

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """Show that the step's output is there."""
        self._forget_task()
        text = "used again" if reused else f"{seconds:.1f} s"
        self._console.print(f"[green]✓[/] {step.ljust(_WIDTH)}  {text}")

    def step_skipped(self, step: str, why: str) -> None:
        """Show that the step is left out."""
        self._console.print(f"[yellow]–[/] {step.ljust(_WIDTH)}  left out: {why}")

    def _forget_task(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def table_console() -> Console:
    """Return the console that an answer's tables are printed on: stdout, of a fixed width where it is no terminal."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def show(record: dict[str, Any], recipe: Recipe, intervals: dict[str, Interval]) -> None:
    """Print the last screen of a run from its record (see `trainyard.core.summary`) and its metrics' intervals."""
    console = table_console()
    data, train, gate = record["data"], record["train"], record["gate"]
    blessed = gate["verdict"] == "blessed"
    badge = "[bold green]✓ blessed[/]" if blessed else "[bold red]✗ refused[/]"
    console.print()
    console.rule(f"[bold]{recipe.name}[/] · {badge}", align="left")
    facts = Table.grid(padding=(0, 2))
    counts = (
        f"{data['train']:,} train · {data['eval']:,} eval · {data['test']:,} test · {data['quarantined']:,} quarantined"
    )
    facts.add_row("data", counts)
    speed = f"{train['examples_per_second']:,.0f} examples/s, {train['bottleneck']}-bound"
    facts.add_row(
        "training", f"{recipe.model.name or 'own model'}, {train['epochs']} epochs, {train['steps']:,} steps, {speed}"
    )
    facts.add_row("devices", ", ".join(train["devices"]))
    if record["pushed"]:
        facts.add_row("pushed", f"version {record['pushed']['version']} → {record['pushed']['path']}")
    facts.add_row("report", record["report"])
    facts.add_row("seconds", " · ".join(f"{step} {seconds:.1f}" for step, seconds in record["seconds"].items()))
    console.print(facts)
    console.print(_metrics(record, intervals))
    console.print(_gate(gate))
    if record["exports"]:
        console.print(_exports(record["exports"]))


def _metrics(record: dict[str, Any], intervals: dict[str, Interval]) -> Table:
    table = plain_table("metric (test split)", "value", "95 % interval")
    for name, value in record["metrics"].items():
        interval = intervals.get(name)
        table.add_row(name, f"{value:.4f}", _between(interval.low, interval.high) if interval else "")
    return table


def _gate(gate: dict[str, Any]) -> Table:
    table = plain_table("gate", "value", "95 % interval", "")
    for threshold in gate["thresholds"]:
        interval, value = threshold["interval"], threshold["value"]
        mark = "[green]✓[/]" if threshold["passed"] else "[red]✗[/]"
        table.add_row(
            threshold["name"],
            "–" if value is None else f"{value:.4g}",
            _between(interval["low"], interval["high"]) if interval else "",
            mark,
        )
        if threshold["note"]:
            table.add_row(f"  [dim]{threshold['note']}[/]")
    return table


def _between(low: float, high: float) -> str:
    return f"{low:.4f} – {high:.4f}"


def _exports(exports: list[dict[str, Any]]) -> Table:
    table = plain_table("exported", "size", "p50 ms", "p95 ms", "accuracy", "difference", "output differs ≤")
    for export in exports:
        latency = export["latency_ms"]
        table.add_row(
            export["format"],
            f"{export['bytes'] / 1024:,.0f} KiB",
            f"{latency['p50']:.3f}",
            f"{latency['p95']:.3f}",
            f"{export['accuracy']:.4f}",
            f"{export['accuracy_difference']:+.4f}",
            f"{export['max_abs_difference']:.1e}",
        )
    return table


def plain_table(first: str, *others: str) -> Table:
    """Return a table without lines: the first column left, the others right."""
    table = Table(box=None, header_style="dim", padding=(0, 2), pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _facts(fields: dict[str, Any]) -> list[str]:
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in fields.items()]
