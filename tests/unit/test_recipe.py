"""Recipes are checked strictly: every fault at once, with file, line and the nearest name."""

import os
import re
from pathlib import Path

import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec import documents, recipe
from trainyard.spec.columns import input_name
from trainyard.spec.recipe import Recipe
from trainyard_control.planning.cost import require_network

GOOD = """\
name: pets
data:
  format: image_folder
  path: pets
model:
  name: cnn_small
"""


def faults(text: str, overrides: list[str] | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        documents.parse(text, Recipe, name="pets.yaml", overrides=overrides or [])
    return str(caught.value)


@pytest.mark.parametrize("name", [path.stem for path in recipe.BUNDLED.glob("*.yaml")])
def test_every_bundled_recipe_is_valid_and_named_after_its_file(name: str) -> None:
    assert recipe.load(name).name == name


def test_all_faults_of_a_file_come_in_one_message_with_their_lines() -> None:
    message = faults(GOOD + "train: {epochs: -1}\ntrian: 1\nexport:\n  formats: [tflite]\n")
    assert "pets.yaml:7: train.epochs: Input should be greater than or equal to 1" in message
    assert "pets.yaml:8: trian: unknown key. Did you mean 'train'?" in message
    assert "pets.yaml:10: export.formats.0:" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x [1]\nb: *x", "pets.yaml:2: anchors and aliases are not allowed"),
        ("a: !!python/object/apply:os.system [ls]", "the tag !!python/object/apply:os.system is not allowed"),
        ("name: a\nname: b", "pets.yaml:2: name: given twice"),
        ("- 1", "keys with values are expected, a list was found"),
        ("", "keys with values are expected, nothing was found"),
        ("a: [1", "pets.yaml:1: not valid YAML"),
        ("{a: " * 60 + "1" + "}" * 60, "nested more than 20 levels deep"),
    ],
)
def test_yaml_that_is_no_plain_data_is_refused(text: str, expected: str) -> None:
    assert expected in faults(text)


def test_overrides_reach_nested_keys_and_keep_their_types() -> None:
    parsed = documents.parse(GOOD, Recipe, name="x", overrides=["train.epochs=3", "train.augment.flip=true"])
    assert (parsed.train.epochs, parsed.train.augment.flip) == (3, True)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.epochs", "no '='"),
        ("name.first=x", "'name' is a value"),
        ("train.epoch=3", "train.epoch: unknown key. Did you mean 'epochs'?"),
        ("epochs=3", "epochs: unknown key. Did you mean 'train.epochs'?"),
        (
            "name=Big Pets",
            "name: is not written as it has to be. Name of the recipe, its output folder and its pipeline:",
        ),
        (
            "data.features={x: numeric}",
            "data.features.x: is a value, and keys with values are expected. Received: 'num",
        ),
        ("data.features={x: {typ: numeric}}", "data.features.x: lacks the key 'type'. Received: typ."),
        ("model.name=mlp", "'mlp' does not take images"),
        ("model.name=alexnt", "model.name: no such value. Did you mean 'alexnet'? Known: cnn_small, alexnet,"),
        ("data.features={x: {type: number}}", "data.features.x.type: no such value. Did you mean 'numeric'?"),
        ("data.channels=2", "data.channels: Input should be 1 or 3. Received: '2'."),
        ("data.path=null", "give either path or bundled"),
        ("data.split.train=0.9", "the fractions add up to 1.1"),
        ("train.workers=3", "64 examples make no 3 equal parts, one a worker. Give 63"),
        (
            "train.accumulation_steps=5",
            "64 examples make no 5 equal parts, one a worker and accumulation step. Give 65",
        ),
    ],
)
def test_a_wrong_override_is_explained(override: str, expected: str) -> None:
    assert expected in faults(GOOD, [override])


