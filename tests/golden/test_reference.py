"""The reference pages say what the program says of itself; `make goldens` writes them again."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from page_block import require_committed
from pydantic import BaseModel
from typer.testing import CliRunner

from trainyard.graph import STEPS
from trainyard.spec import documents
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.cli.main import app
from trainyard_control.kubeflow.schedules import Schedule

ROOT = Path(__file__).parents[2]
MODELS: dict[str, tuple[str, type[BaseModel]]] = {
    "recipe.md": ("Recipes", Recipe),
    "environment.md": ("Environments", Environment),
    "schedule.md": ("Schedules", Schedule),
}
REFERENCE = ROOT / "docs" / "reference"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
ABOUT = """\
Generated from the schema, with the bounds of numbers. An *optional* section has the defaults of its table. YAML 1.2
applies: `no` and `12:30` are texts, `1e-3` is a number. Anchors and tags are refused."""


def _commands(group: Any, name: str = "") -> Iterator[str]:
    """Yield the words of every command below `group`, in the order of the help."""
    for word, command in group.commands.items():
        words = f"{name} {word}".strip()
        yield from _commands(command, words) if hasattr(command, "commands") else [words]


COMMANDS = ["", *_commands(typer.main.get_command(app))]


def commands() -> str:
    """Return a page with the help of every command; an argument or option of three commands or more is listed once."""
    plain = {"TERM": "dumb", "NO_COLOR": "1"}
    parts = {}
    for command in COMMANDS:
        # As wide as the program's own help is, which leaves two of 80 columns free; the runner's has all of them.
        arguments = [*command.split(), "--help"]
        help_text = CliRunner().invoke(app, arguments, prog_name="trainyard", env=plain, terminal_width=78).stdout
        text = "\n".join(line.rstrip() for line in help_text.strip().splitlines())
        head, *blocks = re.split(r"\n\n(?=[A-Z]\w+:\n)", text)
        parts[command] = (
            head.removeprefix("Usage: ").replace(" [OPTIONS]", ""),
            [re.split(r"\n(?=  \S)", block) for block in blocks],
        )
    count = Counter(_row(entry) for _, blocks in parts.values() for _, *entries in blocks for entry in entries)
    shared = sorted(row for row, times in count.items() if times > 2 and not ("`-" in row and "[required]" in row))
    page = [
        "# Commands\n\nGenerated from `--help`. Several commands have these arguments, required ones in `{}`, "
        "and options:\n"
    ]
    page.append("\n".join(["| argument, option | meaning |", "| --- | --- |", *shared, ""]))
    for head, blocks in parts.values():
        own = [
            "\n".join([title, *rest])
            for title, *entries in blocks
            if (rest := [entry for entry in entries if _row(entry) not in shared])
        ]
        usage, _, about = head.partition("\n\n")
        page.append(f"## `{' '.join(usage.split())}`\n\n```\n{(chr(10) * 2).join([about, *own])}\n```\n")
    return "\n".join(page)


def _row(entry: str) -> str:
    """Return an option or argument of a help text as the row of a table."""
    name, _, meaning = entry.strip().replace("\n", "   ").partition("  ")
    if not name.startswith("-"):
        name = name.partition(" <")[0]
        name = f"{{{name}}}" if meaning.endswith("[required]") else f"[{name}]"
        meaning = meaning.removesuffix("[required]")
    return f"| `{name.replace('|', ', ')}` | {' '.join(meaning.split())} |"


def keys(title: str, schema: dict[str, Any]) -> str:
    """Return a page with a table of keys for the document and each of its sections, in reading order."""
    return "\n".join([f"# {title}\n\n{ABOUT}\n", *_tables(title, schema)])


def sections(schema: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return each section below `schema` by its name, with the keys that lead to it, in the order of the document."""
    met: dict[str, tuple[str, dict[str, Any]]] = {}

    def visit(value: dict[str, Any], path: str) -> None:
        if "$ref" in value:
            name = value["$ref"].rsplit("/", 1)[1]
            if name not in met:
                met[name] = path, schema["$defs"][name]
                visit(schema["$defs"][name], path)
        for key, inner in value.get("properties", {}).items():
            visit(inner, f"{path}.{key}".strip("."))
        for inner in (*value.get("anyOf", ()), *value.get("oneOf", ())):
            visit(inner, path)
        for inner in (*value.get("patternProperties", {}).values(), value.get("additionalProperties")):
            if isinstance(inner, dict):
                visit(inner, f"{path}.<name>")
        if "items" in value:
            visit(value["items"], f"{path}[]")

    visit(schema, "")
    return met


