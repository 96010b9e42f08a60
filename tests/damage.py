"""Damage that a disk or a hand does to a file."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path) -> None:
    """Change one bit in the middle of the file at `path`."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
