"""When the key of a step's output changes, and what a run says about it."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract import keys, provenance
from trainyard.contract.origin import origin, recorded, why_again
from trainyard.graph import OUTPUTS, STEPS
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

ROOT = Path(__file__).parents[2]
RECIPE = recipes.load("digits")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package that keys are computed from."""
    copy = tmp_path / "elsewhere" / "trainyard"
    shutil.copytree(ROOT / "components" / "trainyard", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "_PACKAGE", copy)
    monkeypatch.delenv("TRAINYARD_ENGINE", raising=False)
    monkeypatch.delenv("TRAINYARD_TRAINER", raising=False)
    return copy


def outputs() -> dict[str, str]:
    """Return the key of each step's output, each made from the outputs before it."""
    provenance._closure.cache_clear()
    provenance._installed.cache_clear()
    uris: dict[str, str] = {}
    for step in OUTPUTS:
        uris[step] = keys.output_uri("/runs", RECIPE, step, *(uris[name] for name in STEPS[step].reads))
    return uris


def changed(package: Path, module: str, text: str) -> list[str]:
    """Return the steps whose outputs have another key once `text` is in `module`."""
    return edited(package / module, "\nfrom __future__ import annotations\n", f"\n{text}\n")


def edited(path: Path, old: str, new: str) -> list[str]:
    """Return the steps whose outputs have another key once `new` is in place of the first `old` in the file."""
    before = outputs()
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))
    after = outputs()
    return [step for step in OUTPUTS if before[step] != after[step]]


def test_the_key_is_the_same_wherever_the_package_lies(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = outputs()
    monkeypatch.undo()
    assert outputs() == copied


MODULES: dict[str, list[str]] = {
    "report/plots.py": [],
    "spec/recipe.py": list(OUTPUTS),  # its properties decide what is read and how it is stored
    "spec/formula.py": list(OUTPUTS),
    "spec/model.py": list(OUTPUTS),
    "storage/listing.py": list(OUTPUTS),
    "storage/tar.py": list(OUTPUTS),
    "readers/tf_examples.py": list(OUTPUTS),
    "spec/contradictions.py": [],
    "storage/buckets/gcs.py": [],
    "report/pipeline_run.py": [],
    "process/child_process.py": [],
    "models/alexnet.py": [],  # digits trains another network
    "models/cnn_small.py": ["train", "evaluate", "export", "push"],
    "steps/train/loop/loop.py": ["train", "evaluate", "export", "push"],
    "steps/train/engines/jax_engine.py": [],
    "steps/preprocess/split.py": list(OUTPUTS),
    "steps/evaluate/gate.py": ["evaluate", "push"],
    "steps/export/lite.py": ["export", "push"],
}


def test_a_module_counts_for_the_steps_that_import_it_and_those_after(package: Path) -> None:
    before = outputs()
    for module, steps in MODULES.items():
        path = package / module
        source = path.read_bytes()
        path.write_bytes(source + b"\nMORE = 1\n")
        after = outputs()
        path.write_bytes(source)
        assert [step for step in OUTPUTS if before[step] != after[step]] == steps, module


def test_comments_docstrings_and_layout_do_not_count(package: Path) -> None:
    path = package / "steps/train/loop/loop.py"
    path.write_text(path.read_text().replace('"""', '"""Another docstring.\n', 1))
    before = outputs()
    assert changed(package, "steps/train/loop/loop.py", "# A comment.\n\n\n") == list(OUTPUTS)[1:]  # an import is gone
    path.write_text(path.read_text().replace('"""Another docstring.', '"""One more. ', 1) + "\n\n# The end.\n")
    after = outputs()
    path.write_text(path.read_text().replace("# A comment.\n", "from __future__ import annotations\n", 1))
    assert outputs() == before != after


def test_the_version_of_a_library_counts_for_the_steps_that_use_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, version = outputs(), importlib.metadata.version

    def differs(library: str) -> list[str]:
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "0" if name == library else version(name))
        after = outputs()
        return [step for step in OUTPUTS if before[step] != after[step]]

    assert differs("apache-beam") == list(OUTPUTS)  # those after preprocess read another output
    assert differs("keras") == ["train", "evaluate", "export", "push"]
    assert differs("pyarrow") == differs("simplejpeg") == differs("scipy") == list(OUTPUTS)
    assert differs("ai-edge-litert") == differs("flatbuffers") == ["export", "push"]
    assert differs("jax") == differs("plotly") == differs("kfp") == []


