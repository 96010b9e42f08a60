"""The step `push` as a component of a KFP pipeline."""

from kfp import dsl


@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def push(
    recipe: str,
    storage: str,
    code: str,
    run_id: str,
    evaluation: str,
    exported: str,
    pushed: dsl.OutputPath(str),  # type: ignore[valid-type]
    report: dsl.Output[dsl.HTML],
) -> None:
    """A blessed model becomes the next version of the folder that servers poll; gives the URI of what was done."""
    from pathlib import Path

    from trainyard.runtime import task

    with task.opened("push", recipe, storage, code, run_id) as this:
        folder = this.place(evaluation=evaluation, exported=exported)
        if this.unfinished():
            from trainyard.steps.push.run import run

            this.execute(run)
        Path(pushed).write_text(folder, encoding="utf-8")
        Path(report.path).write_text(this.report(), encoding="utf-8")
