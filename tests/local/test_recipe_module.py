"""The example of docs/reference/module.md does what the page says of it."""

import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from preprocess_sources import preprocess
from tests.unit.test_packages import wheel

import trainyard as ty
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.keys import failure_record
from trainyard.errors import ConfigurationError
from trainyard.runtime import step
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import code
from trainyard.spec import recipe as recipes
from trainyard.spec.archive import Archive
from trainyard.spec.packages import Wheel
from trainyard.steps.evaluate.metrics import custom as custom_metrics
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.preprocess.transforming.module import load_preprocessing
from trainyard.steps.train.engines.network import network
from trainyard.storage import cache

LOAD = """import pickle, sys
from trainyard.steps.preprocess.transforming import module
print(pickle.load(sys.stdin.buffer)._function({}))"""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "module.md"


def write_example(folder: Path) -> str:
    """Write the page's recipe and module, and rows for them; return the recipe's file."""
    page = PAGE.read_text(encoding="utf-8")
    for name, language in (("shop.yaml", "yaml"), ("shop.py", "python")):
        (code,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        (folder / name).write_text(code, encoding="utf-8")
    draw = random.Random(1)
    rows = [f"{draw.uniform(1, 99):.2f},{draw.choice(['', 3])},{draw.choice(['Oslo', 'Rome'])}" for _ in range(200)]
    lines = ["price,visits,city,bought", *(f"{row},{'yes' if row < '5' else 'no'}" for row in rows)]
    (folder / "shop.csv").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / "shop.yaml")


def test_the_example_of_a_recipes_module_is_preprocessed_built_and_measured(tmp_path: Path) -> None:
    recipe = recipes.load(write_example(tmp_path))
    examples = Examples.read(preprocess(recipe, tmp_path / "examples"))
    features = {feature.name: (feature.dtype, feature.vocabulary_size) for feature in examples.features}
    assert features == {"price": ("float32", None), "visits": ("float32", None), "city": ("int64", 3)}

    model = network(recipe, examples, (0.0, 1.0), "float32")
    assert isinstance(model, keras.Model) and model.output.shape == (None, 2)

    predictions = SplitPredictions(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], np.float32))
    find = custom_metrics.find(recipe.module or "", code.files(recipe), {})
    assert find is not None
    values, intervals = custom_metrics.measure(find, predictions, 10, seed=1)
    assert values == {"share_bought": 1 / 3, "missed": 1.0} and intervals.keys() == values.keys()


def test_a_version_needs_no_upload_of_its_code_or_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A year later: `uploads` and the cache are gone, and so is the project of the first version."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "no index").as_uri())
    (tmp_path / "no index").mkdir()
    project = tmp_path / "project"
    project.mkdir()
    file = Path(write_example(project))
    own = wheel(project, "shift", {"shift.py": "WIDTH = 2\n"})
    (project / "shop.py").write_text(f"{(project / 'shop.py').read_text()}\n\nimport shift\n")
    (project / "words.txt").write_text("word\n" * 20_000)  # more than the text of a recipe holds
    added = f"files: [words.txt]\npackages: [./{own.name}]\nexport: {{formats: [saved_model, keras]}}\n"
    file.write_text(f"{file.read_text()}{added}")
    here = tmp_path / "here.yaml"
    here.write_text(f"target: local\nstorage: {tmp_path}/storage\n")
    shutil.copy(project / "shop.csv", tmp_path)

    def run(*changes: str) -> ty.Run:
        monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / f"cache of {len(changes)}"))
        sets = ["train.epochs=1", "evaluate.gates=[]", f"data.path={tmp_path}/shop.csv"]
        return ty.run(str(file), environment=str(here), set_=[*sets, *changes])

    first = run()
    assert first.verdict == "blessed" and first.record["pushed"]["version"] == 1
    models = tmp_path / "storage/shop/models"
    shutil.rmtree(tmp_path / "storage/uploads")
    shutil.rmtree(tmp_path / "cache of 0")
    assert ty.versions(models)["1"].export(tmp_path / "exported").files
    assert "accuracy" in ty.evaluate(models, project / "shop.csv").metrics
    assert run("train.warm_start=champion", "train.batch_size=32").record["pushed"]["version"] == 2
    assert ty.versions(models).rollback().restored == 1

    held = models / "1/assets.extra/code.tar"
    sent = Archive(archive=str(held), sha256=str(cache.digest_of(held)))
    shutil.rmtree(project)
    assert code.files(recipes.load("digits").model_copy(update={"files": sent}))["words.txt"] == b"word\n" * 20_000


def test_a_fault_of_the_recipes_module_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    module = load_module("pets.py", {"pets.py": "def build_model(features, outputs):\n    return max(len(1), 2)\n"}, {})
    with pytest.raises(SystemExit), step.recorded("train", lambda: str(tmp_path / "model")):
        module.build_model([], 2)
    message = "train: TypeError: object of type 'int' has no len() (pets.py:2)"
    assert json.loads(Path(failure_record(str(tmp_path / "model"))).read_text())["message"] == message
    with pytest.raises(ConfigurationError, match=r"NameError: name 'y' is not defined \(dogs\.py:2\)"):
        load_module("dogs.py", {"dogs.py": "\nx = y\n"}, {})


def test_a_worker_loads_preprocessing_fn_from_the_files_and_wheels_that_travel(tmp_path: Path) -> None:
    source = "def preprocessing_fn(inputs):\n    import layers, shift\n\n    return layers.doubled(shift.WIDTH)\n"
    path = wheel(tmp_path, "shift", {"shift.py": "WIDTH = {3: 4}\n"})
    sent = Wheel(sha256=str(cache.digest_of(path)), bytes=path.stat().st_size, location=str(path))
    files = {"shop.py": source, "layers.py": "def doubled(inputs):\n    return inputs\n"}
    made = load_preprocessing("shop.py", files, {path.name: sent})
    variables = os.environ | {"TRAINYARD_CACHE": str(tmp_path / "of the worker")}
    there = subprocess.run([sys.executable, "-c", LOAD], input=pickle.dumps(made), capture_output=True, env=variables)
    assert there.stdout.decode().strip() == "{3: 4}", there.stderr.decode()
