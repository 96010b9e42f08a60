"""Raw data to a pushed model: `kfp dsl compile --py` takes this file as it is."""

from kfp import dsl

from trainyard.graph import OUTPUTS
from trainyard_control.catalog.steps import add


@dsl.pipeline(name="trainyard-train")
def train_pipeline(
    recipe: str,
    storage: str,
    code: str = "",
    beam_options: str = "",
    gang: str = "",
    scheduled: str = "",
    again: str = "",
    about: str = "",  # noqa: ARG001
) -> None:
    """Preprocess, train and evaluate; export and push what the gates bless.

    Args:
        recipe: YAML text of a resolved recipe.
        storage: Root URI of all outputs.
        code: Digest of the code this was compiled with; an image with other code refuses. Empty: not checked.
        beam_options: Command line of Beam for preprocess.
        gang: JSON text of the gang of pods that trains. Empty: the train step's own pod does.
        scheduled: ISO time that a window of data ends before. Empty: now. `trainyard compile` has KFP fill it in.
        again: The first step to run again, with all later ones. Empty: finished outputs are reused.
        about: JSON text of what the run is for, read by `trainyard runs` and no step.
    """
    known = {"recipe": recipe, "storage": storage, "code": code, "beam_options": beam_options, "gang": gang}
    add(OUTPUTS, known | {"scheduled": scheduled, "again": again})
