"""`trainyard learn-curve`: measure how the error falls with more data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainyard.measured import interval_text, metric_text
from trainyard_control.cli.answers import print_answer, write_page
from trainyard_control.cli.options import LOCAL, EnvironmentName, HtmlPage, Output, OutputFormat, Overrides, RecipeName

if TYPE_CHECKING:
    from trainyard_control.search.learning_curve import CurvePoint, PowerLaw


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
    print_answer(output, document, lambda: _show(points, law, text, name))


def _show(points: list[CurvePoint], law: PowerLaw, text: str, name: str) -> None:
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