TOTALS = """\
name: totals
task: regression
data: {format: csv, path: a.csv, label: y, features: {x: {type: numeric}}}
model: {name: mlp}
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("train: {target: {mean: true}}", "train.target.mean: corrects a logarithmic scale, and without one the model"),
        (
            "evaluate: {gates: [{metric: mean_ratio, min_difference: 0}]}",
            "evaluate.gates.0: 'mean_ratio' is best at 1, so a difference says nothing. Give min or max",
        ),
    ],
)
def test_totals_are_corrected_and_judged_only_where_that_has_a_meaning(more: str, expected: str) -> None:
    assert expected in faults(TOTALS + more)
    several = TOTALS.replace("label: y", "targets: [y, z]")
    gates = "evaluate: {gates: [{metric: mean_ratio, min: 0.9}]}"
    assert "gates.0: 'mean_ratio' is of one target, because a mean over several hides them" in faults(several + gates)
    documents.parse(TOTALS + "train: {target: {scale: log1p, mean: true}}", Recipe, name="x")
    documents.parse(several + gates.replace("min", "target: z, min"), Recipe, name="x")


def test_gates_name_a_known_metric_and_one_bound() -> None:
    assert "Did you mean 'accuracy'?" in faults(GOOD + "evaluate: {gates: [{metric: acuracy, min: 0.9}]}")
    assert "exactly one of" in faults(GOOD + "evaluate: {gates: [{metric: accuracy, min: 0.9, max: 1}]}")
    assert "'mae' is no metric of a classification" in faults(GOOD + "evaluate: {gates: [{metric: mae, max: 1}]}")
    gates = "evaluate: {gates: [{metric: roc_auc, min_difference: 0, against: baseline}]}"
    assert "one answer to every example has accuracy and macro_f1 alone" in faults(GOOD + gates)
    gates = "evaluate: {gates: [{metric: f1, class: cat, min_difference: 0, against: baseline}]}"
    assert "one answer to every example has roc_auc and pr_auc of a class alone" in faults(GOOD + gates)


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("metric: recall, min: 0.9", "gates.0.metric: 'recall' is of one class. Name it in class"),
        ("metric: f1, min: 0.9", "gates.0.metric: 'f1' is of one class. Name it in class"),
        ("metric: accuracy, class: cat, min: 0.9", "gates.0.metric: 'accuracy' is over all classes. One class has f1,"),
        ("metric: recal, class: cat, min: 0.9", "no such metric 'recal'. Did you mean 'recall'?"),
        ("metric: recall, class: cat, min: 1.1", "no model can meet it: recall lies between 0 and 1"),
        ("metric: accuracy, min: 0.9, confidence: 0.999", "confidence: 0.999 needs 2,000 resamples, and evaluate.boot"),
        ("metric: accuracy, min: 0.9, confidence: 95", "confidence: Input should be less than or equal to 0.999"),
        ("metric: accuracy, min: 0.9, confident: true", "Did you mean 'confidence'?"),
        (
            "metric: accuracy, largest_gap_between: color, max: 0.1",
            "'color' is not in evaluate.slices. Name the feature",
        ),
        (
            "metric: accuracy, largest_gap_between: color, min: 0.1",
            "largest_gap_between is judged by max, of at least 0",
        ),
        ("metric: accuracy, largest_gap_between: color, slice: color=red, max: 1", "compares all slices of a feature"),
    ],
)
def test_a_gate_of_one_class_or_with_a_confidence_is_refused_with_what_is_right(gate: str, expected: str) -> None:
    assert expected in faults(GOOD + f"evaluate: {{gates: [{{{gate}}}]}}")


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (
            "metric: mine, class: cat, min: 1",
            "gates.0.class: 'mine' is the module's, which gets all labels and outputs",
        ),
        ("metric: recal, class: cat, min: 1", "all labels and outputs. Did you mean 'recall'? Leave class out"),
        (
            "metric: mine, largest_gap_between: label, max: 1",
            "'mine' is the module's, and a gap is of Trainyard's metrics",
        ),
        ("metric: mine, min: 1, confidence: 0.99", "confidence: 0.99 needs 200 resamples, and a metric of the module"),
    ],
)
def test_a_gate_of_a_module_s_metric_is_of_all_answers(gate: str, expected: str) -> None:
    assert expected in faults(GOOD + f"module: own.py\nevaluate: {{gates: [{{{gate}}}]}}")
    assert re.search("no such metric '(mine|recal)'", faults(GOOD + f"evaluate: {{gates: [{{{gate}}}]}}"))


@pytest.mark.parametrize(("written", "name"), [("cat", "cat"), ("1", "1"), ("1.0", "1"), ("True", "true")])
def test_the_class_of_a_gate_is_read_as_labels_are(written: str, name: str) -> None:
    text = GOOD + f"evaluate: {{gates: [{{metric: recall, class: {written}, min: 0.9}}]}}"
    loaded = documents.parse(text, Recipe, name="pets.yaml")
    assert loaded.evaluate.gates[0].class_name == name
    dumped = loaded.model_dump(mode="json")["evaluate"]["gates"][0]
    assert dumped["class"] == name and "class_name" not in dumped


def test_a_demo_of_columns_is_refused() -> None:
    table = "data: {format: csv, path: a.csv, label: y, features: {x: {type: numeric}}}\nmodel: {name: mlp}\n"
    message = faults(f"name: a\n{table}export: {{formats: [saved_model, onnx], demo: true}}")
    assert "export.demo: is a page for images, not for columns. Leave it out" in message


def test_a_contradiction_between_sections_is_told_with_its_own_line() -> None:
    message = faults(GOOD + "evaluate:\n  slices: [color]\n")
    assert message == "pets.yaml:8: evaluate.slices: no feature 'color'."


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("seed: -1", "pets.yaml:7: seed: Input should be greater than or equal to 0. Received: '-1'."),
        ("seed: 0x" + "f" * 500_000, "pets.yaml:7: seed: Input should be a valid integer. Received: '0xfff"),
        ("description: !!bool maybe", "pets.yaml:7: the tag !!bool is not allowed. Leave it out."),
        ("description: 2024-13-45\ntrain: {epochs: yes}", "pets.yaml:8: train.epochs: Input should be a valid integer"),
        ("x: " + "[{" * 200_000, "pets.yaml:7: nested more than 20 levels deep."),
        ("push: {path: /}", "pets.yaml:7: push.path: the root of the file system is no place for outputs"),
        ("push: {path: hdfs:/models}", "pets.yaml:7: push.path: 'hdfs:' is of no known place."),
        ("push: {path: s3://key:word@bucket/m}", "push.path: credentials do not belong into a URI."),
        ("push: {path: 's3://bucket/m?X-Amz-Signature=word'}", "push.path: a signature or another parameter does"),
        (
            "evaluate: {gates: [{metric: accuracy, min: 1.5}]}",
            "min: no model can meet it: accuracy lies between 0 and 1",
        ),
        (
            "evaluate: {gates: [{metric: accuracy, min: 0.5, slice: color=red}]}",
            "evaluate.gates.0.slice: 'color=red' is of",
        ),
        ("train: {fine_tune: {}}", "pets.yaml:7: train.fine_tune: is for trained weights. Name them in model.weights"),
        ("train: {class_weights: {cat: 0, dog: 0}}", "pets.yaml:7: train.class_weights: no class counts"),
        ("export: {formats: [saved_model, saved_model]}", "pets.yaml:7: export.formats: a format is given twice"),
        (
            "export: {formats: [saved_model], devices: {pi: {latency_ms_p95: 20}}}",
            "pets.yaml:7: export.devices.pi: measures litert_int8. Add litert_int8 to export.formats",
        ),
        (
            "export: {formats: [saved_model], min_mapped_share: 0.9}",
            "pets.yaml:7: export.min_mapped_share: is of litert_int8. Add litert_int8 to export.formats",
        ),
        ("export: {onnx: {opset: 15}}", "pets.yaml:7: export.onnx: is of the ONNX file. Add onnx to export.formats"),
        (
            "export: {formats: [saved_model, onnx], onnx: {opset: 13}}",
            "export.onnx.opset: Input should be greater than or equal to 14. Received: '13'.",
        ),
        (
            "export: {formats: [saved_model, onnx], onnx: {opset: 19}}",
            "export.onnx.opset: Input should be less than or equal to 18. Received: '19'.",
        ),
        (
            "export: {demo: true}",
            "pets.yaml:7: export.demo: runs the ONNX file. Add onnx to export.formats",
        ),
    ],
)
def test_what_can_never_run_is_refused_before_a_step_begins(lines: str, expected: str) -> None:
    message = faults(GOOD + lines)
    assert expected in message and "word@" not in message and "=word" not in message


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("since: {max_mean_shift: 1}", "since.max_mean_shift: is of means, and a date has none, because its days are"),
        ("city: {max_mean_shift: 1}", "city.max_mean_shift: is of means, and categories have none."),
        ("label: {max_mean_shift: 1}", "label.max_mean_shift: is of means, and categories have none."),
        ("age: {max_frequency_change: 0.1}", "age.max_frequency_change: is of categories, and a number has none."),
        ("y: {max_psi: 1}", "drift.features.y: names the column of the classes. Write label"),
        ("agee: {max_psi: 1}", "drift.features.agee: is no feature. Did you mean 'age'?"),
    ],
)
def test_a_bound_of_drift_that_nothing_is_compared_with_is_refused(bounds: str, expected: str) -> None:
    columns = "{age: {type: numeric}, city: {type: category}, since: {type: date}}"
    table = f"name: t\ndata: {{format: csv, path: t.csv, label: y, features: {columns}}}\nmodel: {{name: mlp}}\n"
    assert expected in faults(table + f"drift: {{features: {{{bounds}}}}}")
    good = "drift: {features: {age: {max_mean_shift: 1}, since: {max_frequency_change: 1}, label: {max_psi: 1}}}"
    documents.parse(table + good, Recipe, name="pets.yaml")
    regression = f"{table}task: regression\n"
    documents.parse(regression + "drift: {features: {y: {max_mean_shift: 1}}}", Recipe, name="pets.yaml")
    expected = "drift.features.label: a regression has no classes. Write y"
    assert expected in faults(regression + "drift: {features: {label: {max_psi: 1}}}")


TREES = """name: cars
data: {format: csv, path: x, label: y, features: {a: {type: numeric}, b: {type: category}}}
model: {name: boosted_trees}
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            "model.hidden=[8]",
            "model.hidden: is of networks, and boosted_trees has none. Leave it out; it has model.trees",
        ),
        ("model.width=2", "model.width: is of networks"),
        ("model.weights=imagenet", "model.weights: is of networks"),
        (
            "train.epochs=3",
            "train.epochs: is of networks, and boosted_trees has none. Leave it out. Set model.trees.max_iter",
        ),
        (
            "train.optimizer.learning_rate=0.1",
            "train.optimizer: is of networks, and boosted_trees has none. Leave it out.",
        ),
        (
            "train.batch_size=8",
            "It has model.trees, train.early_stopping, train.select, train.target and train.class_weights",
        ),
        ("train.workers=2", "train.workers: is of networks"),
        ("train.checkpoints.keep=9", "train.checkpoints: is of networks"),
        ("train.warm_start=champion", "train.warm_start: is of networks"),
        ("train.command=[python, my.py]", "model.name: is of the networks that Trainyard trains"),
        ("task=multi_label", "task: boosted_trees predicts one class or one number a row. Name mlp or wide_deep"),
        ("data.targets=[y, z]", "data.targets: boosted_trees predicts one class or one number a row."),
        ("data.features.t.type=text", "data.features.t: boosted_trees takes no text. Leave it out, or name mlp"),
        (
            "export.formats=[saved_model, litert_int8]",
            "export.formats: boosted_trees has no litert_int8, whose fewer bits",
        ),
        (
            "export.devices.pi.size_mb=1",
            "export.devices.pi: measures litert_int8, which boosted_trees lacks. Set format:",
        ),
        ("export.min_mapped_share=0.5", "export.min_mapped_share: is of litert_int8, which boosted_trees lacks."),
        ("evaluate.time_to={metric: accuracy, reach: 0.9}", "evaluate.time_to: is the time to an accuracy"),
        (
            "evaluate.gates=[{metric: roc_auc, min_difference: 0.0, against: boosted}]",
            "evaluate.gates.0.against: the model is boosted trees itself. Compare with the champion or the baseline",
        ),
        ("model={name: mlp, trees: {max_iter: 9}}", "model.trees: are those of boosted_trees. Leave it out, or set"),
        ("data={format: image_folder, path: x}", "model.name: 'boosted_trees' does not take images"),
    ],
)
def test_what_trees_cannot_follow_is_refused(change: str, expected: str) -> None:
    assert expected in faults(TREES, [change])


