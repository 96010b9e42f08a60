"""The files that travel with a recipe: which they are, what is refused, and that steps run them elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from trainyard.contract import keys
from trainyard.contract.provenance import provenance
from trainyard.errors import ConfigurationError, module_line
from trainyard.graph import OUTPUTS
from trainyard.kubernetes.pod_spec import literal_value
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import code, plain_yaml
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.documents import parse
from trainyard.spec.recipe import Recipe
from trainyard_control.cli.main import app
from trainyard_control.compiler.compilation import compiled

RECIPE = """name: shop
module: shop.py
data: {format: csv, path: s3://shop/rows.csv, label: bought, features: {price: {type: numeric}}}
"""
MODULE = """import layers


def build_model(features, outputs):
    return layers.WIDTH


def preprocessing_fn(inputs):
    return inputs
"""


def write(folder: Path, files: dict[str, str | bytes], recipe: str = RECIPE) -> str:
    """Write `files` and the recipe; return the recipe's file."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "shop.yaml").write_text(recipe)
    return str(folder / "shop.yaml")


def load(folder: Path, files: dict[str, str | bytes], *overrides: str) -> Recipe:
    return recipes.load(write(folder, files), list(overrides))


def carried(recipe: Recipe) -> Recipe:
    """The recipe as a pod reads it from the pipeline, far from its files."""
    spec = compiled(recipe, environments.load("kind")).pipeline
    text = spec["root"]["inputDefinitions"]["parameters"]["recipe"]["defaultValue"]
    return parse(text, Recipe, name="recipe")


def test_a_pod_has_the_module_and_what_it_imports_and_the_keys_of_a_local_run(tmp_path: Path) -> None:
    local = load(tmp_path, {"shop.py": MODULE, "layers.py": "WIDTH = 3\n", "unused.py": "1 / 0\n"})
    there = carried(local)
    assert there == local and list(code.files(there)) == ["layers.py", "shop.py"]
    for step in OUTPUTS:
        assert keys.output_uri("/runs", there, step) == keys.output_uri("/runs", local, step)
    assert load_module(str(there.module), code.files(there), {}).build_model([], 2) == 3


def test_a_recipe_without_code_sends_no_byte_more() -> None:
    """0 bytes: `train.files: []` became `files: []`."""
    text = plain_yaml.dump(recipes.load("digits").model_dump(mode="json"))
    assert "\nfiles: []\n" in text and "  files:" not in text


@pytest.mark.parametrize(
    ("name", "text", "steps"),
    [
        ("shop.py", MODULE.replace("layers.WIDTH", "2 * layers.WIDTH"), ["preprocess", "train"]),
        ("layers.py", "WIDTH = 4\n", ["preprocess", "train"]),
        ("layers.py", "# A comment.\nWIDTH = 3\n", []),
        ("unused.py", "", []),
        ("words.txt", "# b\n", ["preprocess", "train"]),
    ],
)
def test_a_change_reruns_the_steps_that_call_the_module(tmp_path: Path, name: str, text: str, steps: list[str]) -> None:
    files: dict[str, str | bytes] = {"shop.py": MODULE, "layers.py": "WIDTH = 3\n", "words.txt": "# a\n"}
    before, after = (
        load(tmp_path, files, "files=[words.txt]"),
        load(tmp_path, files | {name: text}, "files=[words.txt]"),
    )
    assert [step for step in OUTPUTS if provenance(before, step) != provenance(after, step)] == steps


def test_the_training_program_and_the_module_count_apart(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "shop.py": "import shared\n\n\ndef metrics(labels, outputs):\n    return {}\n",
        "my_train.py": "import layers, shared\n",
        "layers.py": "WIDTH = 3\n",
        "shared.py": "A = 1\n",
    }
    command = "train.command=[python, my_train.py]"

    def changed(name: str, text: str) -> list[str]:
        before, after = load(tmp_path, files, command), load(tmp_path, files | {name: text}, command)
        return [step for step in OUTPUTS if provenance(before, step) != provenance(after, step)]

    assert changed("layers.py", "WIDTH = 4\n") == ["train"]
    assert changed("shop.py", str(files["shop.py"]) + "\nB = 1\n") == ["evaluate"]
    assert changed("shared.py", "A = 2\n") == ["train", "evaluate"]
    assert "shop.py" not in code.program_files(load(tmp_path, files, command))


def test_packages_relative_imports_and_files_beside_them_run_in_another_folder(tmp_path: Path) -> None:
    """In a process that has never seen the project's folder, as a pod."""
    module = """from pathlib import Path

import helpers
from . import near
from ..common.scale import by
from pets.nets.small import width
from pets import version


def build_model(features, outputs):
    words = (Path(__file__).parent.parent / "data" / "words.txt").read_text().split()
    from late import later
    return [helpers.A, near.A, by(2), width(), version, words, later]
"""
    files: dict[str, str | bytes] = {
        "src/shop.py": module,
        "src/helpers.py": "A = 1\n",
        "src/near.py": "A = 2\n",
        "common/scale.py": "def by(x):\n    return 3 * x\n",
        "pets/__init__.py": "version = 4\n",
        "pets/nets/__init__.py": "from .small import width\n",
        "pets/nets/small.py": "from ..base import BASE\n\n\ndef width():\n    return BASE\n",
        "pets/base.py": "BASE = 5\n",
        "late.py": "later = 7\n",
        "data/words.txt": "red green",
        "data/weights.npy": b"\x93NUMPY\xff\r\n",
        "data/__pycache__/x.pyc": b"\xff",
        "data/.git/config": "",
        "data/venv/pyvenv.cfg": "",
        "data/venv/lib.py": "",
    }
    recipe = load(tmp_path / "project", files, "module=src/shop.py", "files=[data]")
    sent = [name for name in files if not name.startswith(("data/__", "data/.", "data/venv"))]
    assert sorted(code.files(recipe)) == sorted(sent)
    (tmp_path / "recipe.yaml").write_text(plain_yaml.dump(carried(recipe).model_dump(mode="json")))
    (tmp_path / "project").rename(tmp_path / "moved")
    program = """import sys
from pathlib import Path
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import code, documents
from trainyard.spec.recipe import Recipe
recipe = documents.load(Path(sys.argv[1]), Recipe)
module = load_module(recipe.module, code.files(recipe), {})
root = Path(module.__file__).parent.parent
print(module.build_model([], 2), (root / "data/weights.npy").read_bytes())
"""
    (tmp_path / "pod").mkdir()
    command = [sys.executable, "-c", program, str(tmp_path / "recipe.yaml")]
    ended = subprocess.run(command, cwd=tmp_path / "pod", capture_output=True, text=True)
    assert ended.stdout == "[1, 2, 6, 5, 4, ['red', 'green'], 7] b'\\x93NUMPY\\xff\\r\\n'\n", ended.stderr


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"shop.py": "from . import layers\n"}, "shop.py:1: imports '.layers', and there is no such file in the"),
        ({"shop.py": "\nfrom .nets.a import b\n"}, "shop.py:2: imports '.nets.a', and there is no such file in"),
        ({"shop.py": "from ..common import a\n"}, "shop.py:1: imports '..common', which is outside of the recipe's"),
        ({"shop.py": "import types\n", "types.py": ""}, "shop.py:1: imports 'types', which is a module of Python and"),
        ({"shop.py": "import key\n", "key.py": f"K = 'AKIA{'A' * 16}'\n"}, "files: key.py: holds a password or a key"),
        ({"shop.py": "", "data/.env": "A=1"}, "files: data/.env: has the name of a password or a key"),
        ({"shop.py": "", "data/id_rsa": "A"}, "files: data/id_rsa: has the name of a password or a key"),
        ({"shop.py": b"\xff"}, "shop.py: is not UTF-8 text"),
    ],
)
def test_what_cannot_travel_is_refused_in_a_sentence(
    tmp_path: Path, files: dict[str, str | bytes], expected: str
) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigurationError, match=expected) as refused:
        load(tmp_path, files, "files=[data]")
    assert "AKIA" not in str(refused.value)


