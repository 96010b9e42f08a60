"""What the repository hands to machines: images, manifests, workflows and code keep to what reading can check."""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "images/Dockerfile").read_text()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MANIFESTS = sorted((ROOT / "k8s").rglob("*.yaml"))
SOURCES = sorted(path for folder in ("components", "pipelines") for path in (ROOT / folder).rglob("*.py"))
LOCKS = sorted((ROOT / "locks").glob("*.txt"))


def test_every_stage_is_based_on_an_image_that_is_pinned_by_digest() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(bases) == {"${PYTHON}", "packages"}
    assert re.search(r"^ARG PYTHON=\S+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)


def test_the_image_is_built_from_locked_files_alone_and_runs_as_a_numbered_user() -> None:
    assert not re.search(r"^ADD |curl|wget|:latest", DOCKERFILE, re.MULTILINE)
    for line in re.findall(r"\S*pip (?:install|sync) [^&\\]+", DOCKERFILE):
        assert "--require-hashes" in line or "--no-index" in line, line
    user = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, re.MULTILINE)
    assert user and int(user[-1]) > 0


def test_compiled_modules_hold_no_time_of_the_build(tmp_path: Path) -> None:
    script = (ROOT / "images" / "compile.sh").read_text(encoding="utf-8")
    assert DOCKERFILE.count("sh /images/compile.sh /") == 2 and "compileall" not in DOCKERFILE
    compiled = []
    for moment in (1_000_000_000, 1_700_000_000):
        folder = tmp_path / "same"
        folder.mkdir()
        (folder / "module.py").write_text("ONE = 1\n")
        os.utime(folder / "module.py", (moment, moment))
        subprocess.run(
            ["sh", "-c", script.replace("/opt/trainyard/bin/python", sys.executable), "sh", folder], check=True
        )
        (module,) = (folder / "__pycache__").iterdir()
        compiled.append((module.read_bytes(), module.stat().st_mtime, folder.stat().st_mtime))
        shutil.rmtree(folder)
    assert compiled[0] == compiled[1] and compiled[0][1:] == (0, 0)


