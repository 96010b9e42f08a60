"""How many examples a second the input alone gives, measured in a process of its own, and whether that bounds."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import events
from trainyard.contract.artifacts.train import InputSpeed
from trainyard.errors import InfrastructureError
from trainyard.spec.recipe import Recipe
from trainyard_control.local.step_process import Stop, forked
from trainyard_control.search.chart import Chart, Mark, chart
from trainyard_control.search.speed.rounds import interval

NO_PICTURES = "It has no pictures: the rows of a table are numbers already, and nothing is decoded."
_EVENT = "input_speed"


def measure(recipe: Recipe, examples: str) -> list[InputSpeed]:
    """Return how fast the input gives the pictures of the preprocess output `examples`, from each source.

    Raises `InfrastructureError` with the reason if the process fails.
    """
    speeds, last = [], ""
    with forked(_emit_speeds, (recipe.model_dump_json(), examples), "input", Stop()) as running:
        for line in running.child.lines:
            fields = events.parse(line)
            if fields.pop("event", "") == _EVENT:
                speeds.append(InputSpeed.model_validate(fields))
            last = line.strip() or last
        code = running.wait()
    running.require_undisturbed("bench")
    if code:
        raise InfrastructureError(f"It could not be measured: {last[:300] or f'its process ended with {code}'}.")
    return speeds


def over_rounds(rounds: Sequence[Sequence[InputSpeed]]) -> list[InputSpeed]:
    """Return of each source the mean over the rounds with its 95 % interval; of one round what that measured."""
    if len(rounds) < 2:
        return list(rounds[0]) if rounds else []
    speeds = []
    for of_source in zip(*rounds, strict=True):
        rate, low, high = interval([speed.examples_per_second for speed in of_source])
        values = {"examples_per_second": round(rate, 1), "low": round(low, 1), "high": round(high, 1)}
        speeds.append(of_source[0].model_copy(update=values))
    return speeds


def sentence(inputs: Sequence[InputSpeed], model: float, cpu: bool) -> str:
    """Return which of the input and the model bounds a training, whose model takes `model` examples/s from memory.

    cpu: whether both compute on the same cores, so that the training is slower than either.
    """
    used = next(speed for speed in inputs if speed.used)
    rates = f"its input alone gives {used.examples_per_second:,.0f} examples/s from {used.source}, its model takes"
    text = f"{rates} {model:,.0f} of a batch at hand"
    if used.low > model:
        verdict = "The model bounds it"
    elif used.high < model:
        verdict = "The input bounds it"
        best = max(inputs, key=lambda speed: speed.examples_per_second)
        if best.low > used.high:
            text += f"; from {best.source} come {best.examples_per_second:,.0f}"
    else:
        verdict = "Neither the model nor the input clearly bounds it"
    return f"{verdict}: {text}{'. On a CPU they share the cores' if cpu else ''}."


def drawn(inputs: Sequence[InputSpeed], model: float) -> Chart:
    """Return a bar for each source, the model's own speed as a line across."""
    marks = [
        Mark(index, speed.examples_per_second, f"{speed.examples_per_second:,.0f}", speed.used, speed.low, speed.high)
        for index, speed in enumerate(inputs)
    ]
    across = {"what the model takes": [(-0.5, model), (len(inputs) - 0.5, model)]}
    names = tuple(speed.source for speed in inputs)
    return chart("Input alone", ("source", "examples/s"), marks, across, categories=names, from_zero=True)


def table(inputs: Sequence[InputSpeed]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the page's table."""
    rows = [
        [
            speed.source,
            *(f"{rate:,.0f}" for rate in (speed.examples_per_second, speed.low, speed.high)),
            "as this recipe does" if speed.used else "",
        ]
        for speed in inputs
    ]
    return ["input alone, from", "examples/s", "from", "to", ""], rows


def _emit_speeds(recipe: str, examples: str) -> None:
    """Write an event for each source, in the process of its own."""
    from trainyard.steps.train.input_speed import speeds

    for speed in speeds(Recipe.model_validate_json(recipe), examples):
        events.emit(_EVENT, **speed.model_dump())
