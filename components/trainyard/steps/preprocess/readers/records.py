"""What flows through the Beam pipeline: a good record, a bad one, and the fault that makes a whole source unusable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

Value = float | int | str | bytes


@dataclass(frozen=True)
class Record:
    """One checked example.

    source names its origin below the data's root. label is the class's name, or the target's number, as text. raw holds
    the raw features by name. content is the SHA-256 of what the model learns from (the label left out), so equal
    examples have equal content. measures are numbers about an image: height, width and bytes.
    """

    source: str
    label: str
    raw: dict[str, Value]
    content: bytes
    measures: dict[str, float]


class BadRecord(Exception):
    """One record cannot be used: why, as a code for counting and as a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class BadSource(Exception):
    """A file is wrong as a whole: the sentence that the run ends with."""


def content_digest(raw: dict[str, Value]) -> bytes:
    """Return the SHA-256 over the raw features, whatever their order."""
    digest = hashlib.sha256()
    for name, value in sorted(raw.items()):
        encoded = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(f"{name}\0{len(encoded)}\0".encode() + encoded)
    return digest.digest()
