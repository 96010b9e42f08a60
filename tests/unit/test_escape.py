"""Text that comes from data acts nowhere: not in YAML, a shell, a page, a log or on a terminal."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import re
import shlex
import subprocess
import sys
import unicodedata
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import trainyard
import trainyard_control
from trainyard import escape, events
from trainyard.errors import ConfigurationError, DataError, TrainyardError, from_code
from trainyard.quality.figures import page
from trainyard.quality.inspect import inspect
from trainyard.quality.profile import Profile
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.quality.schema import draft
from trainyard.report import plots
from trainyard.spec import documents, plain_yaml
from trainyard.spec.data_schema import parse_schema
from trainyard.spec.plain_yaml import YamlText
from trainyard.spec.recipe import Recipe
from trainyard_control.api import drawing
from trainyard_control.cli.main import main

KEY = "id\nmodule: evil.py\n#"
NAMES = [
    KEY,
    "a\u2028module: evil.py",
    "a\x85module: evil.py\r#",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil\x1b\\\\x",
    "\x9b31mred",
    "\u202egnp.exe",
    "\u2066a\u2069",
    "[red]a[/red][/]",
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "'; touch evil; '",
    "$(touch evil) `touch evil`",
    "--option=x",
    "# a: b",
    "{a: &b [*b]}",
    "!!python/object:os.system",
    "\U000e0041",
    "a\\",
    ":smile:",
]
HOSTILE = st.text(
    st.characters() | st.sampled_from("\n\r\t\x1b\x07\x7f\x85\x9b\u2028\u202e\u2066[]<>'\"#:&*!{}$`\\ -"),
    min_size=1,
    max_size=30,
)
names = st.sampled_from(NAMES) | HOSTILE
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def acting(text: str) -> list[str]:
    """Return the characters of `text` that act on a terminal or that nobody sees; lines end by "\\n" alone."""
    unsafe = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return [letter for letter in text if unicodedata.category(letter) in unsafe and letter not in "\n\u200c\u200d"]


def test_no_error_is_given_its_sentences_in_one_text() -> None:
    """Its line breaks would be escaped, as those of a text from data are."""
    sources = [path for package in (trainyard, trainyard_control) for path in Path(package.__path__[0]).rglob("*.py")]
    assert [path for path in sources if re.search(r'Error\(\s*"\\n"\.join', path.read_text(encoding="utf-8"))] == []


@given(names)
def test_an_escaped_line_is_one_line_and_stays_as_it_is_if_escaped_again(name: str) -> None:
    line = escape.one_line(name)
    assert not acting(line) and "\n" not in line and escape.one_line(line) == line
    assert line == name or acting(name) or "\n" in name
    document = json.dumps(name, ensure_ascii=False)
    assert json.loads(escape.lines(document)) == name, "JSON stays JSON"


@given(names)
def test_a_comment_ends_with_its_line(name: str) -> None:
    text = f"{plain_yaml.comment(name, indent=3)}\na: 1\n"
    assert YamlText(text, "own.yaml").content == {"a": 1} == yaml.safe_load(text) and not acting(text)


@given(st.dictionaries(names, names, min_size=1), st.booleans(), st.booleans())
def test_yaml_shows_what_it_holds(content: dict[str, Any], as_unicode: bool, inline: bool) -> None:
    text = plain_yaml.dump(content, allow_unicode=as_unicode, inline_leaves=inline)
    assert YamlText(text, "own.yaml").content == content and not acting(text)


@given(names)
def test_a_shell_reads_a_word_as_it_is(name: str) -> None:
    assume("\0" not in name)
    word = escape.shell(name)
    assert not acting(word) and "\n" not in word
    if not acting(name) and "\n" not in name:
        assert shlex.split(word) == [name]


def test_bash_reads_a_word_with_control_characters_as_it_is(tmp_path: Path) -> None:
    words = [*NAMES, "\udcff", "é'\x1b\\n"]
    script = f"printf '%s\\0' {' '.join(map(escape.shell, words))}"
    printed = subprocess.run(["bash", "-c", script], capture_output=True, check=True, cwd=tmp_path).stdout
    assert os.fsdecode(printed).split("\0")[:-1] == words and not list(tmp_path.iterdir())


@given(names)
def test_a_line_of_a_log_is_one_line_and_is_read_again(name: str) -> None:
    stream, stderr = io.StringIO(), sys.stderr
    sys.stderr = stream
    try:
        events.emit("warning", message=name)
    finally:
        sys.stderr = stderr
    assert not acting(stream.getvalue()) and stream.getvalue().count("\n") == 1
    assert events.parse(stream.getvalue().rstrip("\n")) == {"event": "warning", "message": name}


@given(names, names)
def test_an_error_has_as_many_lines_as_sentences(first: str, second: str) -> None:
    error = DataError(f"{first}: no such column.", second)
    assert not acting(str(error)) and len(str(error).split("\n")) == 2
    again = from_code(10, str(error), "DataError")
    assert (str(again), again.args, type(again)) == (str(error), error.args, DataError)


@pytest.mark.parametrize("is_terminal", [True, False])
@given(names)
def test_a_console_shows_a_name_without_doing_what_it_says(is_terminal: bool, name: str) -> None:
    console = drawing.Console(file=io.StringIO(), force_terminal=is_terminal, width=500)
    table = drawing.plain_table(drawing.markup(name))
    table.add_row(drawing.markup(name))
    console.print(table)
    console.print(f"[bold]{drawing.markup(name)}[/]", name, markup=False, soft_wrap=True)
    printed = COLOURS.sub("", console.file.getvalue())  # type: ignore[attr-defined]
    assert not acting(printed)
    if name.isprintable() and not name.isspace():
        assert escape.one_line(name).strip() in " ".join(printed.split("\n")) or name != " ".join(name.split())


class Elements(HTMLParser):
    """What a page consists of: the names of its elements and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(f"{tag}.{name}" for name, _ in attributes)}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def profile(folder: Path, header: list[str], cells: list[str], classes: tuple[str, str]) -> Profile | None:
    """Return the profile of a table with these names; None if it is refused."""
    with (folder / "table.csv").open("w", newline="", encoding="utf-8", errors="surrogatepass") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerow([*header, "number", "kept"])
        writer.writerows([*cells, row % 30, classes[row % 3 % 2]] for row in range(60))
    try:
        return inspect(str(folder / "table.csv"), "kept")
    except TrainyardError:
        return None


