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
) -> NamedTuple("Outputs", [("examples", str), ("fingerprint", str)]):  # type: ignore[valid-type]
    """Records become example shards, a transform graph and statistics; gives their URI and the data's fingerprint."""
    from trainyard.core import keys, task

    with task.opened("preprocess", recipe, storage, code, run_id) as this:
        from trainyard.core.artifacts import Examples

        examples = this.output(keys.fingerprint(this.recipe))
        if this.unfinished():
            from trainyard.preprocess.run import run

            this.execute(run, beam_options=beam_options)
        return examples, Examples.read(examples).fingerprint
