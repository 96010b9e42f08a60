"""Training on a schedule: a first step on a CPU decides, and a run that has nothing to train ends there."""

from kfp import dsl

from trainyard.check.component import check
from yardmaster.catalog.train import train_pipeline


@dsl.pipeline(name="trainyard-retrain")
def retrain_pipeline(
    recipe: str, storage: str, code: str = "", beam_options: str = "", gang: str = "", when: str = "{}"
) -> None:
    """Train as the training pipeline does, where a condition of `when` holds.

    Args:
        recipe: YAML text of a resolved recipe.
        storage: Root URI of all outputs.
        code: Digest of the code this was compiled with; an image with other code refuses. Empty: not checked.
        beam_options: Command line of Beam for preprocess.
        gang: JSON text of the gang of pods that trains. Empty: the train step's own pod does.
        when: JSON text of the schedule's conditions.
    """
    run_id = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    due = check(recipe=recipe, storage=storage, code=code, run_id=run_id, when=when).set_caching_options(False)
    with dsl.If(due.outputs["Output"] == "due", name="due"):
        train_pipeline(recipe=recipe, storage=storage, code=code, beam_options=beam_options, gang=gang)
