"""Docstrings start with an imperative or a noun phrase, and use the standard terms of the field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("benchmarks", "components", "images", "k8s", "pipelines")
FIRST_LINE = re.compile(r'^ *r?"""(.+)', re.MULTILINE)
RIDDLES = re.compile(
    r"(Return|Yield) (what|whether|how|that|those|why|which|where|when|about what)\b"
    r"|(What|How|Where|Which|Why|Whether|Everything|All that)\b|Have .* done\b"
)
TERMS = re.compile(r"\b(pictures?|yardstick|certificate|used again|goes on|go on|anew|so many|mend|ladder of|rooms)\b")


def test_docstrings_are_plain() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if file.name != "pipeline_run.py"]
    lines = [(file.name, line) for file in files for line in FIRST_LINE.findall(file.read_text(encoding="utf-8"))]
    assert len(lines) > 3000
    assert [(name, line) for name, line in lines if RIDDLES.match(line) or TERMS.search(line)] == []


def functions() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the docstring and the source of each function."""
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield f"{file.name}: {node.name}", text, "\n".join(lines[node.lineno - 1 : node.end_lineno])


def test_a_docstring_explains_only_names_that_its_function_has() -> None:
    explained = [
        (place, name, len(re.findall(rf"\b{name}\b", source)) > len(re.findall(rf"\b{name}\b", text)))
        for place, text, source in functions()
        for names in re.findall(r"(?:^|\. )([a-z_]+(?:, [a-z_]+)*): (?!{)", text, re.MULTILINE)
        for name in names.split(", ")
    ]
    assert len(explained) > 300
    assert [(place, name) for place, name, has_it in explained if not has_it] == []
