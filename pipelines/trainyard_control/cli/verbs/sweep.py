"""The verbs that train a recipe many times: `trainyard sweep` and `learn-curve`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainyard.measured import interval_text, metric_text
from trainyard.spec.networks import MODEL_FAMILIES
from trainyard_control.cli.options import (
    LOCAL,
    DryRun,
    EnvironmentName,
    HtmlPage,
    Output,
    OutputFormat,
    Overrides,
    PendingLimit,
    RecipeName,
    RunName,
    print_answer,
    write_page,
)

if TYPE_CHECKING:
    from trainyard_control.search.learning_curve import CurvePoint, PowerLaw
    from trainyard_control.search.trials import Result

_SHOWN = 20
Family = StrEnum("Family", {name.upper(): name for name in MODEL_FAMILIES})  # type: ignore[misc]  # python/mypy#2401
_Over = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="KEY=VALUES",
        help="Values or range to try, such as train.batch_size=16,64 or 16:256 or log:1e-4:1e-1. Repeatable.",
    ),
]
_FamilyName = Annotated[Family | None, typer.Option("--family", help="Try image networks, from fast to accurate.")]
_BlocksText = Annotated[
    str | None,
    typer.Option(
        "--blocks",
        metavar="STAGES BLOCKS",
        help="Search the blocks of cnn_small: '2:4 conv|separable|residual:16|32|64:1|2|3' is 2 to 4 stages, "
        "each with a kind, channels and repeats.",
    ),
]
_LatencyBudget = Annotated[
    str | None,
    typer.Option(
        "--latency-budget",
        metavar="TIME",
        help="Skip networks whose prediction takes longer on one core: 2ms, 500us.",
    ),
]
_Trials = Annotated[
    int | None,
    typer.Option(
        "--trials", min=1, max=10_000, help="Number of trials. Default: all combinations of values, otherwise 12."
    ),
]
_MaxParallel = Annotated[
    int, typer.Option("--max-parallel", metavar="N", help="Number of parallel trials, each with a share of the cores.")
]
_Prune = Annotated[bool, typer.Option("--prune/--no-prune", help="Stop trials below the median of earlier ones.")]


def sweep(
    recipe: RecipeName,
    over: _Over = None,
    family: _FamilyName = None,
    blocks: _BlocksText = None,
    latency_budget: _LatencyBudget = None,
    trials: _Trials = None,
    max_parallel: _MaxParallel = 1,
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    prune: _Prune = True,
    name: RunName = None,
    dry_run: DryRun = False,
    pending_limit: PendingLimit = 3600,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Search a recipe's settings, on this machine or on a cluster.

    Data is preprocessed once. The eval split selects the best trial, whose recipe is written; nothing is pushed. Run
    the same command again to resume a sweep, or with more --trials to extend it. On a cluster each trial is a run that
    trains on the pool of train, --max-parallel of them at a time.
    """
    from trainyard_control.api.search import SweepOptions, describe_sweep, run_sweep

    options = SweepOptions(
        over=over or [],
        family=family,
        blocks=blocks,
        latency_budget=latency_budget,
        trials=trials,
        max_parallel=max_parallel,
        environment=environment,
        name=name,
        prune=prune,
    )
    described = describe_sweep(recipe, set_ or [], options)
    if dry_run:
        from trainyard_control.cli.follow import show_all
        from trainyard_control.search.cluster_trials import packages

        show_all(packages(described), output)
        return
    result = run_sweep(described, pending_limit)
    write_page(html, result.page)
    print_answer(output, _document(result), lambda: _show(result))


def _document(result: Result) -> dict[str, Any]:
    return {
        "folder": result.folder,
        "best": result.best.model_dump(),
        "front": [trial.number for trial in result.front],
        "importance": result.importance,
        "test": result.test.metrics if result.test else None,
        "trials": [trial.model_dump() for trial in result.trials],
    }


