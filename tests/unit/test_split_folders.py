"""Folders of images that are splits, and folders in class folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainyard.errors import ConfigurationError, DataError
from trainyard.quality.inspect import inspect
from trainyard.quality.recipe_check import check_first
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.spec.recipe import Recipe, load
from trainyard.steps.preprocess.readers.files import find_files
from trainyard.steps.preprocess.readers.official import with_official
from trainyard.steps.preprocess.split import _numbers, identity_draws


def images(root: Path, *folders: str, each: int = 4) -> Path:
    generator = np.random.default_rng(1)
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for index in range(each):
            pixels = generator.integers(0, 256, (40, 40, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / folder / f"{index}.png")
    return root


def drafted(root: Path) -> tuple[Recipe, list[str]]:
    text, guesses = draft_recipe("pets", "pets", inspect(str(root)))
    (root.parent / "pets.yaml").write_text(text)
    return load(str(root.parent / "pets.yaml")), guesses


def below(*splits: str) -> list[str]:
    return [f"{split}/{label}" for split in splits for label in ("cat", "dog")]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("train", "test"), {"train": "train", "test": "test"}),
        (("Train", "VAL"), {"Train": "train", "VAL": "test"}),
        (("training", "validation"), {"training": "train", "validation": "test"}),
        (("train", "val", "test"), {"train": "all_train", "val": "eval", "test": "test"}),
        (
            ("pets_train", "pets_valid", "pets_testing"),
            {"pets_train": "all_train", "pets_valid": "eval", "pets_testing": "test"},
        ),
    ],
)
def test_folders_named_for_splits_are_splits_and_the_folders_in_them_classes(names, parts, tmp_path):
    recipe, guesses = drafted(images(tmp_path / "pets", *below(*names)))
    files = with_official(find_files(recipe.data, str(tmp_path / "pets")), recipe.data)
    assert recipe.data.split.by == "folder" and files.official.parts == parts
    assert "2 classes, by the folders: cat, dog" in guesses
    assert any(guess.startswith(f"split by folder: {names[0]} for training, ") for guess in guesses)
    assert check_first(recipe).endswith("images in 2 classes")


def test_an_eval_folder_keeps_all_of_train_for_training(tmp_path):
    import pyarrow as pa

    recipe, _ = drafted(images(tmp_path / "pets", *below("train", "val", "test")))
    parts = ["all_train", "eval", "test"] * 50
    batch = pa.RecordBatch.from_pydict({"split_by": parts, "content": [bytes([row] * 32) for row in range(150)]})
    draws = identity_draws(1, batch["content"].to_pylist())
    assert _numbers(batch, draws, recipe.data.split).tolist() == [0, 1, 2] * 50
    share = recipe.data.model_copy(update={"split": recipe.data.split.model_copy(update={"eval": 0.3})})
    with pytest.raises(DataError, match=r"eval: 0\.3 is a share of train, and the folder val is the eval split"):
        with_official(find_files(share, str(tmp_path / "pets")), share)


def test_an_unlabeled_test_folder_is_left_out(tmp_path):
    images(tmp_path / "pets", "test")
    recipe, guesses = drafted(images(tmp_path / "pets", *below("train", "val")))
    assert "split by folder: train for training, val for the test split; 30% of train is the eval split" in guesses
    files = with_official(find_files(recipe.data, str(tmp_path / "pets")), recipe.data)
    assert files.official.parts == {"train": "train", "val": "test"}
    assert files.ignored == tuple(f"test/{index}.png" for index in range(4))


def test_splits_without_class_folders_are_refused(tmp_path):
    images(tmp_path / "pets", "test")
    with pytest.raises(ConfigurationError, match="its folders test and train are named like splits, and not all of"):
        drafted(images(tmp_path / "pets", *below("train")))


def test_a_recipe_that_takes_splits_for_classes_is_warned_of(tmp_path):
    recipe, _ = drafted(images(tmp_path / "pets", *below("train", "test")))
    split = recipe.data.split.model_copy(update={"by": "content", "eval": 0.1})
    by_content = recipe.model_copy(update={"data": recipe.data.model_copy(update={"split": split})})
    with pytest.raises(
        DataError, match=r"The classes test and train are named like splits\. If they are, set data\.sp"
    ):
        check_first(by_content)


def test_deeper_folders_are_named_because_the_first_is_the_class(tmp_path):
    root = images(tmp_path / "pets", "fruit/apple", "fruit/pear", "veg/leek")
    recipe, guesses = drafted(root)
    sentence = (
        "The class of an image is the first folder that it lies in (fruit, veg), and 3 deeper folders say nothing, "
        "such as fruit/apple, fruit/pear, veg/leek. If those are the classes, move them up"
    )
    assert sentence in guesses and f"{sentence}." in inspect(str(root)).findings
    assert find_files(recipe.data, str(root)).deeper_folders == ["fruit/apple", "fruit/pear", "veg/leek"]


def test_images_that_are_all_links_out_of_their_folder_come_with_the_command_that_copies_them(tmp_path):
    stored = images(tmp_path / "all", "x")
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for index in range(2):
            (tmp_path / "pets" / label / f"{index}.png").symlink_to(stored / "x" / f"{index}.png")
    with pytest.raises(DataError, match=r"outside of .* `cp -RL \S+/pets COPY` copies the files that links lead to\."):
        inspect(str(tmp_path / "pets"))
