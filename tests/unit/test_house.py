"""The house: no room is too full to be seen at a glance, and each says what it is for."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [
    path.parent for root in ("components", "pipelines", "benchmarks") for path in (ROOT / root).rglob("__init__.py")
]


def test_a_room_holds_a_dozen_modules_at_most_and_its_docstring_says_what_it_is() -> None:
    assert len(ROOMS) > 30
    full = {str(room): len(modules) for room in ROOMS if len(modules := [*room.glob("[!_]*.py")]) > 12}
    assert not full
    docstrings = {room: ast.get_docstring(ast.parse((room / "__init__.py").read_text())) for room in ROOMS}
    assert [str(room) for room, text in docstrings.items() if not text] == []