@pytest.fixture(scope="module")
def elements(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    plain = profile(tmp_path_factory.mktemp("plain"), ["column"], ["cell"], ("a", "b"))
    assert plain is not None
    return Elements(page(plain)).found


@settings(max_examples=40)
@given(names, names, names, names)
@example(KEY, KEY, KEY, "b")
@example("a\u2028module: evil.py", "\u202ebidi", "x\u2028module: evil.py", "y\x85module: evil.py")
def test_what_is_drafted_from_a_stranger_s_table_has_only_its_own_keys(
    tmp_path_factory: pytest.TempPathFactory, elements: set[str], column: str, cell: str, first: str, second: str
) -> None:
    found = profile(tmp_path_factory.mktemp("table"), [column], [cell], (first, second))
    assume(found is not None)
    assert found is not None
    with suppress(ConfigurationError):
        text, guesses = draft_recipe("own", "table.csv", found)
        assert YamlText(text, "own").content.keys() <= {"name", "task", "data", "model", "train", "evaluate"}
        assert text.count("\n#") == len(guesses) and not acting(text)
        assert set(documents.parse(text, Recipe, name="own.yaml").data.features) <= {column.strip(), "number"}
    with suppress(ConfigurationError):
        schema = draft(found, datetime.date(2024, 1, 1))
        assert set(parse_schema(schema, "own.yaml").columns) == {column.name for column in found.columns}
        assert not acting(schema)
    shown = page(found)
    assert Elements(shown).found <= elements and not acting(shown.replace("\t", ""))


def test_a_chart_s_page_shows_names_as_text() -> None:
    plain = plots.page("name", ["name"], {}, [])
    shown = plots.page(KEY + NAMES[9], NAMES, {}, [])
    assert Elements(shown).found == Elements(plain).found and not acting(shown.replace("\t", ""))
    assert all(not acting(plots.plain(name)) and "<" not in plots.plain(name) for name in NAMES)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_a_terminal_shows_what_it_can_and_the_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """The check mark is not in Latin-1, and a header cell is not a command to the terminal."""
    assert profile(tmp_path, [KEY, "\x1b]0;title\x07", "\u202ebidi"], ["x\x9b31m", "\x1b[2J", "é"], ("a\x1b[1m", "b"))
    monkeypatch.chdir(tmp_path)
    commands = [
        ["data", "inspect", "table.csv"],
        ["data", "compare", "table.csv", "table.csv"],
        ["recipe", "new", "own.yaml", "--from", "table.csv"],
        ["recipe", "validate", "own.yaml", "--data"],
        ["recipe", "validate", "\x1b[2J.yaml"],
        ["data", "schema", "table.csv"],
    ]
    for command in commands:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        monkeypatch.setattr(sys, "argv", ["trainyard", *command])
        with pytest.raises(SystemExit) as end:
            main()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        refused = command in (commands[-1], commands[-2])
        assert (end.value.code or 0) == (20 if refused else 0), command
        printed = "".join(stream.buffer.getvalue().decode(encoding) for stream in streams)  # type: ignore[attr-defined]
        assert printed and not acting(printed), command
        assert encoding == "utf-8" or "?" in printed, command
