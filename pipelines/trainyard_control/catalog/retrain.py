"""Training on a schedule: a first step on a CPU decides; a run with nothing to train ends there, with its summary."""

from kfp import dsl

from trainyard.steps.check.component import check
from trainyard.steps.preprocess.component import preprocess
from trainyard.steps.summary.component import summary
from trainyard_control.catalog.learn import learn


@dsl.pipeline(name="trainyard-retrain")
def retrain_pipeline(
    recipe: str,
    storage: str,
    code: str = "",
    beam_options: str = "",
    gang: str = "",
    when: str = "{}",
    scheduled: str = "",
    about: str = "",  # noqa: ARG001
) -> None:
    """Train as the training pipeline does, where a condition of `when` holds.

    Args:
        recipe: YAML text of a resolved recipe.
        storage: Root URI of all outputs.
        code: Digest of the code this was compiled with; an image with other code refuses. Empty: not checked.
        beam_options: Command line of Beam for preprocess.
        gang: JSON text of the gang of pods that trains. Empty: the train step's own pod does.
        when: JSON text of the schedule's conditions.
        scheduled, about: As of the training pipeline.
    """
    shared = {"recipe": recipe, "storage": storage, "code": code}
    run_id = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    ended = summary(recipe=recipe, storage=storage, run_id=run_id).set_caching_options(False)
    with dsl.ExitHandler(ended):
        due = check(**shared, run_id=run_id, when=when, scheduled=scheduled).set_caching_options(False)
        with dsl.If(due.outputs["Output"] == "due", name="due"):
            data = preprocess(**shared, run_id=run_id, beam_options=beam_options, scheduled=scheduled)
            learn(shared, data.set_caching_options(False), gang)


@dsl.pipeline(name="trainyard-retrain")
def retrain_on_drift_pipeline(
    recipe: str,
    storage: str,
    code: str = "",
    beam_options: str = "",
    gang: str = "",
    when: str = "{}",
    scheduled: str = "",
    about: str = "",  # noqa: ARG001
) -> None:
    """Train where a condition of `when` holds, drift among them: new data are preprocessed, and then decided upon.

    Args:
        recipe: YAML text of a resolved recipe.
        storage: Root URI of all outputs.
        code: Digest of the code this was compiled with; an image with other code refuses. Empty: not checked.
        beam_options: Command line of Beam for preprocess.
        gang: JSON text of the gang of pods that trains. Empty: the train step's own pod does.
        when: JSON text of the schedule's conditions.
        scheduled, about: As of the training pipeline.
    """
    shared = {"recipe": recipe, "storage": storage, "code": code}
    run_id = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    asked = {**shared, "run_id": run_id, "when": when, "scheduled": scheduled}
    ended = summary(recipe=recipe, storage=storage, run_id=run_id).set_caching_options(False)
    with dsl.ExitHandler(ended):
        worth_a_look = check(**asked).set_caching_options(False)
        with dsl.If(worth_a_look.outputs["Output"] == "due", name="worth-a-look"):
            data = preprocess(**shared, run_id=run_id, beam_options=beam_options, scheduled=scheduled)
            data.set_caching_options(False)
            due = check(**asked, examples=data.outputs["examples"]).set_caching_options(False)
            with dsl.If(due.outputs["Output"] == "due", name="due"):
                learn(shared, data, gang)
