"""`trainyard recipe` as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from object_stores import Store
from PIL import Image

from trainyard.errors import ConfigurationError
from trainyard.spec import plain_yaml
from trainyard.spec import recipe as recipes
from trainyard.spec.plain_yaml import MAX_BYTES
from trainyard.storage import storage
from trainyard_control.kubeflow import schedules

pytestmark = pytest.mark.usefixtures("warm_processes")

SCRIPTED = """name: scripted
data: {format: image_folder, bundled: digits}
train: {command: [python, my_train.py]}
"""
SCHEDULE = "name: nightly\nrecipe: {uri}\nenvironment: kind\ncron: 0 3 * * *\n"
NETWORK = "name: own\ndata: {format: image_folder, bundled: digits}\nmodel: {name: cnn_small%s}\n"
BESIDE = {
    SCRIPTED: "train.command: 'my_train.py'",
    SCRIPTED.replace("bundled: digits", "path: /data").replace(
        "my_train.py]}", "-m, x]}\nfiles: [x.py]"
    ): "files: 'x.py'",
    NETWORK.replace("bundled: digits", "path: photos") % "": "data.path: 'photos'",
    NETWORK.replace("bundled: digits", "bundled: digits, schema: seen.yaml") % "": "data.schema: 'seen.yaml'",
    NETWORK % "" + "module: own.py\n": "module: 'own.py'",
    NETWORK % ", weights: best.keras": "model.weights: 'best.keras'",
    NETWORK % "" + "train: {teacher: {model: models/3}}\n": "train.teacher.model: 'models/3'",
}
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
    assert "already exists" in trainyard("recipe", "new", str(file), *options, code=20).stderr
    assert file.read_text() == before


def test_validate_prints_every_default_and_what_it_prints_is_a_recipe(tmp_path: Path) -> None:
    changes = ["train.epochs=3", "train.optimizer.clip_norm=null"]
    printed = trainyard("recipe", "validate", "digits", "--set", changes[0], "--set", changes[1]).stdout
    (tmp_path / "again.yaml").write_text(printed)
    assert yaml.safe_load(printed)["train"]["epochs"] == 3
    assert recipes.load(str(tmp_path / "again.yaml")) == recipes.load("digits", changes)


def test_a_recipe_in_a_bucket_is_taken_as_a_file_is(store: Store, tmp_path: Path) -> None:
    (tmp_path / "scripted.yaml").write_text(SCRIPTED)
    (tmp_path / "my_train.py").write_text("print('trained')\n")
    for name in ("digits", str(tmp_path / "scripted.yaml")):
        loaded, uri = recipes.load(name), f"{store.uri}/sweeps/best.yaml"
        # As a sweep writes its winner.
        storage.write_text(uri, plain_yaml.dump(loaded.model_dump(mode="json", exclude_defaults=True)))
        assert recipes.load(uri) == loaded
        changed = recipes.load(uri, ["train.epochs=2"])
        assert changed == recipes.load(name, ["train.epochs=2"])
    (tmp_path / "nightly.yaml").write_text(SCHEDULE.format(uri=uri))
    assert schedules.load(tmp_path / "nightly.yaml").recipe == uri
    printed = trainyard("recipe", "validate", uri)
    assert yaml.safe_load(printed.stdout)["name"] == "scripted" and f"✓ {uri} is a valid recipe" in printed.stderr
    assert "my_train.py" in trainyard("compile", uri, "-e", "kind").stdout


@pytest.mark.parametrize("served", ["s3"], indirect=True)
def test_what_no_recipe_in_a_bucket_can_be_is_told_in_a_sentence(store: Store) -> None:
    uri = f"{store.uri}/none.yaml"
    for missing in (uri, f"{store.scheme}://no-such-bucket/none.yaml"):
        refused = trainyard("recipe", "validate", missing, code=20).stderr
        assert refused == f"✗ {missing}: there is no such bucket or object. Correct the name.\n"
    storage.write_text(uri, "#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigurationError, match=rf"none.yaml: is larger than {MAX_BYTES:,} bytes"):
        recipes.load(uri)
    for beside, key in BESIDE.items():
        storage.write_text(uri, beside)
        with pytest.raises(ConfigurationError) as fault:
            recipes.load(uri)
        assert str(fault.value).startswith(f"{uri}: {key} is relative, and beside a recipe in a bucket no files are")
    storage.write_text(uri, SCRIPTED.replace("my_train.py", "/no/my_train.py") + "module: /no/own.py\n")
    with pytest.raises(ConfigurationError, match=r"none.yaml:\d+: module: there is no such file"):
        recipes.load(uri)


def test_the_schema_is_what_editors_need() -> None:
    schema = json.loads(trainyard("recipe", "schema").stdout)
    assert schema["additionalProperties"] is False
    assert "epochs" in schema["$defs"]["Train"]["properties"]


def test_own_images_go_all_the_way_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    for label, level in (("cat", 60), ("dog", 190)):
        folder = tmp_path / "data" / label
        folder.mkdir(parents=True)
        for index in range(60):
            pixels = np.clip(random.normal(level, 30, (24, 20, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.jpg")
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}/storage\n")
    arguments = ["run", "data", "-e", str(tmp_path / "here.yaml"), "-o", "json"]
    shorter = [
        "--set",
        "train.epochs=30",
        "--set",
        "export.formats=[saved_model]",
        "--set",
        "train.batch_size=16",
        "--set",
        "data.image_size=[16, 16]",
        "--require-blessed",
    ]
    ended = trainyard(*arguments, *shorter)
    record = json.loads(ended.stdout)
    assert "✓ wrote data.yaml" in ended.stderr and (tmp_path / "data.yaml").read_text() in ended.stderr
    assert record["gate"]["verdict"] == "blessed"
    assert sum(record["data"][split] for split in ("train", "eval", "test")) == 120


def test_a_recipe_that_is_there_is_never_replaced_by_a_draft_and_a_table_goes_all_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{row % 7 * 1.5},{row // 3 % 2}" for row in range(60)]
    (tmp_path / "prices.csv").write_text("\n".join(["size,sold", *rows]) + "\n")
    (tmp_path / "prices.yaml").write_text("name: mine\n")
    refused = trainyard("run", "prices.csv", "--label", "sold", code=20).stderr
    assert "prices.yaml: already exists and differs from the recipe drafted from the data" in refused
    assert (tmp_path / "prices.yaml").read_text() == "name: mine\n"
    assert "digits is a recipe and names its label" in trainyard("run", "digits", "--label", "sold", code=20).stderr
    assert "no such column" in trainyard("run", "prices.csv", "--label", "solt", code=20).stderr
    random = np.random.default_rng(1)
    homes = zip(random.uniform(30, 200, 300), random.integers(1, 7, 300), random.normal(0, 9, 300), strict=True)
    rows = [f"{size:.1f},{rooms},{size + 30 * rooms + noise:.2f}" for size, rooms, noise in homes]
    (tmp_path / "homes.csv").write_text("\n".join(["size,rooms,price", *rows]) + "\n")
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}/storage\n")
    changes = ("--set", "model.name=boosted_trees", "--set", "export.formats=[saved_model]")
    ended = trainyard("run", "homes.csv", "--label", "price", "-e", "here.yaml", "-o", "json", *changes)
    saved = (tmp_path / "homes.yaml").read_text()
    assert "✓ wrote homes.yaml" in ended.stderr and saved in ended.stderr
    assert recipes.load("homes.yaml").task == "regression" and recipes.load("homes.yaml").data.labels == ["price"]
    record = json.loads(ended.stdout)
    assert record["gate"]["verdict"] == "blessed"
    assert sum(record["data"][split] for split in ("train", "eval", "test")) == 300
