"""Progress on stderr, one line per step, on a terminal, in a notebook and in a file alike."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from trainyard.graph import OUTPUTS
from trainyard.measured import duration_text, metric_text
from trainyard_control.api.drawing import Console, markup

if TYPE_CHECKING:
    from trainyard_control.kubeflow.run_view import StepView
    from trainyard_control.search.bench_report import Speed
    from trainyard_control.search.learning_curve import CurvePoint
    from trainyard_control.search.trials import Trial

_WIDTH = max(map(len, OUTPUTS))
_EPOCH_SECONDS = 10.0  # chosen: time between lines of a training


class Screen:
    """Progress bars on a terminal or in a notebook with ipywidgets; otherwise a line when a step starts and ends."""

    def __init__(self) -> None:
        self._prefix = ""
        self._console = Console(stderr=True)
        # rich draws bars in a notebook with ipywidgets, which Colab has and Jupyter may have.
        self._bars = self._console.is_terminal or (self._console.is_jupyter and find_spec("ipywidgets") is not None)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=self._console,
            redirect_stdout=False,  # rich would interpret escapes in other output
            redirect_stderr=False,
            transient=True,
            disable=not self._bars,
        )
        self._task: TaskID | None = None
        self._first_epoch: tuple[float, int] | None = None
        self._epoch_shown = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step_started(self, step: str) -> None:
        """Show the start of a step."""
        if self._bars:
            name = f"{self._prefix}{step.ljust(_WIDTH)}"
            self._task = self._progress.add_task(name, total=None, text="starting")
        else:
            self._console.print(f"· {step}")

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        """Show progress and warnings of a step."""
        with suppress(KeyError, TypeError, ValueError):  # a recipe's module may print lines that look like events
            if event["event"] == "progress" and self._task is not None:
                total = f"/{event['total']}" if event["total"] else ""  # unknown for the rows of a file
                text = markup(" ".join([f"{event['done']}{total} {event['unit']}", *_field_texts(event)]))
                self._progress.update(self._task, completed=event["done"], total=event["total"] or None, text=text)
            elif event["event"] == "epoch":
                self._show_epoch(step, event)
            elif event["event"] == "runs_again":
                self._console.print(f"· {step.ljust(_WIDTH)}  runs again: {markup(str(event.get('because', '')))}")
            elif event["event"] == "warning":
                message = markup(str(event.get("message", "")))
                self._console.print(f"[yellow]![/] {self._prefix}{step}: {message}")

    def _show_epoch(self, step: str, event: dict[str, Any]) -> None:
        """Print the state of the training, at most every ten seconds. The first epoch does not count for the remaining
        time.
        """
        now = time.monotonic()
        since, first = self._first_epoch = self._first_epoch or (now, event["epoch"])
        if now - self._epoch_shown < _EPOCH_SECONDS:
            return
        self._epoch_shown = now
        text = (
            f"epoch {event['epoch']}/{event['of']}  loss {metric_text(event['train_loss'])}  "
            f"eval loss {metric_text(event['eval_loss'])}  metric {metric_text(event['metric'])}"
        )
        if event["examples_per_second"]:  # a custom program may not report it
            text += f"  {event['examples_per_second']:,.0f} examples/s"
        if done := event["epoch"] - first:
            text += f"  {duration_text((now - since) / done * (event['of'] - event['epoch']))} left at most"
        self._console.print(f"  {step.ljust(_WIDTH)}  {text}", soft_wrap=True)

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """Show the end of a step."""
        self._forget_task()
        self._first_epoch = None
        text = "reused" if reused else f"{seconds:.1f} s"
        self._console.print(f"[green]✓[/] {self._prefix}{step.ljust(_WIDTH)}  {text}")

    def step_skipped(self, step: str, why: str) -> None:
        """Show that a step is skipped."""
        self._console.print(f"[yellow]–[/] {step.ljust(_WIDTH)}  skipped: {markup(why)}")

    def _forget_task(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


class ClusterScreen(Screen):
    """The screen of a run on a cluster: the lines of a local run, and one for each wait, failure and restart."""

    def __init__(self) -> None:
        super().__init__()
        self._started: set[str] = set()

    def step_changed(self, step: StepView, events: Iterable[dict[str, Any]] = ()) -> None:
        """Show a new state or cause of a step. events: those in the log of a step that is done."""
        is_new = step.name not in self._started
        self._started |= {step.name} if step.state == "running" else set()
        if step.state == "done" and not step.task.worker:
            self._show_end(step, list(events))
        elif step.state == "running" and is_new and not step.task.worker:
            self._forget_task()
            self.step_started(step.name)
        else:
            marks = {"failed": "[red]✗[/]", "waiting": "[yellow]…[/]", "done": "[green]✓[/]"}
            mark = marks.get(step.state, "·" if is_new else " ")
            self._console.print(f"{mark} {step.name.ljust(_WIDTH)}  {markup(step.sentence)}", soft_wrap=True)

    def steps_running(self, steps: Iterable[StepView]) -> None:
        """Show the progress of running steps, if bars are shown."""
        for step in steps:
            if self._task is not None and step.state == "running" and not step.task.worker:
                self._progress.update(self._task, text=markup(step.sentence))

    def connection_lost(self, reason: str) -> None:
        """Show that the server has stopped to answer."""
        self._console.print(f"[yellow]![/] {markup(reason)} The run continues, and is asked for again.", soft_wrap=True)

    def _show_end(self, step: StepView, events: list[dict[str, Any]]) -> None:
        from trainyard_control.kubeflow.run_view import CACHED  # a local run needs nothing of clusters

        for event in events:
            if event["event"] == "warning":
                self.step_event(step.name, event)
        reused = step.cause == CACHED or any(event["event"] == "reused" for event in events)
        self.step_ended(step.name, step.seconds or 0.0, reused)


@contextmanager
def transfer_bar(name: str, size: int) -> Iterator[Callable[[int], None]]:
    """Show a bar for `size` bytes on a terminal, and yield the function that advances it."""
    console = Console(stderr=True)
    columns = (
        TextColumn(markup(name)),
        BarColumn(bar_width=24),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=size)
        yield lambda done: bar.advance(task, done)


class TrialScreen(Screen):
    """The screen of one training of many: only warnings and preprocessing have lines."""

    def step_started(self, step: str) -> None:
        """Show a bar, if bars are shown."""
        if self._bars:
            super().step_started(step)

    def step_event(self, step: str, event: dict[str, Any]) -> None:
        """Show progress and warnings."""
        if event["event"] not in ("runs_again", "epoch"):
            super().step_event(step, event)

    def step_ended(self, step: str, seconds: float, reused: bool) -> None:
        """Show the end of preprocessing."""
        if step == "preprocess" and not reused:
            super().step_ended(step, seconds, reused)
        self._forget_task()


class SweepScreen(TrialScreen):
    """The screen of a sweep: one line per trial, and bars that name their trial."""

    def __init__(self, count: int, metric: str) -> None:
        super().__init__()
        self._count, self._metric = count, metric

    def for_trial(self, trial: Trial) -> TrialScreen:
        """Return the screen of one trial, whose bar and lines start with the trial's number."""
        one = copy(self)
        one._prefix, one._task, one._first_epoch = f"{trial.number + 1}/{self._count} ", None, None
        return one

    def trial_sent(self, trial: Trial, run: str, run_id: str, attached: bool) -> None:
        """Show the name of a trial's run."""
        how = "was sent before" if attached else "is sent"
        self._console.print(f"· {trial.number + 1}/{self._count}  {run} {how}: {run_id}", soft_wrap=True)

    def trial_step(self, trial: Trial, step: StepView) -> None:
        """Show a new state of a step of a trial's run."""
        name = step.name.ljust(_WIDTH)
        self._console.print(f"· {trial.number + 1}/{self._count}  {name}  {markup(step.sentence)}", soft_wrap=True)

    def trial_ended(self, trial: Trial, best: Trial | None) -> None:
        """Show the result of a trial."""
        marks = {"complete": "[green]✓[/]", "failed": "[red]✗[/]"}
        text = f"{self._metric} {metric_text(trial.metric)}" if trial.metric is not None else trial.why or trial.state
        seconds = "" if trial.state == "skipped" else f", {trial.seconds:.1f} s"
        star = " ← best so far" if best is not None and best.number == trial.number else ""
        self._console.print(
            f"{marks.get(trial.state, '[yellow]–[/]')} {trial.number + 1}/{self._count}  {markup(values_text(trial))}  "
            f"{markup(text)}{seconds}{star}",
            soft_wrap=True,
        )