def test_one_override_replaces_the_network_by_trees_and_trees_by_a_network(tmp_path: Path) -> None:
    network, _ = tmp_path / "pets.yaml", (tmp_path / "x").touch()
    network.write_text(
        TREES.replace("boosted_trees}", "mlp, hidden: [8]}") + "train: {epochs: 7, class_weights: balanced}\n"
    )
    trees = recipe.load(str(network), ["model.name=boosted_trees", "model.trees.max_iter=9"])
    assert (trees.model.hidden, trees.model.trees.max_iter, trees.train.epochs) == ([64, 32], 9, 10)
    assert trees.train.class_weights == "balanced"
    assert [key for key, _ in recipe.left_out(str(network), ["model.name=boosted_trees"])] == [
        "model.hidden",
        "train.epochs",
    ]
    network.write_text(TREES.replace("boosted_trees}", "boosted_trees, trees: {max_iter: 9}}"))
    assert recipe.load(str(network), ["model.name=mlp"]).model.trees.max_iter == 100
    with pytest.raises(ConfigurationError, match=r"--set train.epochs=3: train.epochs: is of networks"):
        recipe.load(str(network), ["train.epochs=3"])
    with pytest.raises(ConfigurationError, match=r"no such value. Did you mean 'mlp'\?"):
        recipe.load(str(network), ["model.name=mlpp"])


