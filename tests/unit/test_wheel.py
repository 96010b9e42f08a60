"""The wheel, built from the sdist as PyPI's users build it, holds every file of both packages."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from trainyard.contract import keys

ROOT = Path(__file__).parents[2]
PACKAGES = {"trainyard": ROOT / "components/trainyard", "trainyard_control": ROOT / "pipelines/trainyard_control"}


def build(target: str, source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.glob({"sdist": "*.tar.gz", "wheel": "*.whl"}[target])
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(build("sdist", ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    (source,) = [path for path in folder.iterdir() if path.is_dir()]
    return build("wheel", source, folder)


def files(package: Path) -> set[str]:
    """The package's files; `environments` is a link to a folder, which rglob does not follow."""
    found = [*package.rglob("*"), *(package / "environments").glob("*")]
    return {path.relative_to(package).as_posix() for path in found if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_wheel_holds_every_file_of_the_package(wheel: Path, name: str) -> None:
    packed = {
        path.removeprefix(f"{name}/") for path in zipfile.ZipFile(wheel).namelist() if path.startswith(f"{name}/")
    }
    assert packed == files(PACKAGES[name])


def test_the_wheel_holds_recipes_environments_templates_and_catalogs(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel).namelist()
    for file in (
        *("recipes/digits.yaml", "environments/local.yaml", "environments/gke.yaml", "report/report.html.j2"),
        *("spec/hardware/hardware.yaml", "spec/hardware/machines.yaml", "models/costs/profiles.json"),
        *("py.typed", "__init__.pyi"),
    ):
        assert f"trainyard/{file}" in packed


def test_a_checkout_and_the_wheel_have_one_digest_of_all_that_a_step_may_read(wheel: Path, tmp_path: Path) -> None:
    package = tmp_path / "trainyard"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (package / "graph.pyc").touch()
    assert keys.code_digest(package) == keys.code_digest()
    remaining = files(package) - {*keys.package_files(package), "graph.pyc"}
    documented = {"__init__.pyi", "py.typed", "serving/open_inference_grpc.proto"}
    unread = ("environments/", "steps/export/browser/runtime/")
    assert {name for name in remaining if not name.startswith(unread)} == documented


@pytest.mark.parametrize(
    "file", ["report/report.html.j2", "models/costs/profiles.json", "recipes/digits.yaml", "report/report.css"]
)
def test_the_digest_of_the_code_changes_with_a_file_that_is_not_python(file: str, tmp_path: Path) -> None:
    package = tmp_path / "trainyard"
    (package / file).parent.mkdir(parents=True)
    digests = []
    for text in ("before", "after"):
        (package / file).write_text(text)
        keys.code_digest.cache_clear()
        digests.append(keys.code_digest(package))
    assert digests[0] != digests[1]


def test_the_wheel_says_how_it_is_called_and_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        commands = archive.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in archive.namelist()
    assert "trainyard = trainyard_control.cli.start:main" in commands
    assert {"cpu", "gpu", "tpu", "jax", "jax-gpu", "search", "vertex"} <= set(metadata.get_all("Provides-Extra", []))
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# ")