def _show(result: Result) -> None:
    from trainyard_control.api.drawing import markup, plain_table, table_console
    from trainyard_control.api.progress import values_text

    console = table_console()
    sign = -1 if result.larger_is_better else 1
    done = sorted(
        (trial for trial in result.trials if trial.state == "complete"), key=lambda trial: sign * (trial.metric or 0)
    )
    front = {trial.number for trial in result.front}
    priced = any(trial.dollars is not None for trial in done)
    costs = ["seconds", *(["dollars"] if priced else []), "parameters", "operations", "ms"]
    table = plain_table("trial", f"eval {result.metric}", "best epoch", *costs, "")
    table.columns[-1].justify = "left"
    for trial in done[:_SHOWN]:
        table.add_row(
            f"{trial.number + 1}{' *' if trial.number in front else ''}",
            metric_text(trial.metric or 0),
            f"{trial.best_epoch}/{len(trial.epochs)}",
            f"{trial.seconds:.1f}",
            *([f"{trial.dollars or 0:.3g}"] if priced else []),
            f"{trial.parameters:,}",
            _operations(trial.operations),
            "" if trial.milliseconds is None else f"{trial.milliseconds:.3g}",
            markup(values_text(trial)),
        )
    console.print(table)
    states = [trial.state for trial in result.trials]
    ended = f"{states.count('pruned')} pruned, {states.count('failed')} failed"
    if result.skipped:
        ended += f", {result.skipped} skipped by the latency budget"
    console.print(f"* Pareto-optimal; {ended}", style="dim")
    if result.importance:
        shares = ", ".join(f"{key.rpartition('.')[2]} {share:.0%}" for key, share in result.importance.items())
        console.print(f"importance: {markup(shares)}", soft_wrap=True)
    if result.test:
        name = result.metric if result.metric in result.test.metrics else result.test.main_metric
        bounds = result.test.intervals.get(name)
        interval = f" (95 %: {metric_text(bounds.low)} to {metric_text(bounds.high)})" if bounds else ""
        console.print(
            "best trial on the test split (not used for selection): "
            f"{name} {metric_text(result.test.metrics[name])}{interval}"
        )
    console.print(f"recipe of the best trial: {markup(result.folder)}/best.yaml", soft_wrap=True)


def _operations(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}" if value else "–"


def learn_curve(
    recipe: RecipeName,
    fractions: Annotated[
        str, typer.Option("--fractions", help="Shares of the training split, at least three.")
    ] = "0.1,0.2,0.4,0.8,1",
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    html: HtmlPage = None,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Measure how the error falls with more data.

    The recipe is trained on nested parts of its training split, for about as many steps each, and evaluated on the same
    test split. Finished trainings are reused.
    """
    from trainyard.spec import recipe as recipes
    from trainyard.spec.gates import LARGER_MAIN_IS_BETTER, MAIN_METRIC, METRIC_TITLES
    from trainyard_control.api.arguments import local_environment
    from trainyard_control.api.progress import CurveScreen
    from trainyard_control.search import learning_curve

    loaded = recipes.load(recipe, set_)
    shares = learning_curve.fractions(fractions)
    loaded_environment = local_environment(environment, "A learning curve is measured on this machine.")
    metric, is_share = MAIN_METRIC[loaded.task], LARGER_MAIN_IS_BETTER[loaded.task]
    points = []
    with CurveScreen() as screen:
        for point in learning_curve.measure(recipe, set_ or [], shares, loaded_environment, screen):
            screen.point_measured(point)
            points.append(point)
    law = learning_curve.fit(points)
    text = learning_curve.sentence(points, law, is_percentage=is_share)
    name = f"test error (1 - {METRIC_TITLES[metric]})" if is_share else f"test {METRIC_TITLES[metric]}"
    write_page(html, lambda: learning_curve.curve_page(loaded.name, points, law, text, name))
    document = {"points": [vars(point) for point in points], "exponent": law.exponent, "sentence": text}
    print_answer(output, document, lambda: _show_curve(points, law, text, name))


def _show_curve(points: list[CurvePoint], law: PowerLaw, text: str, name: str) -> None:
    from trainyard_control.api.drawing import plain_table, table_console

    table = plain_table("share", "examples", name, "95 % interval")
    for point in points:
        table.add_row(
            f"{point.fraction:g}",
            f"{point.examples:,}",
            metric_text(point.error),
            interval_text(point.low, point.high),
        )
    console = table_console()
    console.print(table)
    console.print(f"error falls with the examples to the power of -{law.exponent:.3g}", style="dim")
    console.print(text, soft_wrap=True)
