"""The modules whose docstrings show an example."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_HEAVY = tuple(f"trainyard.{room}." for room in ("beam", "data", "models", "steps"))
"""The rooms that may load TensorFlow or Beam."""


def modules(*, heavy: bool) -> list[str]:
    """Return the names of the modules with an example: those of the rooms that may load TensorFlow or Beam, or others.

    An example begins a line with `>>> `.
    """
    names = [
        ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
        for folder in ("components", "pipelines")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if any(line.lstrip().startswith(">>> ") for line in path.read_text(encoding="utf-8").splitlines())
    ]
    return [name for name in names if name.startswith(_HEAVY) == heavy]


def check(name: str) -> None:
    """Fail if an example of the module `name` gives something else than it shows, or none of them runs."""
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed
