"""Packages of recipes: what is asked for, which wheels are chosen, and where a step's process finds them."""

from __future__ import annotations

import base64
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from tests.wheel_files import wheel

from trainyard.contract import keys
from trainyard.contract.provenance import provenance
from trainyard.errors import ConfigurationError, DataError, TrainyardError
from trainyard.graph import OUTPUTS
from trainyard.runtime import recipe_packages
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import code, plain_yaml
from trainyard.spec import environment as environments
from trainyard.spec import packages as specification
from trainyard.spec import recipe as recipes
from trainyard.spec.documents import parse
from trainyard.spec.packages import Wheel
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.custom_program import program
from trainyard.steps.train.peers.settings import current_rank
from trainyard.storage import cache
from trainyard_control.api import uploads
from trainyard_control.api.packages import prepare, prepare_benchmarks
from trainyard_control.compiler.compilation import Submission, compiled
from trainyard_control.kubeflow import schedules
from trainyard_control.planning import python_packages
from trainyard_control.search import cluster_trials
from trainyard_control.search.search_space import Dimension
from trainyard_control.search.study import Sweep

ROOT = Path(__file__).parents[2]
RECIPE = """name: shop
module: shop.py
data: {format: csv, path: s3://shop/rows.csv, label: bought, features: {price: {type: numeric}}}
"""
MODULE = "import shift\n\n\ndef build_model(features, outputs):\n    return shift.WIDTH\n"


def load(folder: Path, *lines: str, **files: str) -> Recipe:
    (folder / "shop.py").write_text(MODULE)
    for name, text in files.items():
        (folder / name.replace("_txt", ".txt")).write_text(text)
    (folder / "shop.yaml").write_text(RECIPE + "\n".join(lines))
    return recipes.load(str(folder / "shop.yaml"))


def locked(*paths: Path) -> dict[str, Wheel]:
    return {
        path.name: Wheel(sha256=cache.digest_of(path), bytes=path.stat().st_size, location=str(path)) for path in paths
    }


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is the only package index."""
    monkeypatch.setenv("PATH", f"{ROOT / '.uv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if shutil.which("uv") is None and not Path(sys.executable).with_name("uv").is_file():
        pytest.skip("uv is not installed")
    folder = tmp_path / "index"
    folder.mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    return folder


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("packages: [shop-1.0.tar.gz]", "is a source distribution, and nothing is built for a run. Build a wheel by"),
        ("packages: [./library]", "is no wheel. Build a wheel by `pip wheel --no-deps ./library`"),
        ("packages: ['git+https://host/x']", "is no package with its versions"),
        ("packages: ['x @ https://host/x.zip']", "Build a wheel by"),
        ("packages: ['x @ https://host/x']", "is read from a URL"),
        ("packages: [--pre]", "is an option"),
        ("packages: [my.whl]", "is no wheel's file name"),
        ("packages: [./my-1.0-py3-none-any.whl]", "there is no file './my-1.0-py3-none-any.whl' beside the recipe"),
        ("requirements: requirements.txt", "there is no file 'requirements.txt' beside the recipe"),
    ],
)
def test_what_is_no_wheel_and_no_package_is_refused_with_what_to_do(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=r"packages|requirements") as refused:
        load(tmp_path, line)
    assert sentence in str(refused.value)


def test_packages_without_code_that_imports_them_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"needs module or train\.command"):
        recipes.load("digits", ["packages=[idna]"])


def test_a_file_of_requirements_adds_its_lines_to_the_packages(tmp_path: Path) -> None:
    path = wheel(tmp_path, "shift", {"shift.py": ""})
    lines = f"# ours\nidna==3.10  # names\n\n./{path.name}\nsix>=1\n"
    recipe = load(tmp_path, "packages: [six>=1]", "requirements: list.txt", list_txt=lines)
    assert recipe.packages == ["six>=1", "idna==3.10", str(path)] and recipe.requirements is None
    with pytest.raises(ConfigurationError, match=r"list.txt:2: '-r other.txt' is an option"):
        load(tmp_path, "requirements: list.txt", list_txt="six\n-r other.txt\n")


def test_a_command_that_chooses_no_wheels_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no versions were chosen"):
        provenance(load(tmp_path, "packages: [idna]"), "train")


def test_wheels_are_chosen_with_what_they_need_and_found_by_the_module(tmp_path: Path, index: Path) -> None:
    own = wheel(tmp_path, "shift", {"shift.py": "import below\n\nWIDTH = below.WIDTH\n"}, ["below>=1"])
    wheel(index, "below", {"below/__init__.py": "from below.deep import WIDTH\n", "below/deep.py": "WIDTH = 3\n"})
    wheel(index, "below", {"below.py": "WIDTH = 4\n"}, version="0.5")
    recipe = python_packages.chosen(load(tmp_path, f"packages: [./{own.name}]"))
    assert isinstance(recipe.packages, dict)
    assert list(recipe.packages) == ["below-1.0-py3-none-any.whl", "shift-1.0-py3-none-any.whl"]
    carried = recipes.load(_written(tmp_path, recipe))
    assert carried == recipe
    module = load_module("shop.py", code.files(carried), specification.wheels(carried))
    assert module.build_model([], 1) == 3
    installed = max(place for place, path in enumerate(sys.path) if path.endswith("site-packages"))
    assert sys.path.index(str(recipe_packages.folder(specification.wheels(carried)))) > installed
    load_module("shop.py", {"shop.py": ""}, {})
    assert "shift" not in sys.modules and "below" not in sys.modules
    assert str(recipe_packages.folder(specification.wheels(carried))) not in sys.path


def _written(folder: Path, recipe: Recipe) -> str:
    path = folder / "carried" / "recipe.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(plain_yaml.dump(recipe.model_dump(mode="json")))
    return str(path)


def test_another_process_elsewhere_finds_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = locked(wheel(tmp_path, "shift", {"shift.py": "WIDTH = 5\n"}))
    (tmp_path / "there").mkdir()
    program = (
        "import json, sys\nfrom trainyard.runtime.recipe_module import load_module\n"
        "from trainyard.spec.packages import Wheel\n"
        "wheels = {name: Wheel(**fields) for name, fields in json.loads(sys.argv[1]).items()}\n"
        f"print(load_module('shop.py', {{'shop.py': {MODULE!r}}}, wheels).build_model([], 1))\n"
    )
    argument = json.dumps({name: each.model_dump() for name, each in wheels.items()})
    environment = os.environ | {"TRAINYARD_CACHE": str(tmp_path / "another")}
    ended = subprocess.run(
        [sys.executable, "-c", program, argument],
        cwd=tmp_path / "there",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.stdout.strip() == "5", ended.stderr


def test_the_python_of_a_training_program_finds_the_wheels(tmp_path: Path) -> None:
    wheels = locked(wheel(tmp_path, "shift", {"shift.py": "WIDTH = 5\n"}))
    recipe = load(tmp_path).model_copy(update={"packages": wheels})
    environment = program.variables(recipe, current_rank(), ["127.0.0.1:1"], {})
    ended = subprocess.run(
        ["python", "-c", "import shift; print(shift.WIDTH)"], env=environment, capture_output=True, text=True
    )
    assert ended.stdout.strip() == "5", ended.stderr


def test_packages_come_behind_what_the_python_of_a_program_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = locked(wheel(tmp_path, "shift", {"shift.py": "WIDTH = 5\n", "other.py": "WIDTH = 6\n"}))
    recipe = load(tmp_path).model_copy(update={"packages": wheels})
    own = tmp_path / "own"
    own.mkdir()
    (own / "shift.py").write_text("WIDTH = 1\n")
    (own / "sitecustomize.py").write_text("import builtins\n\nbuiltins.customized = True\n")
    monkeypatch.setenv("PYTHONPATH", str(own))
    environment = program.variables(recipe, current_rank(), ["127.0.0.1:1"], {})
    text = "import shift, other; print(shift.WIDTH, other.WIDTH, customized)"
    ended = subprocess.run(["python", "-c", text], env=environment, capture_output=True, text=True)
    assert ended.stdout.strip() == "1 6 True", ended.stderr


def test_a_pod_has_the_wheels_in_the_storage_and_the_keys_of_a_local_run(tmp_path: Path) -> None:
    here = load(tmp_path)
    path = wheel(tmp_path, "shift", {"shift.py": "WIDTH = 5\n"})
    here = here.model_copy(update={"packages": locked(path)})
    kind = environments.load("kind")
    remote, sent = uploads.with_uploads(here, kind)
    (upload,) = sent.values()
    assert upload.uri.startswith(f"{kind.storage}/uploads/") and upload.bytes == path.stat().st_size
    spec = compiled(remote, kind).pipeline
    there = parse(spec["root"]["inputDefinitions"]["parameters"]["recipe"]["defaultValue"], Recipe, name="recipe")
    assert [each.location for each in specification.wheels(there).values()] == [upload.uri]
    for step in OUTPUTS:
        assert keys.output_uri("/runs", there, step) == keys.output_uri("/runs", here, step)


def schedule_of(file: Path) -> list[Submission]:
    (file.parent / "nightly.yaml").write_text(f"name: nightly\nrecipe: {file}\nenvironment: kind\ncron: 0 3 * * *\n")
    return [schedules.package(schedules.load(file.parent / "nightly.yaml"), environments.load("kind"))[0]]


def sweep_of(file: Path) -> list[Submission]:
    dimensions = [Dimension("train.epochs", values=(1, 2))]
    return cluster_trials.packages(Sweep(str(file), [], dimensions, environments.load("kind"), max_parallel=1, run="s"))


def runs_of(environment: str) -> Callable[[Path], list[Submission]]:
    return lambda file: [prepare(str(file), environment, [], "run", "", None)]


@pytest.mark.parametrize(
    "sent_by",
    [
        runs_of("kind"),
        runs_of("vertex"),
        schedule_of,
        sweep_of,
        lambda file: [*prepare_benchmarks(str(file), "kind", [], ["cpu"], "b").runs.values()],
    ],
    ids=["run", "vertex", "schedule", "sweep", "bench"],
)
@pytest.mark.usefixtures("index")
def test_each_way_to_a_cluster_sends_the_wheels(tmp_path: Path, sent_by: Callable[[Path], list[Submission]]) -> None:
    own = wheel(tmp_path, "shift", {"shift.py": "WIDTH = 5\n"})
    load(tmp_path, f"packages: [./{own.name}]")
    (submission,) = sent_by(tmp_path / "shop.yaml")
    (upload,) = submission.uploads.values()
    pipeline = next(yaml.safe_load_all(submission.package))
    text = pipeline["root"]["inputDefinitions"]["parameters"]["recipe"]["defaultValue"]
    recipe = parse(text, Recipe, name="recipe")
    assert {name: each.location for name, each in specification.wheels(recipe).items()} == {own.name: upload.uri}
    assert upload.uri.startswith(f"{submission.environment.storage}/uploads/")


def test_wheels_that_no_pod_can_read_are_refused(tmp_path: Path) -> None:
    recipe = load(tmp_path).model_copy(update={"packages": locked(wheel(tmp_path, "shift", {"shift.py": ""}))})
    with pytest.raises(ConfigurationError, match="is on this machine, and `compile` sends nothing"):
        compiled(recipe, environments.load("kind"))
    with pytest.raises(ConfigurationError, match="no versions were chosen"):
        compiled(load(tmp_path, "packages: [idna]"), environments.load("kind"))


def test_only_steps_that_call_the_code_depend_on_the_wheels(tmp_path: Path) -> None:
    plain = load(tmp_path)
    one = locked(wheel(tmp_path / "a", "shift", {"shift.py": "WIDTH = 1\n"}))
    other = locked(wheel(tmp_path / "b", "shift", {"shift.py": "WIDTH = 2\n"}))
    moved = {name: each.model_copy(update={"location": "s3://bucket/x"}) for name, each in one.items()}

    def uris(wheels: Mapping[str, Wheel]) -> dict[str, str]:
        recipe = plain.model_copy(update={"packages": dict(wheels)})
        return {step: keys.output_uri("/runs", recipe, step) for step in OUTPUTS}

    before, after = uris(one), uris(other)
    assert [step for step in OUTPUTS if before[step] != after[step]] == ["train"]
    assert before == uris(moved)


def test_a_conflict_with_the_image_names_both_sides(tmp_path: Path, index: Path) -> None:
    numpy = python_packages.image_versions()["cpu"]["numpy"]
    wheel(index, "numpy", {"numpy.py": ""}, version=numpy)
    wheel(index, "old", {"old.py": ""}, ["numpy<2"])
    recipe = load(tmp_path, "packages: [old]")
    with pytest.raises(ConfigurationError) as refused:
        python_packages.chosen(recipe, environments.load("kind"))
    assert "old depend on numpy<2" in str(refused.value)
    assert f"(the cpu image has numpy {numpy})" in str(refused.value)


def test_two_packages_that_need_different_versions_of_a_third_are_both_named(tmp_path: Path, index: Path) -> None:
    for version in ("1.0", "2.0"):
        wheel(index, "below", {"below.py": ""}, version=version)
    wheel(index, "old", {"old.py": ""}, ["below<2"])
    wheel(index, "new", {"new.py": ""}, ["below>=2"])
    with pytest.raises(ConfigurationError) as refused:
        python_packages.chosen(load(tmp_path, "packages: [old, new]"), environments.load("kind"))
    sentence = str(refused.value)
    assert "no versions fit together" in sentence and "\n" not in sentence
    assert "old depend on below<2" in sentence and "new depend on below>=2" in sentence


def test_what_the_image_holds_does_not_travel(tmp_path: Path, index: Path) -> None:
    numpy = python_packages.image_versions()["cpu"]["numpy"]
    wheel(index, "numpy", {"numpy.py": ""}, version=numpy)
    wheel(index, "numpy", {"numpy.py": ""}, version="99.0")
    wheel(index, "shift", {"shift.py": ""}, ["numpy"])
    recipe = python_packages.chosen(load(tmp_path, "packages: [shift]"), environments.load("kind"))
    assert list(specification.wheels(recipe)) == ["shift-1.0-py3-none-any.whl"]
    assert specification.chosen(recipe)["numpy"] == numpy
    other = recipe.model_copy(update={"packages": {**specification.chosen(recipe), "numpy": "99.0"}})
    changed = [step for step in OUTPUTS if provenance(other, step) != provenance(recipe, step)]
    assert changed == ["train"], "another version that an environment has trains again, too"


def test_a_wheel_of_another_platform_is_refused(tmp_path: Path, index: Path) -> None:
    own = wheel(tmp_path, "shift", {"shift.py": ""}, tag="py3-none-win_amd64")
    recipe = load(tmp_path, f"packages: [./{own.name}]")
    with pytest.raises(ConfigurationError, match="is a wheel of another platform or Python than the cpu image"):
        python_packages.chosen(recipe, environments.load("kind"))


def test_a_package_that_is_not_there_is_refused_in_one_sentence(tmp_path: Path, index: Path) -> None:
    with pytest.raises(ConfigurationError, match="packages: absent: is not in the package index"):
        python_packages.chosen(load(tmp_path, "packages: [absent]"))


class _PrivateIndex(http.server.BaseHTTPRequestHandler):
    """Serves the wheel `shift` to those who log in."""

    folder: Path

    def do_GET(self) -> None:
        (path,) = self.folder.glob("*.whl")
        login = base64.b64encode(b"me:se%cret").decode()
        if self.headers.get("Authorization") != f"Basic {login}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            content = b""
        else:
            is_wheel = self.path.endswith(".whl")
            link = f'<a href="/{path.name}#sha256={cache.digest_of(path)}">{path.name}</a>'
            self.send_response(200)
            self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
            content = path.read_bytes() if is_wheel else link.encode()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.usefixtures("index")
def test_a_private_index_gets_the_login_of_uvs_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path / "private", "shift", {"shift.py": ""})
    handler = type("Handler", (_PrivateIndex,), {"folder": tmp_path / "private"})
    monkeypatch.delenv("UV_FIND_LINKS")
    recipe = load(tmp_path, "packages: [shift==1.0]")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://me:wrong@{address}")
        with pytest.raises(ConfigurationError, match="the package index refuses the login") as refused:
            python_packages.chosen(recipe)
        assert "wrong" not in str(refused.value)
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://me:se%25cret@{address}")
        found = specification.wheels(python_packages.chosen(recipe))
        server.shutdown()
    assert list(found) == ["shift-1.0-py3-none-any.whl"]


def test_a_wheel_that_would_hide_an_installed_module_is_refused(tmp_path: Path) -> None:
    wheels = locked(wheel(tmp_path, "shift", {"yaml/__init__.py": ""}))
    with pytest.raises(ConfigurationError, match="module 'yaml' is installed here by another package"):
        recipe_packages.folder(wheels)
    with pytest.raises(ConfigurationError, match=r"pydantic 0.1 was chosen, and pydantic \d.* is installed here"):
        recipe_packages.folder(locked(wheel(tmp_path, "pydantic", {"pydantic.py": ""}, version="0.1")))


@pytest.mark.parametrize("name", ["../out.py", "/out.py", "a/../../out.py"])
def test_nothing_is_unpacked_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="leads out of its folder"):
        recipe_packages.folder(locked(wheel(tmp_path, "shift", {name: ""})))
    assert not list((tmp_path / "cache").glob("packages-*"))


def test_a_changed_or_damaged_wheel_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, "shift", {"shift.py": ""})
    wheels = locked(path)
    path.write_bytes(b"no wheel")
    with pytest.raises(TrainyardError, match=r"has the SHA-256 .* is expected"):
        recipe_packages.folder(wheels)
    with pytest.raises(DataError, match="is no wheel, or damaged"):
        recipe_packages.folder(locked(path))
    path.unlink()
    with pytest.raises(DataError, match=r"the wheel is not there. Start the run"):
        recipe_packages.folder(wheels)


def test_modules_in_a_wheels_data_are_found_and_programs_left_out(tmp_path: Path) -> None:
    files = {"shift-1.0.data/purelib/shift.py": "", "shift-1.0.data/scripts/run": "", "shift-1.0.data/data/x": ""}
    folder = recipe_packages.folder(locked(wheel(tmp_path, "shift", files)))
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {
        "manifest.json",
        "shift.py",
        "shift-1.0.dist-info",
    }
