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
    sections: the parts of the recipe that its output depends on; a step without any has no output. hook:
    the function of the recipe's module that its output depends on too.
    reads: the steps whose outputs it reads. argument: what those that read its output call it. inputs: what else its
    program takes. keyed_by: what names its output besides code, sections and the outputs that it reads;
    `contract.pipeline` knows the values.
    continues_on: the answer of its task without which no later step runs. judges: what its gate judges.
    optional: a run may end well without it. again_after: the step after which a pipeline may run it a second time.
    cached: Kubeflow may answer its task by that of another run, because its arguments are all that it depends on.
    always_run: its finished output is not reused: others may have undone what it did, and to repeat it costs
    nothing.
    """

    timeout_seconds: int
    retries: int
    sections: tuple[str, ...] = ()
    hook: str = ""
    reads: tuple[str, ...] = ()
    argument: str = ""
    inputs: tuple[str, ...] = ()
    keyed_by: tuple[str, ...] = ()
    continues_on: str = ""
    judges: str = ""
    optional: bool = False
    again_after: str = ""
    cached: bool = False
    always_run: bool = False


CHECK, PREDICT = "check", "predict"

STEPS = {
    CHECK: StepSpec(_HOUR // 4, retries=1, continues_on="due", optional=True, again_after="preprocess"),
    "preprocess": StepSpec(
        _DAY,
        retries=1,
        sections=("seed", "task", "data"),
        hook="preprocessing_fn",
        argument="examples",
        inputs=("beam_options", "day"),
        keyed_by=("fingerprint",),
    ),
    "train": StepSpec(
        7 * _DAY,
        retries=3,
        sections=("seed", "task", "model", "train"),
        hook="build_model",
        reads=("preprocess",),
        argument="model",
        inputs=("checkpoints", "start", "input_workers", "elastic"),
        keyed_by=("weights", "selection"),
        cached=True,
    ),
    "evaluate": StepSpec(
        6 * _HOUR,
        retries=1,
        sections=("seed", "task", "threshold", "evaluate", "drift"),
        hook="metrics",
        reads=("preprocess", "train"),
        argument="evaluation",
        inputs=("champion",),
        keyed_by=("champion",),
        continues_on="blessed",
        judges="the model",
    ),
    "export": StepSpec(
        6 * _HOUR,
        retries=1,
        sections=("seed", "task", "threshold", "export"),
        reads=("preprocess", "train"),
        argument="exported",
        inputs=("thresholds",),
        keyed_by=("thresholds",),
        continues_on="blessed",
        judges="an exported file",
        optional=True,
        cached=True,
    ),
    "push": StepSpec(
        _HOUR,
        retries=1,
        sections=("push",),
        reads=("evaluate", "export"),
        inputs=("destination", "override", "run_folder", "usd_per_hour"),
        keyed_by=("destination",),
        optional=True,
        always_run=True,
    ),
    PREDICT: StepSpec(_DAY, retries=1),
}
"""Every step by its name, in the order in which they run; predict is a separate pipeline."""

OUTPUTS = tuple(name for name, step in STEPS.items() if step.sections)
"""The steps that have an output, in their order."""

LAST = OUTPUTS[-1]
"""The step that a run ends with, unless it ends earlier."""

ARGUMENTS = {step.argument: name for name, step in STEPS.items() if step.argument}
"""The arguments that name the committed output of another step, with that step."""


LAUNCHER = "trainyard.steps.train.gang.pods.pods"
"""The module whose `run_step_in_pod` runs a step on a list of pools."""


def entry_point(step: str) -> str:
    """Return the module whose `run` is the program of `step`."""
    return f"trainyard.steps.{step}.run"


def model_sections() -> frozenset[str]:
    """Return the parts of the recipe that a trained model depends on: those of train and of what it reads."""
    return frozenset().union(*(STEPS[step].sections for step in ("train", *STEPS["train"].reads)))


def readers(step: str) -> frozenset[str]:
    """Return the steps that read the output of `step`."""
    return frozenset(name for name, spec in STEPS.items() if step in spec.reads)


def producer(step: str) -> str:
    """Return the name of `step` in the manifests of its outputs."""
    return f"trainyard.{step}"


def remedy(step: str) -> str:
    """Return the advice for an output of `step` that is missing or damaged."""
    if step == "push":
        return "Restore it, or let another version serve by `trainyard models rollback`."
    return f"Run with --from {step} to write it again."


def is_from(step: str, first: str | None) -> bool:
    """Return True if `step` is `first` or runs after it; never without a `first`."""
    return bool(first) and OUTPUTS.index(step) >= OUTPUTS.index(first or "")
