"""The versions in the images that packages of recipes are chosen for: those of the locked requirements."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from packaging.markers import Marker
from page_block import require_committed

from trainyard.spec.hardware.pools import Variant
from trainyard_control.planning import python_packages

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;]+)(?: ; (.*?))?(?: \\)?$", re.MULTILINE)
IMAGE = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}


def locked(variant: str) -> dict[str, str]:
    version = ".".join(map(str, python_packages.PYTHON))
    python = {"python_version": version, "python_full_version": f"{version}.0", "implementation_name": "cpython"}
    text = (ROOT / "locks" / f"{variant}.txt").read_text(encoding="utf-8")
    found = LINE.findall(text)
    assert len(found) == len(re.findall(r"^[^ #\n].*==", text, re.MULTILINE))
    return {name: pinned for name, pinned, marker in found if not marker or Marker(marker).evaluate(IMAGE | python)}


def test_the_versions_in_the_images_are_those_of_the_locks() -> None:
    variants: dict[str, list[str]] = {}
    for variant in get_args(Variant):
        for name, version in locked(variant).items():
            variants.setdefault(f"{name}=={version}", []).append(variant)
    text = "".join(f"{package} {' '.join(names)}\n" for package, names in sorted(variants.items()))
    require_committed(Path(python_packages.__file__).with_name("image_versions.txt"), text)
    assert (
        f"ARG PYTHON=docker.io/library/python:{python_packages.PYTHON[0]}.{python_packages.PYTHON[1]}-slim-bookworm@"
        in (ROOT / "images" / "Dockerfile").read_text(encoding="utf-8")
    )


def test_the_libraries_without_cuda_are_of_the_version_whose_modules_call_them() -> None:
    assert locked("tensorflow-cpu") == {"tensorflow-cpu": locked("cpu")["tensorflow"]}
