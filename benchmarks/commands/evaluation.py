"""Evaluation and parity of a large set beside a bare loop over the same model and scikit-learn's metrics.

python -m benchmarks.commands.evaluation prints the table. The model is an MLP, trained for an epoch on 2,000 rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cost import Cost, cost
from benchmarks.data import tables

_FEW, _ROWS, _TRAIN = 10_000, 1_000_000, 2_000
_STEPS = [sys.executable, "-m", "trainyard.steps"]
_BATCH = 1024


def section() -> str:
    """Return the part of the page."""
    with tempfile.TemporaryDirectory() as name:
        few, many = (measured(Path(name), rows) for rows in (_FEW, _ROWS))
    seconds = {side: (many[side].cpu_seconds - few[side].cpu_seconds) / (_ROWS - _FEW) for side in many}
    lines = "\n".join(
        f"| {side} | {1e6 * seconds[side]:.1f} | {seconds['bare'] / seconds[side]:.2f} | {few[side].peak_mib:,.0f} "
        f"| {many[side].peak_mib:,.0f} |"
        for side in many
    )
    return f"""A table of four numbers, three categories and a date; CPU seconds and peak memory of whole processes. A
row costs what one more costs, from {_FEW:,} to {_ROWS:,}, without imports. *bare* reads the examples, predicts
{_BATCH:,} at once and computes accuracy, F1, both areas, log loss, confusion and a ROC curve with scikit-learn.
*evaluate* also makes intervals, calibration, importance, worst examples, counts of unknown values and predictions.npz;
*with trees and slices* also trains boosted trees, predicts by them and measures two slices. *export* writes a
SavedModel and a LiteRT file and compares both. The aim of *evaluate* is 0.9 of the bare loop.

| work | µs a row | times as fast as bare | peak MiB, {_FEW:,} rows | {_ROWS:,} rows |
| --- | ---: | ---: | ---: | ---: |
{lines}"""


def measured(folder: Path, rows: int) -> dict[str, Cost]:
    """Return the cost of each side with `rows` rows in the test and in the eval split."""
    place = folder / str(rows)
    place.mkdir()
    tables.write(place / "table.csv", _TRAIN + 2 * rows)
    plain = _recipe(place, "plain", rows, {"boosted": False})
    whole = _recipe(place, "whole", rows, {"slices": ["plan"]})
    examples, model = place / "examples", place / "model"
    _run([*_STEPS, "preprocess", "--recipe", str(plain), "--output", str(examples)])
    given = ["--examples", str(examples), "--checkpoints", str(place / "checkpoints"), "--output", str(model)]
    _run([*_STEPS, "train", "--recipe", str(plain), *given])

    def step(name: str, recipe: Path) -> Cost:
        made_of = ["--examples", str(examples), "--model", str(model), "--output", str(place / f"{name}-{recipe.stem}")]
        return cost([*_STEPS, name, "--recipe", str(recipe), *made_of])

    return {
        "bare": cost([sys.executable, "-m", "benchmarks.commands.evaluation", str(examples), str(model)]),
        "evaluate": step("evaluate", plain),
        "evaluate, with trees and slices": step("evaluate", whole),
        "export": step("export", plain),
    }


def _recipe(place: Path, name: str, rows: int, evaluate: dict[str, object]) -> Path:
    recipe, total = tables.document(place / "table.csv"), _TRAIN + 2 * rows
    share = rows / total
    recipe["data"]["split"] = {"train": round(1 - 2 * share, 12), "eval": share, "test": share}
    recipe |= {"train": {"epochs": 1, "batch_size": 256}, "evaluate": evaluate}
    recipe["export"] = {"formats": ["saved_model", "litert_float32"]}
    path = place / f"{name}.yaml"
    path.write_text(json.dumps(recipe))  # JSON is YAML
    return path


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def bare(examples: str, model: str) -> None:
    """Predict the test split and compute the metrics, as a person would write it."""
    import numpy as np
    import tensorflow as tf

    from trainyard.data import trained
    from trainyard.data.examples import open_examples

    folder, network = open_examples(examples), trained.load(model)
    predict = tf.function(lambda features: tf.nn.softmax(network(features, training=False)), reduce_retracing=True)
    answers = [(predict(features).numpy(), label.numpy()) for features, label, _ in folder.batches("test", _BATCH)]
    outputs, labels = (np.concatenate(part) for part in zip(*answers, strict=True))

    from sklearn import metrics

    predicted, classes = outputs.argmax(axis=1), range(outputs.shape[1])
    print(metrics.accuracy_score(labels, predicted), metrics.f1_score(labels, predicted, average="macro"))
    print([metrics.roc_auc_score(labels == each, outputs[:, each]) for each in classes])
    print([metrics.average_precision_score(labels == each, outputs[:, each]) for each in classes])
    print(metrics.log_loss(labels, outputs), metrics.confusion_matrix(labels, predicted))
    print(metrics.precision_recall_fscore_support(labels, predicted), metrics.roc_curve(labels, outputs[:, 1])[0][:9])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        bare(*sys.argv[1:])
    else:
        print(section())
