"""The exit handler of a pipeline: the run's record and report, whatever happened."""

from kfp import dsl


@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def summary(
    recipe: str,
    storage: str,
    run_id: str,
    status: dsl.PipelineTaskFinalStatus,
    report: dsl.Output[dsl.HTML],
) -> None:
    """What is known of the run becomes run.json and report.html in its folder, and a page in the pipeline's UI."""
    from pathlib import Path

    from trainyard.runtime import task

    with task.opened("summary", recipe, storage, "", run_id) as this:
        from trainyard.steps.summary.run import run

        page = run(this.recipe, this.root, run_id, status.state, status.error_message or "")
        Path(report.path).write_text(page, encoding="utf-8")
