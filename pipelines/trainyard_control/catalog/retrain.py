"""Training on a schedule: a first step on a CPU decides; a run with nothing to train ends there, with its record."""

from typing import Any

from kfp import dsl

from trainyard.graph import CHECK, OUTPUTS, STEPS
from trainyard_control.catalog.steps import add


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
        known = {"recipe": recipe, "storage": storage, "code": code, "beam_options": beam_options, "gang": gang}
        look = {STEPS[CHECK].again_after} if on_drift else set()
        steps = [name for step in OUTPUTS for name in ((step, CHECK) if step in look else (step,))]
        add([CHECK, *steps], known | {"when": when, "scheduled": scheduled})

    return retrain


retrain_pipeline = _retrain("Train as the training pipeline does, where a condition of `when` holds.", on_drift=False)
retrain_on_drift_pipeline = _retrain(
    "Train where a condition of `when` holds, drift among them: new data are preprocessed, and then decided upon.",
    on_drift=True,
)
