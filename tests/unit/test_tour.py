"""The tour of the code names functions that exist, each called by an earlier stop of its part."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "pipelines/trainyard_control", ROOT / "components/trainyard"
STOP = re.compile(r"^[0-9]+\. `([\w/]+\.py)`: `([\w.]+)`", re.MULTILINE)
PARTS = [
    part for part in (ROOT / "docs/explanation/tour.md").read_text(encoding="utf-8").split("\n## ") if STOP.search(part)
]


def definition(path: str, name: str) -> ast.AST:
    (file,) = [package / path for package in PACKAGES if (package / path).exists()]
    node: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    for part in name.split("."):
        named = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.FunctionDef | ast.ClassDef))
        (node,) = [each for each in named if each.name == part]
    return node


@pytest.mark.parametrize("part", PARTS, ids=[part.partition("\n")[0] for part in PARTS])
def test_each_stop_of_the_tour_is_called_by_an_earlier_one(part: str) -> None:
    called: set[str] = set()
    stops = STOP.findall(part)
    assert len(stops) > 5
    for number, (path, name) in enumerate(stops):
        assert not number or name.rpartition(".")[2] in called, f"{path}: {name}"
        nodes = list(ast.walk(definition(path, name)))
        called |= {node.id for node in nodes if isinstance(node, ast.Name)}
        called |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
