"""Training on a schedule: a first step on a CPU decides; a run with nothing to train ends there, with its record."""

from typing import Any

from kfp import dsl

from trainyard.steps.check.component import check
from trainyard.steps.preprocess.component import preprocess
from trainyard_control.catalog.learn import learn


def _retrain(description: str, *, on_drift: bool) -> Any:
    """Return the pipeline that trains if a condition holds; on_drift: new data are checked again, preprocessed."""

    @dsl.pipeline(name="trainyard-retrain", description=description)
    def retrain(
        recipe: str,
        storage: str,
        code: str = "",
        beam_options: str = "",
        gang: str = "",
        when: str = "{}",
        scheduled: str = "",
        about: str = "",  # noqa: ARG001
    ) -> None:
        """Train where a condition of `when` holds.

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
        conditions = {**shared, "run_id": run_id, "when": when, "scheduled": scheduled}
        first = check(**conditions).set_caching_options(False)
        with dsl.If(first.outputs["Output"] == "due", name="worth-a-look" if on_drift else "due"):
            data = preprocess(**shared, run_id=run_id, beam_options=beam_options, scheduled=scheduled)
            data.set_caching_options(False)
            if not on_drift:
                learn(shared, data, gang)
                return
            due = check(**conditions, examples=data.outputs["examples"]).set_caching_options(False)
            with dsl.If(due.outputs["Output"] == "due", name="due"):
                learn(shared, data, gang)

    return retrain


retrain_pipeline = _retrain("Train as the training pipeline does, where a condition of `when` holds.", on_drift=False)
retrain_on_drift_pipeline = _retrain(
    "Train where a condition of `when` holds, drift among them: new data are preprocessed, and then decided upon.",
    on_drift=True,
)
