"""The code behind a step's output: the step's own modules, the libraries that they import, and the engine that trains.

It is read from source, so that nothing is imported and a pod and a laptop with the same wheel get the same answer.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

from packaging.requirements import Requirement
from pydantic import BaseModel

from trainyard.graph import STEPS, entry_point
from trainyard.spec.code import as_bytes, module_files, program_files
from trainyard.spec.hardware.pools import ENGINE_VARIABLE, TRAINER_VARIABLE, EngineName
from trainyard.spec.packages import Wheel, chosen
from trainyard.spec.recipe import Recipe

_PACKAGE = Path(__file__).parent.parent

_EXCLUDED = {
    "names outputs": ("contract.keys", "contract.origin", "contract.pipeline", "contract.provenance"),
    "names the sections and inputs of a key, which are in it": ("graph",),
    "reads the recipe, whose values are in the key": ("spec.plain_yaml",),
    "refuses a recipe, and changes none of its values, which are in the key": ("spec.contradictions", "spec.documents"),
    "says where and when a run goes, not what it computes": (
        *("quantity", "spec.beam", "spec.devices", "spec.environment", "spec.hardware", "spec.schedule", "uris"),
    ),
    "starts, watches and ends processes, and measures memory and disk": (
        *("heartbeat", "process", "retry", "runtime", "storage.disk"),
    ),
    "reports, and changes no output": ("errors", "escape", "events", "storage.damage"),
    "moves whole files, whose digests are compared": (
        *("spec.archive", "storage.buckets", "storage.cache", "storage.file_stream", "storage.folders"),
        *("storage.manifest", "storage.storage", "storage.uploads"),
    ),
}
EXCLUDED = frozenset(f"trainyard.{name}" for names in _EXCLUDED.values() for name in names)
"""Modules that are in no key, each with what is below it. The facade, whose functions no step calls, is in none too."""

_FACADE = "trainyard"
_MESSAGES = ("ConfigurationError", "DataError", "InfrastructureError", "TransientError")  # whose texts end a step

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_NETWORKS = "trainyard.models.build"  # imports the recipe's network by its name

_REFLECTION = frozenset(("*", "__getattr__", "exec", "globals", "setattr", "vars"))  # may define any name

# The distributions of the libraries that compute, by what is imported; the first that there is counts.
_SAME_NAMES = (
    "ai_edge_litert",
    "apache_beam",
    "flatbuffers",
    "jax",
    "jaxlib",
    "keras",
    "numpy",
    "onnx",
    "onnxruntime",
    "pyarrow",
    "scipy",
    "simplejpeg",
    "tensorflow_transform",
    "tf2onnx",
    "tfx_bsl",
    "tzdata",
)
_DISTRIBUTIONS = {name: (name.replace("_", "-"),) for name in _SAME_NAMES} | {
    "PIL": ("pillow",),
    "google.protobuf": ("protobuf",),
    "sklearn": ("scikit-learn",),
    "tensorflow": ("tensorflow", "tensorflow-tpu"),
}


class Provenance(BaseModel):
    """The code of an output: modules with digests of their parsed source, libraries with versions, the engine.

    engine: '' for a step that does not train.
    """

    modules: dict[str, str]
    libraries: dict[str, str]
    engine: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 over all of it."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()

    def changes(self, before: Provenance) -> list[str]:
        """Return the changes since `before`, a phrase each: `trainyard.x changed`, `keras 3.14 → 3.15`."""
        was, now = before.modules, self.modules
        phrases = [f"{name} changed" for name in sorted(now) if was.get(name) not in (None, now[name])]
        phrases += [f"{name} is new" for name in sorted(now.keys() - was.keys())]
        phrases += [f"{name} is gone" for name in sorted(was.keys() - now.keys())]
        for name in sorted(self.libraries.keys() | before.libraries.keys()):
            old, new = before.libraries.get(name, "none"), self.libraries.get(name, "none")
            phrases += [f"{name} {old} → {new}"] if old != new else []
        if self.engine != before.engine:
            phrases.append(f"engine {before.engine} → {self.engine}")
        return phrases


def provenance(recipe: Recipe, step: str) -> Provenance:
    """Return the provenance of `step`'s output. Raises `ConfigurationError` if the recipe's files were not read."""
    variant = os.environ.get(TRAINER_VARIABLE, "") if step == "train" else ""
    engine = os.environ.get(ENGINE_VARIABLE) or ("jax" if variant in ("jax", "jax-gpu") else "tensorflow")
    modules, imported = _closure(_PACKAGE, entry_point(step), _other_engines(engine))
    if _NETWORKS in modules and recipe.model.name:
        network, more = _closure(_PACKAGE, recipe.model.network_module, frozenset())
        modules, imported = modules | network, imported | more
    digests = {name: _parsed(path.read_bytes()).digest for name, path in modules.items()}
    digests |= _recipe_code(recipe, step)
    counted = {library(name) for name in imported} & _DISTRIBUTIONS.keys()
    libraries = {name: _version(_DISTRIBUTIONS[name], variant) for name in sorted(counted)}
    return Provenance(modules=digests, libraries=libraries, engine=engine if step == "train" else "")


def library(imported: str) -> str:
    """Return the library that the name `imported` belongs to, as keys call it."""
    parts = imported.split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in _DISTRIBUTIONS), parts[0])


def _recipe_code(recipe: Recipe, step: str) -> dict[str, str]:
    """Return the digests of the recipe's files that `step` may use: those of its program, or of its module's hook."""
    if step == "train" and recipe.train.command is not None:
        digests = {
            name: hashlib.sha256(as_bytes(file)).hexdigest()[:16] for name, file in program_files(recipe).items()
        }
        return digests | _packages(recipe)
    hook = STEPS[step].hook
    if not hook or recipe.module is None:
        return {}
    files = {name: as_bytes(file) for name, file in module_files(recipe).items()}
    if not _may_define(files[recipe.module], hook):
        return {}
    meanings = {
        name: _meaning_or_text(file) if name.endswith(".py") else hashlib.sha256(file).hexdigest()
        for name, file in files.items()
    }
    digests = {"module" if name == recipe.module else name: _digest(meaning) for name, meaning in meanings.items()}
    image = {"train.image": recipe.train.image} if recipe.train.image else {}
    return digests | image | _packages(recipe)


def _packages(recipe: Recipe) -> dict[str, str]:
    return {
        package_key(name): each.sha256[:16] if isinstance(each, Wheel) else each
        for name, each in chosen(recipe).items()
    }


def package_key(package: str) -> str:
    """Return the name of a recipe's package among the modules of an output."""
    return f"packages/{package}"


