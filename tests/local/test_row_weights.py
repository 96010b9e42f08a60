"""Weights of rows: from the table to the loss, to every metric and to the trees beside the model."""

import json

import numpy as np
import pytest
from preprocess_sources import preprocess

from trainyard.spec.recipe import Recipe

ROWS = 600


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A table whose rows of weight 0 say the opposite of the others; one row of each kind has no weight.

    Its zones say nothing about the label.
    """
    folder = tmp_path_factory.mktemp("weights")
    draw = np.random.default_rng(11)
    lines = ["x,zone,seen,label"]
    for number in range(ROWS):
        x, lies = draw.normal(), number % 3 == 0
        seen, label = 0 if lies else draw.integers(1, 5), "yes" if (x > 0) != lies else "no"
        lines.append(f"{x:.6f},{'abcd'[number % 4]},{seen},{label}")
    lines += ["1.5,a,-1,yes", "1.5,b,,no"]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return Recipe.model_validate(
        {
            "name": "weights",
            "data": {
                "format": "csv",
                "path": str(folder / "a.csv"),
                "label": "label",
                "derive": {"counts": "seen * 10"},
                "weight": "counts",
                "features": {"x": {"type": "numeric"}, "zone": {"type": "category"}},
            },
            "model": {"name": "mlp", "hidden": [8], "dropout": 0},
            "train": {"epochs": 8, "batch_size": 32, "optimizer": {"learning_rate": 0.03}},
            "evaluate": {"bootstrap": 50},
        }
    )


@pytest.fixture(scope="module")
def examples(recipe, tmp_path_factory):
    return preprocess(recipe, tmp_path_factory.mktemp("made") / "examples")


def test_rows_without_a_weight_are_set_aside_and_the_others_keep_theirs(examples):
    from trainyard.data.examples import open_examples

    folder = open_examples(examples)
    assert folder.document.quarantine == {"bad_weight": 2}
    weights = folder.weights("train")
    assert set(weights.tolist()) == {0, 10, 20, 30, 40}
    assert folder.document.mean_weight == pytest.approx(weights.mean(), rel=1e-5)


def test_the_transform_learns_from_weights_as_from_copies(tmp_path):
    """Scales, imputed values, quantiles and limits; a row of weight 0 counts for none, and no vocabulary has it."""
    draw, rows, learned = np.random.default_rng(5), [], []
    for number in range(160):
        weight, split = int(draw.integers(0, 4)), ("train", "train", "eval", "test")[number % 4]
        far = 1e6 if weight == 0 else 1.0
        numbers = [f"{far * draw.normal(3, 2):.4f}" if draw.random() > 0.1 else "" for _ in range(6)]
        day, zone = f"20{draw.integers(10, 30)}-03-{draw.integers(1, 28):02}", "never" if weight == 0 else "often"
        rows.append((weight, ",".join([*numbers, day, zone, split, "yes" if number % 3 else "no"])))
    scales = ({"scale": "zscore"}, {"scale": "minmax"}, {"scale": "buckets", "buckets": 4}, {"scale": "log"})
    more = ({"scale": "zscore", "impute": "median"}, {"scale": "zscore", "clip": [0.1, 0.9]})
    features = {f"x{number}": {"type": "numeric", **kind} for number, kind in enumerate((*scales, *more))}
    features |= {"day": {"type": "date"}, "zone": {"type": "category"}}
    tables = {
        "weighted": [f"{line},{weight}" for weight, line in rows],
        "copied": [f"{line},1" for weight, line in rows for _ in range(weight)],
    }
    for name, lines in tables.items():
        header = ",".join([*features, "part", "label", "w"])
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
        data = {"format": "csv", "path": str(tmp_path / f"{name}.csv"), "label": "label", "features": features}
        data |= {"split": {"by": "column", "column": "part"}} | ({"weight": "w"} if name == "weighted" else {})
        recipe = Recipe.model_validate({"name": name, "data": data, "model": {"name": "mlp"}})
        folder = preprocess(recipe, tmp_path / f"{name}.made")
        learned.append(json.loads((tmp_path / f"{name}.made" / "examples.json").read_text()))
        vocabulary = tmp_path / f"{name}.made/transform/transform_fn/assets/vocabulary_7_zone"
        assert vocabulary.read_text() == "often\n", folder
    weighted, copied = learned
    for one, other in zip(weighted["raw_features"], copied["raw_features"], strict=True):
        for name, value in one["learned"].items():
            expected = other["learned"][name]
            if isinstance(value, float | list):
                expected = pytest.approx(expected, rel=1e-6)
            assert value == expected, (one["name"], name)
    assert weighted["splits"]["train"]["class_weights"] == copied["splits"]["train"]["class_counts"]
    assert copied["splits"]["train"]["class_weights"] is None


def test_a_batch_counts_by_the_weights_of_its_rows(recipe, examples):
    from trainyard.data.examples import open_examples
    from trainyard.steps.train.input.input import Input
    from trainyard.steps.train.input.micro_batches import LocalReplicas

    folder = open_examples(examples)
    steps = [Input(recipe, folder, None, LocalReplicas(2, rank, 1)) for rank in range(2)]
    epoch = sum(float(weights.numpy().sum()) * 32 for data in steps for _, _, weights in data.train(0))
    counted = len(folder.weights("train"))
    last = counted % 32  # of the last batch each example counts more
    assert epoch / recipe.train.epochs == pytest.approx(counted + 32 - last, rel=0.1)
    batches = list(Input(recipe, folder, None).evaluation())
    assert {*batches[0][0]} == {"x", "zone"}
    labels, weights = (np.concatenate([batch[part] for batch in batches]) for part in (1, 2))
    expected = folder.weights("eval") / folder.document.mean_weight
    np.testing.assert_allclose(weights[: len(expected)], expected, rtol=1e-6)
    np.testing.assert_array_equal(labels[: len(expected)], folder.labels("eval"))


def test_a_model_believes_the_rows_that_count_and_is_judged_by_them(recipe, examples, tmp_path):
    from trainyard.contract.artifacts.evaluate import Evaluation
    from trainyard.steps.evaluate import run as evaluate
    from trainyard.steps.train import session
    from trainyard.storage import storage

    with storage.stage(str(tmp_path / "model"), "trainyard.train") as folder:
        session.train(recipe, examples, str(tmp_path / "checkpoints"), "test", folder).write(folder)
    with storage.stage(str(tmp_path / "evaluation"), "trainyard.evaluate") as folder:
        evaluate.run(recipe, examples, str(tmp_path / "model"), folder)
    judged = Evaluation.read(str(tmp_path / "evaluation"))
    assert judged.metrics["accuracy"] > 0.97
    assert judged.boosted.metrics["accuracy"] > 0.97
    answers = np.load(tmp_path / "evaluation" / "predictions.npz")
    assert np.mean(answers["labels"] == answers["outputs"].argmax(1)) < 0.8  # the others lie
    history = json.loads((tmp_path / "model" / "training.json").read_text())["history"]
    assert history[-1]["metric"] > 0.97


def test_an_exported_file_is_judged_by_the_rows_that_count_too(examples):
    """One that is wrong in these alone lost all that the model was good for."""
    from pathlib import Path

    from trainyard.data.examples import open_examples
    from trainyard.data.trained import Replicas
    from trainyard.steps.export.parity import Compared, ExportedModel, measure

    folder = open_examples(examples)

    def right(features, _):
        above = features["x"].numpy() > -folder.document.raw_features[0].learned.mean
        return np.stack([~above, above], axis=1).astype(np.float32)

    def reversed_(features, raw):
        return 1 - right(features, raw)

    candidates = [
        ExportedModel(name, Path(examples), predict, lambda features, raw: lambda: right(features, raw))
        for name, predict in (("same", right), ("reversed", reversed_))
    ]
    compared = Compared(candidates, right, right)
    same, turned = measure(Replicas(compared, lambda: compared), folder)
    assert same.export.accuracy > 0.97 and same.export.accuracy_difference == 0
    assert turned.export.accuracy == pytest.approx(1 - same.export.accuracy)
    assert turned.export.accuracy_difference < -0.94


def test_trees_believe_the_rows_that_count_and_are_exported_like_a_network(recipe, examples, tmp_path):
    from trainyard.contract.artifacts.evaluate import Evaluation
    from trainyard.contract.artifacts.export import Exports
    from trainyard.contract.artifacts.train import Training
    from trainyard.data import trained
    from trainyard.steps.evaluate import run as evaluate
    from trainyard.steps.export import run as export
    from trainyard.steps.train import run as train
    from trainyard.storage import storage

    settings = {
        "model": {"name": "boosted_trees", "trees": {"max_iter": 20}},
        "train": {"early_stopping": {"patience": 5}, "class_weights": "balanced"},
    }
    recipe = Recipe.model_validate(recipe.model_dump() | settings)
    models = []
    for name in ("first", "again"):
        with storage.stage(str(tmp_path / name), "trainyard.train") as folder:
            train.run(recipe, examples, str(tmp_path / "checkpoints"), folder)
        models.append(trained.load(str(tmp_path / name)))
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)
    record = Training.read(str(tmp_path / "first"))
    best = min(record.history, key=lambda epoch: epoch.eval_loss)
    assert record.best_epoch == best.epoch <= 20 and best.metric > 0.97
    with storage.stage(str(tmp_path / "evaluation"), "trainyard.evaluate") as folder:
        evaluate.run(recipe, examples, str(tmp_path / "first"), folder)
    judged = Evaluation.read(str(tmp_path / "evaluation"))
    assert judged.metrics["accuracy"] > 0.97 and judged.boosted is None
    importance = {effect.column: effect.loss_increase for effect in judged.importance}
    assert importance["x"] > 0.5 > 10 * abs(importance["zone"])
    with storage.stage(str(tmp_path / "exported"), "trainyard.export") as folder:
        export.run(recipe, examples, str(tmp_path / "first"), folder)
    exports = Exports.read(str(tmp_path / "exported"))
    assert exports.gate.verdict == "blessed", exports.gate.thresholds
    assert {*exports.left_out} == {"litert_float16", "litert_int8"}
    assert [file.format for file in exports.exports] == ["saved_model", "keras", "litert_float32"]
    named = {"export": {"formats": ["saved_model", "onnx"]}}
    with storage.stage(str(tmp_path / "named"), "trainyard.export") as folder:
        export.run(Recipe.model_validate(recipe.model_dump() | named), examples, str(tmp_path / "first"), folder)
    exports = Exports.read(str(tmp_path / "named"))
    assert exports.gate.verdict == "blessed", exports.gate.thresholds
    onnx = exports.exports[1]
    assert onnx.format == "onnx" and onnx.accuracy > 0.97 and onnx.max_abs_difference < 1e-6
    assert {path.path for path in exports.skew} >= {"saved_model", "onnx after preprocess.py"}
