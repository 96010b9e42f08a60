"""Evaluation and parity of a large set beside a bare loop over the same model and scikit-learn's metrics.

python -m benchmarks.commands.evaluation prints the table. The model is an MLP, trained for an epoch on 2,000 rows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cost import Cost, cost
from benchmarks.data import tables
from trainyard.contract.artifacts.preprocess import Examples, SplitFiles
from trainyard.storage import storage

_FEW, _TIMES, _TRAIN = 62_500, 16, 2_000
_ROWS = _FEW * _TIMES
_STEPS = [sys.executable, "-m", "trainyard.steps"]
_BATCH = 4096


def section() -> str:
    """Return the part of the page."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        plain, whole = _prepared(place)
        few, many = (measured(place, folder, plain, whole) for folder in ("few", "many"))
    seconds = {side: (many[side].cpu_seconds - few[side].cpu_seconds) / (_ROWS - _FEW) for side in many}
    lines = "\n".join(
        f"| {side} | {1e6 * seconds[side]:.1f} | {seconds['bare'] / seconds[side]:.2f} | {few[side].peak_mib:,.0f} "
        f"| {many[side].peak_mib:,.0f} |"
        for side in many
    )
    return f"""A table of four numbers, three categories and a date; CPU seconds and peak memory of whole processes. A
row costs what one more costs, from {_FEW:,} to {_ROWS:,}, without imports. The {_ROWS:,} rows of the test and of
the eval split are {_FEW:,} rows {_TIMES} times: to preprocess as many would take most of the time. *bare* reads the
examples, predicts {_BATCH:,} at once and computes accuracy, F1, both areas, log loss, confusion and a ROC curve with
scikit-learn. *evaluate* also makes intervals, calibration, importance, worst examples, counts of unknown values and
predictions.npz; *with trees and slices* also trains boosted trees, predicts by them and measures two slices. *export*
writes a SavedModel and a LiteRT file and compares both. The aim of *evaluate* is 0.9 of the bare loop.

| work | µs a row | times as fast as bare | peak MiB, {_FEW:,} rows | {_ROWS:,} rows |
| --- | ---: | ---: | ---: | ---: |
{lines}"""


def _prepared(place: Path) -> tuple[Path, Path]:
    """Write a model and the examples few and many, and return a recipe without and one with trees and slices."""
    tables.write(place / "table.csv", _TRAIN + 2 * _FEW)
    plain = _recipe(place, "plain", {"boosted": False})
    few, many = place / "few", place / "many"
    _run([*_STEPS, "preprocess", "--recipe", str(plain), "--output", str(few)])
    given = ["--examples", str(few), "--checkpoints", str(place / "checkpoints"), "--output", str(place / "model")]
    _run([*_STEPS, "train", "--recipe", str(plain), *given])
    document = Examples.read(str(few))
    splits = {name: _repeated(files) if name != "train" else files for name, files in document.splits.items()}
    with storage.stage(str(many), storage.require(str(few)).producer) as staging:
        shutil.copytree(few, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        document.model_copy(update={"splits": splits}).write(staging)
    return plain, _recipe(place, "whole", {"slices": ["plan"]})


def _repeated(split: SplitFiles) -> SplitFiles:
    files, shard_examples = split.files * _TIMES, split.shard_examples * _TIMES
    changed = {"files": files, "shard_examples": shard_examples, "examples": sum(shard_examples)}
    return split.model_copy(update=changed)


def measured(place: Path, folder: str, plain: Path, whole: Path) -> dict[str, Cost]:
    """Return the cost of each side with the examples in `folder`."""
    examples, model = place / folder, place / "model"

    def step(name: str, recipe: Path) -> Cost:
        output = place / f"{folder}-{name}-{recipe.stem}"
        made_of = ["--examples", str(examples), "--model", str(model), "--output", str(output)]
        return cost([*_STEPS, name, "--recipe", str(recipe), *made_of])

    return {
        "bare": cost([sys.executable, "-m", "benchmarks.commands.evaluation", str(examples), str(model)]),
        "evaluate": step("evaluate", plain),
        "evaluate, with trees and slices": step("evaluate", whole),
        "export": step("export", plain),
    }


def _recipe(place: Path, name: str, evaluate: dict[str, object]) -> Path:
    recipe = tables.document(place / "table.csv")
    share = _FEW / (_TRAIN + 2 * _FEW)
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
