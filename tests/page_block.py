"""Files and blocks of documentation that tests write.

A block is between `<!-- NAME -->` and `<!-- end of NAME -->` of a page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def require_committed(file: Path, content: str) -> None:
    """Hold that the `file` has the `content`. It is written first if goldens are (`make goldens`)."""
    if os.environ.get("TRAINYARD_GOLDENS") == "write":
        file.write_text(content, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == content, "run `make goldens` and review the diff"


def require_block(page: str, name: str, content: str) -> None:
    """Hold that the block `name` of the page is `content`, as `require_committed`."""
    path, pattern = DOCS / page, f"(?s)(?<=<!-- {name} -->\n).*(?=<!-- end of {name} -->)"
    text, found = re.subn(pattern, lambda _: content, path.read_text(encoding="utf-8"))
    assert found == 1
    require_committed(path, text)
