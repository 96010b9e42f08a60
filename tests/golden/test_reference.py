"""The reference pages say what the program says of itself; `make goldens` writes them again."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.kubeflow.schedules import Schedule

ROOT = Path(__file__).parents[2]
MODELS: dict[str, tuple[str, type[BaseModel]]] = {
    "recipe.md": ("Recipes", Recipe),
    "environment.md": ("Environments", Environment),
    "schedule.md": ("Schedules", Schedule),
}
REFERENCE = ROOT / "docs" / "reference"
COMMANDS = [
    "",
    "run",
    "compile",
    "place",
    "plan",
    "pools",
    "submit",
    "doctor",
    "explain",
    "runs",
    "runs list",
    "runs show",
    "runs logs",
    "runs cancel",
    "schedule",
    "schedule apply",
    "schedule diff",
    "schedule list",
    "schedule remove",
    "schedule schema",
    "recipe",
    "recipe new",
    "recipe validate",
    "recipe schema",
]


def commands() -> str:
    """Return a page with the help of every command."""
    program = str(Path(sys.executable).parent / "trainyard")
    plain = os.environ | {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    parts = ["# Commands\n\nMade from `--help`.\n"]
    for command in COMMANDS:
        help_text = subprocess.run(
            [program, *command.split(), "--help"], capture_output=True, text=True, env=plain
        ).stdout
        text = "\n".join(line.rstrip() for line in help_text.strip().splitlines())
        parts.append(f"## `{f'trainyard {command}'.strip()}`\n\n```\n{text}\n```\n")
    return "\n".join(parts)


def keys(title: str, schema: dict[str, Any]) -> str:
    """Return a page with a table of keys for the document and each of its sections."""
    sections = [(title, schema), *schema["$defs"].items()]
    return "\n".join(
        [
            f"# {title}\n\nMade from the schema. A key without a default is required; numbers stand with their bounds. Values are read as YAML 1.2 reads them: `no` and `12:30` are texts, `1e-3` is a number. Anchors and tags are refused.\n",
            *_tables(sections),
        ]
    )


def _tables(sections: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    for name, section in sections:
        if "properties" not in section:
            continue
        required = section.get("required", [])
        rows = [
            f"| `{key}` | {_kind(value)} | {'' if key in required else _default(value)} | {value.get('description', '')} |"
            for key, value in section["properties"].items()
        ]
        about = section.get("description", "").replace("\n", " ")
        yield (
            f"## {name}\n\n{about}\n\n| key | value | default | |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
        )


def _kind(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf"):
        if choice in value:
            return " or ".join(_kind(option) for option in value[choice])
    if "enum" in value or "const" in value:
        return ", ".join(
            f"`{option}`" if option != "" else "empty" for option in value.get("enum", [value.get("const")])
        )
    if "prefixItems" in value:
        return "[" + ", ".join(_kind(item) for item in value["prefixItems"]) + "]"
    if value.get("type") == "array":
        return f"list of {_kind(value['items'])}"
    for inner in (*value.get("patternProperties", {}).values(), value.get("additionalProperties")):
        if isinstance(inner, dict):
            return f"name → {_kind(inner)}"
    return f"{value.get('type', 'anything')}{_range(value)}"


def _range(value: dict[str, Any]) -> str:
    """Return the bounds of a number, the least first."""
    if value.get("type") not in ("integer", "number"):
        return ""
    if value["type"] == "integer":
        low = value.get("minimum", value.get("exclusiveMinimum", 0) + 1)
        return f" {low} … {value['maximum']}"
    low, high = (f"{value.get(key, value.get(f'exclusive{key.title()}')):g}" for key in ("minimum", "maximum"))
    above = "above " if "exclusiveMinimum" in value else ""
    below = "below " if "exclusiveMaximum" in value else ""
    return f" {above}{low} … {below}{high}"


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    return "none" if default is None else "" if isinstance(default, dict) else f"`{default}`"


@pytest.mark.parametrize("name", ["cli.md", "recipe.md", "environment.md", "schedule.md"])
def test_the_reference_is_what_the_program_says(name: str) -> None:
    if name == "cli.md":
        page = commands()
    else:
        title, model = MODELS[name]
        page = keys(title, model.model_json_schema(by_alias=True))
    file = REFERENCE / name
    if os.environ.get("TRAINYARD_GOLDENS") == "write":
        file.write_text(page, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == page


def test_every_command_of_the_docs_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    known = {command.split()[-1] for command in COMMANDS if command}
    used = [
        line.split()[1]
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("trainyard ")
    ]
    assert used and set(used) <= known


def test_every_promise_of_the_faults_page_is_held_by_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "faults.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    written = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert named and [name for name in sorted(named) if f"def {name}(" not in written] == []
