"""Examples of several classes, and several targets, from the table to the served model, by both engines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arm64
import device_folder
import export_folders
import gang_processes
import numpy as np
import pytest
import tensorflow as tf
from preprocess_sources import preprocess
from pyarrow import csv

from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.train import Training
from trainyard.contract.version import EXTRA, PREPROCESSING, PRODUCER
from trainyard.data.examples import open_examples
from trainyard.errors import DataError
from trainyard.spec.recipe import DEFAULT_FORMATS, Recipe
from trainyard.spec.train import Target
from trainyard.steps.train.engines.objective import (
    MultiLabel,
    Regression,
    TargetScale,
    learned_targets,
    require_above,
)
from trainyard.storage import storage

ROWS = 700
GATES: dict[str, list[dict[str, Any]]] = {
    "multi_label": [
        {"metric": "f1", "min": 0.7},
        {"metric": "roc_auc", "min_difference": -0.05, "against": "boosted"},
        {"metric": "f1", "min_difference": -0.01},
    ],
    "regression": [
        {"metric": "mae", "max": 2, "target": "heating"},
        {"metric": "r2", "min": 0.8},
        {"metric": "mae", "max_difference": 0.1, "target": "cooling"},
    ],
}


@pytest.fixture(scope="module", params=["multi_label", "regression"])
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    draw, path = np.random.default_rng(3), tmp_path_factory.mktemp("data") / "a.csv"
    a, b = draw.normal(size=(2, ROWS))
    if request.param == "multi_label":
        classes = np.stack([a > 0.3, b > 0.5, a + b > 1], axis=1)
        classes ^= draw.random(classes.shape) < 0.05  # so that the threshold matters
        cells = [";".join(np.array(["rock", "pop", "jazz"])[row]) for row in classes]
        cells[0] = f"{cells[0]};polka"
        label = {"label": "genres", "label_separator": ";", "label_min_count": 2}
        header = "a,b,genres"
    else:
        cells = [f"{20 * np.exp(x / 4):.3f},{3000 * np.exp(0.3 * y):.1f}" for x, y in zip(a, b, strict=True)]
        label, header = {"targets": ["heating", "cooling"]}, "a,b,heating,cooling"
    path.write_text("\n".join([header, *(f"{x:.4f},{y:.4f},{cell}" for x, y, cell in zip(a, b, cells, strict=True))]))
    features = {"a": {"type": "numeric"}, "b": {"type": "numeric"}}
    return Recipe.model_validate(
        {
            "name": "several",
            "task": request.param,
            "data": {"format": "csv", "path": str(path), "features": features, **label},
            "model": {"name": "mlp", "hidden": [16], "dropout": 0},
            "train": {
                "epochs": 12,
                "batch_size": 32,
                "optimizer": {"learning_rate": 0.02},
                "checkpoints": {"keep": 99},
                **(
                    {"target": {"scale": "log", "clip": [0.01, 0.99], "mean": True}}
                    if request.param == "regression"
                    else {}
                ),
            },
            "evaluate": {"bootstrap": 50, "gates": GATES[request.param]},
            "export": {
                "max_accuracy_drop": 0.5,  # of an error near 0
                "formats": [*DEFAULT_FORMATS, "onnx"],
            },
            **({"threshold": {"recall": 0.8}} if request.param == "multi_label" else {}),
        }
    )


@pytest.fixture(scope="module")
def examples(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> str:
    return preprocess(recipe, tmp_path_factory.mktemp("made") / "examples")


@pytest.fixture(scope="module")
def model(recipe: Recipe, examples: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("train")
    (folder / "recipe.yaml").write_text(recipe.model_dump_json(by_alias=True))
    gang_processes.resume_here(folder, examples)
    return str(folder / "output")


@pytest.fixture(scope="module")
def exported(recipe: Recipe, examples: str, model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trainyard.steps.evaluate.trained_model import thresholds_of
    from trainyard.steps.export.run import run

    output = tmp_path_factory.mktemp("exports") / "exports"
    chosen = {each.label: each.value for each in thresholds_of(recipe, model, open_examples(examples))}
    with storage.stage(str(output), "trainyard.export") as folder:
        run(recipe, examples, model, folder, json.dumps(chosen) if chosen else "")
    return output


@pytest.fixture(scope="module")
def version(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A version as push makes it, as far as it is read here."""
    pushed = tmp_path_factory.mktemp("models") / "1"
    with storage.stage(str(pushed), PRODUCER) as folder:
        shutil.copytree(exported / "saved_model", folder, dirs_exist_ok=True)
        (folder / EXTRA).mkdir(exist_ok=True)
        for name in (PREPROCESSING, "statistics.json"):
            shutil.copy(exported / name, folder / EXTRA)
    return str(pushed)


