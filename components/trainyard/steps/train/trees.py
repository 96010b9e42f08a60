"""One training of boosted trees in this process, from the examples to the saved model and its training record."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split
import numpy as np
import tensorflow as tf

from trainyard import events
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.train import Epoch, Machine, Training, TrainingSpeed
from trainyard.contract.document import Split
from trainyard.data.examples import ExampleFolder, open_examples, reading
from trainyard.errors import ConfigurationError, DataError
from trainyard.models.build import family_of
from trainyard.process import memory
from trainyard.spec.gates import require_classes
from trainyard.spec.networks import TREES
from trainyard.spec.recipe import Recipe
from trainyard.spec.selection import BY_LOSS, selection
from trainyard.steps.train.engines.network import in_original_units, in_target_units
from trainyard.steps.train.engines.objective import (
    UNSCALED,
    Evaluated,
    Moments,
    TargetScale,
    class_weights,
    eval_sums,
    has_top5,
    learned_targets,
    objective,
    target_moments,
)
from trainyard.steps.train.engines.scores import score_of
from trainyard.steps.train.engines.target_mean import predicting_means
from trainyard.steps.train.loop.checkpoint import best_epoch
from trainyard.steps.train.loop.summary import write_summary

if TYPE_CHECKING:
    from trainyard.models import boosted_trees

_SPLITS: tuple[Split, Split] = ("train", "eval")
_BATCH = 4096
_CELL_BYTES = 24  # the matrix in float32, scikit-learn's copies of it in float64, and its bins; measured: 18


def train(recipe: Recipe, examples: str, output: Path, on_epoch: Callable[[Epoch], None] | None = None) -> Training:
    """Write model.keras and tensorboard/ to `output` and return the training record, without the seconds of imports.

    An iteration of the boosting is an epoch of the record, because it passes once over the training split. The model
    is that of the best iteration on the eval split, by what the recipe selects. on_epoch: called for each at the end.
    """
    with reading(examples):
        start = time.perf_counter()
        folder = open_examples(examples)
        document = folder.document
        require_classes(recipe.named_classes, document.labels or [])
        family: Any = family_of(recipe.model)
        columns: boosted_trees.Columns = family.Columns(document.features)
        _require_memory(folder, columns.count)
        train_rows, eval_rows = (_rows(folder, split, columns, family.Rows) for split in _SPLITS)
        is_class = document.task == "classification"
        target, targets = (UNSCALED, (0.0, 1.0)) if is_class else learned_targets(recipe.train.target, folder)
        if is_class:
            weighted = _weighted(recipe, folder, train_rows)
            judged = _for_judging(eval_rows, np.unique(train_rows.labels))
        else:
            limited = train_rows._replace(labels=np.asarray(target.limited(train_rows.labels)))
            weighted, judged = (_standardized(rows, target, targets) for rows in (limited, eval_rows))
    chosen = selection(recipe)
    judge = None
    if not chosen.is_loss:
        rows = judged if is_class else eval_rows
        judge = _Judge(recipe, document, rows, np.unique(train_rows.labels) if is_class else None, (target, targets))
    read = time.perf_counter()
    settings, patience = recipe.model.trees, recipe.train.early_stopping
    events.emit(
        "training", model=TREES, examples=len(weighted.labels), columns=columns.count, iterations=settings.max_iter
    )
    trees: boosted_trees.BoostedTrees = family.fit(
        settings,
        columns,
        weighted,
        _weighted(recipe, folder, judged) if is_class else judged,
        patience.patience if patience else None,
        recipe.seed,
        lambda done: events.progress(done, settings.max_iter, "iterations"),
        judge,
    )
    grown = time.perf_counter()
    history = _history(recipe, trees, judged, (target, targets), grown - read)
    if judge is not None:
        history = [
            epoch.model_copy(update={"selected": value}) for epoch, value in zip(history, judge.values, strict=True)
        ]
    best = best_epoch(history, chosen)
    assert best is not None  # noqa: S101 - one iteration at the least
    measured = time.perf_counter()
    model = trees.model(document.features, document.outputs, best.epoch)
    if not is_class:
        model = in_target_units(model, targets)
        if recipe.train.target.mean:
            model = predicting_means(model, target.scale, folder)
        model = in_original_units(model, target.scale)
    model.save(output / "model.keras")
    writer = tf.summary.create_file_writer(str(output / "tensorboard"))
    for epoch in history:
        write_summary(writer, epoch)
        if on_epoch:
            on_epoch(epoch)
    writer.close()
    seconds = {"read": read - start, "grow": grown - read, "eval": measured - grown}
    seconds["compile"] = time.perf_counter() - measured
    return Training(
        model=TREES,
        parameters=model.count_params(),
        steps=len(history),
        epochs=len(history),
        best_epoch=best.epoch,
        selection=BY_LOSS if best.selected is None else chosen,
        precision="float32",
        history=history,
        seconds={name: round(value, 3) for name, value in seconds.items()},
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        speed=TrainingSpeed(bottleneck="compute", step_ms=1000 * (grown - read) / len(history)),
        machine=Machine(
            devices=["CPU"],
            cores=len(os.sched_getaffinity(0)),
            versions={"scikit-learn": version("scikit-learn")},
        ),
    )


def _require_memory(folder: ExampleFolder, columns: int) -> None:
    """Raise `ConfigurationError` if the splits do not fit in memory, where the trees need them whole."""
    splits = folder.document.splits
    numbers = columns + folder.document.outputs  # an answer of each class, with its gradient and hessian
    needed = (splits["train"].examples + splits["eval"].examples) * numbers * _CELL_BYTES
    if needed > (usable := memory.usable_bytes()):
        raise ConfigurationError(
            f"model.name: boosted_trees: {splits['train'].examples:,} rows of {columns:,} numbers take about "
            f"{needed / 2**30:,.1f} GiB, and this process may use {usable / 2**30:,.1f} GiB. Give it more memory, "
            "lower data.fraction, or name mlp."
        )


def _rows(
    folder: ExampleFolder, split: Split, columns: boosted_trees.Columns, rows: type[boosted_trees.Rows]
) -> boosted_trees.Rows:
    """Return the examples of `split` that count, in stored order; the mean of their weights is 1."""
    count = folder.document.splits[split].examples
    values, labels, done = np.empty((count, columns.count), np.float32), [], 0
    for features, label, _key in folder.batches(split, _BATCH):
        part = columns.matrix({name: tensor.numpy() for name, tensor in features.items()})
        values[done : done + len(part)] = part
        labels.append(label.numpy())
        done += len(part)
        events.progress(done, count, f"{split} examples")
    if not labels:
        raise DataError(f"{folder.uri}: the split '{split}' holds no examples. Give it a fraction above 0.")
    joined, weights = np.concatenate(labels), folder.weights(split)
    if weights is None:
        return rows(values, joined, None)
    counted = np.flatnonzero(weights)  # scikit-learn would count a row of weight 0 in its bins and leaves
    return rows(values[counted], joined[counted], weights[counted] / weights[counted].mean())


def _weighted(recipe: Recipe, folder: ExampleFolder, rows: boosted_trees.Rows) -> boosted_trees.Rows:
    """Return `rows` with their sample weights times their class weights."""
    document = folder.document
    by_class = class_weights(recipe, document.labels, document.splits["train"].class_totals)
    if by_class is None:
        return rows
    weights = by_class[rows.labels]
    return rows._replace(weights=weights if rows.weights is None else weights * rows.weights)


def _for_judging(rows: boosted_trees.Rows, known: np.ndarray) -> boosted_trees.Rows:
    """Return the eval rows whose class is `known` from the training split, because trees predict no other."""
    is_known = np.isin(rows.labels, known)
    if is_known.all():
        return rows
    left_out = f"{np.sum(~is_known):,} examples of the eval split have classes that the training split lacks"
    if not is_known.any():
        raise DataError(f"model.name: boosted_trees: all {left_out}. Change data.split, or name mlp.")
    events.warn(f"{left_out}; the loss of an iteration leaves them out")
    weights = None if rows.weights is None else rows.weights[is_known]
    return rows._replace(values=rows.values[is_known], labels=rows.labels[is_known], weights=weights)


def _standardized(rows: boosted_trees.Rows, target: TargetScale, targets: Moments) -> boosted_trees.Rows:
    mean, deviation = targets
    return rows._replace(labels=(np.asarray(target.scaled(rows.labels.astype(np.float64))) - mean) / deviation)


def _in_units(standardized: np.ndarray, target: TargetScale, targets: Moments) -> np.ndarray:
    mean, deviation = targets
    return np.asarray(target.original(standardized * np.asarray(deviation) + mean))


class _Judge:
    """Computes what the recipe selects on the eval split after each iteration, and ends the growing without progress.

    rows: of the eval split, with labels in their units. seen: the class ids of the training split, None for regression.
    """

    def __init__(
        self,
        recipe: Recipe,
        document: Examples,
        rows: boosted_trees.Rows,
        seen: np.ndarray | None,
        scale: tuple[TargetScale, Moments],
    ) -> None:
        self.values: list[float | None] = []
        self._losses: list[float] = []
        self._selection, self._seen, (target, self._targets) = selection(recipe), seen, scale
        self._outputs, self._has_top5 = document.outputs, has_top5(document)
        self._labels = rows.labels
        self._weights = np.ones(len(rows.labels)) if rows.weights is None else rows.weights
        spread = target_moments(rows.labels, rows.weights)[1] if seen is None else 1.0
        score = score_of(self._selection, document, np.atleast_1d(spread))
        self._objective = objective(document, 0.0, self._targets[1], target, score)
        early = recipe.train.early_stopping
        self._patience = early.patience if early else math.inf

    def __call__(self, raw: np.ndarray, loss: float) -> bool:
        """Return True to stop after this iteration; raw: the answers of scikit-learn (n, answers)."""
        labels, weights = tf.constant(self._labels), tf.constant(self._weights, tf.float32)
        sums = eval_sums(self._objective, tf.constant(self._answers(raw), tf.float32), labels, weights)
        evaluated = Evaluated.from_sums(
            sums.numpy(), self._objective.score, self._selection, top5_counts=self._has_top5
        )
        self.values.append(evaluated.selected)
        self._losses.append(loss)
        keys = [
            (self._selection.sign * (value or 0.0), loss) for value, loss in zip(self.values, self._losses, strict=True)
        ]
        return len(keys) - 1 - keys.index(min(keys)) >= self._patience

    def _answers(self, raw: np.ndarray) -> np.ndarray:
        if self._seen is None:
            mean, deviation = self._targets
            return np.asarray(raw * np.asarray(deviation) + mean)
        logits = np.full((len(raw), self._outputs), -50.0)  # of a class that the training split lacks
        logits[:, self._seen] = np.column_stack([np.zeros(len(raw)), raw]) if raw.shape[1] == 1 else raw
        return logits


def _history(
    recipe: Recipe,
    trees: boosted_trees.BoostedTrees,
    judged: boosted_trees.Rows,
    scale: tuple[TargetScale, Moments],
    seconds: float,
) -> list[Epoch]:
    """Return the evidence of each iteration; scale: of the targets of a regression; seconds: of all iterations."""
    losses = list(zip(*trees.losses, strict=True))
    is_class = judged.labels.dtype.kind in "iu"
    labels = judged.labels if is_class else _in_units(judged.labels, *scale)
    history = []
    for number, predicted in enumerate(trees.staged(judged.values), 1):
        scores = predicted == labels if is_class else np.abs(_in_units(predicted, *scale) - labels)
        train_loss, eval_loss = losses[number - 1]
        history.append(
            Epoch(
                epoch=number,
                step=number,
                learning_rate=recipe.model.trees.learning_rate,
                train_loss=float(train_loss),
                eval_loss=float(eval_loss),
                metric=float(np.average(scores, weights=judged.weights)),
                examples_per_second=0.0,
                seconds=seconds / len(losses),
            )
        )
    return history