class BenchScreen(TrialScreen):
    """The screen of a benchmark: one line per training, or per setting of a Keras model."""

    def training_ended(self, setting: str, turn: int, rounds: int, rate: float) -> None:
        """Show the speed of a training."""
        prefix = f"round {turn}/{rounds}, " if rounds > 1 else ""
        self._console.print(f"[green]✓[/] {prefix}{setting}: {rate:,.0f} examples/s")

    def speed_measured(self, speed: Speed, base: Speed) -> None:
        """Show the speed of a setting."""
        share = speed.examples_per_second / base.examples_per_second
        self._console.print(f"[green]✓[/] {speed.setting}: {speed.examples_per_second:,.0f} examples/s, {share:.2f} ×")

    def setting_skipped(self, setting: str, why: str) -> None:
        """Show why a setting is left out."""
        self._console.print(f"[yellow]–[/] {setting}: skipped: {markup(why)}", soft_wrap=True)


class CurveScreen(TrialScreen):
    """The screen of a learning curve: one line per training."""

    def point_measured(self, point: CurvePoint) -> None:
        """Show the error of a training."""
        self._console.print(
            f"[green]✓[/] {point.fraction:g} of the training split, {point.examples:,} examples: "
            f"error {metric_text(point.error)}"
        )


def values_text(trial: Trial) -> str:
    """Format the values of a trial in one line."""
    return " ".join(f"{key.rpartition('.')[2]}={_text(value)}" for key, value in trial.values.items())


def _text(value: Any) -> str:
    """Format a value as one word, blocks as in a recipe."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def _field_texts(event: dict[str, Any]) -> list[str]:
    """Format the extra fields of a progress event."""
    fields = {name: event[name] for name in event if name not in ("event", "step", "done", "total", "unit")}
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in fields.items()]
