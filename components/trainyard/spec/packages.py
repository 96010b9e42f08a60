"""The Python packages of a recipe: what it asks for, and the wheels that were chosen for it, which travel with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from pydantic import AfterValidator, Field

from trainyard import uris
from trainyard.errors import ConfigurationError
from trainyard.spec import documents
from trainyard.spec.plain_yaml import Location

if TYPE_CHECKING:
    from trainyard.spec.recipe import Recipe

MAX_PACKAGES = 200
MAX_LOCKED = 1000
_MAX_FILE_BYTES = 256 << 10
_COMMENT = re.compile(r"(^|\s)#.*")
_SOURCES = (".tar.gz", ".zip", ".tar.bz2", ".tgz")


def _require_valid(text: str) -> str:
    if fault := _fault(text):
        raise ValueError(fault)
    return text


def _fault(text: str) -> str:
    """Return the reason why a recipe cannot ask for the package `text`, or ''."""
    build = f"Build a wheel by `pip wheel --no-deps {documents.safe(text)}`, and name that file"
    if text.endswith(".whl"):
        try:
            parse_wheel_filename(text.rpartition("/")[2])
        except InvalidWheelFilename:
            return "is no wheel's file name, such as shop-1.0-py3-none-any.whl. Keep the name that its builder gave it"
        return "is a URL. Copy the file beside the recipe, and name that" if uris.scheme(text) else ""
    if text.endswith(_SOURCES):
        return f"is a source distribution, and nothing is built for a run. {build}"
    if text.startswith("-"):
        return "is an option. Write packages alone; indexes are named in uv's variables, such as UV_DEFAULT_INDEX"
    if text.startswith((".", "/", "~")):
        return f"is no wheel. {build}"
    try:
        asked = Requirement(text)
    except InvalidRequirement:
        return "is no package with its versions, such as lightgbm==4.6.0, and no wheel. Write one of them"
    if asked.url:
        return f"is read from a URL, and nothing is built for a run. {build}"
    return ""


PackageText = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_require_valid)]
PackageName = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z0-9_.!+-]+$")]
PackageVersion = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z0-9_.!+-]+$")]
RequirementsFile = Annotated[str, Field(max_length=1024, pattern=r"^[^\x00-\x1f]+\.txt$")]


class Wheel(documents.Strict):
    """A wheel that was chosen for the recipe. Trainyard writes it."""

    sha256: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")] = Field(description="SHA-256 of the file.")
    bytes: Annotated[int, Field(ge=1, le=1 << 40)] = Field(description="Size of the file.")
    location: Annotated[str, Field(min_length=1, max_length=2048)] = Field(
        description="The file, on this machine or in the storage."
    )


Chosen = Mapping[str, Wheel | str]
"""Wheels by file name, and the versions of the packages that the image has already, by package."""

Wheels = Mapping[str, Wheel]


def missing_files(recipe: Recipe, folder: Path) -> Iterator[tuple[Location, str]]:
    """Yield the place and the fault of each wheel and list that `recipe` names and that is not in `folder`."""
    for index, text in enumerate(recipe.packages if isinstance(recipe.packages, list) else []):
        if text.endswith(".whl") and not os.path.isfile(uris.resolve(folder, text)):  # noqa: PTH113 - Path's raises
            yield ("packages", index), f"there is no file '{documents.safe(text)}' beside the recipe. Name one"
    if recipe.requirements and not os.path.isfile(uris.resolve(folder, recipe.requirements)):  # noqa: PTH113
        yield ("requirements",), f"there is no file '{documents.safe(recipe.requirements)}' beside the recipe. Name one"


def collect(recipe: Recipe, folder: Path) -> dict[str, object]:
    """Return the values of `packages` and `requirements`, with absolute paths and the file's lines as packages.

    Raises `ConfigurationError` with file and line of each line that asks for something else than a wheel.
    """
    if not isinstance(recipe.packages, list):
        return {}
    asked = [_absolute(text, folder) for text in recipe.packages]
    if recipe.requirements:
        path = Path(uris.resolve(folder, recipe.requirements))
        asked += _read(path)
    return {"packages": list(dict.fromkeys(asked)), "requirements": None}


def _read(path: Path) -> list[str]:
    content = documents.read_bytes(path, limit=_MAX_FILE_BYTES)
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigurationError(
            f"requirements: {path}: is larger than {_MAX_FILE_BYTES:,} bytes. Name a list of packages."
        )
    found, faults = [], []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if text := _COMMENT.sub("", line).strip():
            fault = _fault(text)
            if not fault and text.endswith(".whl") and not (path.parent / text).is_file():
                fault = "there is no such file. Name one"
            faults += [f"{path}:{number}: '{documents.safe(text)}' {fault}."] if fault else []
            found.append(_absolute(text, path.parent))
    if faults:
        raise ConfigurationError(*faults)
    if len(found) > MAX_PACKAGES:
        raise ConfigurationError(
            f"{path}: names {len(found):,} packages, and at most {MAX_PACKAGES} travel with a run."
        )
    return found


def _absolute(text: str, folder: Path) -> str:
    return uris.resolve(folder, text) if text.endswith(".whl") else text


def wheels(recipe: Recipe) -> Wheels:
    """Return the wheels of a recipe, by file name. Raises as `chosen`."""
    return {name: each for name, each in chosen(recipe).items() if isinstance(each, Wheel)}


def chosen(recipe: Recipe) -> Chosen:
    """Return the choice for a recipe's packages. Raises `ConfigurationError` if there is none yet."""
    if isinstance(recipe.packages, list):
        if recipe.packages or recipe.requirements:
            raise ConfigurationError(
                "packages: no versions were chosen for this command. Use `trainyard run` or `trainyard submit`, or an "
                "image that has the packages."
            )
        return {}
    return recipe.packages
