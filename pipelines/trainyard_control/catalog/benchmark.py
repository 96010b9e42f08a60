"""A training alone, of a pool that is measured or of a sweep: `kfp dsl compile --py` takes this file as it is."""

from kfp import dsl

from trainyard_control.catalog.steps import add


@dsl.pipeline(name="trainyard-benchmark")
def benchmark_pipeline(
    recipe: str,
    storage: str,
    label: str,
    code: str = "",
    beam_options: str = "",
    gang: str = "",
    scheduled: str = "",
    about: str = "",  # noqa: ARG001
) -> None:
    """Preprocess and train; nothing is evaluated or pushed. What was trained before is trained again.

    Args:
        recipe: YAML text of a resolved recipe.
        storage: Root URI of all outputs; examples that are there are used.
        label: Keeps the model apart from others of the same recipe: of runs, and of what other pools measure.
        code: Digest of the code this was compiled with; an image with other code refuses. Empty: not checked.
        beam_options: Command line of Beam for preprocess.
        gang: JSON text of the gang of pods that trains. Empty: the train step's own pod does.
        scheduled: ISO time that a window of data ends before. Empty: now. The command line has KFP fill it in.
        about: JSON text of what the run is for, read by `trainyard runs` and no step.
    """
    known = {"recipe": recipe, "storage": storage, "code": code, "beam_options": beam_options, "gang": gang}
    add(("preprocess", "train"), known | {"scheduled": scheduled, "again": "", "label": label}, cache=False)
