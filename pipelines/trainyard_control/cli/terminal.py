"""The standard streams of the command line: nothing that comes from data acts on a terminal, or ends a command."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from trainyard import escape


def protect_streams() -> None:
    """Have stdout and stderr show control characters as escapes, and `?` for what their encoding lacks."""
    sys.stdout, sys.stderr = map(_Protected, (sys.stdout, sys.stderr))


class _Protected(io.TextIOBase, TextIO):
    """A text stream in front of another. It has no `buffer`, so that nobody writes around it.

    rich_proxied_file: where rich's consoles write, which have escaped the text and add colours.
    """

    def __init__(self, stream: TextIO) -> None:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        self.rich_proxied_file = self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has it writable
        """The encoding of the stream behind."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        """Write `text` with escapes for what would act on a terminal."""
        self._stream.write(escape.lines(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream behind."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether a person reads it."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the number of the file behind."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True