def test_trees_take_the_settings_that_mean_something_to_them() -> None:
    changes = ["model.trees.max_iter=9", "train.class_weights=balanced", "train.early_stopping.patience=3", "seed=4"]
    parsed = documents.parse(TREES, Recipe, name="pets.yaml", overrides=[*changes, "evaluate.boosted=false"])
    assert parsed.model.trees.max_iter == 9 and parsed.model.trees.max_leaf_nodes == 31
    assert parsed.model.trees.min_samples_leaf == 20
    with pytest.raises(
        ConfigurationError, match=r"model.name: boosted_trees has no operations to count, so neither speed"
    ):
        require_network(parsed)


def test_an_image_size_has_two_numbers_that_suit_the_network() -> None:
    assert "data.image_size: 1 values were given, and more are needed. Received: [96]." in faults(
        GOOD, ["data.image_size=[96]"]
    )
    assert "'cnn_small' takes images of at least 8 x 8 pixels" in faults(GOOD, ["data.image_size=[96, 4]"])


def test_images_are_stored_small_if_their_size_is_known_and_only_then() -> None:
    assert documents.parse(GOOD, Recipe, name="x").data.stored == "original"
    sized = ["data.image_size=[96, 96]"]
    assert documents.parse(GOOD, Recipe, name="x", overrides=sized).data.stored == "training_size"
    assert documents.parse(GOOD, Recipe, name="x", overrides=[*sized, "data.store=raw"]).data.stored == "raw"
    assert "data.store: raw needs to know the size. Give data.image_size" in faults(GOOD, ["data.store=raw"])


