"""Arguments and options that several verbs share, each with one spelling and one help text, and the answer of a verb.

An answer is text or JSON on stdout, and optionally a page.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from trainyard.errors import ConfigurationError
from trainyard.escape import one_line
from trainyard.graph import OUTPUTS

if TYPE_CHECKING:
    from trainyard.spec.environment import Environment

_T = TypeVar("_T")


class Output(StrEnum):
    """The format of the answer on stdout."""

    TEXT = "text"
    JSON = "json"


Step = StrEnum("Step", {name.upper(): name for name in OUTPUTS})  # type: ignore[misc]  # python/mypy#2401

RecipeName = Annotated[str, typer.Argument(help="Bundled recipe, YAML file, or its gs:// or s3:// URI.")]
RecipeOrData = Annotated[
    str, typer.Argument(help="Bundled recipe, YAML file or its gs:// or s3:// URI; or data to draft a recipe from.")
]
VersionName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Recipe, folder of versions or its URI; @VERSION or @ALIAS chooses one."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value, such as train.epochs=3.")
]
EnvironmentName = Annotated[
    str,
    typer.Option("--environment", "-e", help="Bundled environment (local, kind, gke, vertex), or a YAML file."),
]
LOCAL = "local"  # the default environment
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
PackageFile = Annotated[str, typer.Option("--to", metavar="FILE", help="File to write; - is stdout.")]
Day = Annotated[
    str, typer.Option("--day", help="Day of the run, YYYY-MM-DD, for recipes with window_days. Default: today.")
]
RunName = Annotated[str | None, typer.Option("--name", help="Name of the run. The same name follows an existing run.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the run to its end, and exit with its exit code.")]
PendingLimit = Annotated[
    int,
    typer.Option("--pending-limit", min=1, help="Cancel the run if a step waits longer for a node, in seconds."),
]
ModelName = Annotated[
    str | None, typer.Option("--model-name", help="Model name on the server. Default: the recipe's or the folder's.")
]
UploadLimit = Annotated[str, typer.Option("--upload-limit", help="Ask before more is uploaded, such as 20Gi.")]
AnswerLog = Annotated[
    str | None,
    typer.Option("--log", metavar="FOLDER", help="Log requests and answers there, hourly; gs:// and s3:// too."),
]
Sample = Annotated[
    float | None,
    typer.Option("--sample", min=0.0, max=1.0, help="Share of the requests in --log. Default: 1, all of them."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")]
Label = Annotated[str | None, typer.Option("--label", help="Column to predict.")]
HtmlPage = Annotated[Path | None, typer.Option("--html", help="Also write an HTML page.")]


def print_answer(output: Output, document: Any, show: Callable[[], None]) -> None:
    """Print `document` as JSON, or call `show` to print text."""
    if output is Output.TEXT:
        show()
    else:
        dump = getattr(document, "model_dump_json", None)
        print(dump() if dump else json.dumps(document))


def confirm(text: str) -> bool:
    """Ask for consent to `text` on the terminal; False without a terminal."""
    return sys.stdin.isatty() and typer.confirm(f"{text}. Go ahead?", err=True)


def say(line: object, err: bool = False) -> None:
    """Print `line` as one line on stdout or stderr, with text from data escaped."""
    typer.echo(one_line(line), err=err)


def say_table(rows: Sequence[tuple[str, ...]], err: bool = False) -> None:
    """Print `rows` in aligned columns, with text from data escaped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), err)


def print_lines(output: Output, items: Iterable[_T], line: Callable[[_T], str]) -> list[_T]:
    """Return `items`; in text output, print the line of each item as soon as it is known."""
    known = []
    for item in items:
        known.append(item)
        if output is Output.TEXT:
            say(line(item))
    return known


def write_page(html: Path | None, page: Callable[[], str]) -> None:
    """Write `page` to the file `html`, if one is given. Raises `ConfigurationError` if it cannot be written."""
    if html is not None:
        write_file(page(), html, "--html")


def write_file(text: str, file: Path, option: str = "", mode: Literal["w", "x"] = "w") -> None:
    """Write `text` to the file that `option` names. mode: as in `open`.

    Raises `ConfigurationError` if it cannot be written.
    """
    done = "replaced" if os.path.exists(file) else "wrote"  # noqa: PTH110 - Path's raises for a name too long
    try:
        with file.open(mode, encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigurationError(f"{file}: already exists. Name another file.") from error
    except OSError as error:
        location = f"{option} {str(file)[:200]}".lstrip()
        raise ConfigurationError(
            f"{location}: cannot be written ({error.strerror}). Name a file in a folder that is there."
        ) from error
    say(f"✓ {done} {file}", err=True)


def recipe_or_draft(recipe: str, label: str | None, environment: Environment) -> str:
    """Return `recipe`; if it names data, draft a recipe that `environment` can train, save it, and return its file."""
    from trainyard import escape
    from trainyard.contract.gang import why_no_trees
    from trainyard_control.api import arguments

    if not arguments.is_data(recipe):
        if label is not None:
            raise ConfigurationError(f"--label {label}: {recipe} is a recipe and names its label. Leave --label out.")
        return recipe
    file = arguments.recipe_file(recipe)
    text, _ = arguments.draft(recipe, file, label, no_trees=why_no_trees(environment))
    if not file.exists():
        write_file(text, file, mode="x")
    elif file.read_text(encoding="utf-8") != text:
        raise ConfigurationError(
            f"{file}: already exists and differs from the recipe drafted from the data. Run it: trainyard run {file}. "
            "Or move it away."
        )
    typer.echo(escape.lines(text), err=True)
    return str(file)


def say_left_out(recipe: str, set_: Sequence[str] | None) -> None:
    """Print the settings of the recipe that its model does not have."""
    from trainyard.spec import recipe as recipes

    for key, _ in recipes.left_out(recipe, set_ or []):
        say(f"! {key}: is not a setting of the model and is left out", err=True)
