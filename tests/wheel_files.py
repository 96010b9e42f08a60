"""Wheels that tests install."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ANY = "py3-none-any"


def wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    requires: Sequence[str] = (),
    tag: str = ANY,
    version: str = "1.0",
) -> Path:
    """Write a wheel as the binary distribution format describes it."""
    information = f"{name}-{version}.dist-info"
    every = {
        **files,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{information}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    every[f"{information}/RECORD"] = "".join(f"{file},,\n" for file in every)
    path = folder / f"{name}-{version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in every.items():
            archive.writestr(file, text)
    return path