def test_a_module_that_is_not_there_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "pets.yaml"
    file.write_text(GOOD + "module: own.py\n")
    with pytest.raises(ConfigurationError, match=r"pets.yaml:7: module: there is no such file beside the recipe"):
        recipe.load(str(file))
    (tmp_path / "own.py").write_text("")
    assert recipe.load(str(file)).files == {"own.py": ""}


TABLE = "name: cars\ndata:\n  format: csv\n  path: x\n  label: y\n  features:\n{}model: {{name: mlp}}\n"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"a": "numeric", "key": "numeric"}, "pets.yaml:8: data.features.key: the name 'key' is taken."),
        ({"y": "numeric"}, "pets.yaml:7: data.features.y: the name 'y' is taken."),
        ({"raw/a": "numeric"}, "the name 'raw/a' is taken."),
        ({"d": "date", "d_month": "numeric"}, "'d_month' and a name of 'd' would both be the input 'd_month'"),
        ({"net worth": "numeric", "Net_Worth": "numeric"}, "would both be the input 'Net_Worth' of the model."),
    ],
)
def test_columns_whose_names_would_meet_are_refused(columns: dict[str, str], expected: str) -> None:
    assert expected in faults(
        TABLE.format("".join(f"    {name}: {{type: {kind}}}\n" for name, kind in columns.items()))
    )


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("age", "age"),
        ("km/h", "km_h"),
        ("Türen", "Turen"),
        ("2nd", "feature_2nd"),
        ("a b", "a_b"),
        ("速度", "feature____0e14"),
        ("class", "feature_class"),
        ("self", "feature_self"),
        ("Class", "Class"),
    ],
)
def test_any_column_has_a_name_that_a_model_can_have(column: str, name: str) -> None:
    assert input_name(column) == name