def test_the_engine_that_trains_counts_and_its_own_libraries(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorflow = provenance.provenance(RECIPE, "train")
    monkeypatch.setenv("TRAINYARD_ENGINE", "jax")
    jax = provenance.provenance(RECIPE, "train")
    assert "jax" in jax.libraries and "jax" not in tensorflow.libraries
    assert "engine tensorflow → jax" in jax.changes(tensorflow)
    assert provenance.provenance(RECIPE, "evaluate").engine == ""


@pytest.mark.parametrize(
    ("variant", "library", "pinned"), [("tpu", "tensorflow", "2.20.0"), ("jax", "jax", None), ("jax-gpu", "jax", None)]
)
def test_a_step_that_plans_the_training_of_another_image_counts_that_image_s_libraries(
    variant: str, library: str, pinned: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [text.partition(";") for text in project[variant]]
    texts = [f'{name}; extra == "{variant}"' + (f" and ({mark})" if mark else "") for name, _, mark in asked]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: texts)
    provenance._pins.cache_clear()
    monkeypatch.setenv("TRAINYARD_TRAINER", variant)
    planned = provenance.provenance(RECIPE, "train")
    provenance._pins.cache_clear()
    lock = (ROOT / "locks" / f"{variant}.txt").read_text()
    assert re.search(rf"^{library}(-tpu)?=={re.escape(planned.libraries[library])}\b", lock, re.MULTILINE)
    assert planned.libraries[library] == (pinned or planned.libraries[library])
    assert planned.engine == ("tensorflow" if variant == "tpu" else "jax")


HOOKS = """
def preprocessing_fn(inputs):
    return inputs

def build_model(inputs, classes):
    return 1

def metrics(labels, outputs):
    return {}
"""


@pytest.mark.parametrize(
    ("source", "steps"),
    [
        (HOOKS, ["preprocess", "train", "evaluate"]),
        ("def build_model(inputs, classes):\n    return 1\n", ["train"]),
        ("def metrics(labels, outputs):\n    return {}\n", ["evaluate"]),
        ("from mine import transform as preprocessing_fn\n", ["preprocess"]),
        ("if True:\n    build_model = lambda inputs, classes: 1\n", ["train"]),
        ("globals()['build' + '_model'] = 1\n", ["preprocess", "train", "evaluate"]),
        ("from mine import *\n", ["preprocess", "train", "evaluate"]),
        ("def broken(:\n", ["preprocess", "train", "evaluate"]),
        ("X = 1\n", []),
    ],
)
def test_the_recipe_s_own_module_counts_for_the_steps_that_it_has_a_function_for(source: str, steps: list[str]) -> None:
    recipe = RECIPE.model_copy(update={"module": "own.py", "files": {"own.py": source}})
    assert [step for step in OUTPUTS if "module" in provenance.provenance(recipe, step).modules] == steps


def test_an_edit_of_the_recipe_s_own_module_counts_and_a_comment_does_not() -> None:
    def key(source: str, *inputs: str) -> str:
        recipe = RECIPE.model_copy(update={"module": "own.py", "files": {"own.py": source}})
        return keys.output_uri("/runs", recipe, "train" if inputs else "preprocess", *inputs)

    before = key("def build_model(inputs, classes):\n    return 1\n", "examples")
    assert key("def build_model(inputs, classes):\n    return 1  # one\n", "examples") == before
    assert key("def build_model(inputs, classes):\n    return 2\n", "examples") != before
    assert key("") == keys.output_uri("/runs", RECIPE, "preprocess")


def test_every_import_by_name_in_the_modules_of_a_step_is_known() -> None:
    for step in OUTPUTS:
        files, _ = provenance._closure(provenance._PACKAGE, f"trainyard.steps.{step}.run", frozenset())
        dynamic = {name for name, path in files.items() if "import_module(" in path.read_text()}
        # on_device.predict is copied into exports and runs on devices alone.
        # export.served starts the server, another program, which judges the files and changes none.
        known = {provenance._NETWORKS, "trainyard.steps.export.on_device.predict", "trainyard.steps.export.served"}
        assert dynamic <= known, "its modules are not part of the key"


def closures() -> dict[str, tuple[set[str], set[str]]]:
    """Return modules and libraries of each step with all engines and networks, as counted or all of them."""
    found = {}
    for step in OUTPUTS:
        entries = [f"trainyard.steps.{step}.run"]
        if step in ("train", "evaluate", "export"):
            folder = ROOT / "components/trainyard/models"
            entries += [f"trainyard.models.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"]
        modules: set[str] = set()
        libraries: set[str] = set()
        for entry in entries:
            files, imported = provenance._closure(provenance._PACKAGE, entry, frozenset())
            modules |= set(files)
            libraries |= {provenance.library(name) for name in imported}
        found[step] = modules, libraries - set(sys.stdlib_module_names) - {"trainyard"}
    return found


def test_every_module_that_a_step_imports_is_in_its_key_or_excluded_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provenance._closure.cache_clear()
    counted = {name for modules, _ in closures().values() for name in modules}
    excluded = provenance.EXCLUDED | {"trainyard"}
    monkeypatch.setattr(provenance, "EXCLUDED", frozenset())
    provenance._closure.cache_clear()
    everything = {name for modules, _ in closures().values() for name in modules}
    provenance._closure.cache_clear()
    left = {name for name in everything - counted if not any(f"{name}.".startswith(f"{key}.") for key in excluded)}
    # What only a module that is excluded imports.
    assert left == set()
    assert [name for name in excluded if provenance._file(provenance._PACKAGE, name) is None] == []


_MOVES = "moves whole files, whose digests are compared"
_VALUES = "reads or validates documents, whose values are in the key"
_EXCLUDED_LIBRARIES = {
    **dict.fromkeys(("boto3", "botocore", "google", "google_crc32c", "requests", "urllib3"), _MOVES),
    **dict.fromkeys(("pydantic", "pydantic_core", "yaml"), _VALUES),
    "grpc": "starts, watches and ends processes",
    "h5py": "checks the size of a model file, which Keras reads",
    "jinja2": "writes the card of a version, which is no part of its model",
    "packaging": "names outputs",
    "pynvml": "reports, and changes no output",
    "threadpoolctl": "sets how many threads grow trees, which is one",
}


def test_every_library_that_a_step_imports_is_in_its_key_or_excluded_with_a_reason() -> None:
    provenance._closure.cache_clear()
    imported = {name for _, libraries in closures().values() for name in libraries}
    assert imported - provenance._DISTRIBUTIONS.keys() - _EXCLUDED_LIBRARIES.keys() == set()
    assert provenance._DISTRIBUTIONS.keys().isdisjoint(_EXCLUDED_LIBRARIES)


def test_an_edit_of_any_module_that_is_counted_changes_the_key(package: Path) -> None:
    """Each module in turn, in the copy that keys are computed from; the digests of the others are remembered."""
    provenance._closure.cache_clear()
    before = {step: provenance.provenance(RECIPE, step).modules for step in OUTPUTS}
    for step, modules in before.items():
        for name in modules:
            path = provenance._file(package, name)
            assert path is not None
            source = path.read_bytes()
            path.write_bytes(source + b"\nMORE = 1\n")
            after = provenance.provenance(RECIPE, step).modules
            path.write_bytes(source)
            assert {name for name in after if after[name] != modules[name]} == {name}


def test_every_library_of_a_key_changes_it(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = provenance._installed
    for step in OUTPUTS:
        before = provenance.provenance(RECIPE, step)
        for name in before.libraries:
            names = provenance._DISTRIBUTIONS[name]
            monkeypatch.setattr(provenance, "_installed", lambda other, names=names: "0" if other in names else "")
            assert provenance.provenance(RECIPE, step).libraries[name] == "0" != before.libraries[name]
            monkeypatch.setattr(provenance, "_installed", installed)


def test_messages_of_errors_and_descriptions_of_fields_do_not_count(package: Path) -> None:
    assert edited(package / "storage/tar.py", "is not a tar archive", "is no archive") == []
    assert edited(package / "spec/recipe.py", "Random seed.", "The seed.") == []
    assert edited(package / "spec/recipe.py", "if self.image_size else", "if self.store else") == list(OUTPUTS)


def test_every_module_that_is_left_out_of_keys_exists() -> None:
    names = {provenance._NETWORKS} | provenance._other_engines("neither")
    assert [name for name in sorted(names) if provenance._file(provenance._PACKAGE, name) is None] == []


def test_a_run_says_which_module_and_library_makes_it_run_again(package: Path, tmp_path: Path) -> None:
    def leave(step: str) -> str:
        made_from = origin(RECIPE, step, {"examples": "/runs/examples", "checkpoints": "elsewhere"})
        output = keys.output_uri(str(tmp_path), RECIPE, step, "/runs/examples")
        why = why_again(output, made_from)
        with storage.stage(output, "trainyard.train", origin=made_from.model_dump()):
            pass
        assert recorded(output) == made_from and made_from.inputs == {"examples": "/runs/examples"}
        return why

    outputs()
    assert leave("train") == ""
    changed(package, "steps/train/loop/loop.py", "MORE = 1")
    assert leave("train") == "trainyard.steps.train.loop.loop changed"
    changed(package, "models/cnn_small.py", "from trainyard.models import alexnet")
    assert leave("train") == "trainyard.models.cnn_small changed, trainyard.models.alexnet is new"


def test_a_reason_names_every_recipe_key_input_and_file_that_changed(tmp_path: Path) -> None:
    data = {"format": "csv", "path": str(tmp_path / "a*.csv"), "label": "y", "features": {"x": {"type": "numeric"}}}
    document = {"name": "rows", "data": data, "model": {"name": "mlp"}, "seed": 1}
    (tmp_path / "a1.csv").write_text("x,y\n1,2\n")

    def leave(step: str, changes: dict[str, Any], **arguments: str) -> str:
        for path, value in changes.items():
            *sections, last = path.split(".")
            part: dict[str, Any] = document
            for section in sections:
                part = part.setdefault(section, {})
            part[last] = value
        recipe = Recipe.model_validate(document)
        made_from = origin(recipe, step, arguments)
        more = [keys.fingerprint(recipe)] if step == "preprocess" else [*arguments.values(), str(made_from.weights)]
        output = keys.output_uri(str(tmp_path / "runs"), recipe, step, *more)
        assert storage.committed(output) is None, "the key changed"
        why = why_again(output, made_from)
        with storage.stage(output, f"trainyard.{step}", origin=made_from.model_dump()):
            pass
        return why

    assert leave("preprocess", {}) == ""
    assert leave("preprocess", {"seed": 2}) == "seed 1 → 2"
    assert leave("preprocess", {"data.where": "x > 0"}) == 'data.where null → "x > 0"'
    assert leave("preprocess", {"data.features.z": {"type": "category"}}) == "data.features.z is new"
    (tmp_path / "a1.csv").write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "a2.csv").write_text("x,y\n1,2\n")
    assert leave("preprocess", {}) == "a1.csv changed, a2.csv is new"
    (tmp_path / "a2.csv").unlink()
    assert leave("preprocess", {"seed": 1}) == "seed 2 → 1, a2.csv is gone"

    assert leave("train", {}, examples="a") == ""
    assert leave("train", {}, examples="b") == "the examples changed"
    assert leave("train", {"train.epochs": 3, "model.hidden": [8]}, examples="b") == (
        "model.hidden [64, 32] → [8], train.epochs 10 → 3"
    )
    assert leave("train", {}, examples="b", start="models/1") == "the model that training starts from changed"
    assert leave("train", {"train.epochs": 10}, examples="c", start="models/1") == (
        "train.epochs 3 → 10, the examples changed"
    )
    assert leave("evaluate", {}, examples="a", model="b", champion="models/1") == ""
    assert leave("evaluate", {}, examples="a", model="c", champion="models/2") == (
        "the champion changed, the model changed"
    )
    before = origin(RECIPE, "train", {})
    assert before.model_copy(update={"weights": "sha256"}).changes(before) == [
        "the weights that training starts from changed"
    ]


def test_an_output_of_an_earlier_version_is_no_reason(tmp_path: Path) -> None:
    for name, record in (("older", None), ("other", {"recipe": "digest", "inputs": {}})):
        with storage.stage(f"{tmp_path}/train/{name}", "trainyard.train", origin=record):
            pass
    assert why_again(f"{tmp_path}/train/new", origin(RECIPE, "train", {})) == ""


def test_published_weights_lie_beside_the_recipes_of_a_storage() -> None:
    model = keys.output_uri("s3://bucket/runs", RECIPE, "train", "examples")
    assert keys.published_weights(keys.checkpoints(model)) == "s3://bucket/runs/_published"
