"""The files of an export on emulated ARM64, as a Raspberry Pi 4 runs them: Debian's Python under QEMU's Cortex-A72."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.data import trained
from trainyard.data.examples import open_examples
from trainyard.steps.export.formats import keras_predictor
from trainyard.steps.export.lite import LiteModel
from trainyard.steps.export.parity import MAX_FURTHEST, MAX_NOISE

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "locks/device.txt"
PACKAGES = [
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "libstdc++6",
    "libgcc-s1",
    "zlib1g",
    "libexpat1",
    "libffi8",
    "libbz2-1.0",
    "liblzma5",
    "libssl3",
    "libuuid1",
    "libcrypt1",
]  # of Debian 12, whose Python Raspberry Pi OS 12 has
TOOLS = ("qemu-aarch64-static", "apt-get", "dpkg")
# The file of a Raspberry Pi 4. Under QEMU's own, LiteRT 2.3 crashes as it creates its XNNPACK delegate.
CPUINFO = "".join(
    f"processor\t: {core}\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\n"
    "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd08\nCPU revision\t: 3\n\n"
    for core in range(4)
)
RELEASE = Path("/etc/os-release")
IS_DEBIAN_12 = RELEASE.exists() and {"ID=debian", 'VERSION_ID="12"'} <= {*RELEASE.read_text().splitlines()}
MISSING = [tool for tool in TOOLS if not shutil.which(tool)]

needs_arm64 = pytest.mark.skipif(
    not IS_DEBIAN_12 or (bool(MISSING) and not os.environ.get("CI")),
    reason=f"needs Debian 12 with {', '.join(TOOLS)} (package qemu-user-static); CI runs this there",
)

# Runs predict.py with each of the files, so that its libraries are imported once.
EACH_FILE = """
import json, runpy, sys
files, arguments = json.loads(sys.argv[1]), sys.argv[2:]
for file in files:
    sys.argv = ["predict.py", "--json", "--model", file, *arguments]
    runpy.run_path("predict.py", run_name="__main__")
"""


@cache
def system() -> Path:
    """Return the folder of the ARM64 programs, from the user's cache if it was built before."""
    key = hashlib.sha256(LOCK.read_bytes() + repr((PACKAGES, CPUINFO)).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home, "trainyard", f"arm64-{key}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                build(Path(temporary), Path(temporary, "root"))
                Path(temporary, "root").rename(folder)
    return folder


def build(work: Path, root: Path) -> None:
    """Unpack Debian's ARM64 packages and the locked wheels into `root`; apt checks the signatures, uv the hashes."""
    for folder in ("lists/partial", "cache/archives/partial", "packages"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Dir::Cache": work / "cache",
        "Dir::State": work,
        "Dir::State::status": work / "status",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    run([*apt, "update"], work)
    run([*apt, "download", *PACKAGES], work / "packages")
    for package in (work / "packages").iterdir():
        run(["dpkg", "-x", str(package), str(root)], work)
    uv = shutil.which("uv") or str(ROOT / ".uv/bin/uv")
    wheels = ["--only-binary", ":all:", "--require-hashes", "-r", str(LOCK), "--compile-bytecode"]
    machine = ["--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.11"]
    run([uv, "pip", "install", "--quiet", "--target", str(root / "site"), *machine, *wheels], work)
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(CPUINFO)


def run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
    return done.stdout


def command() -> list[str]:
    """Return the command of ARM64 Python."""
    root = str(system())
    return ["qemu-aarch64-static", "-cpu", "cortex-a72", "-L", root, f"{root}/usr/bin/python3.11"]


def python(folder: Path, *arguments: str) -> list[str]:
    """Return the lines that ARM64 Python prints in `folder`."""
    return run([*command(), *arguments], folder, PYTHONPATH=f"{system()}/site").splitlines()


def check(exported: Path, examples: str, model: str, count: int = 12) -> None:
    """Compare the answers of each LiteRT file to raw rows or images with the trained model's, and with those here."""
    folder, files = open_examples(examples), sorted(path.name for path in exported.glob("*.tflite"))
    document = folder.document
    features, _labels, _keys = next(iter(folder.batches("eval", count)))
    raw, _labels = next(iter(folder.raw_batches("eval", count)))
    trained_answers = keras_predictor(trained.load(model), document)(features, raw)
    is_regression = document.task == "regression"
    unit = trained_answers.std(axis=0) if is_regression else 1.0
    with tempfile.TemporaryDirectory() as temporary:
        paths = written(Path(temporary), {name: values.numpy() for name, values in raw.items()}, document)
        lines = python(exported, "-c", EACH_FILE, json.dumps(files), *paths)
    answers = [numbers(json.loads(line), document) for line in lines]
    assert len(answers) == len(files) * count
    for index, file in enumerate(files):
        given = np.array(answers[index * count : (index + 1) * count])
        here = LiteModel(exported / file, document)(features, raw)
        noise = np.sqrt(np.square((given - trained_answers) / unit).mean())
        furthest = np.abs((given - trained_answers) / unit).max()
        apart = np.abs((given - here) / unit).max()
        print(f"{document.task} {file}: rms {noise:.2g}, largest {furthest:.2g}, from x86 {apart:.2g}")
        if file == "model_float32.tflite":
            assert furthest < 1e-5
        assert noise <= MAX_NOISE[document.task] and furthest <= MAX_FURTHEST, file
        assert apart <= (0.05 if "int8" in file else 1e-5), file  # a step of int8 is that large at most


def written(folder: Path, raw: dict[str, Any], document: Examples) -> list[str]:
    """Write raw examples as predict.py reads them."""
    if document.image is not None:
        paths = [folder / f"{index}.png" for index in range(len(raw["image"]))]
        for path, encoded in zip(paths, raw["image"], strict=True):
            path.write_bytes(encoded)
        return [str(path) for path in paths]
    rows = [dict(zip(raw, map(cell, values), strict=True)) for values in zip(*raw.values(), strict=True)]
    (folder / "rows.json").write_text(json.dumps(rows))
    return [str(folder / "rows.json")]


def cell(value: Any) -> str | float | None:
    if isinstance(value, bytes):
        return value.decode()
    return float(value) if value == value else None


def numbers(answer: dict[str, Any], document: Examples) -> Sequence[float] | float:
    if document.labels:
        return [answer["probabilities"][label] for label in document.labels]
    found = answer["prediction"]
    return [found[name] for name in document.targets] if document.targets else found
