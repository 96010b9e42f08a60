"""The step evaluate on real digits and tumours, with real Keras models and a real SavedModel as champion."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import evaluate_folders as made
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, recall_score
from tests.damage import flip

from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.preprocess import Examples, Feature
from trainyard.data.examples import open_examples
from trainyard.errors import ConfigurationError, DataError
from trainyard.runtime import step
from trainyard.spec.columns import input_name
from trainyard.spec.gates import ThresholdAim
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.baselines import _columns
from trainyard.steps.evaluate.run import run
from trainyard.storage import storage

NAMES = [f"digit {number}" for number in range(10)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    data = load_digits()
    examples = made.image_examples(str(root / "examples"), data.images[:900] * 15, data.target[:900], NAMES)
    return examples, made.trained(str(root / "trained"), examples, made.classifier(examples), 6), root


@pytest.fixture(scope="module")
def tumours(tmp_path_factory):
    root = tmp_path_factory.mktemp("tumours")
    data = load_breast_cancer()
    columns = {
        name.replace(" ", "_"): data.data[:, index].astype("f4") for index, name in enumerate(data.feature_names)
    }
    columns["clinic"] = np.array([b"north", b"south", b""], dtype=object)[np.arange(569) % 3]
    examples = made.table_examples(str(root / "examples"), columns, data.target, ["malignant", "benign"])
    return examples, made.trained(str(root / "trained"), examples, made.classifier(examples), 6), root


def recipe(data, task="classification", **evaluate):
    return Recipe.model_validate(
        {
            "name": "judged",
            "task": task,
            "data": data,
            "model": {"name": "mlp" if data["format"] == "csv" else "cnn_small"},
            "evaluate": {"bootstrap": 200, **evaluate},
        }
    )


IMAGES = {"format": "image_folder", "bundled": "digits", "channels": 1}


def table(*features):
    return {"format": "csv", "path": "t.csv", "label": "target", "features": {name: kind(name) for name in features}}


def kind(name):
    return {"type": "category" if name == "clinic" else "numeric"}


def evaluated(case, output, recipe, champion=""):
    examples, model, _root = case
    step.execute(run, str(output), recipe=recipe, examples=examples, model=model, champion=champion)
    evaluation = Evaluation.read(str(output))
    verdict = json.loads((output / "verdict.json").read_text())
    assert verdict == json.loads(evaluation.gate.model_dump_json())
    return evaluation, np.load(output / "predictions.npz")


def test_images_are_judged_on_the_test_split_with_everything_a_report_needs(digits, tmp_path):
    gates = [{"metric": "accuracy", "min": 0.5}, {"metric": "accuracy", "min_difference": -0.01}]
    gates += [{"metric": "accuracy", "min_difference": 0.3, "against": "baseline", "confidence": 0.95}]
    evaluation, predictions = evaluated(
        digits, tmp_path / "out", recipe(IMAGES, slices=["label"], gates=gates, worst=5)
    )
    assert evaluation.split == "test" and evaluation.examples == 180
    # The written probabilities give the written metrics.
    labels, outputs = predictions["labels"], predictions["outputs"]
    assert outputs.shape == (180, 10) and outputs.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert evaluation.metrics["accuracy"] == accuracy_score(labels, outputs.argmax(axis=1)) > 0.6
    assert evaluation.metrics["log_loss"] == pytest.approx(log_loss(labels, outputs), rel=1e-4)
    assert evaluation.metrics["top5_accuracy"] >= evaluation.metrics["accuracy"]
    assert predictions["keys"][0] == b"0004.png"
    assert set(evaluation.metrics) - set(evaluation.intervals) <= {"roc_auc", "macro_f1"}
    assert sum(map(sum, evaluation.confusion)) == 180 and len(evaluation.roc) == 10
    assert [slice_.name for slice_ in evaluation.slices] == [f"label={name}" for name in NAMES]
    assert sum(slice_.examples for slice_ in evaluation.slices) == 180
    assert evaluation.gate.verdict == "blessed"
    assert evaluation.gate.thresholds[1].note.startswith("There is no champion")
    # The class that is the most frequent in training, answered always.
    counts = Examples.read(digits[0]).splits["train"].class_counts
    majority = int(np.argmax(counts))
    assert evaluation.baseline.answer == f"'{NAMES[majority]}'"
    assert evaluation.baseline.metrics == {"accuracy": float((labels == majority).mean())}
    better = evaluation.gate.thresholds[2]
    assert better.value == evaluation.metrics["accuracy"] - evaluation.baseline.metrics["accuracy"]
    assert 0.3 < better.interval.low < better.value < better.interval.high
    assert (
        evaluation.remark.startswith(f"'{NAMES[majority]}' as the answer to everything has accuracy 0.")
        and ":" not in evaluation.remark
    )


def test_the_worst_examples_are_images_of_what_the_model_saw(digits, tmp_path):
    evaluation, predictions = evaluated(digits, tmp_path / "out", recipe(IMAGES, worst=5))
    right = predictions["outputs"][np.arange(180), predictions["labels"]]
    order = np.argsort(right)[:5]
    assert [example.key.encode() for example in evaluation.worst] == predictions["keys"][order].tolist()
    assert [example.label for example in evaluation.worst] == [NAMES[label] for label in predictions["labels"][order]]
    for rank, mistake in enumerate(evaluation.worst):
        assert mistake.image == f"worst/{rank:02d}.png"
        image = np.asarray(Image.open(tmp_path / "out" / mistake.image))
        assert image.shape == (112, 112)
        original = load_digits().images[int(mistake.key[:4])] * 15
        assert (image[::14, ::14] == original.astype(np.uint8)).all()


@pytest.mark.usefixtures("warm_processes")
def test_two_evaluations_of_the_same_model_are_the_same_bytes_on_any_number_of_devices(digits, tmp_path):
    examples, model, root = digits
    aim = ThresholdAim.model_validate({"maximize": "f1", "class": NAMES[3]})
    judged = recipe(IMAGES, slices=["label"]).model_copy(update={"threshold": aim})
    best = champion(root, "other champion", NAMES, range(10))
    evaluated(digits, tmp_path / "one", judged, best)
    (tmp_path / "recipe.yaml").write_text(judged.model_dump_json())
    program = [sys.executable, str(Path(__file__).with_name("on_logical_cpus.py")), "3", "evaluate"]
    paths = {"recipe": tmp_path / "recipe.yaml", "examples": examples, "model": model, "champion": best}
    options = [text for name, path in paths.items() for text in (f"--{name}", str(path))]
    subprocess.run([*program, *options, "--output", str(tmp_path / "two")], check=True)
    assert (tmp_path / "one/evaluation.json").read_bytes() == (tmp_path / "two/evaluation.json").read_bytes()
    assert (tmp_path / "one/predictions.npz").read_bytes() == (tmp_path / "two/predictions.npz").read_bytes()


def test_a_table_is_sliced_by_a_category_and_by_the_quartiles_of_a_number(tumours, tmp_path):
    wanted = recipe(
        table("mean_radius", "clinic"),
        slices=["mean_radius", "clinic"],
        gates=[
            {"metric": "accuracy", "min": 0.2, "slice": "clinic=north"},
            {"metric": "roc_auc", "min": 0.5},
            {"metric": "recall", "class": "malignant", "min": 0.1, "confidence": 0.9},
            {"metric": "pr_auc", "class": "malignant", "min": 0.3},
            {"metric": "f1", "class": "benign", "min": 0.1, "slice": "clinic=north"},
            {"metric": "recall", "class": "malignant", "largest_gap_between": "clinic", "max": 0.9},
        ],
    ).model_copy(update={"threshold": ThresholdAim.model_validate({"precision": 0.9, "class": "malignant"})})
    evaluation, predictions = evaluated(tumours, tmp_path / "out", wanted)
    names = [slice_.name for slice_ in evaluation.slices]
    assert re.fullmatch(r"mean_radius=\(-inf, 11\.\d+\)", names[0])
    assert names[-3:] == ["clinic=missing", "clinic=north", "clinic=south"]
    assert sum(slice_.examples for slice_ in evaluation.slices[:4]) == evaluation.examples == 113
    assert evaluation.gate.thresholds[0].name == "accuracy [clinic=north] >= 0.2"
    assert evaluation.gate.verdict == "blessed"
    recall, area, f1, gap = evaluation.gate.thresholds[2:]
    assert recall.name == "recall of malignant >= 0.1 by its 90 % interval"
    [malignant] = [each for each in evaluation.classes if each.label == "malignant"]
    assert recall.value == pytest.approx(malignant.recall) and recall.interval.low < recall.value
    for name in ("precision", "recall", "f1"):
        assert malignant.intervals[name].low <= getattr(malignant, name) <= malignant.intervals[name].high
    assert malignant.intervals["recall"].low <= recall.interval.low, "95 % is wider than 90 %"
    assert area.name == "pr_auc of malignant >= 0.3" and area.interval.low < area.value <= area.interval.high
    assert f1.name == "f1 of benign [clinic=north] >= 0.1" and 0 < f1.value <= 1
    assert [curve.label for curve in evaluation.roc] == ["benign"]
    # What the file of predictions gives by scikit-learn with the threshold, which was chosen on the eval split.
    (threshold,) = evaluation.thresholds
    is_malignant, found = predictions["labels"] == 0, predictions["outputs"][:, 0] > threshold.value
    assert threshold.label == "malignant" and threshold.precision >= 0.9
    assert recall.value == pytest.approx(recall_score(is_malignant, found))
    assert evaluation.metrics["accuracy"] == pytest.approx(np.mean(is_malignant == found))
    assert np.array(evaluation.confusion).T[0].sum() == found.sum()
    clinics = np.array([int(key.split()[1]) % 3 for key in predictions["keys"]])
    recalls = [recall_score(is_malignant[clinics == at], found[clinics == at]) for at in range(3)]
    assert gap.name == "largest gap of recall of malignant between clinic <= 0.9"
    assert gap.value == pytest.approx(max(recalls) - min(recalls)) and gap.interval.low <= gap.value
    assert evaluation.remark.startswith("'malignant' is predicted if its probability is above 0.")
    assert evaluation.worst[0].image is None and not (tmp_path / "out/worst").exists()
    assert evaluation.boosted.examples == 342 and evaluation.boosted.metrics["roc_auc"] > 0.97  # measured: 0.99
    names = [effect.column for effect in evaluation.importance]
    assert len(names) == len(set(names)) == 30, "of the numbers, which the model takes"
    assert [effect.loss_increase for effect in evaluation.importance] == sorted(
        (effect.loss_increase for effect in evaluation.importance), reverse=True
    )
    assert "Gradient-boosted trees on the same split have roc_auc" in evaluation.remark


def test_a_gate_of_a_class_that_the_data_do_not_have_names_the_nearest(tumours, tmp_path):
    wanted = recipe(table("mean_radius"), gates=[{"metric": "recall", "class": "malignent", "min": 0.1}])
    with pytest.raises(ConfigurationError, match=r"gates\.0\.class: no class 'malignent'\. Did you mean 'malignant'\?"):
        evaluated(tumours, tmp_path / "out", wanted)


def test_a_column_that_decides_alone_counts_most_and_trees_find_what_a_line_cannot(tmp_path):
    draw = np.random.default_rng(0)
    columns = {name: draw.normal(size=1500).astype("f4") for name in ("noise", "deciding", "idle")}
    labels = (np.abs(columns["deciding"]) > 0.7).astype(int)
    examples = made.table_examples(str(tmp_path / "examples"), columns, labels, ["near", "far"])
    model = made.trained(str(tmp_path / "trained"), examples, made.classifier(examples), 2)
    wanted = recipe(table(*columns), gates=[{"metric": "accuracy", "min_difference": 0.0, "against": "boosted"}])
    evaluation, _ = evaluated((examples, model, tmp_path), tmp_path / "out", wanted)
    assert evaluation.importance[0].column == "deciding"
    assert evaluation.boosted.metrics["accuracy"] > 0.97
    assert evaluation.gate.verdict == "refused" and "they are significantly better, by 0." in evaluation.remark
    assert evaluation.remark.endswith("Try --set model.name=boosted_trees.")
    without, _ = evaluated(
        (examples, model, tmp_path), tmp_path / "plain", recipe(table(*columns), boosted=False, gates=[])
    )
    assert without.boosted is None and without.importance == evaluation.importance


def champion(root, name, labels, order):
    """Write a champion that always answers the first of its classes, which are `labels` in `order`."""
    weights = tf.constant([0.6] + [0.4 / (len(order) - 1)] * (len(order) - 1))

    def answer(image):
        return {"probabilities": tf.tile(weights[None], [tf.shape(image)[0], 1])}

    return made.saved_model(root / name, answer, {"image": tf.string}, [labels[index] for index in order])


def test_a_champion_is_compared_on_the_same_examples_whatever_the_order_of_its_labels(digits, tmp_path):
    shares = np.bincount(open_examples(digits[0]).labels("test"), minlength=10)
    best = champion(tmp_path, "champion", NAMES, [7, 3, 1, 0, 2, 4, 5, 6, 8, 9])
    gates = [{"metric": "accuracy", "min_difference": 0.1}, {"metric": "accuracy", "max_difference": 0.1}]
    gates += [{"metric": "recall", "class": NAMES[7], "min_difference": -0.5, "confidence": 0.8}]
    evaluation, _predictions = evaluated(digits, tmp_path / "out", recipe(IMAGES, gates=gates), best)
    better, worse, class_recall = evaluation.gate.thresholds
    assert class_recall.champion == 1 and class_recall.value == pytest.approx(evaluation.classes[7].recall - 1)
    assert class_recall.name == f"recall of {NAMES[7]} - champion >= -0.5 by its 80 % interval"
    assert better.champion == pytest.approx(shares[7] / 180) == evaluation.champion_metrics["accuracy"]
    assert better.value == pytest.approx(evaluation.metrics["accuracy"] - better.champion)
    assert better.interval.low < better.value < better.interval.high
    assert (better.passed, worse.passed, evaluation.gate.verdict) == (True, False, "refused")
    assert evaluation.champion == best


def test_a_class_that_only_the_champion_has_counts_as_wrong_and_one_it_lacks_as_never_found(digits, tmp_path):
    best = champion(tmp_path, "champion", [*NAMES[:8], "letter"], [8, *range(8)])
    evaluation, _predictions = evaluated(digits, tmp_path / "out", recipe(IMAGES), best)
    assert evaluation.champion_metrics["accuracy"] == 0


@pytest.mark.parametrize(
    ("inputs", "outputs", "labels", "fault"),
    [
        ({"pixels": tf.string}, "probabilities", NAMES, "'pixels' is no raw feature"),
        ({"image": tf.float32}, "probabilities", NAMES, "'image' is float32, the raw feature is string"),
        ({"image": tf.string}, "scores", NAMES, "no output 'probabilities' but 'scores'"),
        ({"image": tf.string}, "probabilities", NAMES[:3], "3 labels for 10 outputs"),
    ],
)
def test_a_champion_that_cannot_answer_refuses_and_the_evaluation_is_still_written(
    digits, tmp_path, inputs, outputs, labels, fault
):
    def answer(**raw):
        (values,) = raw.values()
        return {outputs: tf.ones((tf.shape(values)[0], 10)) / 10}

    best = made.saved_model(tmp_path / "champion", answer, inputs, labels)
    gates = [{"metric": "accuracy", "min": 0.1}, {"metric": "accuracy", "min_difference": -1}]
    evaluation, _predictions = evaluated(digits, tmp_path / "out", recipe(IMAGES, gates=gates), best)
    absolute, relative = evaluation.gate.thresholds
    assert absolute.passed and not relative.passed
    assert fault in relative.note


def test_a_champion_that_is_no_saved_model_refuses(digits, tmp_path):
    gates = [{"metric": "accuracy", "min_difference": -1}]
    with storage.stage(str(tmp_path / "empty"), "trainyard.push"):
        pass
    evaluation, _predictions = evaluated(digits, tmp_path / "out", recipe(IMAGES, gates=gates), str(tmp_path / "empty"))
    assert "is not a SavedModel" in evaluation.gate.thresholds[0].note


def test_a_regression_is_judged_by_errors_against_its_champion(tmp_path):
    data = load_diabetes()
    columns = {name: data.data[:, index].astype("f4") for index, name in enumerate(data.feature_names)}
    examples = made.table_examples(str(tmp_path / "examples"), columns, data.target.astype("f4"), None)
    model = made.trained(str(tmp_path / "trained"), examples, made.classifier(examples), 8)
    best = made.saved_model(
        tmp_path / "champion", lambda bmi: {"prediction": 152 + 900 * bmi}, {"bmi": tf.float32}, None
    )
    wanted = recipe(
        table("bmi", "age"),
        task="regression",
        slices=["bmi"],
        gates=[{"metric": "mae", "max": 500}]
        + [{"metric": "mae", "max_difference": 500, "against": rival} for rival in ("champion", "baseline")],
    )
    evaluation, predictions = evaluated((examples, model, tmp_path), tmp_path / "out", wanted, best)
    beside_mean = evaluation.metrics["mae"] - evaluation.baseline.metrics["mae"]
    assert evaluation.gate.thresholds[2].value == pytest.approx(beside_mean)
    assert evaluation.metrics["mae"] == pytest.approx(
        mean_absolute_error(predictions["labels"], predictions["outputs"])
    )
    assert set(evaluation.metrics) == {"mae", "rmse", "r2", "mean_ratio"} == set(evaluation.champion_metrics)
    assert evaluation.champion_metrics["mae"] < 60  # measured: 50.6
    assert evaluation.gate.verdict == "blessed"
    assert len(evaluation.scatter) == evaluation.examples == 88
    assert not evaluation.confusion and not evaluation.roc
    apart = predictions["labels"] - predictions["labels"].mean()
    assert evaluation.remark.startswith(
        f"The mean {predictions['labels'].mean():.6g} as the answer to everything has mae"
    )
    assert evaluation.baseline.metrics["mae"] == pytest.approx(np.abs(apart).mean(), rel=1e-5)
    assert evaluation.baseline.metrics["rmse"] == pytest.approx(predictions["labels"].std(), rel=1e-5)


def test_a_champion_answers_to_columns_whose_names_are_not_english(tmp_path):
    """Its inputs have the names that export gives them."""
    data = load_diabetes()
    columns = {"âge": data.data[:, 0].astype("f4"), "Größe": data.data[:, 2].astype("f4")}
    examples = made.table_examples(str(tmp_path / "examples"), columns, data.target.astype("f4"), None)
    model = made.trained(str(tmp_path / "trained"), examples, made.classifier(examples), 2)
    inputs = {input_name(name): tf.float32 for name in columns}
    assert inputs.keys() == {"age", "Gro_e_aedc"}
    best = made.saved_model(
        tmp_path / "champion", lambda **raw: {"prediction": 152 + 900 * raw["Gro_e_aedc"]}, inputs, None
    )
    gates = [{"metric": "mae", "max_difference": 500}]
    evaluation, _predictions = evaluated(
        (examples, model, tmp_path), tmp_path / "out", recipe(table(*columns), task="regression", gates=gates), best
    )
    assert evaluation.champion_metrics["mae"] < 60  # measured: 50.6
    assert evaluation.gate.verdict == "blessed", evaluation.gate.thresholds[0].note


def test_own_metrics_of_the_recipes_module_stand_beside_ours_and_are_gates(digits, tmp_path):
    source = "def metrics(labels, outputs):\n    return {'zeros_found': float((outputs.argmax(1) == 0).mean())}\n"
    own = {"module": "own.py", "files": {"own.py": source}}
    plain = recipe(IMAGES, slices=["label"]).model_dump(mode="json") | own

    def gated(*gates):
        return Recipe.model_validate(plain | {"evaluate": plain["evaluate"] | {"gates": list(gates)}})

    gates = [
        {"metric": "zeros_found", "max": 0.5, "confidence": 0.9},
        {"metric": "zeros_found", "min_difference": -1.0},
        {"metric": "zeros_found", "min": 0.5, "slice": f"label={NAMES[0]}"},
    ]
    best = champion(tmp_path, "champion", NAMES, [0, *range(1, 10)])
    evaluation, predictions = evaluated(digits, tmp_path / "out", gated(*gates), best)
    assert evaluation.metrics["zeros_found"] == (predictions["outputs"].argmax(axis=1) == 0).mean()
    assert evaluation.intervals["zeros_found"].low <= evaluation.metrics["zeros_found"]
    whole, beside, sliced = evaluation.gate.thresholds
    assert whole.passed and whole.value == evaluation.metrics["zeros_found"] <= whole.interval.high
    assert beside.champion == 1 and beside.value == pytest.approx(whole.value - 1) and beside.interval
    assert sliced.value == pytest.approx(evaluation.classes[0].recall)
    with pytest.raises(ConfigurationError, match=r"'zeros_fond'\. Did you mean 'zeros_found'\? Known: accuracy, "):
        evaluated(digits, tmp_path / "typo", gated({"metric": "zeros_fond", "max": 0.5}))


def test_a_model_that_answers_nan_is_not_judged(digits, tmp_path):
    examples, _model, _root = digits
    broken = made.classifier(examples)
    broken.layers[-1].set_weights([weights * np.nan for weights in broken.layers[-1].get_weights()])
    model = made.trained(str(tmp_path / "trained"), examples, broken, 1)
    with pytest.raises(DataError, match="180 of the model's 180 answers are NaN"):
        evaluated((examples, model, tmp_path), tmp_path / "out", recipe(IMAGES))
    assert not Path(tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damaged", "step"),
    [
        ("examples.json", "preprocess"),
        ("examples/test-00000-of-00001.tfrecord", "preprocess"),
        ("model.keras", "train"),
    ],
)
def test_damage_of_equal_size_is_named_with_its_file_and_its_step(digits, tmp_path, damaged, step):
    examples, model = (
        str(shutil.copytree(folder, tmp_path / name)) for folder, name in zip(digits, ("ex", "mo"), strict=False)
    )
    flip(Path(model if step == "train" else examples) / damaged)
    with pytest.raises(DataError, match=rf"{re.escape(damaged)}: its content differs .* --from {step} to write it"):
        evaluated((examples, model, tmp_path), tmp_path / "out", recipe(IMAGES))
    assert not Path(tmp_path / "out").exists()


def test_a_champion_whose_bytes_changed_is_not_compared_with(digits, tmp_path):
    champion = made.saved_model(tmp_path / "champion", lambda image: {}, {"image": tf.string}, NAMES)
    flip(tmp_path / "champion" / "labels.txt")
    gates = [{"metric": "accuracy", "min_difference": -1}]
    evaluation, _ = evaluated(digits, tmp_path / "out", recipe(IMAGES, gates=gates), champion)
    (threshold,) = evaluation.gate.thresholds
    assert not threshold.passed and "champion/labels.txt: its content differs" in threshold.note


def test_trees_see_how_often_each_frequent_word_is_in_a_text():
    text = Feature(name="note", dtype="int64", shape=(4,), vocabulary_size=1000, filler=0)
    counts = _columns(np.array([[3, 1, 3, 0], [999, 0, 0, 0]]), text)
    assert counts.shape == (2, 200) and counts[0, [0, 1, 3]].tolist() == [0, 1, 2] and not counts[1].any()
    pair = Feature(name="pair", dtype="float32", shape=(2,))
    assert _columns(np.array([[0.5, 2.0]]), pair).tolist() == [[0.5, 2.0]]
    assert _columns(np.array([7, 8]), Feature(name="id", dtype="int64", shape=(), vocabulary_size=9)).shape == (2, 1)
