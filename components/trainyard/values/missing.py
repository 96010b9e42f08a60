"""The values that a recipe declares to stand for a missing one, beside those that always do."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Sequence

from trainyard.values.text import canonical, day, number


def single(value: float) -> float:
    """Return the number in the 32 bits in which a model gets it."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def declared_numbers(declared: Sequence[str]) -> list[float]:
    """Return the numbers in 32 bits among the texts that stand for a missing number."""
    found = [number(text) for text in declared]
    return [single(value) for value in found if value is not None]


def is_declared(text: str, kind: str, declared: Sequence[str], zone: datetime.tzinfo) -> bool:
    """Return True if a cell with `text` of a column of this type holds one of the values `declared` as missing.

    Numbers are compared in 32 bits, and of a time its day in `zone`.
    """
    if not declared:
        return False
    plain = canonical(text)
    if plain in declared:
        return True
    if kind == "date":
        found_day = day(text, zone=zone)
        return bool(found_day) and found_day in declared
    found = number(text) if kind == "numeric" else None
    return found is not None and single(found) in declared_numbers(declared)
