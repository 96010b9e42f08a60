"""The answer of a verb: text or JSON on stdout, and optionally a page."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import typer

from trainyard.errors import ConfigurationError
from trainyard.escape import one_line
from trainyard_control.cli.options import Output

_T = TypeVar("_T")


def print_answer(output: Output, document: Any, show: Callable[[], None]) -> None:
    """Print `document` as JSON, or call `show` to print text."""
    if output is Output.TEXT:
        show()
    else:
        dump = getattr(document, "model_dump_json", None)
        print(dump() if dump else json.dumps(document))


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
