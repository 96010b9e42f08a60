"""The names of runs: when one was begun, and four characters that tell it from another of the same second."""

from __future__ import annotations

import re
import secrets
from datetime import datetime

_SECOND = "%Y%m%d-%H%M%S"
_NAME = re.compile(r"(\d{8}-\d{6})-[0-9a-f]{4}")


def new() -> str:
    """Return the name of a run that begins now."""
    return f"{datetime.now().strftime(_SECOND)}-{secrets.token_hex(2)}"


def begun(name: str) -> str:
    """Return when the run `name` was begun, in local time with its zone; '' if the name is another's."""
    match = _NAME.fullmatch(name)
    return datetime.strptime(match[1], _SECOND).astimezone().isoformat() if match else ""
