"""`trainyard sweep`: variants of a recipe, trained one after the other, and the best of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainyard_control.cli.options import LOCAL, EnvironmentName, HtmlPage, Output, OutputFormat, Overrides, RecipeName
from trainyard_control.cli.screen import TrialScreen

if TYPE_CHECKING:
    from trainyard_control.search.sweep import Result, Sweep
    from trainyard_control.search.trials import Trial

_SHOWN = 20


def sweep(
    recipe: RecipeName,
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="KEY=WHAT",
            help="What to try: train.batch_size=16,64 or 16:256, log:1e-4:1e-1 by order of magnitude. Give several.",
        ),
    ],
    trials: Annotated[
        int | None,
        typer.Option("--trials", min=1, max=10_000, help="How many; by default all combinations of values, else 12."),
    ] = None,
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    prune: Annotated[
        bool, typer.Option("--prune/--no-prune", help="Leave a trial that is worse than the median of those before it.")
    ] = True,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Try variants of a recipe on this machine, and write the recipe of the best.

    The examples are made once. The eval split chooses; nothing is pushed. The same command goes on with a sweep that
    was ended, and with more --trials it adds to one.
    """
    loaded = _sweep(recipe, set_ or [], over, environment, trials, prune)
    from trainyard_control.search import sweep as sweeps

    with SweepScreen(loaded.count, "accuracy" if loaded.recipe.task == "classification" else "mae") as screen:
        result = sweeps.run(loaded, screen)
    if html is not None:
        from trainyard_control.search.page import write_sweep

        write_sweep(result, loaded.dimensions, html)
        typer.echo(f"✓ wrote {html}", err=True)
    if output is Output.JSON:
        typer.echo(json.dumps(_document(result)))
    else:
        _show(result)


def _sweep(
    recipe: str, overrides: list[str], over: list[str], environment: str, trials: int | None, prune: bool
) -> Sweep:
    from importlib.util import find_spec

    from trainyard.errors import ConfigurationError
    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard_control.search import space

    recipes.load(recipe, overrides)
    dimensions = space.parse(recipe, overrides, over)
    loaded = environments.load(environment)
    if loaded.target != "local":
        raise ConfigurationError(
            f"--environment {environment}: its target is {loaded.target}. A sweep works on this machine."
        )
    if find_spec("optuna") is None:
        raise ConfigurationError("optuna is not installed, which chooses what to try. Install trainyard[search].")
    from trainyard_control.search import sweep as sweeps

    return sweeps.Sweep(recipe, overrides, dimensions, loaded, trials, prune)


class SweepScreen(TrialScreen):
    """A line a trial."""

    def __init__(self, count: int, metric: str) -> None:
        super().__init__()
        self._count, self._metric = count, metric

    def trial_started(self, trial: Trial) -> None:
        """Nothing: its line comes when it has ended."""

    def trial_ended(self, trial: Trial, best: Trial | None) -> None:
        """Show what the trial gave."""
        from rich.markup import escape

        marks = {"complete": "[green]✓[/]", "pruned": "[yellow]–[/]", "failed": "[red]✗[/]"}
        text = f"{self._metric} {trial.metric:.4f}" if trial.metric is not None else trial.why or trial.state
        star = " ← best so far" if best is not None and best.number == trial.number else ""
        self._console.print(
            f"{marks.get(trial.state, '·')} {trial.number + 1}/{self._count}  {escape(_values(trial))}  "
            f"{escape(text)}, {trial.seconds:.1f} s{star}",
            soft_wrap=True,
        )


def _values(trial: Trial) -> str:
    return " ".join(f"{key.rpartition('.')[2]}={_text(value)}" for key, value in trial.values.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _document(result: Result) -> dict[str, Any]:
    return {
        "folder": result.folder,
        "best": result.best.model_dump(),
        "front": [trial.number for trial in result.front],
        "importance": result.importance,
        "test": result.test.metrics,
        "trials": [trial.model_dump() for trial in result.trials],
    }


def _show(result: Result) -> None:
    from rich.markup import escape

    from trainyard_control.cli.screen import plain_table, table_console

    console = table_console()
    sign = -1 if result.larger_is_better else 1
    done = sorted(
        (trial for trial in result.trials if trial.state == "complete"), key=lambda trial: sign * (trial.metric or 0)
    )
    front = {trial.number for trial in result.front}
    metric = "eval accuracy" if result.larger_is_better else "eval mae"
    table = plain_table("trial", metric, "best epoch", "seconds", "parameters", "operations", "")
    table.columns[-1].justify = "left"
    for trial in done[:_SHOWN]:
        table.add_row(
            f"{trial.number + 1}{' *' if trial.number in front else ''}",
            f"{trial.metric:.4f}",
            f"{trial.best_epoch}/{len(trial.epochs)}",
            f"{trial.seconds:.1f}",
            f"{trial.parameters:,}",
            _operations(trial.operations),
            escape(_values(trial)),
        )
    console.print(table)
    left = [trial for trial in result.trials if trial.state in ("pruned", "failed")]
    pruned = sum(trial.state == "pruned" for trial in left)
    console.print(f"* no other is better and cheaper; {pruned} pruned, {len(left) - pruned} failed", style="dim")
    if result.importance:
        shares = ", ".join(f"{key.rpartition('.')[2]} {share:.0%}" for key, share in result.importance.items())
        console.print(f"of the differences: {escape(shares)}", soft_wrap=True)
    name = "accuracy" if result.larger_is_better else "mae"
    bounds = result.test.intervals.get(name)
    interval = f" (95 %: {bounds.low:.4f} to {bounds.high:.4f})" if bounds else ""
    console.print(
        f"the best on the test split, by which nothing was chosen: {name} {result.test.metrics[name]:.4f}{interval}"
    )
    console.print(f"the best, as a recipe: {escape(result.folder)}/best.yaml", soft_wrap=True)


def _operations(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"