def test_columns_of_other_scripts_stay_apart() -> None:
    parsed = documents.parse(
        TABLE.format("    速度: {type: numeric}\n    年齢: {type: numeric}\n"), Recipe, name="pets.yaml"
    )
    assert len({input_name(column) for column in parsed.data.features}) == 2


def test_only_plain_files_are_read_and_none_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in (str(tmp_path / "pipe.yaml"), "/dev/zero"):
        with pytest.raises(ConfigurationError, match="is no plain file"):
            recipe.load(name)
    with pytest.raises(ConfigurationError, match=r"Name a file, or a gs:// or s3:// URI"):
        recipe.load("https://host/pets.yaml")
    with pytest.raises(ConfigurationError, match="credentials do not belong into a URI") as refused:
        recipe.load("s3://key:hunter2@bucket/pets.yaml")
    assert "hunter2" not in str(refused.value)


def test_paths_are_relative_to_the_recipe_and_buckets_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "pets.yaml"
    file.write_text(GOOD)
    assert recipe.load(str(file)).data.path == str(tmp_path / "pets")
    assert recipe.load(str(file), ["data.path=gs://bucket/pets"]).data.path == "gs://bucket/pets"


def test_an_unknown_recipe_offers_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'digits'"):
        recipe.load("digit")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        recipe.load("nowhere/pets.yaml")


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("train.augment={crop: {scale: [0.9, 0.1]}}", "the least, 0.9, is above the greatest"),
        ("train.augment={hue: 0.1}", "data.channels: 1 reads gray images"),
    ],
)
def test_a_change_of_images_that_cannot_be_is_refused(override: str, why: str) -> None:
    channels = ["data.channels=1"] if "hue" in override else []
    with pytest.raises(ConfigurationError, match=why):
        documents.parse(GOOD, Recipe, name="x", overrides=[override, *channels])


def test_mixing_needs_images_in_pairs() -> None:
    table = "name: a\ndata: {format: csv, path: /x.csv, features: {a: {type: numeric}}}\nmodel: {name: mlp}\n"
    with pytest.raises(ConfigurationError, match="mixes images of two classes"):
        documents.parse(table + "train: {augment: {mixup: 0.2}}\n", Recipe, name="x")
    images = "name: a\ndata: {format: image_folder, path: /x}\nmodel: {name: cnn_small}\n"
    with pytest.raises(ConfigurationError, match="in pairs"):
        documents.parse(images + "train: {batch_size: 7, augment: {cutmix: 1}}\n", Recipe, name="x")


