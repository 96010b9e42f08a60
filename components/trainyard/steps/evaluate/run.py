"""The step evaluate: judges a trained model on the test split and decides whether it may be pushed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard import events
from trainyard.contract.artifacts import Evaluation, Interval, Split
from trainyard.data.examples import ExampleFolder, open_examples, reading
from trainyard.errors import DataError
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate import curves, own_metrics
from trainyard.steps.evaluate.bootstrap import difference, intervals
from trainyard.steps.evaluate.gate import Champion, Measured, Subject, judge
from trainyard.steps.evaluate.metrics import Answers, measure
from trainyard.steps.evaluate.predict import champion_answers, model_answers
from trainyard.steps.evaluate.slices import Columns, slice_masks, slice_metrics
from trainyard.steps.evaluate.worst import worst_examples
from trainyard.storage import storage

SPLIT: Split = "test"

Masks = dict[str, NDArray[np.bool_]]


def run(recipe: Recipe, examples: str, model: str, output: Path, champion: str = "") -> None:
    """Write the evaluation of train's output `model` on the test split of preprocess' output `examples`.

    `champion` is the folder (or its URI) of the SavedModel last pushed, judged on the same examples, or empty. Writes
    `artifacts.Evaluation` and the files that it names. A refused model is no error: the verdict says so.
    """
    with reading(examples):
        _evaluate(recipe, examples, model, output, champion)


def _evaluate(recipe: Recipe, examples: str, model: str, output: Path, champion: str) -> None:
    folder = open_examples(examples)
    batch_size = recipe.train.batch_size
    batches = folder.batches(SPLIT, batch_size)
    ours, keys = model_answers(model, folder, SPLIT, batches)
    theirs, state = _champion(champion, folder, batch_size)
    masks = slice_masks(recipe, *_columns(recipe, folder, ours), folder.document.labels)
    metrics, bounds = _metrics(recipe, ours)
    measured = _measured(recipe, ours, theirs, masks)
    verdict = judge(recipe.evaluate.gates, measured, list(masks), state)
    labels = folder.document.labels
    evaluation = Evaluation(
        split=SPLIT,
        examples=len(keys),
        metrics=metrics,
        intervals=bounds,
        classes=curves.class_metrics(ours, labels) if labels else [],
        confusion=curves.confusion(ours, len(labels)) if labels else [],
        roc=curves.roc_curves(ours, labels) if labels else [],
        slices=slice_metrics(recipe, masks, ours),
        worst=worst_examples(recipe.evaluate.worst, ours, keys, folder.document, batches, output),
        champion=champion or None,
        gate=verdict,
        champion_metrics=measure(recipe.task, theirs) if theirs else {},
        calibration=curves.calibration(ours) if labels else [],
        scatter=[] if labels else curves.scatter(ours, recipe.seed),
    )
    evaluation.write(output)
    (output / "verdict.json").write_text(verdict.model_dump_json(indent=1), encoding="utf-8")
    np.savez_compressed(
        output / "predictions.npz", keys=keys.astype(np.bytes_), labels=ours.labels, outputs=ours.outputs
    )
    events.emit("evaluated", examples=len(keys), verdict=verdict.verdict, **metrics)


def _champion(uri: str, examples: ExampleFolder, batch_size: int) -> tuple[Answers | None, Champion]:
    if not uri:
        return None, Champion(present=False)
    try:
        folder = str(storage.local(uri, made_by="push"))
        return champion_answers(folder, examples, SPLIT, batch_size), Champion(present=True)
    except DataError as error:
        events.emit("champion_not_comparable", reason=error)
        return None, Champion(present=True, fault=str(error))


def _metrics(recipe: Recipe, ours: Answers) -> tuple[dict[str, float], dict[str, Interval]]:
    resamples = recipe.evaluate.bootstrap
    metrics = measure(recipe.task, ours)
    bounds = intervals(recipe.task, ours, metrics, resamples, recipe.seed)
    own = own_metrics.find(recipe.module) if recipe.module else None
    if own is not None:
        values, own_bounds = own_metrics.measure(own, ours, resamples, recipe.seed)
        metrics, bounds = {**metrics, **values}, {**bounds, **own_bounds}
    return metrics, bounds


def _measured(recipe: Recipe, ours: Answers, theirs: Answers | None, masks: Masks) -> dict[Subject, Measured]:
    """Return what the recipe's gates are about, as far as it is defined."""
    found: dict[Subject, Measured] = {}
    for gate in recipe.evaluate.gates:
        subject = Subject(gate.metric, gate.slice)
        if subject in found or (gate.slice is not None and gate.slice not in masks):
            continue
        mask = masks[gate.slice] if gate.slice is not None else None
        here = ours if mask is None else ours.take(mask)
        there = theirs if mask is None or theirs is None else theirs.take(mask)
        measured = _measure(recipe, gate.metric, here, there)
        if measured is not None:
            found[subject] = measured
    return found


def _measure(recipe: Recipe, metric: str, ours: Answers, theirs: Answers | None) -> Measured | None:
    resamples, seed = recipe.evaluate.bootstrap, recipe.seed
    value = measure(recipe.task, ours).get(metric)
    if value is None:
        return None
    interval = intervals(recipe.task, ours, {metric: value}, resamples, seed).get(metric)
    if theirs is None:
        return Measured(value, interval)
    champion = measure(recipe.task, theirs).get(metric)
    return Measured(value, interval, champion, difference(recipe.task, metric, ours, theirs, resamples, seed))


def _columns(recipe: Recipe, examples: ExampleFolder, ours: Answers) -> tuple[Columns, Columns]:
    """Return the columns that slices are made of: of the judged split, and of the training split where they are numbers."""
    label = recipe.data.label
    raw = {each.name: each.dtype for each in examples.document.raw_features if each.name in recipe.evaluate.slices}
    here = _raw(examples, SPLIT, [name for name in raw if name != label])
    train = _raw(examples, "train", [name for name, dtype in raw.items() if name != label and dtype != "string"])
    if label in recipe.evaluate.slices:
        here[label] = ours.labels
        if recipe.task == "regression":
            train[label] = examples.labels("train")
    return here, train


def _raw(examples: ExampleFolder, split: Split, names: list[str]) -> dict[str, NDArray[Any]]:
    if not names:
        return {}
    batches = [{name: raw[name].numpy() for name in names} for raw, _label in examples.raw_batches(split, 1024)]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in names}
