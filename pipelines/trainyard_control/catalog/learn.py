"""What every pipeline does with preprocessed data: train, evaluate, and export and push what the gates bless."""

from kfp import dsl

from trainyard.steps.evaluate.component import evaluate
from trainyard.steps.export.component import export
from trainyard.steps.push.component import push
from trainyard.steps.train.component import train


def learn(shared: dict[str, str], data: dsl.PipelineTask, gang: str, again: str = "") -> None:
    """Add the tasks that follow `data`, the one that preprocesses, to the pipeline that is being written."""
    run_id = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    examples, fingerprint, plan = (data.outputs[name] for name in ("examples", "fingerprint", "plan"))
    model = train(**shared, examples=examples, fingerprint=fingerprint, plan=plan, gang=gang).outputs["model"]
    judged = evaluate(**shared, run_id=run_id, examples=examples, model=model, again=again).set_caching_options(False)
    with dsl.If(judged.outputs["Output"] == "blessed", name="blessed"):
        files = export(**shared, examples=examples, model=model, maker=judged.outputs["maker"])
        with dsl.If(files.outputs["Output"] == "blessed", name="export-blessed"):
            push(
                **shared, run_id=run_id, evaluation=judged.outputs["evaluation"], exported=files.outputs["exported"]
            ).set_caching_options(False)