WEIGHTS = """\
name: pets
data: {format: image_folder, path: pets}
model: {name: mobilenet_v3_small, weights: imagenet}
train: {epochs: 5}
"""


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["model.name=cnn_small"],
            "model.weights: Keras publishes none for 'cnn_small', but for resnet50, mobilenet_v3",
        ),
        (["model.name=alexnet"], "model.weights: Keras publishes none for 'alexnet'"),
        (["model.name=vit_small"], "model.weights: Keras publishes none for 'vit_small', but for resnet50"),
        (
            ["model.name=mlp", "data.features={a: {type: numeric}}", "model.weights=/other.keras"],
            "model.weights: 'mlp' takes columns, whose ids mean something else in other data",
        ),
        (["train.warm_start=champion"], "train.warm_start: begins with the champion's weights, and model.weights with"),
        (["model.freeze=bakbone"], "model.freeze: 'bakbone' is not known. Write none, backbone, or until BLOCK"),
        (["model.weights=null", "model.freeze=backbone"], "model.freeze: keeps weights that nobody trained."),
        (
            ["model.freeze=backbone", "train.fine_tune={}"],
            "train.fine_tune: ends with all layers learning, and model.fr",
        ),
        (["train.fine_tune.head_epochs=5"], "head_epochs: leave none of the 5 epochs for all layers. Give at most 4"),
        (["train.epochs=1", "train.fine_tune={}"], "or set model.freeze: backbone"),
        (["model.weights=http://host/w.keras"], "model.weights: 'http:' is of no known place."),
        (["model.weights=gs://key:word@bucket/w.keras"], "model.weights: credentials do not belong into a URI."),
    ],
)
def test_trained_weights_that_cannot_be_are_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        documents.parse(WEIGHTS, Recipe, name="pets.yaml", overrides=overrides)


def test_a_modules_own_network_loads_its_weights_itself(tmp_path: Path) -> None:
    (tmp_path / "own.py").touch()
    (tmp_path / "pets.yaml").write_text(WEIGHTS.replace("name: mobilenet_v3_small, ", "") + "module: own.py\n")
    with pytest.raises(ConfigurationError, match=r"model\.weights: is for networks by name, and the module builds"):
        recipe.load(str(tmp_path / "pets.yaml"))


def test_weights_lie_beside_the_recipe_in_a_bucket_or_at_keras(tmp_path: Path) -> None:
    file = tmp_path / "pets.yaml"
    file.write_text(WEIGHTS)
    assert recipe.load(str(file)).model.weights == "imagenet"
    assert recipe.load(str(file), ["model.weights=s3://b/w.keras"]).model.weights == "s3://b/w.keras"
    with pytest.raises(ConfigurationError, match=r"model\.weights: there is no such file or folder\. Name one"):
        recipe.load(str(file), ["model.weights=w.keras"])
    (tmp_path / "w.keras").touch()
    assert recipe.load(str(file), ["model.weights=w.keras"]).model.weights == str(tmp_path / "w.keras")


RIDES = """\
name: rides
data:
  format: parquet
  path: rides
  label: tipped
  derive: {tipped: tip > 0.2 * fare}
  features: {fare: {type: numeric}}
model: {name: mlp}
"""


