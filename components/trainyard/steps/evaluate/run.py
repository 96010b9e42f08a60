"""The step evaluate: judges a trained model on the test split and decides whether it may be pushed."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from trainyard import events
from trainyard.contract import version
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.train import Training
from trainyard.contract.version import EXTRA
from trainyard.graph import remedy
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.gate import ChampionState, MetricPair, Subject, judge
from trainyard.storage import storage


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


_NUMBERS = TypeAdapter(dict[str, float])


def judge_reported(recipe: Recipe, model: str, output: Path, champion: str) -> None:
    """Write `Evaluation`, and verdict.json, of train's output `model` into `output`.

    champion: the folder of the version last pushed, '' if there is none; its metrics are in it.
    """
    metrics = Training.read(model).metrics
    text = storage.read(champion, f"{EXTRA}/{version.METRICS}", remedy("push")) if champion else None
    before = _NUMBERS.validate_json(text) if text else {}
    measured = {
        Subject(gate.metric, confidence=gate.confidence): MetricPair(
            metrics[gate.metric], None, before.get(gate.metric)
        )
        for gate in recipe.evaluate.gates
        if gate.metric in metrics
    }
    verdict = judge(recipe.evaluate.gates, measured, [], ChampionState(present=bool(champion)))
    Evaluation(
        split=None,
        examples=0,
        metrics=metrics,
        intervals={},
        classes=[],
        confusion=[],
        roc=[],
        slices=[],
        worst=[],
        champion=champion or None,
        gate=verdict,
        champion_metrics=before,
    ).write(output)
    (output / "verdict.json").write_text(verdict.model_dump_json(indent=1), encoding="utf-8")
    events.emit("evaluated", verdict=verdict.verdict, **metrics)
