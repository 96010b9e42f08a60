"""Console output: tables on a terminal, and as HTML in a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich import console as rich_console
from rich import markup as rich_markup
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from trainyard import escape
from trainyard.errors import listed

_PLAIN_WIDTH = 120  # columns; chosen, for files and pipes


class Console(rich_console.Console):
    """A console that shows control characters in data as escapes, so that they cannot act on the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable`; only the console's own control codes reach the terminal."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape.lines(segment.text))


def markup(text: object) -> str:
    """Escape text from data for a console: one line, no markup."""
    return rich_markup.escape(escape.one_line(text))


def table_console() -> Console:
    """Create the console for an answer's tables: stdout, with a fixed width if it is no terminal."""
    console = Console(soft_wrap=False)
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def plain_table(first: str, *columns: str) -> Table:
    """Create a table without lines. The first column, which tells rows apart, is aligned left and never cut."""
    table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def key_value_table() -> Table:
    """Create a table of names and values without a header. Values, such as paths, are never cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def counts_text(counts: Mapping[str, int]) -> str:
    """Format the first ten counts."""
    return listed([f"{name} {count:,}" for name, count in counts.items()], 10)


def as_html(draw: Callable[[Console], None]) -> str:
    """Render the output of `draw` as HTML."""
    console = Console(file=io.StringIO(), record=True, width=_PLAIN_WIDTH, force_jupyter=False)
    draw(console)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height: normal">{code}</pre>')
