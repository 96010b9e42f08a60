"""Where an example belongs: a pure function of its content and the seed, so that nothing moves when data are added."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

from trainyard.contract.artifacts.document import SPLITS, Split
from trainyard.spec.recipe import Data, SplitFractions


def assign(batch: pa.RecordBatch, seed: int, data: Data) -> tuple[pa.RecordBatch, dict[Split, int]]:
    """Return the rows with their `split` (int8, its number in `SPLITS`) and `order` (binary(16)).

    And the sum of the digests of each split's rows, label included, modulo 2^256: no order changes it. Of the training
    split `data.fraction` stays.
    """
    if data.fraction < 1:
        left = [is_used(content, seed, data) for content in batch["content"].to_pylist()]
        batch = batch.filter(pa.array(left))
    contents, sources, labels = (batch[name].to_pylist() for name in ("content", "source", "label"))
    splits = [assign_split(content, seed, data.split) for content in contents]
    orders = [order_key(content, source, seed) for content, source in zip(contents, sources, strict=True)]
    digests = dict.fromkeys(SPLITS, 0)
    for split, content, label in zip(splits, contents, labels, strict=True):
        digests[split] += int.from_bytes(hashlib.sha256(content + label.encode()).digest(), "big")
    numbers = {split: number for number, split in enumerate(SPLITS)}
    placed = batch.append_column("split", pa.array(np.array([numbers[split] for split in splits], np.int8)))
    return placed.append_column("order", pa.array(orders, pa.binary(16))), {
        split: digest % 2**256 for split, digest in digests.items()
    }


def assign_split(content: bytes, seed: int, fractions: SplitFractions) -> Split:
    """Return the split of the example with the digest `content`; equal content always meets in one split."""
    draw = _uniform(b"split", seed, content)
    if draw < fractions.train:
        return "train"
    return "eval" if draw < fractions.train + fractions.eval else "test"


def is_used(content: bytes, seed: int, data: Data) -> bool:
    """Return whether the example with the digest `content` is among the `data.fraction` of the training split."""
    return _uniform(b"fraction", seed, content) < data.fraction or assign_split(content, seed, data.split) != "train"


def order_key(content: bytes, source: str, seed: int) -> bytes:
    """Return the key by which the examples of a split are sorted: a shuffle that only content, name and seed decide."""
    return hashlib.sha256(f"order\0{seed}\0{source}\0".encode() + content).digest()[:16]


def _uniform(purpose: bytes, seed: int, content: bytes) -> float:
    digest = hashlib.sha256(purpose + f"\0{seed}\0".encode() + content).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