def test_a_class_below_the_minimum_count_is_dropped_and_named(recipe: Recipe, examples: str) -> None:
    document = open_examples(examples).document
    if recipe.task == "multi_label":
        assert (
            document.labels == ["jazz", "pop", "rock"]
            and sum(each.examples for each in document.splits.values()) == ROWS
        )
        assert "classes rarer than data.label_min_count are dropped (1 with 1 examples): polka." in document.warnings


def test_shards_hold_a_vector_of_labels(recipe: Recipe, examples: str) -> None:
    folder = open_examples(examples)
    labels = folder.labels("train")
    if recipe.task == "regression":
        assert labels.dtype == np.float32 and folder.document.targets == ["heating", "cooling"]
        np.testing.assert_allclose(labels.mean(axis=0), [20, 3000], rtol=0.1)
        unknown = folder.at(folder.uri)
        unknown.document = folder.document.model_copy(update={"target_moments": [], "target_log_moments": {}})
        for target in (Target(), Target(scale="log"), Target(scale="log1p")):
            scale, moments = learned_targets(target, folder.at("/nowhere"))  # preprocess knows them
            read_scale, read = learned_targets(target, unknown)
            assert scale == read_scale
            np.testing.assert_allclose(moments, read, rtol=1e-7)
        np.testing.assert_allclose(folder.document.eval_target_moments[1][1], folder.labels("eval")[:, 1].std())
    else:
        assert labels.dtype == np.bool_ and folder.document.labels == ["jazz", "pop", "rock"]
        assert labels.sum(axis=0).tolist() == folder.document.splits["train"].class_counts
        assert 0 < (~labels.any(axis=1)).mean() < 0.6  # songs of no genre
    [(_, batch)] = folder.parsed_batches("train", 1000).take(1)
    np.testing.assert_array_equal(batch.numpy(), labels[:1000])


def test_the_model_is_judged_against_trees_a_constant_and_the_champion(
    recipe: Recipe, examples: str, model: str, version: str, tmp_path: Path
) -> None:
    from trainyard.steps.evaluate.run import run

    with storage.stage(str(tmp_path / "evaluation"), "trainyard.evaluate") as folder:
        run(recipe, examples, model, folder, version)
    judged = Evaluation.read(str(tmp_path / "evaluation"))
    assert [threshold.passed for threshold in judged.gate.thresholds] == [True] * 3, judged.gate
    assert judged.champion_metrics == pytest.approx(judged.metrics, abs=1e-5), "the same model"
    assert judged.gate.thresholds[2].champion is not None
    assert judged.boosted is not None and judged.baseline is not None and len(judged.importance) == 2
    if recipe.task == "regression":
        assert [target.name for target in judged.targets] == ["heating", "cooling"]
        assert judged.targets[0].metrics["mae"] < 2 < judged.targets[0].baseline < 6
        assert len(judged.targets[1].scatter) == judged.examples and not judged.scatter
    else:
        assert [class_metrics.label for class_metrics in judged.classes] == ["jazz", "pop", "rock"]
        assert min(class_metrics.f1 for class_metrics in judged.classes) > 0.7 and len(judged.roc) == 3
        assert not judged.confusion and {"none", "jazz, pop, rock"} & {mistake.label for mistake in judged.worst}
        assert judged.metrics["f1"] > judged.baseline.metrics["f1"]
        assert [each.label for each in judged.thresholds] == ["jazz", "pop", "rock"]
        assert min(each.recall for each in judged.thresholds) >= 0.8


