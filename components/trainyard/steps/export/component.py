"""The step `export` as a component of a KFP pipeline."""

from kfp import dsl


# The verdict is the returned value: conditions of kfp.local 2.17 resolve no output but the one named "Output".
@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def export(
    recipe: str,
    storage: str,
    code: str,
    examples: str,
    model: str,
    thresholds: str,
    maker: str,
    exported: dsl.OutputPath(str),  # type: ignore[valid-type]
    metrics: dsl.Output[dsl.Metrics],
) -> str:
    """A trained model becomes files that serve; gives their URI and 'blessed' or 'refused' by their parity.

    thresholds: as `Evaluation.decisions`. The evaluation is no input, so KFP reuses the files beside a new champion.
    maker: the run that makes the files. KFP reuses them only while they are there, so that evaluate names the same one.
    """
    from pathlib import Path

    from trainyard.runtime import task

    with task.opened("export", recipe, storage, code) as this:
        from trainyard.contract.artifacts.export import Exports

        this.pipeline.decisions = thresholds
        folder = this.place(examples=examples, model=model)
        if this.unfinished():
            from trainyard.steps.export.run import run

            this.assign(maker)
            this.execute(run)
        exports = Exports.read(folder)
        for file in exports.exports:
            metrics.log_metric(f"{file.format}_accuracy_difference", file.accuracy_difference)
            metrics.log_metric(f"{file.format}_p50_ms", file.latency_ms.p50)
            metrics.log_metric(f"{file.format}_bytes", file.bytes)
        task.write_previews(metrics)
        Path(exported).write_text(folder, encoding="utf-8")
        this.report()
        return exports.gate.verdict
