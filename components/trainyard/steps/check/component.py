"""The step `check` as a component of a KFP pipeline."""

from kfp import dsl


# The answer is the returned value: conditions of kfp.local 2.17 resolve no output but the one named "Output".
@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def check(
    recipe: str,
    storage: str,
    code: str,
    run_id: str,
    when: str,
    scheduled: str,
    report: dsl.Output[dsl.HTML],
    examples: str = "",
) -> str:
    """Return 'due' if a scheduled run has to preprocess, or to train from `examples`; otherwise 'not due'."""
    from pathlib import Path

    from trainyard.runtime import task

    with task.opened("check", recipe, storage, code, run_id) as this:
        from trainyard.contract.window import day_of, time_of
        from trainyard.spec.schedule import When
        from trainyard.steps.check.run import run

        conditions = When.model_validate_json(when)
        this.pipeline.day = day_of(scheduled, this.pipeline.recipe.data)
        due, why = run(this.pipeline, conditions, time_of(scheduled), examples)
        answer = this.decided(due, why)
        Path(report.path).write_text(this.report(), encoding="utf-8")
        return answer
