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
    maker: str,  # noqa: ARG001 - evaluate's: KFP reuses the files only while they are there
    exported: dsl.OutputPath(str),  # type: ignore[valid-type]
    metrics: dsl.Output[dsl.Metrics],
) -> str:
    """A trained model becomes files that serve; gives their URI and 'blessed' or 'refused' by their parity."""
    from pathlib import Path

    from trainyard.runtime import task

    with task.opened("export", recipe, storage, code) as this:
        from trainyard.contract.artifacts.export import Exports

        folder = this.output(examples, model)
        if this.unfinished():
            from trainyard.steps.export.run import run

            this.execute(run, examples=examples, model=model)
        exports = Exports.read(folder)
        for file in exports.exports:
            metrics.log_metric(f"{file.format}_accuracy_difference", file.accuracy_difference)
            metrics.log_metric(f"{file.format}_p50_ms", file.latency_ms.p50)
            metrics.log_metric(f"{file.format}_bytes", file.bytes)
        Path(exported).write_text(folder, encoding="utf-8")
        return exports.gate.verdict
