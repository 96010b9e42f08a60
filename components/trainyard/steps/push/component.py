"""The step `push` as a component of a KFP pipeline."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def push(
    recipe: str,
    storage: str,
    code: str,
    run_id: str,
    evaluation: str,
    exported: str,
) -> NamedTuple("Outputs", [("pushed", str)]):  # type: ignore[valid-type]
    """A blessed model becomes the next version of the folder that servers poll; gives the URI of what was done."""
    from trainyard.runtime import task

    with task.opened("push", recipe, storage, code, run_id) as this:
        pushed = this.output(evaluation, exported, this.destination)
        if this.unfinished():
            from trainyard.steps.push.run import run

            this.execute(run, evaluation=evaluation, exported=exported, destination=this.destination)
        return (pushed,)
