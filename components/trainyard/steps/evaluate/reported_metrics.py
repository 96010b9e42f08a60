"""The verdict on a folder that a program of the recipe's own left, by the metrics that it reported."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from trainyard import events
from trainyard.contract import version
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.train import Training
from trainyard.contract.champion import EXTRA
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.gate import ChampionState, MetricPair, Subject, judge
from trainyard.storage import storage

_NUMBERS = TypeAdapter(dict[str, float])


def judge_reported(recipe: Recipe, model: str, output: Path, champion: str) -> None:
    """Write `Evaluation`, and verdict.json, of train's output `model` into `output`.

    champion: the folder of the version last pushed, '' if there is none; its metrics are in it.
    """
    metrics = Training.read(model).metrics
    text = storage.read(champion, f"{EXTRA}/{version.METRICS}") if champion else None
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