def test_an_import_that_may_fail_or_is_for_types_alone_needs_no_file(tmp_path: Path) -> None:
    text = "try:\n    from . import fast\nexcept ImportError:\n    fast = None\nfrom typing import TYPE_CHECKING\n"
    recipe = load(tmp_path, {"shop.py": f"{text}if TYPE_CHECKING:\n    from . import kinds\n"})
    assert list(code.files(recipe)) == ["shop.py"]
    assert load_module("shop.py", code.files(recipe), {}).fast is None


def test_links_are_followed_inside_of_the_folder_only(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"project/shop.py": "import near\n", "project/real/a.txt": "a", "out/far.py": ""}
    write(tmp_path, files)
    recipe = write(tmp_path / "project", {})
    (tmp_path / "project" / "near.py").symlink_to("real/near.py")
    (tmp_path / "project" / "real" / "near.py").write_text("A = 1\n")
    (tmp_path / "project" / "real" / "again").symlink_to("..")  # a circle
    loaded = recipes.load(recipe, ["files=[real]"])
    assert {"near.py", "real/a.txt", "real/near.py"} < code.files(loaded).keys()
    (tmp_path / "project" / "near.py").unlink()
    (tmp_path / "project" / "near.py").symlink_to(tmp_path / "out" / "far.py")
    with pytest.raises(ConfigurationError, match=r"files: near.py: is a link to .*/out/far.py, outside of the folder"):
        recipes.load(recipe)


