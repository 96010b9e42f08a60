"""The steps of `trainyard.graph` as tasks of a pipeline."""

import importlib
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from kfp import dsl

from trainyard.graph import STEPS


def add(steps: Iterable[str], known: dict[str, Any], *, cache: bool = True) -> None:
    """Add a task of each of `steps`, in turn, to the pipeline that is being written.

    A task takes what it has an input for from `known`, and from the outputs of those before it. If the gate of a step
    refuses, those after it are skipped. cache: False has Kubeflow run every task.
    """
    known |= {"run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER}
    with ExitStack() as conditions:
        for step in steps:
            component = getattr(importlib.import_module(f"trainyard.steps.{step}.component"), step)
            task = component(**{name: known[name] for name in component.component_spec.inputs if name in known})
            # Steps that look at what changes outside the pipeline (the source, the champion, the servers' folder) take
            # the run's id; they find their own finished output in storage.
            task.set_caching_options(cache and STEPS[step].cached)
            known |= task.outputs
            if answer := STEPS[step].continues_on:
                conditions.enter_context(dsl.If(task.outputs["Output"] == answer, name=f"{step}-{answer}"))
