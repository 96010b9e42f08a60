"""When the key of a step's output changes, and what a run says about it."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from trainyard.contract import keys, provenance
from trainyard.contract.origin import origin, recorded, why_again
from trainyard.graph import OUTPUTS
from trainyard.spec import recipe as recipes
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
        uris[step] = keys.output_uri("/runs", RECIPE, step, *(uris[name] for name in keys.STEPS[step].reads))
    return uris


def changed(package: Path, module: str, text: str) -> list[str]:
    """Return the steps whose outputs have another key once `text` is in `module`."""
    before = outputs()
    path = package / module
    path.write_text(path.read_text().replace("\nfrom __future__ import annotations\n", f"\n{text}\n", 1))
    after = outputs()
    return [step for step in OUTPUTS if before[step] != after[step]]


def test_the_key_is_the_same_wherever_the_package_lies(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = outputs()
    monkeypatch.undo()
    assert outputs() == copied


@pytest.mark.parametrize(
    ("module", "steps"),
    [
        ("report/plots.py", []),
        ("spec/recipe.py", []),  # where the name of a new model or format goes
        ("storage/buckets/gcs.py", []),
        ("steps/summary/run.py", []),
        ("child_process.py", []),
        ("models/alexnet.py", []),  # digits trains another network
        ("models/cnn_small.py", ["train", "evaluate", "export", "push"]),
        ("steps/train/loop/loop.py", ["train", "evaluate", "export", "push"]),
        ("steps/train/engines/jax/jax_steps.py", []),
        ("steps/preprocess/split.py", list(OUTPUTS)),
        ("steps/evaluate/gate.py", ["evaluate", "push"]),
        ("steps/export/lite.py", ["export", "push"]),
    ],
)
def test_a_module_counts_for_the_steps_that_import_it_and_those_after(
    package: Path, module: str, steps: list[str]
) -> None:
    assert changed(package, module, "MORE = 1") == steps


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
    assert differs("ai-edge-litert") == ["export", "push"]
    assert differs("jax") == differs("plotly") == differs("kfp") == []


def test_the_engine_that_trains_counts_and_its_own_libraries(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorflow = provenance.provenance(RECIPE, "train")
    monkeypatch.setenv("TRAINYARD_ENGINE", "jax")
    jax = provenance.provenance(RECIPE, "train")
    assert "jax" in jax.libraries and "jax" not in tensorflow.libraries
    assert "engine tensorflow → jax" in jax.changes(tensorflow)
    assert provenance.provenance(RECIPE, "evaluate").engine == ""


@pytest.mark.parametrize(("variant", "library", "pinned"), [("tpu", "tensorflow", "2.20.0"), ("jax", "jax", None)])
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
    assert planned.engine == ("jax" if variant == "jax" else "tensorflow")


def test_the_recipe_s_own_module_counts_for_the_steps_that_load_it(tmp_path: Path) -> None:
    module = tmp_path / "own.py"
    module.write_text("X = 1\n")
    recipe = RECIPE.model_copy(update={"module": str(module)})
    loaded = [step for step in OUTPUTS if "module" in provenance.provenance(recipe, step).modules]
    assert loaded == ["preprocess", "train", "evaluate"]
    before = keys.output_uri("/runs", recipe, "train", "examples")
    module.write_text("X = 1  # one\n")
    assert keys.output_uri("/runs", recipe, "train", "examples") == before
    module.write_text("X = 2\n")
    assert keys.output_uri("/runs", recipe, "train", "examples") != before


def test_every_import_by_name_in_the_modules_of_a_step_is_known() -> None:
    for step in OUTPUTS:
        files, _ = provenance._closure(provenance._PACKAGE, f"trainyard.steps.{step}.run", frozenset())
        dynamic = {name for name, path in files.items() if "import_module(" in path.read_text()}
        assert dynamic <= {provenance._NETWORKS}, "its modules are not part of the key"


def test_every_module_that_is_left_out_of_keys_exists() -> None:
    names = provenance._CARRIERS | provenance._COMPUTES | {provenance._NETWORKS, provenance._RECIPE_MODULE}
    names |= provenance._other_engines("neither")
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


def test_an_output_of_another_recipe_or_of_an_earlier_version_is_no_reason(tmp_path: Path) -> None:
    for name, record in (("older", None), ("other", origin(RECIPE, "export", {}).model_dump())):
        with storage.stage(f"{tmp_path}/train/{name}", "trainyard.train", origin=record):
            pass
    assert why_again(f"{tmp_path}/train/new", origin(RECIPE, "train", {})) == ""
    before = origin(RECIPE, "train", {"examples": "a"})
    with storage.stage(f"{tmp_path}/train/same", "trainyard.train", origin=before.model_dump()):
        pass
    assert why_again(f"{tmp_path}/train/new", origin(RECIPE, "train", {"examples": "b"})) == "its examples changed"


def test_published_weights_lie_beside_the_recipes_of_a_storage() -> None:
    model = keys.output_uri("s3://bucket/runs", RECIPE, "train", "examples")
    assert keys.published_weights(keys.checkpoints(model)) == "s3://bucket/runs/_published"
