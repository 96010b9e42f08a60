"""An extension of Griffe: examples of docstrings as code blocks, without the flags of doctest."""

from typing import Any

import griffe

_FIRST = "\n>>> import trainyard as ty\n"


class Examples(griffe.Extension):
    """Turns the example at the end of a docstring into a code block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a function or a class."""
        if obj.docstring and _FIRST in obj.docstring.value:
            text, _first, example = obj.docstring.value.partition(_FIRST)
            lines = [
                line.removeprefix(">>> ").partition("  # doctest")[0] if line.startswith(">>> ") else f"# {line}"
                for line in example.splitlines()
            ]
            obj.docstring.value = "\n".join([text.strip(), "", "```python", *lines, "```"])
