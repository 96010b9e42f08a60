"""The code of a recipe: its module, its training program and other files, which travel with the recipe.

Small code is a part of the recipe's text, and larger code an archive that it names: see `archive`. Files are found by
reading imports, never by running them. Their names are relative to the recipe's folder.
"""

from __future__ import annotations

import ast
import base64
import binascii
import hashlib
import json
import os
import posixpath
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from trainyard import uris
from trainyard.errors import ConfigurationError, listed
from trainyard.spec import archive, documents, plain_yaml
from trainyard.spec.archive import Archive
from trainyard.spec.plain_yaml import Location
from trainyard.storage import uploads

if TYPE_CHECKING:
    from trainyard.spec.recipe import Recipe

MAX_BYTES = 64 << 10
"""Maximum size of files in a recipe's text. A pod gets that in a variable of at most 128 KiB (Linux)."""

MAX_WRITTEN = 112 << 10  # chosen: an argument has 128 KiB at most (Linux), and the rest takes a tenth
MAX_FILES = 1000
FileName = Annotated[str, Field(max_length=256, pattern=archive.NAME)]
FileText = Annotated[str, Field(max_length=MAX_BYTES)]


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("is no base64") from error
    return text


class Binary(documents.Strict):
    """The content of a file that is not UTF-8 text."""

    base64: Annotated[str, Field(max_length=2 * MAX_BYTES), AfterValidator(_base64)] = Field(
        description="Its bytes, in base64. Trainyard writes them."
    )


Content = FileText | Binary
Files = Mapping[str, Content | bytes]
Read = Callable[[str], Content | bytes | None]
"""Returns the content of a file by its name, None if there is none."""

