"""The step `predict` as a component of a KFP pipeline."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def predict(
    model: str,
    inputs: str,
    predictions: str,
    key: str,
    code: str,
    beam_options: str,
) -> NamedTuple("Outputs", [("folder", str)]):  # type: ignore[valid-type]
    """A pushed model answers to images or rows; gives the URI of the folder with the answers."""
    from trainyard.runtime import step, task

    with step.recorded("predict", lambda: predictions):
        task.check_code("predict", code)
        from trainyard.steps.predict.run import run

        run(model, inputs, predictions, key, beam_options)
        return (predictions,)
