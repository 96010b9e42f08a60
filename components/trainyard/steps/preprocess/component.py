"""The step `preprocess` as a component of a KFP pipeline."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def preprocess(
    recipe: str,
    storage: str,
    code: str,
    run_id: str,
    beam_options: str,
    scheduled: str,
    again: str = "",
) -> NamedTuple("Outputs", [("examples", str), ("fingerprint", str), ("plan", str)]):  # type: ignore[valid-type]
    """Records become example shards, a transform graph and statistics; gives their URI, their fingerprint, and a plan:

    where the model trained from them belongs, and what it begins with.
    """
    from trainyard.runtime import task

    with task.opened("preprocess", recipe, storage, code, run_id) as this:
        from trainyard.contract.artifacts.preprocess import Examples
        from trainyard.contract.window import day_of

        this.pipeline.day = day_of(scheduled, this.pipeline.recipe.data)
        examples = this.place(again)
        if this.unfinished():
            from trainyard.steps.preprocess.run import run

            this.execute(run, beam_options=beam_options)
        plan = this.plan_training(examples, again).model_dump_json()
        return examples, Examples.read(examples).fingerprint, plan