_CACHES = {"__pycache__", "node_modules", "site-packages"}
_COMPILED = (".pyc", ".pyo")
_SECRET_NAMES = re.compile(
    r"\.?env(\..+)?|.+\.(env|pem|key|p12|pfx|jks|keystore|ppk|kdbx)|id_(rsa|dsa|ecdsa|ed25519)(\..+)?"
    r"|\.?(netrc|pgpass|pypirc|npmrc|git-credentials|htpasswd)|(credentials|kubeconfig|service[-_]?account[^.]*)(\.json)?"
    r"|(client_)?secrets?(\.(json|ya?ml|toml|txt))?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Import:
    """A statement that imports; optional: it is in a `try`."""

    line: int
    level: int
    module: str
    names: tuple[str, ...]
    optional: bool

    @property
    def text(self) -> str:
        return "." * self.level + self.module


def missing_files(recipe: Recipe, folder: Path) -> Iterator[tuple[Location, str]]:
    """Yield the place and the fault of each file that `recipe` names and that is not in `folder`."""
    if isinstance(recipe.files, Archive):  # `collect` reads it, once
        return
    carried, named = carried_and_named(recipe)
    if recipe.module is not None and recipe.module not in carried:
        if not recipe.module.endswith(".py"):
            yield ("module",), "is no Python file, whose name ends in .py"
        elif not os.path.isfile(uris.resolve(folder, recipe.module)):  # noqa: PTH113 - Path's raises for a name too long
            yield ("module",), "there is no such file beside the recipe. Name a Python file"
    for index, name in enumerate(named):
        if not os.path.exists(folder / name):  # noqa: PTH110 - as above
            yield ("files", index), f"there is no file '{documents.safe(name)}' beside the recipe. Name one"
    if isinstance(recipe.files, dict) and (fault := _size_fault(recipe.files)):
        yield ("files",), fault


def carried_and_named(recipe: Recipe) -> tuple[Files, list[str]]:
    """Return the files whose content the recipe or its archive holds, and the names of the others."""
    if isinstance(recipe.files, Archive):
        return archive.unpack(recipe.files), []
    return (recipe.files, []) if isinstance(recipe.files, dict) else ({}, recipe.files)


def collect(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the values of `module` and `files` with all files that travel with the recipe in `folder`.

    They are the module, the arguments of the command that are files there, the local files that these import, and those
    that `files` names. A module outside of `folder` takes the files in its own folder. Files that are too large for a
    recipe are an archive in this machine's cache. Raises `ConfigurationError` for a file that is missing, outside of
    its folder, or looks like a secret, and if they are too large for an archive.
    """
    carried, named = carried_and_named(recipe)
    if isinstance(recipe.files, Archive):
        if recipe.module is not None and recipe.module not in carried:
            raise ConfigurationError(
                f"module: {recipe.module}: the archive that files names holds no such file. Correct one of them."
            )
        return {}
    tree, module, found = _Folder(folder), recipe.module, dict(carried)
    if module is not None and module not in carried:
        path = Path(uris.resolve(folder, module))
        inside = tree.name(path)
        module = inside or path.name
        found |= closure([module], (tree if inside else _Folder(path.parent)).read)
    scripts = [name for name in recipe.train.command or [] if not carried and tree.holds(name)]
    extra_names = tree.small(tree.walk(named))
    for name, content in (closure(scripts, tree.read) | {name: tree.require(name) for name in extra_names}).items():
        if as_bytes(found.setdefault(name, content)) != as_bytes(content):
            raise ConfigurationError(
                f"files: {name}: is both beside the recipe and beside the module {module}. Rename one of them."
            )
    if hidden := [name for name in found if not archive.is_valid_name(name)]:
        raise ConfigurationError(
            f"files: {documents.safe(hidden[0])}: cannot travel. No part of its path may begin with a dot or hold a "
            "control character, and it has at most 256. Rename it."
        )
    if not found:
        return {}
    if _size_fault(found):
        _require_small({name: len(as_bytes(content)) for name, content in found.items()})
        return {"module": module, "files": archive.pack({name: as_bytes(each) for name, each in found.items()})}
    texts = {name: _document(content) if isinstance(content, bytes) else content for name, content in found.items()}
    return {"module": module, "files": texts}


def _document(content: bytes) -> Binary:
    return Binary(base64=base64.b64encode(content).decode())


def _require_small(sizes: Mapping[str, int]) -> None:
    """Raise `ConfigurationError` if files of these sizes are too large for an archive."""
    total = sum(sizes.values())
    if total <= archive.MAX_BYTES and len(sizes) <= archive.MAX_FILES:
        return
    places: Counter[str] = Counter()
    for name, size in sizes.items():
        places["/".join(name.split("/")[:-1][:2]) or name] += size
    largest = [f"{place} ({size / (1 << 20):,.1f} MiB)" for place, size in places.most_common(3)]
    raise ConfigurationError(
        f"files: {len(sizes):,} files hold {total / (1 << 20):,.1f} MiB, and at most {archive.MAX_FILES:,} with "
        f"{archive.MAX_BYTES >> 20} MiB travel with a recipe. The largest are {listed(largest, 3)}. Nothing was sent. "
        "Leave out what no step reads, or read it from a bucket."
    )


def _size_fault(files: Files) -> str:
    """Return the reason why `files` are too large for the text of a recipe, or ''."""
    sizes = {name: len(as_bytes(content)) for name, content in files.items()}
    total = sum(sizes.values())
    if total <= MAX_BYTES and len(sizes) <= MAX_FILES:
        contents = {name: _written(each) for name, each in files.items()}
        written = len(json.dumps(plain_yaml.dump(contents)))
        if written <= MAX_WRITTEN:
            return ""
        return (
            f"take {written:,} bytes when written as ASCII, and an argument of a step holds {MAX_WRITTEN:,}. "
            "Leave out what no step reads"
        )
    largest = [f"{name} ({sizes[name]:,})" for name in sorted(sizes, key=lambda name: -sizes[name])]
    return (
        f"{len(sizes):,} hold {total:,} bytes, and {MAX_FILES:,} may hold {MAX_BYTES:,}, because they travel with the "
        f"recipe. The largest are {listed(largest, 3)}. Leave out what no step reads"
    )


def _written(content: Content | bytes) -> str:
    if isinstance(content, bytes):
        return _document(content).base64
    return content if isinstance(content, str) else content.base64


def as_bytes(content: Content | bytes) -> bytes:
    """Return the bytes of a file."""
    if isinstance(content, bytes):
        return content
    return base64.b64decode(content.base64) if isinstance(content, Binary) else content.encode()


def digest(files: Files) -> str:
    """Return the SHA-256 over the names and the bytes of `files`, however a recipe holds them."""
    lines = [f"{name}\0{hashlib.sha256(as_bytes(content)).hexdigest()}\n" for name, content in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def files(recipe: Recipe) -> Files:
    """Return the files of a loaded recipe, by name, those of its archive after it was verified.

    Raises `ConfigurationError` if they were not read, and `DataError` if the archive is missing or was changed.
    """
    carried, unread = carried_and_named(recipe)
    if recipe.module is not None and recipe.module not in carried:
        unread = [recipe.module, *unread]
    if unread:
        raise ConfigurationError(f"files: {listed(unread, 3)}: not read yet. Load the recipe from its file.")
    return carried


def stored(recipe: Recipe, root: str) -> Recipe:
    """Return `recipe` with its archive, if it has one, in the storage `root`, where later steps and runs find it."""
    if not isinstance(recipe.files, Archive):
        return recipe
    uri, upload = uploads.stored_uri(recipe.files.archive, root, "files")
    if upload:
        uploads.store(upload)
    return recipe.model_copy(update={"files": recipe.files.model_copy(update={"archive": uri})})


def module_files(recipe: Recipe) -> Files:
    """Return the files that the recipe's module may use: all but those that only the training program imports."""
    carried = files(recipe)
    return _without(carried, _scripts(recipe, carried), [recipe.module] if recipe.module else [])


def program_files(recipe: Recipe) -> Files:
    """Return the files that the training program may use: all but those that only the module imports."""
    carried = files(recipe)
    return _without(carried, [recipe.module] if recipe.module else [], _scripts(recipe, carried))


def _scripts(recipe: Recipe, carried: Files) -> list[str]:
    return [name for name in recipe.train.command or [] if name in carried]


def _without(carried: Files, excluded: list[str], own: list[str]) -> Files:
    foreign = closure(excluded, carried.get).keys() - closure(own, carried.get).keys() if excluded else frozenset[str]()
    return {name: content for name, content in carried.items() if name not in foreign}


def write(files: Files, folder: Path) -> None:
    """Write `files` into the empty `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_bytes(content))


def closure(entries: Iterable[str], read: Read) -> dict[str, Content | bytes]:
    """Return the files `entries` and all files that they import, by name.

    An absolute import is looked up in the folder of its entry, then in the recipe's folder. Raises `ConfigurationError`
    for a relative import of a file that is missing or outside of the recipe's folder.
    """
    found: dict[str, Content | bytes] = {}
    for entry in entries:
        roots, todo, seen = dict.fromkeys([posixpath.dirname(entry), ""]), [entry], set[str]()
        while todo:
            name = todo.pop()
            content = None if name in seen else read(name)
            seen.add(name)
            if content is not None:
                found[name] = content
                for each in _imports(name, content):
                    todo += _imported(name, each, roots, read)
    return dict(sorted(found.items()))


def local_names(entry: str, files: Files) -> set[str]:
    """Return the first names of the absolute imports of `entry`, and of what it imports, that `files` hold."""
    roots = dict.fromkeys([posixpath.dirname(entry), ""])
    return {
        each.module.partition(".")[0]
        for name, content in closure([entry], files.get).items()
        for each in _imports(name, content)
        if not each.level and _imported(name, each, roots, files.get)
    }


def _imports(name: str, content: Content | bytes) -> Iterator[_Import]:
    """Yield the imports of a Python file, also those in functions."""
    if not name.endswith(".py") or not isinstance(content, str):
        return
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # the step that loads it says so
        return
    yield from _imports_of(tree, optional=False)


def _imports_of(node: ast.AST, *, optional: bool) -> Iterator[_Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield _Import(node.lineno, 0, alias.name, (), optional)
    elif isinstance(node, ast.ImportFrom):
        names = tuple(alias.name for alias in node.names)
        yield _Import(node.lineno, node.level, node.module or "", names, optional)
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # which holds no statement
            yield from _imports_of(child, optional=optional or isinstance(node, ast.Try))


def _imported(name: str, each: _Import, roots: Iterable[str], read: Read) -> list[str]:
    """Return the files that the import `each` of the file `name` executes."""
    modules = [each.module, *(f"{each.module}.{part}".strip(".") for part in each.names if part != "*")]
    if each.level:
        return _relative(name, each, modules, read)
    top = each.module.partition(".")[0]
    for root in roots:
        if local := [file for module in modules for file in _module_files(root, module, read)]:
            if top in sys.stdlib_module_names:
                raise ConfigurationError(
                    f"{name}:{each.line}: imports '{top}', which is a module of Python and also {local[0]}. "
                    "Rename the file."
                )
            return local
    return []


def _relative(name: str, each: _Import, modules: list[str], read: Read) -> list[str]:
    package = posixpath.dirname(name).split("/") if "/" in name else []
    kept = len(package) - (each.level - 1)
    if kept < 0:
        raise ConfigurationError(
            f"{name}:{each.line}: imports '{each.text}', which is outside of the recipe's folder. "
            "Copy it into that folder, or write the recipe there."
        )
    package = package[:kept]
    starts = [file for count in range(kept + 1) for file in [posixpath.join(*package[:count], "__init__.py")]]
    starts = [file for file in starts if read(file) is not None]
    folder, missing = "/".join(package), []
    if each.module:
        found = [file for module in modules for file in _module_files(folder, module, read)]
        missing = [] if found else [each.text]
    else:
        by_name = {part: _module_files(folder, part, read) for part in each.names if part != "*"}
        found = [file for files in by_name.values() for file in files]
        if posixpath.join(folder, "__init__.py") not in starts:
            missing = [f"{each.text}{part}" for part, files in by_name.items() if not files]
    if missing and not each.optional:
        raise ConfigurationError(
            f"{name}:{each.line}: imports '{missing[0]}', and there is no such file in the recipe's folder. "
            "Copy it there, or leave the import out."
        )
    return starts + found


def _module_files(folder: str, module: str, read: Read) -> list[str]:
    """Return the file of `module` below `folder` and the `__init__.py` of its packages, none if it has no file."""
    parts = module.split(".") if module else []
    if not all(parts) or not parts:
        return []
    path = posixpath.join(folder, *parts)
    own = [file for file in (posixpath.join(path, "__init__.py"), f"{path}.py") if read(file) is not None][:1]
    starts = [posixpath.join(folder, *parts[:count], "__init__.py") for count in range(1, len(parts))]
    return [*(file for file in starts if read(file) is not None), *own] if own else []


class _Folder:
    """The files below a folder on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real = os.path.realpath(root)
        self._known: dict[str, str | bytes | None] = {}

    def name(self, path: Path) -> str | None:
        """Return the name of the file at `path`, None if it is elsewhere."""
        absolute = os.path.normpath(self._root.absolute())
        relative = os.path.relpath(os.path.normpath(path), absolute)
        return None if relative.startswith("..") else Path(relative).as_posix()

    def holds(self, argument: str) -> bool:
        """Return True if the command's `argument` is a file here."""
        name = Path(argument)
        if name.is_absolute() or ".." in name.parts or len(argument) > 256:
            return False
        return os.path.isfile(self._root / name)  # noqa: PTH113 - Path's raises for a name too long

    def read(self, name: str) -> str | bytes | None:
        """Return the content of the file `name`, None if there is no such file."""
        if name not in self._known:
            is_there = os.path.isfile(self._root / name)  # noqa: PTH113 - as above
            self._known[name] = self._content(name) if is_there else None
        return self._known[name]

    def small(self, names: Iterable[str]) -> list[str]:
        """Return the files `names`. Raises `ConfigurationError` before any is read if they are too large."""
        names = list(names)
        paths = {name: self._root / name for name in names}
        _require_small({name: path.stat().st_size if path.is_file() else 0 for name, path in paths.items()})
        return names

    def require(self, name: str) -> str | bytes:
        """Return the content of the file `name`, which is there."""
        content = self.read(name)
        if content is None:
            raise ConfigurationError(f"files: there is no file '{name}' beside the recipe. Name one.")
        return content

    def walk(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the files `names`, and those in folders `names` without hidden ones, caches and environments."""
        for name in names:
            if not (self._root / name).is_dir():
                yield name
                continue
            self._require_inside(name)
            seen: set[str] = set()
            for folder, folders, inside in os.walk(self._root / name, followlinks=True):
                real = os.path.realpath(folder)
                relative = Path(folder).relative_to(self._root).as_posix()
                self._require_inside(relative)
                sent = [each for each in folders if self._is_sent(Path(folder) / each)]
                folders[:] = [] if real in seen else sorted(sent)
                seen.add(real)
                for file in sorted(inside):
                    _require_public(posixpath.join(relative, file))
                    if not file.startswith(".") and not file.endswith(_COMPILED):
                        yield posixpath.join(relative, file)

    def _is_sent(self, folder: Path) -> bool:
        return not (folder.name.startswith(".") or folder.name in _CACHES or (folder / "pyvenv.cfg").exists())

    def _require_inside(self, name: str) -> None:
        real = os.path.realpath(self._root / name)
        if os.path.commonpath([self._real, real]) != self._real:
            raise ConfigurationError(
                f"files: {name}: is a link to {real}, outside of the folder {self._root}. Copy the file there."
            )

    def _content(self, name: str) -> str | bytes:
        self._require_inside(name)
        _require_public(name)
        content = documents.read_bytes(self._root / name, limit=archive.MAX_BYTES)
        if len(content) > archive.MAX_BYTES:
            raise ConfigurationError(
                f"files: {name}: is larger than {archive.MAX_BYTES:,} bytes, and files travel with the recipe. "
                "Leave it out, or read it from a bucket."
            )
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            if name.endswith(".py"):
                raise ConfigurationError(f"{name}: is not UTF-8 text. Save it as UTF-8.") from None
            return content
        if documents.holds_secret(text):
            raise _secret(name, "holds")
        return text


def _require_public(name: str) -> None:
    if _SECRET_NAMES.fullmatch(posixpath.basename(name)):
        raise _secret(name, "has the name of")


def _secret(name: str, how: str) -> ConfigurationError:
    return ConfigurationError(
        f"files: {name}: {how} a password or a key, and every package, run and pushed version would show it. "
        "Move it out of the folder, have the code read an environment variable, and name that under secrets in the "
        "environment."
    )
