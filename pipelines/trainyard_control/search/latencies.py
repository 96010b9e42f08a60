"""How long the models of trials take for one answer."""

from __future__ import annotations

import sys

from pydantic import TypeAdapter

from trainyard import events
from trainyard.child_process import ProgramFailed, program_output
from trainyard.contract.artifacts.export import Latency
from trainyard.storage import storage
from trainyard_control.local.local_run import Listener
from trainyard_control.search.trials import Trial

_LATENCIES = TypeAdapter(list[Latency | None])


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
    try:
        lines = program_output(command).splitlines()
    except ProgramFailed as error:  # the sweep's result is worth more than this figure
        why = f"no latencies: they could not be measured ({error})"
        listener.step_event("train", events.fields_of("warning", message=why))
        return trials
    latencies = _LATENCIES.validate_json(f"[{','.join(lines)}]")
    found = {
        trial.number: None if latency is None else latency.p50
        for trial, latency in zip(missing, latencies, strict=True)
    }
    return [trial.model_copy(update={"milliseconds": found.get(trial.number, trial.milliseconds)}) for trial in trials]
