"""Documentation, help texts and schema descriptions use the standard terms of the field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer

from trainyard.spec.data_schema import ImageSchema, TableSchema
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.cli.main import app
from trainyard_control.kubeflow.schedules import Schedule

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
# Phrases that are never right, each with the words to use instead.
NEVER = {
    r"go(es|ing|ne)? on|went on": "continue, resume, active",
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again, start from the beginning",
    r"in place of": "instead of",
    r"used? again": "reuse",
    r"tak(e|es|en|ing) away": "delete, evict",
    r"so many(?! that)": "number of, at most",
    r"what there is|what is there": "name the thing",
    r"of (its|their|his) own": "separate, custom",
    r"pictures?": "image",
    r"givea?ways?|gives? the \w+ away": "target leakage",
    r"yardsticks?|rivals?": "baseline",
    r"mislabelled": "label error",
    r"beyond doubt": "significantly",
    r"for want of": "because, without",
    r"(held|hold|holds) (it |them |one |a \w+ |the \w+ )?against": "compare with",
    r"look(s|ed|ing)? (after|into)": "manage, inspect",
    r"is none|none is|there is none": "name the thing",
    r"made[- ]up|made pictures": "synthetic",
    r"by (all|any) means|by which|for which reason": "a shorter sentence",
    r"side by side": "in parallel, next to",
    r"foretold|foretells?": "predicted",
    r"floors?|rooms": "layer, package",
    r"(colour|neighbour|behaviour|favour)\w*|grey|\w+(al|il)is(e|es|ed|ing|ation)": "American spelling",
}
PATTERN = re.compile(rf"\b({'|'.join(NEVER)})\b|[.;,] else\b", re.IGNORECASE)


def prose(page: str) -> str:
    """Return the text of a Markdown page without code, link targets and comments."""
    for pattern in (r"(?ms)^ *```.*?^ *```$", r"`[^`\n]*`", r"\]\([^)]*\)", r"(?s)<!--.*?-->"):
        page = re.sub(pattern, " ", page)
    return page


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    yield from ((f"{name} {option.name}", getattr(option, "help", "") or "") for option in command.params)
    for inner in getattr(command, "commands", {}).values():
        yield from helps(inner, f"{name} {inner.name}")


def descriptions(schema: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("description"), str):
            yield name, schema["description"]
        for key, value in schema.items():
            yield from descriptions(value, f"{name}.{key}")


def faults(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [f"{name}: {match[0]!r} in {text[max(0, match.start() - 40) : match.end() + 40]!r}"
            for name, text in texts for match in PATTERN.finditer(text)]  # fmt: skip


def test_the_documentation_uses_standard_terms() -> None:
    assert faults((str(page.relative_to(ROOT)), prose(page.read_text(encoding="utf-8"))) for page in PAGES) == []


def test_the_help_of_every_command_uses_standard_terms() -> None:
    assert faults(helps(typer.main.get_command(app), "trainyard")) == []


def test_the_description_of_every_key_uses_standard_terms() -> None:
    for model in (Recipe, Environment, Schedule, TableSchema, ImageSchema):
        assert faults(descriptions(model.model_json_schema(by_alias=True), model.__name__)) == []
