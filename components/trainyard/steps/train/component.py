"""The step `train` as a component of a KFP pipeline."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="trainyard/cpu", install_kfp_package=False)
def train(
    recipe: str,
    storage: str,
    code: str,
    examples: str,
    fingerprint: str,  # noqa: ARG001 - the data's own: KFP reuses a model only for the very same data
    plan: str,
    gang: str,
    metrics: dsl.Output[dsl.Metrics],
    label: str = "",
) -> NamedTuple("Outputs", [("model", str)]):  # type: ignore[valid-type]
    """Train a model on example shards and return its URI; in a gang of pods if `gang` plans one.

    label: '', or the suffix that tells this model from others of the same recipe and examples.
    """
    from trainyard.contract import keys
    from trainyard.runtime import step, task

    with task.opened("train", recipe, storage, code) as this:
        from trainyard.contract.artifacts.train import Training
        from trainyard.contract.pipeline import TrainingPlan

        warm_start = TrainingPlan.model_validate_json(plan)
        model = this.output_at(keys.labeled(warm_start.model, label))
        inputs = {"examples": examples, "checkpoints": keys.checkpoints(model), "start": warm_start.start}
        if this.unfinished():
            this.assign("" if label else warm_start.maker)  # the plan's maker is for the model without a label
            if gang:
                from trainyard.steps.train.gang.pods.pods import run_in_pods

                this.delegate(run_in_pods, plan=gang, code=code, note=this.note_attempts, **inputs)
            else:
                from trainyard.steps.train.run import run

                this.execute(run, **inputs)
        elif gang:
            from trainyard.steps.train.gang.pods.pods import clear_pods

            clear_pods(this.recipe, gang, inputs["checkpoints"], model)
        step.drop_checkpoints(model)
        training = Training.read(model)
        for best in training.history:  # a custom program may have reported none
            if best.epoch == training.best_epoch:
                metrics.log_metric("eval_loss", best.eval_loss)
                metrics.log_metric("eval_metric", best.metric)
        metrics.log_metric("steps", training.steps)
        metrics.log_metric("examples_per_second", training.speed.examples_per_second)
        task.write_previews(metrics)
        return (model,)
