"""The steps of a pipeline: what each reads, what its output depends on, how long and how often it may run.

Local runs, the catalog, keys, environments, records of runs and the command line read the steps here. A new step is
one row more, beside its folder in `steps/`.
"""

from __future__ import annotations

from dataclasses import dataclass

_HOUR, _DAY = 3600, 86400


@dataclass(frozen=True)
class StepSpec:
    """One step.

    timeout_seconds, retries: how long its pod may run and how often a failed one is started again, if the
    environment does not say. Chosen: longer than any step that was measured, short enough that a hanging step does
    not cost days. A retry is for pods that were lost; Kubeflow cannot tell them from a fault in the data, so there are
    few.
    sections: the parts of the recipe that its output depends on; a step without any has no output of its own.
    reads: the steps whose outputs it reads. argument: what those that read its output call it. inputs: what else its
    program takes.
    optional: a run may end well without it. again_after: the step after which a pipeline may run it a second time.
    always_run: its finished output is not used again: others may have undone what it did, and to repeat it costs
    nothing.
    """

    timeout_seconds: int
    retries: int
    sections: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    argument: str = ""
    inputs: tuple[str, ...] = ()
    optional: bool = False
    again_after: str = ""
    always_run: bool = False


CHECK, PREDICT = "check", "predict"

STEPS = {
    CHECK: StepSpec(_HOUR // 4, retries=1, optional=True, again_after="preprocess"),
    "preprocess": StepSpec(
        _DAY, retries=1, sections=("seed", "task", "data"), argument="examples", inputs=("beam_options", "day")
    ),
    "train": StepSpec(
        7 * _DAY,
        retries=3,
        sections=("seed", "task", "model", "train"),
        reads=("preprocess",),
        argument="model",
        inputs=("checkpoints", "start", "input_workers"),
    ),
    "evaluate": StepSpec(
        6 * _HOUR,
        retries=1,
        sections=("seed", "task", "evaluate", "drift"),
        reads=("preprocess", "train"),
        argument="evaluation",
        inputs=("champion",),
    ),
    "export": StepSpec(
        6 * _HOUR,
        retries=1,
        sections=("seed", "task", "export"),
        reads=("preprocess", "train"),
        argument="exported",
        optional=True,
    ),
    "push": StepSpec(
        _HOUR,
        retries=1,
        sections=("push",),
        reads=("evaluate", "export"),
        inputs=("destination",),
        optional=True,
        always_run=True,
    ),
    PREDICT: StepSpec(_DAY, retries=1),
}
"""Every step by its name, in the order in which they run; predict is a pipeline of its own."""

OUTPUTS = tuple(name for name, step in STEPS.items() if step.sections)
"""The steps that have an output, in their order."""

LAST = OUTPUTS[-1]
"""The step that a run ends with, unless it ends earlier."""

ARGUMENTS = {step.argument: name for name, step in STEPS.items() if step.argument}
"""The arguments that name the committed output of another step, with that step."""


def model_sections() -> frozenset[str]:
    """Return the parts of the recipe that a trained model depends on: those of train and of what it reads."""
    return frozenset().union(*(STEPS[step].sections for step in ("train", *STEPS["train"].reads)))


def readers(step: str) -> frozenset[str]:
    """Return the steps that read the output of `step`."""
    return frozenset(name for name, spec in STEPS.items() if step in spec.reads)


def producer(step: str) -> str:
    """Return what the manifests of `step`'s outputs name it."""
    return f"trainyard.{step}"


def made_by(producer_name: str) -> str | None:
    """Return the step that manifests name `producer_name`, None if that is no step."""
    return next((step for step in STEPS if producer(step) == producer_name), None)


def is_from(step: str, first: str | None) -> bool:
    """Return whether `step` is `first`, or has its output after it; never without a `first`."""
    return bool(first) and OUTPUTS.index(step) >= OUTPUTS.index(first or "")