def _tables(title: str, schema: dict[str, Any]) -> Iterator[str]:
    for name, (path, section) in {title: ("", schema), **sections(schema)}.items():
        if "properties" not in section:
            continue
        required = section.get("required", [])
        rows = [
            f"| `{key}` | {_kind(value)} | {'required' if key in required else _default(value)} "
            f"| {_meaning(value, schema)} |"
            for key, value in section["properties"].items()
        ]
        about = " ".join(section.get("description", "").split())
        about = f"`{path}`: {about}" if path else about
        head = "| key | value | default | meaning |\n| --- | --- | --- | --- |"
        yield "\n".join([f"## {name}\n\n{about}\n", head, *rows, ""])


def _meaning(value: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return what a key is for; a section's key the first sentence of the section."""
    if "description" in value or "$ref" not in value:
        return str(value.get("description", "")).replace("|", "\\|")
    about = schema["$defs"][value["$ref"].rsplit("/", 1)[1]]["description"]
    return _meaning({"description": f"{about.partition('.')[0]}."}, schema)


def _kind(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf"):
        if choice in value:
            return " or ".join(_kind(option) for option in value[choice] if option.get("type") != "null")
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
        return f" {low}…{value['maximum']}"
    low, high = (f"{value.get(key, value.get(f'exclusive{key.title()}')):g}" for key in ("minimum", "maximum"))
    above = "above " if "exclusiveMinimum" in value else ""
    below = "below " if "exclusiveMaximum" in value else ""
    return f" {above}{low}…{below}{high}"


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if default is None or default == "" or default == {}:
        return "none"
    if isinstance(default, dict):
        return "optional"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


@pytest.mark.parametrize("name", ["cli.md", "recipe.md", "environment.md", "schedule.md"])
def test_the_reference_is_what_the_program_says(name: str) -> None:
    if name == "cli.md":
        page = commands()
    else:
        title, model = MODELS[name]
        page = keys(title, model.model_json_schema(by_alias=True))
    require_committed(REFERENCE / name, page)


_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def _duration(seconds: int) -> str:
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    return f"{seconds // size} {unit}{'s' if seconds > size else ''}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "-"


STEP_TABLES: dict[str, tuple[str, list[str]]] = {
    "docs/how-to/submit.md": (
        "| step | may run for | retries |\n| --- | --- | --- |\n",
        [f"| {name} | {_duration(step.timeout_seconds)} | {step.retries} |" for name, step in STEPS.items()],
    ),
    "docs/explanation/architecture.md": (
        "| step | reads | recipe sections | also named by | takes | runs on if |\n"
        "| --- | --- | --- | --- | --- | --- |\n",
        [
            f"| {name} | {_names(step.reads)} | {_names(step.sections)} | {_names(step.keyed_by)} "
            f"| {_names(step.inputs)} | {step.continues_on or '-'} |"
            for name, step in STEPS.items()
        ],
    ),
}


@pytest.mark.parametrize("page", STEP_TABLES)
def test_the_tables_of_steps_are_those_of_the_graph(page: str) -> None:
    head, rows = STEP_TABLES[page]
    text = (ROOT / page).read_text(encoding="utf-8")
    before, _, after = text.partition(head)
    written = f"{before}{head}{chr(10).join(rows)}\n\n{after.partition(f'{chr(10)}{chr(10)}')[2]}"
    require_committed(ROOT / page, written)


@pytest.mark.parametrize("name", MODELS)
def test_every_key_is_described(name: str) -> None:
    schema = MODELS[name][1].model_json_schema(by_alias=True)
    for path, section in [("", schema), *sections(schema).values()]:
        properties = section.get("properties", {})
        assert (path, [key for key, value in properties.items() if not _meaning(value, schema)]) == (path, [])


def test_every_row_of_a_table_has_the_columns_of_its_head() -> None:
    for page in PAGES:
        width = 0
        for line in page.read_text(encoding="utf-8").splitlines():
            columns = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            assert not (width and columns) or columns == width, (page.name, line)
            width = columns


def test_no_group_of_the_navigation_has_more_than_seven_entries() -> None:
    def groups(entries: list[Any]) -> Iterator[list[Any]]:
        yield entries
        for entry in entries:
            (content,) = entry.values()
            if isinstance(content, list):
                yield from groups(content)

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
    assert max(map(len, groups(nav))) <= 7


def test_every_file_that_a_page_outside_the_site_links_to_exists() -> None:
    for page in ROOT.glob("*.md"):  # MkDocs checks the links of the site
        links = re.findall(r"\]\((?!https?:|#|\.\./)([^)#]+)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (ROOT / link).exists()] == [], page.name


def test_the_program_takes_every_command_line_of_the_docs() -> None:
    lines = [
        line.removeprefix("$ ")
        for page in PAGES
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        if re.match(r"(\$ )?trainyard [a-z-]", line)
    ]
    assert len(lines) > 100
    program: Any = typer.main.get_command(app)
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.commenters, lexer.whitespace_split = "#", True
        _, *words = takewhile(lambda word: word not in ("|", ">", "&&", ";"), lexer)
        command = program
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        try:
            command.make_context("trainyard", words)
        except Exception as error:
            raise AssertionError(line) from error


def test_a_recipe_takes_every_block_of_export_settings_in_the_docs() -> None:
    recipe = "name: pets\ndata: {format: image_folder, bundled: digits, channels: 1}\nmodel: {name: cnn_small}\n"
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"```yaml\n(export:\n.*?)```", pages, re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        documents.parse(recipe + block, Recipe, name="recipe.yaml")


def test_every_promise_of_the_faults_page_is_held_by_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "faults.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    written = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert named and [name for name in sorted(named) if f"def {name}(" not in written] == []


def test_every_environment_variable_is_on_the_page() -> None:
    name = re.compile(r"\bTRAINYARD_[A-Z]+(?:_[A-Z]+)*")
    pages = (REFERENCE / "variables.md", ROOT / "CONTRIBUTING.md")  # of users, and of the tests
    page = {variable for path in pages for variable in name.findall(path.read_text(encoding="utf-8"))}
    folders = ("components", "pipelines", "images", "k8s", "tests", ".ci", "benchmarks")
    is_binary = {".binpb", ".gz", ".png", ".pyc"}
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix not in is_binary]
    text = "\n".join(file.read_text(encoding="utf-8") for file in [*files, ROOT / "Makefile"] if file.is_file())
    assert set(name.findall(text)) == page


def test_every_path_of_the_walkthroughs_the_architecture_and_the_tour_exists() -> None:
    pages = ("CONTRIBUTING.md", "docs/explanation/architecture.md", "docs/explanation/tour.md")
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    roots = (
        ROOT,
        ROOT / "components/trainyard",
        ROOT / "pipelines/trainyard_control",
        ROOT / "components/trainyard/steps/train",
    )
    named = set(re.findall(r"`([\w.-]+/[\w./-]+?)/?`", text))
    assert named and [path for path in sorted(named) if not any((root / path).exists() for root in roots)] == []


def test_every_decision_has_its_context_the_decision_and_its_consequence_and_is_in_the_index() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    index = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].partition(". ")[2] for page in pages]
    assert re.findall(r"\[(.+)\]\((.+)\)", index) == [(t, page.name) for t, page in zip(titles, pages, strict=True)]
    for page in pages:
        parts = re.findall(r"^\*\*(Context|Decision|Consequence)\.\*\*", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert parts == ["Context", "Decision", "Consequence"], page.name