def _may_define(source: bytes, name: str) -> bool:
    """Return True if the recipe's module may define `name`: it names it in any way, or defines names by other means."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # the step that loads it says so
        return True
    names: set[object] = set()
    for node in ast.walk(tree):
        names |= {getattr(node, field, None) for field in ("id", "name", "attr", "asname", "value")}
    return name in names or not _REFLECTION.isdisjoint(names)


def _other_engines(engine: str) -> frozenset[str]:
    engines = {name: f"trainyard.steps.train.engines.{name}_engine" for name in get_args(EngineName)}
    return frozenset(module for name, module in engines.items() if name != engine)


@cache
def _closure(package: Path, entry: str, excluded: frozenset[str]) -> tuple[dict[str, Path], frozenset[str]]:
    """Return the files of the modules that `entry` imports, itself included, by name, and the libraries of them all."""
    files: dict[str, Path] = {}
    libraries: set[str] = set()
    todo = [entry]
    while todo:
        name = todo.pop()
        path = _file(package, name)
        if path is None:
            todo.append(name.rpartition(".")[0])  # an attribute of a module
        elif name not in files and name not in excluded and not _is_excluded(name):
            files[name] = path
            imports = _parsed(path.read_bytes()).imports
            todo += ["trainyard", *(imported for imported in imports if imported.startswith("trainyard."))]
            todo += [parent] if (parent := name.rpartition(".")[0]) else []
            libraries |= imports
    return dict(sorted(files.items())), frozenset(libraries)


def _is_excluded(name: str) -> bool:
    parts = name.split(".")
    return name == _FACADE or any(".".join(parts[:count]) in EXCLUDED for count in range(2, len(parts) + 1))


def _file(package: Path, name: str) -> Path | None:
    path = package.parent.joinpath(package.name, *name.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@dataclass(frozen=True)
class _Parsed:
    """A source file: the digest of what it means, and the names that it imports, types' alone left out."""

    digest: str
    imports: frozenset[str]


parsed: dict[bytes, _Parsed] = {}
"""Modules parsed by this process, by the digest of the source: a forked child saves 0.15 s of CPU."""


def _parsed(source: bytes) -> _Parsed:
    key = hashlib.sha256(source).digest()
    if key not in parsed:
        tree = ast.parse(source)
        parsed[key] = _Parsed(_digest(_meaning(tree)), frozenset(_imports(tree)))
    return parsed[key]


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    typed = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in () if typed else ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # which holds no statement
            yield from _imports(child)


def _digest(meaning: str) -> str:
    return hashlib.sha256(meaning.encode()).hexdigest()[:16]


def _meaning_or_text(source: bytes) -> str:
    try:
        return _meaning(ast.parse(source))
    except (SyntaxError, ValueError):  # the step that loads it says so
        return repr(source)


def _meaning(node: object) -> str:
    """Return `node` as text, without comments, docstrings, layout, descriptions of fields and messages of errors.

    It is the same in Python 3.11 to 3.13, whose `ast.dump` differs in empty fields.
    """
    if isinstance(node, list):
        return ",".join([_meaning(item) for item in node])
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Call) and _name(node.func) in _MESSAGES:
        return f"Call(func={_meaning(node.func)})"
    described = isinstance(node, ast.Call) and _name(node.func) == "Field"
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if value is None or value == []:
            continue
        if name == "body" and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            value = value[1:]
        if name == "keywords" and described:
            value = [keyword for keyword in value if keyword.arg != "description"]
        fields.append(f"{name}={_meaning(value)}")
    return f"{type(node).__name__}({';'.join(fields)})"


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _version(names: tuple[str, ...], variant: str) -> str:
    """Return the version of the first of `names` that the image `variant` pins, or else has installed, or ''."""
    pins = _pins(variant) if variant else {}
    pinned = [pins.get(name, "") for name in names]
    return next(filter(None, [*pinned, *map(_installed, names)]), "")


@cache
def _installed(name: str) -> str:
    """Return the installed version of the distribution `name`, or ''. The lookup reads files; a key needs ten."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def _pins(variant: str) -> dict[str, str]:
    """Return the exact versions that this distribution requires in the image `variant`."""
    pins: dict[str, str] = {}
    for text in importlib.metadata.requires("trainyard") or []:
        asked = Requirement(text)
        if asked.marker and asked.marker.evaluate({"extra": variant}):
            pins.update((asked.name, pin.version) for pin in asked.specifier if pin.operator == "==")
    return pins