def test_a_module_outside_of_the_recipes_folder_takes_its_own_folder(tmp_path: Path) -> None:
    write(tmp_path / "lib", {"shop.py": "import layers\n", "layers.py": "A = 1\n"})
    recipe = write(tmp_path / "project", {"layers.py": "A = 2\n"})
    loaded = recipes.load(recipe, [f"module={tmp_path}/lib/shop.py"])
    assert (loaded.module, code.files(loaded)["layers.py"]) == ("shop.py", "A = 1\n")
    with pytest.raises(ConfigurationError, match=r"files: layers.py: is both beside the recipe and beside the module"):
        recipes.load(recipe, [f"module={tmp_path}/lib/shop.py", "files=[layers.py]"])


def test_two_recipes_in_one_process_do_not_share_modules_of_one_name() -> None:
    for value in (1, 2, 1):
        files = {"shop.py": "import layers\nA = layers.A\n", "layers.py": f"A = {value}\n"}
        assert value == load_module("shop.py", files, {}).A


def test_a_local_module_with_the_name_of_an_installed_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"shop.py: imports the local module 'yaml', .*Rename the local one"):
        load_module("shop.py", {"shop.py": "import yaml\n", "yaml.py": "A = 1\n"}, {})


def test_a_fault_in_a_file_beside_the_module_is_told_with_its_name_and_line() -> None:
    files = {"shop.py": "from lib.layers import f\n", "lib/layers.py": "def f():\n    return 1 / 0\n"}
    with pytest.raises(ZeroDivisionError) as fault:
        load_module("shop.py", files, {}).f()
    assert module_line(fault.value) == " (lib/layers.py:2)"


TEXTS = st.text(st.sampled_from("{}$() \n\r\t#:-'\"\\|>a1é\x0c\x85\u2028😀\x00"), max_size=40) | st.text(max_size=40)


@given(st.dictionaries(st.sampled_from(["a.py", "b/c d.txt"]), TEXTS))
def test_every_text_arrives_as_it_is_and_nothing_is_a_variable_of_argo(files: dict[str, str]) -> None:
    text = plain_yaml.dump({"files": files})
    assert "{{" not in text
    assert plain_yaml.YamlText(text, "recipe").content == {"files": files}


def test_a_dry_run_lists_each_file_that_is_sent_with_its_size(tmp_path: Path) -> None:
    recipe = write(tmp_path, {"shop.py": "import layers\n", "layers.py": "A = 1\n"})
    answer = CliRunner().invoke(app, ["submit", recipe, "-e", "kind", "--dry-run"], catch_exceptions=False)
    assert [line.split() for line in answer.stderr.splitlines()[:3]] == [
        ["layers.py", "6", "bytes"],
        ["shop.py", "14", "bytes"],
        ["sends", "20", "bytes", "of", "code"],
    ]
    assert "import layers" in answer.stdout


def test_a_dollar_in_a_file_reaches_the_pods_of_a_gang_as_it_is() -> None:
    assert literal_value("echo $RANK $(RANK) $$") == "echo $$RANK $$(RANK) $$$$"


def test_a_recipe_whose_files_were_not_read_is_not_compiled(tmp_path: Path) -> None:
    recipe = load(tmp_path, {"shop.py": ""}).model_copy(update={"files": []})
    with pytest.raises(ConfigurationError, match=r"files: shop.py: not read yet. Load the recipe from its file"):
        compiled(recipe, environments.load("kind"))


def test_code_of_the_greatest_size_fits_into_an_argument_of_a_step(tmp_path: Path) -> None:
    line = "    value = function(argument)  # {}\n"
    text = plain_yaml.dump(carried(load(tmp_path, {"shop.py": line * (65000 // len(line))})).model_dump(mode="json"))
    assert len(json.dumps(json.dumps(text))) < 128 << 10
