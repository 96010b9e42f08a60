"""The stubs in typings/ describe the installed libraries: every name is there, and takes the parameters they say."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

TYPINGS = Path(__file__).parents[2] / "typings"
STUBS = sorted(TYPINGS.rglob("*.pyi"))
EAGER = {"tensorflow.Tensor.numpy", "tensorflow.Variable.numpy"}  # of the classes behind these alone
CODE = (ast.FunctionDef, ast.ClassDef)


def module_name(stub: Path) -> str:
    parts = stub.relative_to(TYPINGS).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def faults(body: list[ast.stmt], real: object, place: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(real, type(ast)):
            name = ast.unparse(node.target)
        elif isinstance(node, CODE):
            name = node.name
        else:
            continue
        if name.startswith("_") or f"{place}.{name}" in EAGER:
            continue
        missing = object()
        member = getattr(real, name, missing)
        if member is missing:
            yield f"{place}.{name}: is not there"
        elif isinstance(node, ast.ClassDef):
            yield from faults(node.body, member, f"{place}.{name}")
        elif isinstance(node, ast.FunctionDef):
            yield from wrong_parameters(node, member, f"{place}.{name}")


def wrong_parameters(node: ast.FunctionDef, real: object, place: str) -> Iterator[str]:
    try:
        parameters = inspect.signature(real).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # compiled
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = {parameter.name for parameter in parameters} | {"self", "cls"}
    wanted = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
    yield from (f"{place}: takes no '{name}' but {sorted(names)}" for name in wanted if name not in names)


@pytest.mark.parametrize("stub", STUBS, ids=module_name)
def test_the_stubs_say_what_the_installed_library_has(stub: Path) -> None:
    name = module_name(stub)
    problems = list(faults(ast.parse(stub.read_text()).body, library(name), name))
    assert not problems, "\n".join(problems)


def library(name: str) -> object:
    """What `import package` and attributes give, as the code writes it; else the module."""
    package, _, rest = name.partition(".")
    try:
        real: object = importlib.import_module(package)
        for part in filter(None, rest.split(".")):
            real = getattr(real, part)
        return real
    except AttributeError:
        return importlib.import_module(name)
