"""The step `check` as a component of a KFP pipeline."""

from kfp import dsl


# The answer is the returned value: conditions of kfp.local 2.17 resolve no output but the one named "Output".
@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def check(recipe: str, storage: str, code: str, run_id: str, when: str, scheduled: str, examples: str = "") -> str:
    """Whether a scheduled run has anything to train from `examples`, or anything to preprocess: 'due' or 'not due'."""
    from trainyard.core import task

    with task.opened("check", recipe, storage, code, run_id) as this:
        from trainyard.check.run import run
        from trainyard.core.schedule import When
        from trainyard.core.window import time_of

        conditions = When.model_validate_json(when)
        return this.decided(*run(this.recipe, this.root, this.destination, conditions, time_of(scheduled), examples))
