"""How long the models of trials take for one answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from pydantic import TypeAdapter

from trainyard import events
from trainyard.contract.artifacts.export import Latency
from trainyard.errors import ConfigurationError, Preempted, TrainyardError
from trainyard.spec import plain_yaml
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage
from trainyard_control.local.local_run import Listener
from trainyard_control.local.step_process import Stop, forked
from trainyard_control.planning.data import DataSummary
from trainyard_control.search.trials import Trial

_LATENCIES = TypeAdapter(list[Latency | None])


def untrained(recipe: Recipe, data: DataSummary, cores: frozenset[int] | None, stop: Stop) -> float:
    """Return the milliseconds that an answer of the recipe's network takes on one core, before it is trained.

    Raises `ConfigurationError` if the network cannot be built of such data.
    """
    features = json.dumps([feature.model_dump() for feature in data.features])
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(plain_yaml.dump(recipe.model_dump(mode="json")), encoding="utf-8")
        with forked(_time_network, (str(file), features, str(data.classes), cores), "latency", stop) as running:
            lines = list(running.child.lines)
            code = running.wait()
    if running.preempted.is_set() or code == -signal.SIGTERM:
        raise Preempted(f"latency: {Preempted.SENTENCE}")
    answer = events.last("".join(lines), "latency", "milliseconds")
    if answer is None:
        why = (events.failure("".join(lines)) or (0, lines[-1].strip() if lines else "no reason given"))[1]
        raise ConfigurationError(f"{recipe.name}: the network cannot be built ({why[:300]})")
    return float(answer["milliseconds"])


def _time_network(file: str, features: str, classes: str, cores: frozenset[int] | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    latency, measure = (import_module(f"trainyard.models.costs.{name}") for name in ("latency", "measure"))
    try:
        events.emit("latency", milliseconds=latency.of_model(measure.network(file, features, classes)).p50)
    except TrainyardError as error:
        events.emit("failed", code=int(error.exit_code), message=str(error))


def with_latencies(trials: list[Trial], listener: Listener) -> list[Trial]:
    """Return `trials`, those that are complete with their model's latency, as far as it is there and can be measured.

    All are measured one after the other in one process, which loads TensorFlow once.
    """
    missing = [
        trial
        for trial in trials
        if trial.state == "complete" and trial.milliseconds is None and storage.committed(trial.model) is not None
    ]
    if not missing:
        return trials
    command = [sys.executable, "-m", "trainyard.models.costs.latency", *(trial.model for trial in missing)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:  # the sweep's result is worth more than this figure
        last = ended.stderr.strip().splitlines()[-1:] or ["no reason given"]
        why = f"no latencies: they could not be measured ({last[0][:300]})"
        listener.step_event("train", {"event": "warning", "message": why})
        return trials
    latencies = _LATENCIES.validate_json(f"[{','.join(ended.stdout.splitlines())}]")
    found = {
        trial.number: None if latency is None else latency.p50
        for trial, latency in zip(missing, latencies, strict=True)
    }
    return [trial.model_copy(update={"milliseconds": found.get(trial.number, trial.milliseconds)}) for trial in trials]
