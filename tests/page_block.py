"""Blocks of documentation that tests write: what is between `<!-- NAME -->` and `<!-- end of NAME -->` of a page."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def require_block(page: str, name: str, content: str) -> None:
    """Hold that the block `name` of the page is `content`. It is written first if goldens are (`make goldens`)."""
    path, pattern = DOCS / page, f"(?s)(?<=<!-- {name} -->\n).*(?=<!-- end of {name} -->)"
    if os.environ.get("TRAINYARD_GOLDENS") == "write":
        path.write_text(re.sub(pattern, lambda _: content, path.read_text(encoding="utf-8")), encoding="utf-8")
    [written] = re.findall(pattern, path.read_text(encoding="utf-8"))
    assert written == content
