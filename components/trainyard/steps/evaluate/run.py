"""The step evaluate: judges a trained model on the test split and decides whether it may be pushed."""

from __future__ import annotations

from pathlib import Path

from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.reported_metrics import judge_reported


def run(recipe: Recipe, examples: str, model: str, output: Path, champion: str = "") -> None:
    """Write the evaluation of train's output `model` on the test split of preprocess' output `examples`.

    `champion` is the folder (or its URI) of the SavedModel last pushed, judged on the same examples, or empty. Writes
    `Evaluation` and the files that it names. A refused model is no error: the verdict says so.
    """
    if recipe.train.result == "folder":
        judge_reported(recipe, model, output, champion)
        return
    from trainyard.data.examples import reading  # TensorFlow and scikit-learn: seconds
    from trainyard.steps.evaluate.trained_model import judge_trained

    with reading(examples):
        judge_trained(recipe, examples, model, output, champion)
