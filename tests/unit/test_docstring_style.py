"""Docstrings start with an imperative or a noun phrase, and use the standard terms of the field."""

from __future__ import annotations

import re
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