def test_every_file_answers_as_the_model_and_raw_rows_are_served(
    recipe: Recipe, examples: str, exported: Path, version: str
) -> None:
    document = Exports.read(str(exported))
    assert document.gate.verdict == "blessed", document.gate
    served = tf.saved_model.load(str(exported / "saved_model")).signatures["serving_default"](
        a=tf.constant([2.0, -2.0]), b=tf.constant([2.0, -2.0])
    )
    if recipe.task == "regression":
        assert (exported / "saved_model" / "targets.txt").read_text() == "heating\ncooling\n"
        np.testing.assert_allclose(served["prediction"].numpy(), [[33, 5466], [12.1, 1646]], rtol=0.15)
    else:
        assert served["label"].numpy().tolist() == [b"jazz;pop;rock", b""]
        assert served["probabilities"].shape == (2, 3)
        assert json.loads((exported / "preprocessing.json").read_text())["label_separator"] == ";"
        the_same_classes_everywhere(examples, exported, version, document.thresholds)


def test_each_example_runs_as_it_is_written_and_gives_the_answer_of_the_trained_model(
    exported: Path, examples: str, model: str
) -> None:
    export_folders.check_scripts(exported, examples, model)


def the_same_classes_everywhere(examples: str, exported: Path, version: str, thresholds: dict[str, float]) -> None:
    from trainyard.serving.versions import LoadedModel

    [(raw, _labels)] = open_examples(examples).raw_batches("eval", 1000)
    columns = {name: tensor.numpy() for name, tensor in raw.items()}
    signatures = tf.saved_model.load(str(exported / "saved_model")).signatures
    answer = {name: tensor.numpy() for name, tensor in signatures["serving_default"](**raw).items()}
    bounds = np.float32([thresholds[name] for name in ("jazz", "pop", "rock")])
    chosen = answer["probabilities"] > bounds
    assert (chosen != (answer["probabilities"] > 0.5)).any(), "the thresholds make a difference"
    texts = [";".join(np.array(["jazz", "pop", "rock"])[row]) for row in chosen]
    assert [text.decode() for text in answer["label"]] == texts
    [(_, served), *_] = [(each.name, each.values) for each in LoadedModel(version).outputs(answer["probabilities"])][1:]
    assert served == texts
    device = device_folder.preprocessing(exported)
    rows = [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]
    outputs = device_folder.answers(exported, rows)
    answers = [device.answer({"probabilities": each[None]}, "model_float32.tflite")["label"] for each in outputs]
    far = np.abs(answer["probabilities"] - bounds).min(axis=1) > 1e-5
    assert [text for text, is_far in zip(answers, far, strict=True) if is_far] == [
        text for text, is_far in zip(texts, far, strict=True) if is_far
    ]


@arm64.needs_arm64
def test_every_litert_file_answers_on_arm64_as_the_trained_model(exported: Path, examples: str, model: str) -> None:
    arm64.check(exported, examples, model)


def test_a_difference_counts_beside_outputs_a_million_times_as_large(recipe: Recipe, examples: str) -> None:
    from trainyard.data.trained import Replicas
    from trainyard.steps.export.parity import Compared, ExportedModel, Predictor, measure

    folder = open_examples(examples)
    outputs = folder.labels("eval").shape[1]

    def predictor(last: float) -> Predictor:
        row = np.array([1e6 if recipe.task == "regression" else 1.0, *[0.25] * (outputs - 2), last], np.float32)
        return lambda features, _: np.tile(row, (len(features["a"]), 1))

    candidate = ExportedModel("keras", Path(examples), predictor(0.251), lambda *_: lambda: None)
    compared = Compared([candidate], predictor(0.25), predictor(0.25))
    (figures,) = measure(Replicas(compared, lambda: compared), folder)
    assert figures.skew == pytest.approx(1e-3, rel=1e-3)


def test_predictions_have_a_column_for_each_label(recipe: Recipe, version: str, tmp_path: Path) -> None:
    from trainyard.steps.predict.prediction import predict
    from trainyard.steps.predict.pushed_model import open_model

    (tmp_path / "rows.csv").write_text("a,b\n2,2\n-2,-2\n")
    out = tmp_path / "out.csv"
    predict(open_model(version), str(tmp_path / "rows.csv"), out, None, lambda *_: None)
    table = csv.read_csv(out)
    if recipe.task == "regression":
        assert table.column_names == ["key", "prediction_heating", "prediction_cooling"]
    else:
        assert table.column_names == ["key", "prediction", "score_jazz", "score_pop", "score_rock"]
        assert table["prediction"].to_pylist() == ["jazz;pop;rock", ""]


