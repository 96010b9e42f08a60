"""How fast a recipe trains on a pool: `kfp dsl compile --py` takes this file as it is."""

from kfp import dsl

from trainyard.steps.preprocess.component import preprocess
from trainyard.steps.train.component import train


@dsl.pipeline(name="trainyard-benchmark")
def benchmark_pipeline(
    recipe: str,
    storage: str,
    label: str,
    code: str = "",
    beam_options: str = "",
    gang: str = "",
    scheduled: str = "",
    about: str = "",  # noqa: ARG001
) -> None:
    """Preprocess and train; nothing is evaluated or pushed. What was trained before is trained again.

    Args:
        recipe: YAML text of a resolved recipe, of a few epochs.
        storage: Root URI of all outputs; examples that are there are used.
        label: Keeps what is measured apart from models of the same recipe, and from what other pools measure.
        code: Digest of the code this was compiled with; an image with other code refuses. Empty: not checked.
        beam_options: Command line of Beam for preprocess.
        gang: JSON text of the gang of pods that trains. Empty: the train step's own pod does.
        scheduled: ISO time that a window of data ends before. Empty: now. `trainyard bench` has KFP fill it in.
        about: JSON text of what the run is for, read by `trainyard runs` and no step.
    """
    shared = {"recipe": recipe, "storage": storage, "code": code}
    run_id = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    data = preprocess(**shared, run_id=run_id, beam_options=beam_options, scheduled=scheduled, again="")
    data.set_caching_options(False)
    examples, fingerprint, plan = (data.outputs[name] for name in ("examples", "fingerprint", "plan"))
    trained = train(**shared, examples=examples, fingerprint=fingerprint, plan=plan, gang=gang, label=label)
    trained.set_caching_options(False)
