"""Chooses the wheels of a recipe's packages: for the images of a cluster, or for this Python environment.

uv resolves them, with the versions that the image holds as constraints, and Trainyard downloads the wheels.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import netrc
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging import tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from trainyard.errors import ConfigurationError, InfrastructureError, TransientError
from trainyard.spec.environment import DEFAULT, Environment
from trainyard.spec.packages import Wheel
from trainyard.spec.recipe import Recipe
from trainyard.storage import cache

PYTHON = (3, 11)
"""The version of Python in the images: that of images/Dockerfile."""
_PLATFORM, _LIBC_MINOR = "x86_64-manylinux_2_36", 36  # the images' Debian 12 has glibc 2.36
_OLD_PLATFORMS = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64")
_VERSIONS = Path(__file__).with_name("image_versions.txt")
_CONNECT_SECONDS = 60  # chosen: between two parts of a download
_CHUNK_BYTES = 1 << 20
_INDEXES = re.compile(r"UV_.*(INDEX|LINKS)")
_INDEX = re.compile(r"(?:([\w.-]+)=)?(https?://\S+)")
_SOURCE_ONLY = re.compile(r"(\S+) has no usable wheels")
_UNKNOWN = re.compile(r"(\S+) was not found in the (?:package registry|provided package locations)")
_OTHER_PLATFORM = re.compile(r"(\S+) has no wheels with a matching")
_PREMISES = re.compile(r"[Bb]ecause (.*?),? we can conclude that")
_MARKERS = re.compile(r"\{[^}]*\}")
_LONGEST = 400  # characters of uv's reason; chosen


@dataclass(frozen=True)
class _Target:
    """A Python environment that packages are chosen for: the options of uv, and what it holds by name."""

    name: str
    options: tuple[str, ...]
    versions: Mapping[str, str]

    @property
    def wheel_tags(self) -> frozenset[tags.Tag]:
        """The tags of the wheels that it takes."""
        return _image_tags() if _PLATFORM in self.options else frozenset(tags.sys_tags())


def chosen(recipe: Recipe, environment: Environment | None = None) -> Recipe:
    """Return `recipe` with the wheels of its packages, which are in the cache; itself if it has none or they are known.

    environment: where its steps run, None for this machine. Raises `ConfigurationError` if no versions fit together and
    to the image, or one has no wheel, `TransientError` if the package index does not answer.
    """
    if not isinstance(recipe.packages, list) or not recipe.packages:
        return recipe
    targets = [_here()] if environment is None or environment.target == "local" else _images(environment)
    asked = [_asked(text) for text in recipe.packages]
    sources = json.dumps([asked, [(target.options, sorted(target.versions.items())) for target in targets], _indexes()])
    key = f"lock-{hashlib.sha256(sources.encode()).hexdigest()[:32]}"
    lines = [line for line, _ in asked]

    def lock(folder: Path) -> None:
        (folder / "lock.json").write_text(json.dumps(_locked(lines, targets)), encoding="utf-8")

    locked = json.loads((cache.derived(key, sources, lock) / "lock.json").read_text(encoding="utf-8"))
    found = {name: entry if isinstance(entry, str) else _wheel(name, *entry) for name, entry in sorted(locked.items())}
    return recipe.model_copy(update={"packages": found})


def _asked(text: str) -> tuple[str, str]:
    """Return the line for uv, and the digest of the file if it names one."""
    if not text.endswith(".whl"):
        return text, ""
    try:
        digest = cache.digest_of(Path(text))
    except OSError as error:
        raise ConfigurationError(f"packages: {text}: cannot be read ({error.strerror}). Name a wheel.") from error
    if not digest:
        raise ConfigurationError(f"packages: {text}: there is no such file. Name a wheel.")
    return Path(text).as_uri(), digest


def _indexes() -> list[str]:
    """Return digests of the variables that name package indexes, because these may hold passwords."""
    named = [f"{name}={value}" for name, value in sorted(os.environ.items()) if _INDEXES.match(name)]
    return [hashlib.sha256(each.encode()).hexdigest() for each in named]


def _images(environment: Environment) -> list[_Target]:
    """Return the images of all steps, that of most steps first."""
    first = environment.pools[environment.pool_name(DEFAULT)].variant if DEFAULT in environment.placement else "cpu"
    variants = [environment.pools[name].variant for name in environment.placed_pools]
    version = ".".join(map(str, PYTHON))
    options = ("--python-version", version, "--python-platform", _PLATFORM)
    versions = image_versions()
    return [_Target(f"the {name} image", options, versions[name]) for name in dict.fromkeys([first, *variants])]


def _here() -> _Target:
    installed: dict[str, str] = {}
    for package in metadata.distributions():  # the first of a name is the one that is imported
        with suppress(InvalidVersion, TypeError):
            installed.setdefault(canonicalize_name(package.name), str(Version(package.version)))
    return _Target("this Python environment", ("--python", sys.executable), installed)


@functools.cache
def image_versions() -> dict[str, dict[str, str]]:
    """Return the version of each package in the images of this Trainyard, by variant and name."""
    versions: dict[str, dict[str, str]] = {}
    for line in _VERSIONS.read_text(encoding="utf-8").splitlines():
        package, *variants = line.split()
        name, _, version = package.partition("==")
        for variant in variants:
            versions.setdefault(variant, {})[name] = version
    return versions


@functools.cache
def _image_tags() -> frozenset[tags.Tag]:
    platforms = [*(f"manylinux_2_{minor}_x86_64" for minor in range(_LIBC_MINOR, 4, -1)), *_OLD_PLATFORMS]
    of_python = tags.cpython_tags(PYTHON, platforms=platforms)
    return frozenset([*of_python, *tags.compatible_tags(PYTHON, f"cp{PYTHON[0]}{PYTHON[1]}", platforms)])


def _locked(lines: list[str], targets: list[_Target]) -> dict[str, tuple[str, str] | str]:
    """Return SHA-256 and URL of each wheel that one of the targets lacks, by file name, and the versions that one has.

    Steps depend on both. One version fits all targets: what was chosen for one is a constraint for the next.
    """
    versions: dict[str, str] = {}
    found: dict[str, tuple[str, str] | str] = {}
    for target in targets:
        fixed = versions | dict(target.versions)
        for package in _resolved(lines, target, fixed):
            name, version = canonicalize_name(package["name"]), str(package.get("version", ""))
            if name in target.versions:
                found.setdefault(name, version)
                continue
            versions[name] = version
            file, url, digest = _file(package, target)
            if parse_wheel_filename(file)[3].isdisjoint(target.wheel_tags):
                raise ConfigurationError(
                    f"packages: {file}: is a wheel of another platform or Python than {target.name}. "
                    f"Build it there by `pip wheel --no-deps`{_example(target)}."
                )
            found[file] = (digest, url)
        versions = fixed | versions
    return found


def _example(target: _Target) -> str:
    return f", with Python {PYTHON[0]}.{PYTHON[1]} on Linux for x86_64" if _PLATFORM in target.options else ""


def _file(package: dict[str, Any], target: _Target) -> tuple[str, str, str]:
    """Return name, URL and SHA-256 of the wheel for `target` of a package in uv's lock."""
    wheels = [package["archive"]] if "archive" in package else package["wheels"]
    named = [(_name(wheel), wheel) for wheel in wheels]
    fitting = [each for each in named if not parse_wheel_filename(each[0])[3].isdisjoint(target.wheel_tags)]
    name, wheel = (fitting or named)[0]
    if "sha256" not in wheel.get("hashes", {}):
        raise ConfigurationError(f"packages: {name}: the package index gives no SHA-256 of it. Name the file instead.")
    return name, _url(wheel), wheel["hashes"]["sha256"]


