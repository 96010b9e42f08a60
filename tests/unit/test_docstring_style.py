"""Docstrings start with an imperative or a noun phrase, and use the standard terms of the field."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Packages whose docstrings follow the style guide.
PACKAGES = [
    *(f"pipelines/trainyard_control/{name}" for name in ("api", "cli", "cluster", "kubeflow", "planning", "search")),
    *(f"components/trainyard/{name}" for name in ("kubernetes", "report")),
]
RIDDLES = re.compile(r"(Return|Yield) (what|whether|how|that|why|which|where|when|about what)\b|Have .* done\b")
TERMS = re.compile(r"\b(pictures?|yardstick|certificate|used again|goes on|go on|anew|so many|mend|ladder of|rooms)\b")


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_are_plain(package: str) -> None:
    files = [file for file in (ROOT / package).rglob("*.py") if file.name != "pipeline_run.py"]
    nodes = [(file, node) for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [(file.name, ast.get_docstring(node) or "") for file, node in nodes if isinstance(node, kinds)]
    assert texts
    assert [(name, text) for name, text in texts if RIDDLES.match(text) or TERMS.search(text.partition("\n")[0])] == []