def test_a_process_in_the_image_finds_the_driver_that_gke_mounts() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    (folders,) = re.findall(r"\bLD_LIBRARY_PATH=(\S+)", final.partition("\nENV ")[2])
    assert "/usr/local/nvidia/lib64" in folders.split(":")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_one_version_and_hashes_and_names_no_registry(lock: Path) -> None:
    text = lock.read_text()
    entries = re.split(r"\n(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    for entry in filter(None, map(str.strip, entries)):
        assert re.match(r"[\w.\[\],-]+==\S+", entry) and "--hash=sha256:" in entry, entry.splitlines()[0]
    assert "://" not in text and "--index-url" not in text


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
OURS = "trainyard (pyproject.toml)"


def asked(extra: str) -> list[Requirement]:
    """What pyproject asks for with `extra`, the extras that it names of its own among them."""
    texts = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    requirements = [
        requirement
        for requirement in map(Requirement, texts)
        if requirement.marker is None or requirement.marker.evaluate()
    ]
    for own in [requirement for requirement in requirements if requirement.name == PROJECT["name"]]:
        requirements += [requirement for name in sorted(own.extras) for requirement in asked(name)]
    return [requirement for requirement in requirements if requirement.name != PROJECT["name"]]


def parts(lock: Path) -> tuple[dict[str, str], dict[str, set[str]], set[str]]:
    """What a lock holds for this Python: versions by name; who asked for each; and what was left out on purpose."""
    text, _, left_out = lock.read_text().partition("# The following packages were excluded from the output:")
    versions: dict[str, str] = {}
    via: dict[str, set[str]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip()):
        first = Requirement(entry.partition("\\\n")[0])
        if first.marker is None or first.marker.evaluate():
            versions[first.name] = str(first.specifier).removeprefix("==")
            askers = (line.strip("# ") for line in entry.partition("# via")[2].splitlines())
            via[first.name] = set(filter(None, askers))
    return versions, via, set(re.findall(r"^# ([\w.-]+)$", left_out, re.MULTILINE))


@cache
def installed(name: str) -> tuple[str, tuple[Requirement, ...]]:
    """The version of a package that is installed here, '' for none, and what it needs."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return "", ()
    return distribution.version, tuple(map(Requirement, distribution.requires or ()))


def applies(needed: Requirement, extras: set[str]) -> bool:
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def missing(requirements: list[Requirement], versions: dict[str, str], left_out: set[str]) -> list[str]:
    """What the lock has not, or not in a version that fits, of `requirements` and, as far as it is installed here, of
    all that these need in turn."""
    faults, seen, queue = [], set(), list(requirements)
    overrides = {one.name: one for one in map(Requirement, PYPROJECT["tool"]["uv"]["override-dependencies"])}
    while queue:
        one = queue.pop()
        one = overrides.get(canonicalize_name(one.name), one)
        name = canonicalize_name(one.name)
        if name in left_out or (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        if name not in versions or not one.specifier.contains(versions[name], prereleases=True):
            faults.append(f"{one}, found {versions.get(name)}")
            continue
        version, needs = installed(name)
        if version == versions[name]:
            queue += [need for need in needs if applies(need, one.extras)]
    return faults


@pytest.mark.parametrize("extra", ["dev", "cpu", "gpu", "tpu", "jax", "jax-gpu"])
def test_each_lock_holds_all_that_pyproject_asks_for_and_nothing_that_nobody_asks_for(extra: str) -> None:
    versions, via, left_out = parts(ROOT / "locks" / f"{extra}.txt")
    requirements = asked(extra)
    assert not missing(requirements, versions, left_out)
    asked_for = {name for name, askers in via.items() if OURS in askers}
    assert asked_for == {canonicalize_name(requirement.name) for requirement in requirements} - left_out
    askers = {
        asker
        for package_askers in via.values()
        for asker in package_askers
        if not asker.startswith(("-c ", "--override "))
    }
    assert askers <= {OURS, *versions, *left_out}


def test_a_requirement_of_a_requirement_that_a_lock_has_not_is_found() -> None:
    versions, _, left_out = parts(ROOT / "locks/cpu.txt")
    assert missing(asked("cpu"), versions | {"s3transfer": "0.1"}, left_out)
    del versions["jmespath"]
    (fault,) = missing(asked("cpu"), versions, left_out | {"botocore"})
    assert fault.startswith("jmespath")


def test_what_runs_in_the_demo_page_is_pinned_by_its_hash_and_may_be_passed_on() -> None:
    (line,) = (ROOT / "locks/demo-runtime.sha512").read_text().splitlines()
    package = re.fullmatch(r"[0-9a-f]{128}  onnxruntime-web-([\d.]+)\.tgz", line)
    folder = ROOT / "components/trainyard/steps/export/browser"
    source = ast.parse((folder.parent / "demo.py").read_text())
    values = {ast.unparse(node.targets[0]): node.value for node in source.body if isinstance(node, ast.Assign)}
    assert package and ast.literal_eval(values["VERSION"]) == package[1]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in ast.literal_eval(values["DIGESTS"]).values())
    (licence,) = re.findall(
        r"<summary>ONNX Runtime Web \S+ \S+ \S+ (.*) License</summary>", (folder / "demo.html.j2").read_text()
    )
    assert LICENCES.fullmatch(licence)
    for file in (folder / "runtime").glob("ort.wasm.bundle.*"):
        assert f"Licensed under the {licence} License" in gzip.decompress(file.read_bytes()).decode()


# The licences that a package of an image may have, by the words of its metadata.
LICENCES = re.compile(
    r"(?!.*GPL)(Apache|MIT|(0|\d-Clause )?BSD|ISC|PSF|Python Software Foundation|MPL|Mozilla|CC0|Zlib|CNRI-Python|"
    r"OSI Approved)\b.*",
    re.IGNORECASE,
)
# Of packages whose metadata name none, or that are not installed here: as their files say.
NAMED_LICENCES = {
    "namex": "Apache-2.0",
    "python-dateutil": "BSD-3-Clause OR Apache-2.0",
    **dict.fromkeys(("jax-cuda13-pjrt", "jax-cuda13-plugin", "tensorflow-tpu"), "Apache-2.0"),
}
# Free to use and not open source: what the makers of accelerators give for them.
MAKERS_TERMS = re.compile(r"libtpu|nvidia-[\w-]+")


def licences(name: str) -> list[str]:
    """The licences of a package, '' for none that is known."""
    if name in NAMED_LICENCES or not installed(name)[0]:
        return [NAMED_LICENCES.get(name, "")]
    metadata = importlib.metadata.metadata(name)
    classifiers = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier", []) if "License ::" in line]
    text = metadata["License-Expression"] or (metadata["License"] or "").partition("\n")[0]
    spdx = re.split(r" (?:AND|OR|or) ", text.replace("(", "").replace(")", ""))
    return spdx if metadata["License-Expression"] else classifiers or spdx


@pytest.mark.parametrize("lock", ["cpu", "gpu", "tpu", "jax", "jax-gpu", "device"])
def test_every_package_of_an_image_has_a_licence_that_allows_to_pass_it_on(lock: str) -> None:
    versions, _, _ = parts(ROOT / "locks" / f"{lock}.txt")
    names = [name for name in versions if not MAKERS_TERMS.fullmatch(name)]
    assert not {name: found for name in names if not all(map(LICENCES.fullmatch, found := licences(name)))}


def test_a_licence_that_is_not_on_the_list_is_found() -> None:
    assert licences("codespell") == ["GPL-2.0-only"] and not LICENCES.fullmatch("GPL-2.0-only")
    for text in ("LGPL-3.0", "AGPL-3.0-only", "Proprietary", "GNU General Public License (GPL)", "MITRE", ""):
        assert not LICENCES.fullmatch(text), text
    assert licences("unheard-of") == [""]


def test_one_command_writes_every_lock_and_with_it_nothing_is_left_out_that_pyproject_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.partition("\nlock:")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"-o locks/([\w-]+)\.txt$", recipe, re.MULTILINE)) == sorted(lock.stem for lock in LOCKS)
    for target, upgrades in (("lock", 0), ("update", len(LOCKS))):
        done = subprocess.run(["make", "-n", target, "UV=uv"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert len(re.findall(r"pip compile .*--upgrade .*-o locks/", done.stdout)) == upgrades, target
    images = {requirement.name for extra in ("cpu", "gpu", "tpu", "jax", "jax-gpu") for requirement in asked(extra)}
    assert images & parts(ROOT / "locks/cpu.txt")[2] == {"uv"}, "it chooses packages before a run"


def test_a_package_whose_hash_was_tampered_with_is_not_installed(tmp_path: Path) -> None:
    wheel = tmp_path / "tampered-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tampered/__init__.py", "")
        archive.writestr("tampered-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tampered\nVersion: 1.0\n")
        archive.writestr(
            "tampered-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tampered-1.0.dist-info/RECORD", "")
    honest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert "Hash mismatch" in _sync(tmp_path, wheel, "0" * 64)
    assert not (tmp_path / "site/tampered").exists()
    assert "Installed 1 package" in _sync(tmp_path, wheel, honest)
    assert (tmp_path / "site/tampered").exists()


def _sync(folder: Path, wheel: Path, digest: str) -> str:
    """Install as the image does from a list that names `wheel` with `digest`; return what uv said."""
    lock = folder / "lock.txt"
    lock.write_text(f"tampered @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    own = ROOT / ".uv/bin/uv"
    uv = [
        str(own) if own.exists() else "uv",
        "pip",
        "sync",
        "--offline",
        "--require-hashes",
        "--python",
        sys.executable,
    ]
    return subprocess.run([*uv, "--target", str(folder / "site"), str(lock)], capture_output=True, text=True).stderr


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_manifest_follows_a_moving_version(manifest: Path) -> None:
    text = manifest.read_text()
    list(yaml.safe_load_all(text))
    assert ":latest" not in text
    for url in re.findall(r"^\s*- (https://github\S+)", text, re.MULTILINE):
        assert re.search(r"\?ref=[0-9a-f]{40}\b|/releases/download/v\d+\.\d+\.\d+/", url), url


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_commit_and_a_workflow_may_only_read_by_default(workflow: Path) -> None:
    text = workflow.read_text()
    for action in re.findall(r"uses:\s*(.+)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert yaml.safe_load(text)["permissions"] in ({}, {"contents": "read"})
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")


FORBIDDEN_IMPORTS = {"pickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}
OWN_PROCESSES = {
    "components/trainyard/process/child_process.py": ["pickle"]
}  # a call, through a socket pair of the parent
FORBIDDEN_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"}


def _unsafe(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.partition(".")[0] in FORBIDDEN_IMPORTS]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module] if (node.module or "").partition(".")[0] in FORBIDDEN_IMPORTS else []
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            shell = any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords)
            unsafe_load = any(word.arg == "safe_mode" and ast.unparse(word.value) != "True" for word in node.keywords)
            names += [name] if name in FORBIDDEN_CALLS or shell or unsafe_load else []
    return names


@pytest.mark.parametrize(
    "source", ["import pickle", "from joblib import load", "eval(x)", "yaml.load(f)", "run(c, shell=True)"]
)
def test_the_check_for_unsafe_calls_sees_them(source: str) -> None:
    assert _unsafe(ast.parse(source))


def test_our_code_neither_unpickles_nor_evaluates_nor_runs_a_shell() -> None:
    unsafe_calls = {str(path.relative_to(ROOT)): _unsafe(ast.parse(path.read_text())) for path in SOURCES}
    assert {path: calls for path, calls in unsafe_calls.items() if calls} == OWN_PROCESSES


DOCKER = """#!/bin/sh
case $1 in
  buildx) exit PLUGIN ;;
  version) echo VERSION ;;
  build) echo "BuildKit: $DOCKER_BUILDKIT" ;;
