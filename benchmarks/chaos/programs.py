"""The commands that are disturbed: small runs by one process or a gang, and a prediction; and what they leave.

What is compared, see `results`, is every file of every committed output that does not hold times of the run itself.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import yaml

from trainyard.storage import storage

STEPS = ("preprocess", "train", "evaluate", "export", "push")
TOLERANCE = 1e-5
"""Relative difference of losses and weights that an elastic gang may have if its number of workers changed."""
_TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
_SHORT = {
    "evaluate": {"bootstrap": 20, "gates": [{"metric": "accuracy", "min": 0.1}]},
    "export": {"formats": ["saved_model"]},
}
# No ReLU and no max pooling, which amplify the rounding of another number of workers.
_MODULE = """
import keras
def build_model(features, outputs):
    image = keras.Input((8, 8, 1), name="image")
    x = keras.layers.Rescaling(1 / 255)(image)
    x = keras.layers.Conv2D(8, 3, padding="same", activation="tanh")(x)
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(x))
    return keras.Model({"image": image}, keras.layers.Dense(outputs)(x), name="tiny")
"""
_IMAGES = {"format": "image_folder", "bundled": "digits", "channels": 1}
_GANG = {
    "epochs": 8,
    "batch_size": 96,
    "optimizer": {"name": "sgd", "learning_rate": 0.05, "learning_rate_batch": 96},
    "augment": {"shift": 0.1},
    "checkpoints": {"every_steps": 10},
}
# Of a document, what measures the run, and what says how often it was disturbed.
_TIMES = re.compile(
    "seconds|per_second|_ms$|goodput|bottleneck|restarts|stragglers|resumed_from|worker_counts|finished|measured|checkpoint_writes"
)
_README_TIMES = re.compile(r"(?m)^\| training time \|.*$|[\d.]+ \|$")  # and a format's milliseconds
_ADDRESSES = re.compile(rb'"shared_object_id": \d+')  # Keras writes where an object was in memory


@dataclass(frozen=True)
class Program:
    """A command to disturb. workers: of its training. elastic: whether it continues with fewer. step: its only one."""

    name: str
    workers: int = 1
    elastic: bool = False
    bucket: bool = False

    @property
    def recipe(self) -> str:
        """The name of the recipe that it runs."""
        return "table" if self.name == "table" else "gang" if self.workers > 1 else "images"


PREDICT = Program("predict")
ALL = (
    Program("images"),
    Program("table"),
    Program("gang of two", workers=2),
    Program("elastic gang", workers=2, elastic=True),
    Program("images in a bucket", bucket=True),
    Program("gang in a bucket", workers=2, bucket=True),
    PREDICT,
)


def write_recipes(folder: Path) -> None:
    """Leave the recipes of all programs, and rows to predict, in `folder`."""
    tabular = yaml.safe_load(Path("components/trainyard/recipes/tabular.yaml").read_text(encoding="utf-8"))
    (folder / "own.py").write_text(_MODULE, encoding="utf-8")
    own = {"module": str(folder / "own.py"), "data": _IMAGES, "seed": 3}
    recipes = {
        "images": {
            "data": _IMAGES,
            "model": {"name": "cnn_small"},
            "train": {"epochs": 5, "batch_size": 64, "checkpoints": {"every_steps": 10}},
        },
        "table": {
            "data": tabular["data"],
            "model": {"name": "mlp"},
            "train": {"epochs": 12, "batch_size": 32, "checkpoints": {"every_steps": 10}},
        },
        "gang": {**own, "train": {**_GANG, "workers": 2}},
        "elastic": {**own, "train": _GANG},
    }
    for name, recipe in recipes.items():
        text = yaml.safe_dump({"name": name, **_SHORT, **recipe})
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def command(program: Program, recipes: Path, root: str, folder: Path) -> list[str]:
    """Return the command, which stores below `root` and writes other files to `folder`."""
    environment = {"target": "local", "storage": root}
    if program.elastic:
        pool = {"kind": "cpu", "workers": {"min": 1, "max": 2}, "replace_seconds": 2, "start_deadline_seconds": 300}
        pool["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
        environment |= {"pools": {"spot": pool}, "placement": {"train": "spot"}}
    (folder / "here.yaml").write_text(yaml.safe_dump(environment), encoding="utf-8")
    options = ["-e", str(folder / "here.yaml"), "-o", "json"]
    if program == PREDICT:
        rows = str(recipes / "breast_cancer.csv")
        return [_TRAINYARD, "predict", f"{root}/table/models", rows, "--out", f"{root}/out.csv", *options]
    name = "elastic" if program.elastic else program.recipe
    return [_TRAINYARD, "run", str(recipes / f"{name}.yaml"), *options]


def copy_before(source: Path, root: Path, step: str) -> None:
    """Copy to `root` the outputs of the steps before `step`, so that a run starts there."""
    later = {*STEPS[STEPS.index(step) :], "models", "runs", "index.html"}
    shutil.copytree(source, root, ignore=lambda _, names: later & set(names), dirs_exist_ok=True)


def results(root: str, predictions: Path | None = None) -> dict[str, str]:
    """Return the checksum of every file that must not depend on faults, after checking it: `step/key/name` → CRC32C.

    Of JSON documents it is their text without times, speeds and restarts; TensorBoard's files and the reports, which
    hold nothing but these, are left out. `model.keras` is its weights and its configuration.
    """
    found: dict[str, str] = {}
    if predictions is not None:
        return {"predictions": predictions.read_text(encoding="utf-8")}
    for recipe in _folders(root):
        for step in (*STEPS, "models"):
            for key in _folders(f"{root}/{recipe}/{step}"):
                folder = f"{root}/{recipe}/{step}/{key}"
                manifest = storage.committed(folder)
                if manifest is None:
                    found[f"{step}/{key}"] = "no manifest"
                    continue
                for name, file in manifest.files.items():
                    content = storage.read(folder, name)  # raises where it differs from the manifest
                    if not name.startswith("tensorboard/"):
                        found[f"{step}/{key}/{name}"] = _checksum(name, content or b"", file.crc32c)
    return found


def _folders(uri: str) -> list[str]:
    return [name for name in storage.children(uri) if "." not in name]


def _checksum(name: str, content: bytes, crc32c: str) -> str:
    if name.endswith(".json"):
        return json.dumps(_timeless(json.loads(content)), sort_keys=True)
    if name == "README.md":
        return _README_TIMES.sub("", content.decode())
    if name.endswith(".keras"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            weights, configuration = (archive.read(name) for name in ("model.weights.h5", "config.json"))
        return hashlib.sha256(weights + _ADDRESSES.sub(b"", configuration)).hexdigest()
    return crc32c


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if not _TIMES.search(key)}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def differences(now: dict[str, str], undisturbed: dict[str, str]) -> list[str]:
    """Return the names that one has and the other has not, or whose content differs, and how documents differ.

    After a push that was disturbed, the next run compares the model with the champion that it is itself: evaluate and
    push then have a second output each, or push only that.
    """
    again = re.compile("(evaluate|push)/")
    one_push = any(name.startswith("push/") for name in now)
    different = []
    for name in sorted(now.keys() | undisturbed.keys()):
        if (name not in undisturbed and again.match(name)) or (
            name not in now and one_push and name.startswith("push/")
        ):
            continue
        one, other = now.get(name, "missing"), undisturbed.get(name, "not expected")
        if one != other:
            start = next((i for i, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), 0)
            start = max(0, start - 20)
            different.append(f"{name}: {one[start : start + 80]!r} is not {other[start : start + 80]!r}")
    return different


def drift(root: str, undisturbed: str) -> float:
    """Return the largest relative difference of losses and of weights of the trained models below both roots."""
    histories, weights = zip(*(_trained(uri) for uri in (root, undisturbed)), strict=True)
    if histories[0].shape != histories[1].shape:
        return float("inf")
    losses = float(np.max(np.abs(histories[0] - histories[1]) / np.abs(histories[1])))
    return max(losses, float(np.linalg.norm(weights[0] - weights[1]) / np.linalg.norm(weights[1])))


def _trained(root: str) -> tuple[np.ndarray, np.ndarray]:
    (recipe,) = _folders(root)
    (key,) = _folders(f"{root}/{recipe}/train")
    folder = f"{root}/{recipe}/train/{key}"
    history = json.loads(storage.read(folder, "training.json") or b"{}")["history"]
    losses = np.array([(epoch["step"], epoch["train_loss"], epoch["eval_loss"]) for epoch in history])
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "model.keras")
        path.write_bytes(storage.read(folder, "model.keras") or b"")
        shutil.unpack_archive(path, temporary, "zip")
        with h5py.File(Path(temporary, "model.weights.h5")) as file:
            return losses, np.concatenate([np.ravel(values) for values in _arrays(file)])


def _arrays(group: h5py.Group) -> Iterator[np.ndarray]:
    for name in sorted(group):
        item = group[name]
        if isinstance(item, h5py.Group):
            yield from _arrays(item)
        else:
            yield item[()].astype(np.float64)


def leftovers(folder: Path) -> list[str]:
    """Return temporary files of writers below `folder` that no later attempt has removed."""
    return [
        os.path.relpath(path, folder)
        for path in folder.rglob(".*")
        if path.is_dir() and path.name in (".staging", ".attempts") and any(path.iterdir())
    ]
