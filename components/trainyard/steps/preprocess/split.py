"""Where an example belongs: a pure function of its content and the seed, so that nothing moves when data are added.

By class it takes all draws of the class, too: see `by_class`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

from trainyard.contract.document import SPLITS, Split
from trainyard.spec.recipe import Data
from trainyard.spec.tables.columns import SplitRows
from trainyard.steps.preprocess.readers.tables.rows import SPLIT_NAMES


def assign(batch: pa.RecordBatch, seed: int, data: Data) -> tuple[pa.RecordBatch, dict[Split, int]]:
    """Return the rows with their `split` and `order` as `place` does, without `split_by`, and their digests."""
    splits = _splits(batch, seed, data.split)
    if data.split.by_value:
        batch = batch.drop_columns("split_by")
    return assign_rows(batch, splits, seed, data)


def draw(batch: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """Return the rows with their draw as `order` (binary(16)), all in the first split until `by_class` ends."""
    orders = [_digest(b"split", seed, content)[:16] for content in batch["content"].to_pylist()]
    assigned = batch.append_column("split", pa.array(np.zeros(len(batch), np.int8)))
    return assigned.append_column("order", pa.array(orders, pa.binary(16)))


def assign_rows(
    batch: pa.RecordBatch, splits: list[Split], seed: int, data: Data
) -> tuple[pa.RecordBatch, dict[Split, int]]:
    """Return the rows with their `split` (int8, its number in `SPLITS`) and `order` (binary(16)).

    And the sum of the digests of each split's rows, label and weight included, modulo 2^256: no order changes it. Of
    the training split `data.fraction` stays.
    """
    if data.fraction < 1:
        contents = batch["content"].to_pylist()
        left = [is_used(content, split, seed, data) for content, split in zip(contents, splits, strict=True)]
        batch = batch.filter(pa.array(left, pa.bool_()))
        splits = [split for split, used in zip(splits, left, strict=True) if used]
    contents, sources, labels = (batch[name].to_pylist() for name in ("content", "source", "label"))
    orders = [order_key(content, source, seed) for content, source in zip(contents, sources, strict=True)]
    if data.weight:
        weights = batch[f"measure/{data.weight}"].to_pylist()
        labels = [f"{label}\0{weight}" for label, weight in zip(labels, weights, strict=True)]
    digests = dict.fromkeys(SPLITS, 0)
    for split, content, label in zip(splits, contents, labels, strict=True):
        digests[split] += int.from_bytes(hashlib.sha256(content + label.encode()).digest(), "big")
    numbers = {split: number for number, split in enumerate(SPLITS)}
    assigned = batch.append_column("split", pa.array(np.array([numbers[split] for split in splits], np.int8)))
    return assigned.append_column("order", pa.array(orders, pa.binary(16))), {
        split: digest % 2**256 for split, digest in digests.items()
    }


def _splits(batch: pa.RecordBatch, seed: int, split: SplitRows) -> list[Split]:
    if split.by == "content":
        return [assign_split(content, seed, split) for content in batch["content"].to_pylist()]
    if split.by == "folder":
        rows = zip(batch["split_by"].to_pylist(), batch["content"].to_pylist(), strict=True)
        return ["test" if place == "test" else _of_train(content, seed, split) for place, content in rows]
    encoded = batch["split_by"].dictionary_encode()
    of_value = [_split_of(value, seed, split) for value in encoded.dictionary.to_pylist()]
    return [of_value[index] for index in encoded.indices.to_pylist()]


def _split_of(value: str, seed: int, split: SplitRows) -> Split:
    """Return the split of the rows with `value` in the column that `split` goes by."""
    if split.by == "group":
        return assign_split(value.encode(), seed, split)
    if split.by == "column":
        return SPLIT_NAMES[value.lower()]
    if value >= (split.test_from or ""):
        return "test"
    return "eval" if value >= (split.eval_from or "") else "train"


def _of_train(content: bytes, seed: int, split: SplitRows) -> Split:
    """Return whether an example of the folder that trains trains, or chooses the epoch."""
    return "eval" if _uniform(b"split", seed, content) < split.eval else "train"


def assign_split(content: bytes, seed: int, fractions: SplitRows) -> Split:
    """Return the split of what has the digest `content`, or is that group; equal content meets in one split."""
    draw = _uniform(b"split", seed, content)
    if draw < fractions.train:
        return "train"
    return "eval" if draw < fractions.train + fractions.eval else "test"


def is_used(content: bytes, split: Split, seed: int, data: Data) -> bool:
    """Return whether the example of `split` with the digest `content` is not left out by `data.fraction`."""
    return split != "train" or _uniform(b"fraction", seed, content) < data.fraction


def order_key(content: bytes, source: str, seed: int) -> bytes:
    """Return the key by which the examples of a split are sorted: a shuffle that only content, name and seed decide."""
    return hashlib.sha256(f"order\0{seed}\0{source}\0".encode() + content).digest()[:16]


def _uniform(purpose: bytes, seed: int, content: bytes) -> float:
    return int.from_bytes(_digest(purpose, seed, content)[:8], "big") / 2**64


def _digest(purpose: bytes, seed: int, content: bytes) -> bytes:
    return hashlib.sha256(purpose + f"\0{seed}\0".encode() + content).digest()