def _url(wheel: dict[str, Any]) -> str:
    return str(wheel.get("url") or Path(wheel["path"]).as_uri())


def _name(wheel: dict[str, Any]) -> str:
    path = urllib.parse.urlsplit(_url(wheel)).path
    return str(wheel.get("name") or urllib.parse.unquote(path.rpartition("/")[2]))


def _resolved(lines: list[str], target: _Target, fixed: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the packages of uv's lock for `target`, with the versions `fixed`."""
    with cache.temporary_folder() as folder:
        (folder / "asked.txt").write_text("\n".join(lines), encoding="utf-8")
        pins = [f"{name}=={version}" for name, version in sorted(fixed.items())]
        (folder / "fixed.txt").write_text("\n".join(pins), encoding="utf-8")
        command = [_uv(), "pip", "compile", str(folder / "asked.txt"), "--constraint", str(folder / "fixed.txt")]
        command += ["--only-binary", ":all:", "--format", "pylock.toml", "--no-header", "--quiet"]
        variables = os.environ | {"UV_SYSTEM_CERTS": os.environ.get("UV_SYSTEM_CERTS", "1"), "NO_COLOR": "1"}
        ended = subprocess.run(  # in an empty folder, so that no project's settings count
            [*command, *target.options], cwd=folder, capture_output=True, text=True, env=variables, check=False
        )
    if ended.returncode:
        raise _failure(ended.stderr, target)
    yield from tomllib.loads(ended.stdout).get("packages", [])


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise ConfigurationError(
            "packages: uv, which chooses their versions, is not installed. Run `pip install uv`, or use an image that "
            "has the packages."
        )
    return found


def _failure(stderr: str, target: _Target) -> ConfigurationError | TransientError:
    """Return the error for what uv says: one sentence that names both sides of a conflict."""
    text = " ".join(_MARKERS.sub("", stderr).split())
    if "No solution found" not in text:
        reason = text.removeprefix("error: ")[:_LONGEST].rstrip(".")
        if "Failed to fetch" in text or "Request failed" in text:
            return TransientError(
                f"packages: the package index does not answer ({reason}). Run the same command again, or name another "
                "index in UV_DEFAULT_INDEX."
            )
        return ConfigurationError(f"packages: uv chose no versions ({reason}). Correct packages in the recipe.")
    if found := _SOURCE_ONLY.search(text):
        return ConfigurationError(
            f"packages: {found[1]}: has no wheel, only a source distribution, and nothing is built for a run. Build a "
            f"wheel by `pip wheel --no-deps {found[1]}`{_example(target)}, and name that file."
        )
    if "authentication credentials" in text:
        return ConfigurationError(
            "packages: the package index refuses the login. Correct the user and the password in uv's variables, such "
            "as UV_DEFAULT_INDEX, or in ~/.netrc."
        )
    if found := _UNKNOWN.search(text):
        return ConfigurationError(
            f"packages: {found[1]}: is not in the package index. Correct the name, or name another index in UV_INDEX."
        )
    if found := _OTHER_PLATFORM.search(text):
        return ConfigurationError(
            f"packages: {found[1]}: has no wheel for the platform and Python of {target.name}. Choose another version, "
            f"or build a wheel by `pip wheel --no-deps`{_example(target)}, and name that file."
        )
    reason = "; ".join(_PREMISES.findall(text)) or text.partition("cause: ")[2]
    named = dict.fromkeys(canonicalize_name(name) for name in re.findall(r"([A-Za-z0-9._-]+)==", reason))
    has = ", ".join(f"{name} {target.versions[name]}" for name in named if name in target.versions)
    beside = f" ({target.name} has {has})" if has else ""
    return ConfigurationError(
        f"packages: no versions fit together: {reason[:_LONGEST].rstrip('., ')}{beside}. Choose other versions, or use "
        "an image that has the packages."
    )


def _wheel(name: str, digest: str, url: str) -> Wheel:
    """Return the wheel with its file in the cache, which no process removes before this one ends."""
    path = cache.file(name, digest, lambda path: _download(url, path))
    return Wheel(sha256=digest, bytes=path.stat().st_size, location=str(path))


def _login(url: str) -> tuple[str, str] | None:
    """Return the user and the password for `url`: those of its index in uv's variables, or of ~/.netrc."""
    host = urllib.parse.urlsplit(url)[:2]
    for variable, value in os.environ.items():
        for name, index in _INDEX.findall(value) if _INDEXES.match(variable) else ():
            parts = urllib.parse.urlsplit(index)
            prefix = f"UV_INDEX_{re.sub('[^A-Za-z0-9]', '_', name).upper()}"
            user = urllib.parse.unquote(parts.username or "") or os.environ.get(f"{prefix}_USERNAME", "")
            password = urllib.parse.unquote(parts.password or "") or os.environ.get(f"{prefix}_PASSWORD", "")
            if (parts.scheme, parts.netloc.rpartition("@")[2]) == host and (user or password):
                return user, password
    with suppress(OSError, netrc.NetrcParseError):
        if entry := netrc.netrc().authenticators(urllib.parse.urlsplit(url).hostname or ""):
            return entry[0], entry[2]
    return None


def _download(url: str, path: Path) -> None:
    request = urllib.request.Request(url)  # noqa: S310 - uv gives the URL
    if login := _login(url):
        text = base64.b64encode(":".join(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {text}")
    try:
        with urllib.request.urlopen(request, timeout=_CONNECT_SECONDS) as source, path.open("wb") as stream:  # noqa: S310
            while chunk := source.read(_CHUNK_BYTES):
                stream.write(chunk)
    except urllib.error.HTTPError as error:
        raise InfrastructureError(
            f"packages: {path.name}: the package index refuses it ({error.code} {error.reason}). Download the wheel, "
            "and name the file."
        ) from error
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise TransientError(
            f"packages: {path.name}: cannot be downloaded ({error}). Run the same command again."
        ) from error
