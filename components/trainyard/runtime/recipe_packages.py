"""The recipe's packages in this process: its wheels unpacked in a folder of the cache, behind what is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import stat
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from trainyard.errors import ConfigurationError, DataError
from trainyard.spec.packages import Wheel, Wheels
from trainyard.storage import cache, storage
from trainyard.uris import is_bucket

_CHUNK_BYTES = 1 << 20
_SPREAD = {"purelib", "platlib"}  # source: the binary distribution format, packaging.python.org
_SITECUSTOMIZE = '''"""Puts the recipe's packages behind what is installed, then runs the next sitecustomize."""
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here] + [os.path.dirname(_here)]
if _spec := PathFinder.find_spec("sitecustomize"):
    _spec.loader.exec_module(module_from_spec(_spec))
'''
_CARELESS = {"benchmarks", "doc", "docs", "examples", "scripts", "test", "tests", "tools"}  # nobody imports them


def folder(wheels: Wheels) -> Path:
    """Return the folder of the unpacked `wheels`, which goes behind what is installed in the search path.

    Nothing is installed. Raises `DataError` if a wheel is missing or another than was chosen, and `ConfigurationError`
    if one holds what is installed here in another version.
    """
    lock = json.dumps({name: wheel.sha256 for name, wheel in sorted(wheels.items())})
    key = f"packages-{hashlib.sha256(lock.encode()).hexdigest()[:32]}"

    def unpack(made: Path) -> None:
        for name, wheel in sorted(wheels.items()):
            _unpack(name, _local(name, wheel), made)
        startup(made).mkdir()
        (startup(made) / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")

    made = cache.derived(key, lock, unpack)
    _require_new(made)
    return made


def startup(made: Path) -> Path:
    """Return the folder in `made`, for PYTHONPATH, that puts `made` behind what a Python program has installed.

    PYTHONPATH itself comes before it.
    """
    return made / ".startup"


def _local(name: str, wheel: Wheel) -> Path:
    """Return the wheel's file on this machine, with the content that was chosen."""
    place = wheel.location
    folder = place.rpartition("/")[0]
    if is_bucket(place) and storage.committed(folder) is not None:
        folder = str(storage.local(folder))
    path = Path(folder) / name
    if not (found := cache.digest_of(path)):
        raise DataError(f"packages: {place}: the wheel is not there. Start the run from the recipe's file.")
    cache.require_digest(found, wheel.sha256, f"packages: {place}")
    return path


def _unpack(name: str, path: Path, made: Path) -> None:
    """Unpack the wheel's modules and data into the folder `made`. Programs and headers are left out."""
    try:
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                target = _target(item.filename)
                if target is None or item.is_dir():
                    continue
                parts = target.split("/")
                if target.startswith("/") or ".." in parts or "\\" in target or stat.S_ISLNK(item.external_attr >> 16):
                    raise DataError(
                        f"packages: {name}: holds {item.filename!r}, which leads out of its folder. "
                        "Leave the package out."
                    )
                file = made.joinpath(*parts)
                file.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(item) as source, file.open("wb") as stream:
                    while chunk := source.read(_CHUNK_BYTES):
                        stream.write(chunk)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise DataError(f"packages: {name}: is no wheel, or damaged ({error}). Build it again.") from error


def _target(name: str) -> str | None:
    """Return the place of a wheel's file below the folder of modules, None for one that goes elsewhere."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name
    kind, _, below = rest.partition("/")
    return below if kind in _SPREAD and below else None


def _require_new(made: Path) -> None:
    """Raise `ConfigurationError` if a package in the folder `made` would be another one than what is imported."""
    for package in metadata.distributions(path=[str(made)]):
        installed = _installed(package.name, made)
        if installed == package.version:
            continue
        asked = f"packages: {package.name} {package.version} was chosen"
        if installed:
            raise ConfigurationError(
                f"{asked}, and {package.name} {installed} is installed here. Use the image that belongs to this "
                "Trainyard, or leave the package out."
            )
        for name in sorted({file.parts[0] for file in package.files or []} - _CARELESS):
            module = name.partition(".")[0]
            if name.endswith((".dist-info", ".data")) or not module.isidentifier():
                continue
            found = importlib.util.find_spec(module)
            if found and found.origin and not found.origin.startswith(str(made)):
                raise ConfigurationError(
                    f"{asked}, and its module '{module}' is installed here by another package ({found.origin}). "
                    "Leave the package out."
                )


def _installed(name: str, made: Path) -> str:
    """Return the version of the package `name` outside of the folder `made`, '' if there is none."""
    places = [place for place in sys.path if place != str(made)]
    return next((found.version for found in metadata.distributions(name=name, path=places)), "")
