"""Measures the latency of the models of trials."""

from __future__ import annotations

import json
from importlib import import_module

from trainyard import events
from trainyard.errors import ConfigurationError, TrainyardError
from trainyard.spec import plain_yaml
from trainyard.spec.recipe import Recipe
from trainyard.storage import cache, storage
from trainyard_control.local.local_run import Listener
from trainyard_control.local.step_process import Stop, forked
from trainyard_control.planning.data import DataSummary
from trainyard_control.search.trials import Trial


def untrained(recipe: Recipe, data: DataSummary, cores: frozenset[int] | None, stop: Stop) -> float:
    """Measure the milliseconds of a prediction of the recipe's untrained network on one core.

    Raises `ConfigurationError` if the network cannot be built for such data.
    """
    features = json.dumps([feature.model_dump() for feature in data.features])
    with cache.temporary_folder() as folder:
        file = folder / "recipe.yaml"
        file.write_text(plain_yaml.dump(recipe.model_dump(mode="json")), encoding="utf-8")
        answers, why = _measure("time_recipe", (str(file), features, str(data.classes)), cores, stop)
    if not answers or answers[0] is None:
        raise ConfigurationError(f"{recipe.name}: the network cannot be built ({why})")
    return answers[0]


def with_latencies(trials: list[Trial], listener: Listener) -> list[Trial]:
    """Add missing latencies to the complete `trials`, as far as their models exist.

    The models are measured one after another.
    """
    missing = [
        trial
        for trial in trials
        if trial.state == "complete" and trial.milliseconds is None and storage.committed(trial.model) is not None
    ]
    if not missing:
        return trials
    answers, why = _measure("time_outputs", tuple(trial.model for trial in missing), None, Stop())
    if len(answers) < len(missing):  # not worth losing the sweep's result
        listener.step_event(
            "train", events.fields_of("warning", message=f"not all latencies could be measured ({why})")
        )
    times = dict(zip((trial.number for trial in missing), answers, strict=False))
    return [trial.model_copy(update={"milliseconds": times.get(trial.number, trial.milliseconds)}) for trial in trials]


def _measure(
    function: str, arguments: tuple[str, ...], cores: frozenset[int] | None, stop: Stop
) -> tuple[list[float | None], str]:
    """Call `function` of trainyard.models.costs.measure; return its milliseconds, and why there are not more."""
    with forked(_call, (function, arguments), "latency", stop, cores) as running:
        lines = list(running.child.lines)
        running.wait()
    running.require_undisturbed("latency")
    answers = [event["milliseconds"] for event in map(events.parse, lines) if event.get("event") == "latency"]
    failure = events.failure("".join(lines))
    return answers, failure.message if failure else (lines[-1].strip()[:300] if lines else "no reason given")


def _call(function: str, arguments: tuple[str, ...]) -> None:
    """Measure in the child process, which has imported TensorFlow; this process never does."""
    try:
        getattr(import_module("trainyard.models.costs.measure"), function)(*arguments)
    except TrainyardError as error:
        events.emit("failed", code=int(error.exit_code), message=str(error))
