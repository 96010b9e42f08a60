"""`trainyard recipe` as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from trainyard.spec import recipe as recipes

TRAINYARD = str(Path(sys.executable).parent / "trainyard")


def trainyard(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run([TRAINYARD, *arguments], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    return ended


@pytest.mark.parametrize("options", [[], ["--table"]])
def test_a_new_recipe_is_valid_and_never_overwrites(tmp_path: Path, options: list[str]) -> None:
    file = tmp_path / "My pets.yaml"
    trainyard("recipe", "new", str(file), *options)
    assert recipes.load(str(file)).name == "my-pets"
    before = file.read_text()
    assert "is there already" in trainyard("recipe", "new", str(file), *options, code=20).stderr
    assert file.read_text() == before


def test_validate_prints_every_default_and_what_it_prints_is_a_recipe(tmp_path: Path) -> None:
    changes = ["train.epochs=3", "train.optimizer.clip_norm=null"]
    printed = trainyard("recipe", "validate", "digits", "--set", changes[0], "--set", changes[1]).stdout
    (tmp_path / "again.yaml").write_text(printed)
    assert yaml.safe_load(printed)["train"]["epochs"] == 3
    assert recipes.load(str(tmp_path / "again.yaml")) == recipes.load("digits", changes)


def test_the_schema_is_what_editors_need() -> None:
    schema = json.loads(trainyard("recipe", "schema").stdout)
    assert schema["additionalProperties"] is False
    assert "epochs" in schema["$defs"]["Train"]["properties"]


def test_own_images_go_all_the_way_by_the_recipe_that_new_writes(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for label, level in (("cat", 60), ("dog", 190)):
        folder = tmp_path / "data" / label
        folder.mkdir(parents=True)
        for index in range(60):
            pixels = np.clip(random.normal(level, 30, (24, 20, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.jpg")
    trainyard("recipe", "new", str(tmp_path / "pets.yaml"))
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}/storage\n")
    arguments = ["run", str(tmp_path / "pets.yaml"), "-e", str(tmp_path / "here.yaml"), "-o", "json"]
    shorter = [
        "--set",
        "train.epochs=30",
        "--set",
        "train.batch_size=16",
        "--set",
        "data.image_size=[16, 16]",
        "--require-blessed",
    ]
    record = json.loads(trainyard(*arguments, *shorter).stdout)
    assert record["gate"]["verdict"] == "blessed"
    assert sum(record["data"][split] for split in ("train", "eval", "test")) == 120
