"""Where an example belongs: a pure function of its content and the seed, so that nothing moves when data are added."""

from __future__ import annotations

import hashlib

from trainyard.contract.artifacts import Split
from trainyard.spec.recipe import SplitFractions


def assign_split(content: bytes, seed: int, fractions: SplitFractions) -> Split:
    """Return the split of the example with the digest `content`; equal content always meets in one split."""
    place = _uniform(b"split", seed, content)
    if place < fractions.train:
        return "train"
    return "eval" if place < fractions.train + fractions.eval else "test"


def order_key(content: bytes, source: str, seed: int) -> str:
    """Return the key by which the examples of a split are sorted: a shuffle that only content, name and seed decide."""
    return hashlib.sha256(f"order\0{seed}\0{source}\0".encode() + content).hexdigest()[:32]


def _uniform(purpose: bytes, seed: int, content: bytes) -> float:
    digest = hashlib.sha256(purpose + f"\0{seed}\0".encode() + content).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
