"""Globs as Cloud Storage reads them, for folders and buckets: `*` and `?` match in one folder, `**` across folders."""

from __future__ import annotations

import re

_WILD = re.compile(r"[*?\[]")
_MEANINGS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def literal(path: str) -> str:
    """Return the part of `path` before its first wildcard: all of it if it is no glob."""
    return _WILD.split(path, maxsplit=1)[0]


def expression(glob: str) -> re.Pattern[str]:
    """Return the regular expression of the names that `glob` matches.

    Source: https://cloud.google.com/storage/docs/json_api/v1/objects/list#list-objects-and-prefixes-using-glob
    """
    # Several in a row mean what one does, and would be tried in every combination.
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", re.sub(r"(\*\*/){2,}", "**/", glob))
    return re.compile("".join(map(_meaning, parts)), re.DOTALL)


def _meaning(part: str) -> str:
    if part.startswith("[") and part.endswith("]") and len(part) > 2:
        inside = part[1:-1]
        negated = inside.startswith("!")
        characters = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[negated:])
        return f"[{'^' * negated}{characters}]" if characters else re.escape(part)
    return _MEANINGS.get(part) or re.escape(part)
