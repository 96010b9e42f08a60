"""Recipes are checked strictly: every fault at once, with file, line and the nearest name."""

from pathlib import Path

import pytest

from trainyard.core import documents, recipe
from trainyard.core.errors import ConfigurationError
from trainyard.core.recipe import Recipe

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
    assert "pets.yaml:7: train.epochs: Input should be greater than 0" in message
    assert "pets.yaml:8: trian: unknown key. Did you mean 'train'?" in message
    assert "pets.yaml:10: export.formats.0:" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1]\nb: *x", "pets.yaml:2: anchors and aliases are not allowed"),
        ("a: !!python/object/apply:os.system [ls]", "the tag tag:yaml.org,2002:python/object/apply:os.system"),
        ("name: a\nname: b", "pets.yaml:2: name: given twice"),
        ("- 1", "keys with values are expected, list was found"),
        ("", "keys with values are expected, NoneType was found"),
        ("a: [1", "pets.yaml:1: not valid YAML"),
        ("{a: " * 60 + "1" + "}" * 60, "nested more than 20 levels deep"),
    ],
)
def test_yaml_that_is_no_plain_data_is_refused(text: str, said: str) -> None:
    assert said in faults(text)


def test_overrides_reach_nested_keys_and_keep_their_types() -> None:
    parsed = documents.parse(GOOD, Recipe, name="x", overrides=["train.epochs=3", "train.augment.flip=true"])
    assert (parsed.train.epochs, parsed.train.augment.flip) == (3, True)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.epochs", "no '='"),
        ("name.first=x", "'name' is a value"),
        ("train.epoch=3", "train.epoch: unknown key. Did you mean 'epochs'?"),
        ("model.name=mlp", "'mlp' does not take images"),
        ("data.path=null", "give either path or bundled"),
        ("data.split.train=0.9", "the fractions add up to 1.1"),
        ("train.workers=3", "64 examples make no 3 equal parts, one a worker; 63 would"),
        (
            "train.accumulation_steps=5",
            "64 examples make no 5 equal parts, one a worker and an accumulation step; 65 would",
        ),
    ],
)
def test_a_wrong_override_is_explained(override: str, said: str) -> None:
    assert said in faults(GOOD, [override])


def test_gates_name_a_known_metric_and_one_bound() -> None:
    assert "Did you mean 'accuracy'?" in faults(GOOD + "evaluate: {gates: [{metric: acuracy, min: 0.9}]}")
    assert "exactly one of" in faults(GOOD + "evaluate: {gates: [{metric: accuracy, min: 0.9, max: 1}]}")
    assert "'mae' is no metric of a classification" in faults(GOOD + "evaluate: {gates: [{metric: mae, max: 1}]}")


def test_a_contradiction_between_sections_is_told_with_its_own_line() -> None:
    message = faults(GOOD + "evaluate:\n  slices: [color]\n")
    assert message == "pets.yaml:8: evaluate.slices: no feature 'color'."


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
