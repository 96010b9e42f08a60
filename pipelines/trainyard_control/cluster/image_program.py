"""Prints what a container image holds, as JSON. It runs in the image by itself: with Python 3.8, without Trainyard."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from importlib import metadata


def _distributions() -> dict[str, str]:
    """Return the version of each distribution, the first of a name, which is the one that is imported."""
    found: dict[str, str] = {}
    for package in metadata.distributions():
        if name := package.metadata["Name"]:
            found.setdefault(name.lower().replace("_", "-").replace(".", "-"), package.version)
    return found


def _code() -> tuple[str, str]:
    """Return the digest of Trainyard's code, and why it cannot be imported; one of them is ''."""
    try:
        from trainyard.contract import keys

        return keys.code_digest(), ""
    except Exception as error:  # noqa: BLE001 - whatever fails, no step can start
        return "", str(error)[:200] or type(error).__name__


def _is_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _is_writable(path: str) -> bool:
    while not os.path.exists(path) and os.path.dirname(path) != path:  # noqa: PTH110, PTH120 - steps make folders
        path = os.path.dirname(path)  # noqa: PTH120
    try:
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def contents(folders: list[str]) -> dict[str, object]:
    """Return versions, libraries and the user of this image, and the `folders` in which the user cannot write."""
    code, error = _code()
    return {
        "python": list(sys.version_info[:2]),
        "code": code,
        "error": error,
        "distributions": _distributions(),
        "libgomp": _is_library("libgomp.so.1"),
        "user": os.getuid(),
        "unwritable": [path for path in folders if not _is_writable(path)],
    }


if __name__ == "__main__":
    print(json.dumps(contents(sys.argv[1:])))