PAIR = ["data.features.pair={type: category}"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.label=tip"], "data.derive.tipped: is neither label, split.column, weight nor a feature."),
        (
            ["data.label=x", "data.derive={pair: tip}", "data.features.pair={type: numeric}"],
            "pair: makes a text, which is no numeric feature. Write type",
        ),
        ([*PAIR, "data.derive.pair=tip + 1"], "data.derive.pair: makes a number, which is no category feature. Write"),
        ([*PAIR, "data.derive.pair=day < 'x'"], "data.derive.pair: asks which of two texts comes first"),
        (
            [*PAIR, "data.derive.pair=fare == 'x'"],
            "pair: reads 'fare' as a text, and the model takes it as a number",
        ),
        ([*PAIR, "data.derive.pair=day == 'x' or day > 3"], "data.derive.pair: reads 'day' as a text, and the model"),
        ([*PAIR, "data.derive.pair=bin(fare, 0)"], "'bin(fare, 0)' has bins of no width"),
        (
            ["data.label=tip", "data.derive={rate: tip / fare}", "data.features.rate={type: numeric}"],
            "reads the label 'tip'",
        ),
        (["data.derive.tipped=tipped > 1"], "data.derive.tipped: is read by a formula as a column of the data, too"),
        (["data.weight=fare"], "data.weight: 'fare' is the label or what the model is served"),
        (["data.weight=tipped"], "data.weight: 'tipped' is the label or what the model is served"),
        (["data.where=fare + 1"], "data.where: is no condition. Compare it with something"),
        (["data.split.by=group"], "data.split: by: group needs to know the column. Give column"),
        (["data.split.column=day"], "data.split: column is for by: group, time or column. Say which one it is"),
        (["data.split={by: time, column: day}"], "Give eval_from, test_from"),
        (
            ["data.split={by: time, column: day, eval_from: 2024-03-01, test_from: 2024-02-01}"],
            "test_from 2024-02-01 is not later than eval_from 2024-03-01",
        ),
        (
            ["data.split={by: column, column: part, train: 0.6, eval: 0.2, test: 0.2}"],
            "fractions are for by: content, class and group",
        ),
        (["data.split={by: class, column: day}"], "data.split: column is for by: group, time or column"),
        (["task=regression", "data.split.by=class"], "data.split: by: class is for a classification"),
        (["train.target.scale=log"], "train.target: is of the numbers of a regression, and the task is classification"),
        (
            ["task=regression", "train.target.scale=log", "train.teacher.model=/models/1"],
            "train.target: needs logarithms, and a teacher's answers may have none. Set scale: none",
        ),
        (["train.target.clip=[0.9, 0.1]"], "train.target.clip: the quantile 0.9 is not below 0.1"),
        (["data.split={by: group, column: day, eval_from: 2024-03-01}"], "are for by: time. Leave them out"),
        (
            ["data.time_zone=Asia/Tokio", "data.features.day={type: date}"],
            "data.time_zone: no time zone 'Asia/Tokio'. Did you mean 'Asia/Tokyo'? Give UTC, +05:30, or a name such as",
        ),
        (["data.time_zone=Asia/Tokyo"], "data.time_zone: is for features of type date, split by: time and window"),
    ],
)
def test_what_a_table_cannot_be_split_or_derived_by_is_explained(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        documents.parse(RIDES, Recipe, name="rides.yaml", overrides=overrides)


def test_a_model_is_served_what_its_formulas_read_and_computes_the_rest() -> None:
    more = ["data.derive.pair=join(kind, bin(fare, 5), missing(day))", "data.derive.far=miles > 3"]
    more += ["data.features.far={type: category}"]
    data = documents.parse(RIDES, Recipe, name="rides.yaml", overrides=[*PAIR, *more]).data
    assert {name: feature.type for name, feature in data.inputs.items()} == {
        "fare": "numeric", "kind": "category", "day": "category", "miles": "numeric",
    }  # fmt: skip
    assert list(data.derived_features) == ["pair", "far"]


def test_the_columns_that_are_read_are_each_named_once() -> None:
    split = "data.split={by: time, column: day, eval_from: 2024-03-01, test_from: 2024-04-01}"
    recipe = documents.parse(RIDES, Recipe, name="x", overrides=["data.where=kind != 'test'", split])
    assert recipe.data.columns == ["fare", "day", "tip", "kind"]
    images = documents.parse(GOOD, Recipe, name="x")
    with pytest.raises(ConfigurationError, match="these are images"):
        documents.parse(GOOD, Recipe, name="x", overrides=["data.where=a > 1"])
    assert images.data.columns == ["label"]


def test_width_and_depth_are_of_networks_that_have_them() -> None:
    loaded = recipe.load("tabular", ["model.width=0.5", "model.depth=2", "model.hidden=[64, 32]"])
    assert loaded.model.hidden_units == [32, 32, 16, 16]
    for changes, sentence in (
        (["model.name=vit_small", "model.width=0.5"], "model.width: 'vit_small' has none. Leave it out"),
        (["model.name=mobilenet_v3_small", "data.image_size=[32, 32]", "model.depth=2"], "model.depth: 'mobilenet"),
        (
            ["model.name=mobilenet_v3_small", "data.image_size=[32, 32]", "model.width=0.5", "model.weights=imagenet"],
            "model.width: Keras publishes weights of 0.75 and 1",
        ),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(sentence)):
            recipe.load("digits", changes)