def test_a_training_that_tensorflow_began_ends_under_jax_as_under_tensorflow(
    examples: str, model: str, tmp_path: Path, train_with_jax: Callable[[Path, str], None]
) -> None:
    begun = Path(model).parent
    shutil.copytree(begun / "checkpoints" / "ckpt-0", tmp_path / "checkpoints" / "ckpt-0")
    shutil.copy(begun / "recipe.yaml", tmp_path)
    train_with_jax(tmp_path, examples)
    ended = Training.read(str(tmp_path / "output"))
    assert (ended.machine.engine, ended.start.resumed_from) == ("jax", 0)
    histories = [Training.read(model).history, ended.history]
    losses = [[(epoch.train_loss, epoch.eval_loss, epoch.metric) for epoch in history] for history in histories]
    np.testing.assert_allclose(*losses, rtol=1e-3, atol=1e-5)


def test_the_objectives_of_several_labels_by_hand() -> None:
    logits = np.float32([[2.0, -1.0], [-3.0, -0.5]])
    labels = np.array([[True, True], [False, False]])
    probabilities = 1 / (1 + np.exp(-logits))
    entropy = -np.where(labels, np.log(probabilities), np.log(1 - probabilities))
    np.testing.assert_allclose(MultiLabel(0.1).eval_loss(logits, labels), entropy.mean(axis=1), rtol=1e-5)
    soft = 0.9 * labels + 0.05
    smoothed = -(soft * np.log(probabilities) + (1 - soft) * np.log(1 - probabilities))
    np.testing.assert_allclose(MultiLabel(0.1).train_loss(logits, labels), smoothed.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(MultiLabel(0.1).metric(logits, labels), [2 / 3, 1.0], rtol=1e-6)
    assert np.allclose(MultiLabel(0.1).distance(logits, logits, 2.0), 0, atol=1e-6)
    assert np.all(np.asarray(MultiLabel(0.1).distance(logits, -logits, 2.0)) > 0.1)
    several = Regression(np.float32([1, 10]))
    outputs, targets = np.float32([[1.0, 20.0], [2.0, 0.0]]), np.float32([[2.0, 40.0], [2.0, 10.0]])
    np.testing.assert_allclose(several.train_loss(outputs, targets), [(1 + 4) / 2, (0 + 1) / 2])
    np.testing.assert_allclose(several.metric(outputs, targets), [10.5, 5.0])


def test_targets_on_a_logarithmic_scale_by_hand() -> None:
    limited = TargetScale("log", np.float32([1.0, 1.0]), np.float32([np.e, np.e**3]))
    objective = Regression(np.float32([0.5, 2.0]), limited)
    outputs, targets = np.float32([[1.0, 2.0]]), np.float32([[np.e**2, np.e**2]])
    np.testing.assert_allclose(objective.train_loss(outputs, targets), [0.0], atol=1e-6)  # the first one counts as e
    np.testing.assert_allclose(objective.eval_loss(outputs, targets), [((1 - 2) / 0.5) ** 2 / 2], rtol=1e-6)
    np.testing.assert_allclose(objective.distance(outputs, targets, 1.0), [0.0], atol=1e-6)
    np.testing.assert_allclose(objective.metric(outputs, targets), [(np.e**2 - np.e) / 2], rtol=1e-6)
    counts = Regression(1.0, TargetScale("log1p"))
    np.testing.assert_allclose(counts.train_loss(np.float32([[np.log(4)]]), np.float32([3.0])), [0.0], atol=1e-6)
    np.testing.assert_allclose(counts.metric(np.float32([[np.log(4)]]), np.float32([5.0])), [2.0], rtol=1e-6)


@pytest.mark.parametrize(("scale", "good", "fits"), [("log", 1e-6, "above 0"), ("log1p", 0.0, "of at least 0")])
def test_a_target_without_a_logarithm_names_its_row_and_how_many_there_are(scale: str, good: float, fits: str) -> None:
    labels = np.float32([[3.0, good], [3.0, -2.5], [-1.0, -1.0]])
    require_above(scale, "eval", labels[:1], ["a", "b"], list)
    with pytest.raises(DataError) as refused:
        require_above(scale, "eval", labels, ["a", "b"], lambda: ["a.csv:2", "a.csv:3", "a.csv:4"])
    assert str(refused.value) == (
        f"train.target.scale: {scale} needs targets {fits}, and 2 of 3 rows of the eval split have another one, such "
        "as a.csv:3 ('b' is -2.5). Leave them out by data.where, or set scale: "
        f"{'log1p or none' if scale == 'log' else 'none'}."
    )
