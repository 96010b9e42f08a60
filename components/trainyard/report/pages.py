"""Pages: HTML files in one style that open offline and make no requests.

A content security policy allows only our scripts, by their hashes, and no requests, so that a class or file name in the
data stays text.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

from trainyard.escape import shown

_FOLDER = Path(__file__).parent
_HEIGHT = 640  # pixels of a page in a notebook; chosen: a screen shows it and the cell


def template(file: Path, **filters: Callable[..., Any]) -> jinja2.Template:
    """Load the template in `file`, which extends base.html.j2 and escapes its values."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([file.parent, _FOLDER]),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    style = (_FOLDER / "report.css").read_text(encoding="utf-8")
    environment.globals |= {"style": style, "script_hashes": [], "figures": {}}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template(file.name)


def script_hash(script: str) -> str:
    """Return the source expression of an inline script for a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def in_iframe(page: str) -> str:
    """Embed a page in HTML, such as a notebook's, so that its styles and scripts stay inside."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-popups" '
        f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
    )
