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
    storage: str,
    run_id: str,
) -> NamedTuple("Outputs", [("folder", str)]):  # type: ignore[valid-type]
    """A pushed model answers to images or rows; gives the URI of the folder with the answers."""
    from typing import Any

    from trainyard.contract import keys
    from trainyard.runtime import step, task

    with step.recorded("predict", lambda: predictions):
        task.check_code("predict", code)

        def note(attempts: list[dict[str, Any]]) -> None:
            if storage:
                folder = keys.run_folder(storage, "predict", run_id)
                task.write_note(folder, "predict", {"folder": predictions, "attempts": attempts})

        arguments = {"model": model, "inputs": inputs, "key": key, "beam_options": beam_options}
        if not task.launched("predict", predictions, arguments, note=note):
            from trainyard.steps.predict.run import run

            run(output=predictions, **arguments)
        return (predictions,)