esac
"""


@pytest.mark.parametrize(
    ("version", "plugin", "code"), [("20.10.24", False, 0), ("23.0.1", False, 30), ("28.1.1", True, 0)]
)
def test_docker_is_asked_for_buildkit_and_one_without_it_is_named(
    version: str, plugin: bool, code: int, tmp_path: Path
) -> None:
    docker = DOCKER.replace("VERSION", version).replace("PLUGIN", str(int(not plugin)))
    for name, text in {"docker": docker, "podman": "#!/bin/sh\nexit 1\n", "buildah": "#!/bin/sh\nexit 1\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    command = ["bash", str(ROOT / "images/build.sh"), "cpu", "trainyard/cpu:test"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DOCKER_BUILDKIT": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("BuildKit: 1" in done.stdout) == (code == 0)
    assert (f"docker {version} has no buildx" in done.stderr) == (code == 30)


def test_the_workflow_names_the_clusters_kubernetes_and_its_kind() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    kinds = [step["with"] for job in jobs.values() for step in job["steps"] if "kind-action" in step.get("uses", "")]
    assert len(kinds) == 2
    for options in kinds:
        assert re.fullmatch(r"kindest/node:v[\d.]+@sha256:[0-9a-f]{64}", options["node_image"])
        assert re.fullmatch(r"v[\d.]+", options["version"])
