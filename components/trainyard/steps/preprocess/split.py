"""The split of an example: a pure function of the seed and its identity, so that nothing moves when data are added.

The identity is the content of an image, and the hash of a whole row of a table: no row moves if the recipe reads other
columns of it.

By class it takes all draws of the class, too: see `by_class`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainyard.contract.document import SPLITS, Split
from trainyard.spec.recipe import Data
from trainyard.spec.tables.columns import SplitRows
from trainyard.steps.preprocess.readers.records import ROW_HASH
from trainyard.steps.preprocess.readers.tables.rows import SPLIT_NAMES


def assign(batch: pa.RecordBatch, seed: int, data: Data) -> tuple[pa.RecordBatch, dict[Split, int]]:
    """Return the rows with their `split` and `order` as `place` does, without `split_by`, and their digests."""
    splits = _splits(batch, seed, data.split)
    if data.split.by_value:
        batch = batch.drop_columns("split_by")
    return assign_rows(batch, splits, seed, data)


def draw(batch: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """Return the rows with their draw as `order` (binary(16)), all in the first split until `by_class` ends."""
    orders = [digest[:16] for digest in _drawn(b"split", seed, _identities(batch))]
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
        draws = _uniform(b"fraction", seed, _identities(batch)).tolist()
        remaining = [split != "train" or drawn < data.fraction for split, drawn in zip(splits, draws, strict=True)]
        batch = batch.filter(pa.array(remaining, pa.bool_()))
        splits = [split for split, used in zip(splits, remaining, strict=True) if used]
    if ROW_HASH in batch.schema.names:
        batch = batch.drop_columns(ROW_HASH)
    contents, sources, labels = (batch[name].to_pylist() for name in ("content", "source", "label"))
    orders = order_keys(contents, sources, seed)
    if data.weight:
        weights = batch[f"measure/{data.weight}"].to_pylist()
        labels = [f"{label}\0{weight}" for label, weight in zip(labels, weights, strict=True)]
    encoded = [sha256(content + label.encode()).digest() for content, label in zip(contents, labels, strict=True)]
    words = np.frombuffer(b"".join(encoded), ">u4").reshape(-1, 8)
    numbers = np.array([SPLITS.index(split) for split in splits], np.int8)
    digests = {split: _sum_of(words[numbers == number]) for number, split in enumerate(SPLITS)}
    assigned = batch.append_column("split", pa.array(numbers))
    return assigned.append_column("order", pa.array(orders, pa.binary(16))), digests


def _sum_of(words: NDArray[np.uint32]) -> int:
    """Return the sum of numbers of 256 bits modulo 2^256, their `words` (numbers, 8) from the highest on."""
    sums = words.sum(axis=0, dtype=np.uint64).tolist()
    return int(sum(total << 32 * index for index, total in enumerate(reversed(sums)))) % 2**256


def _splits(batch: pa.RecordBatch, seed: int, split: SplitRows) -> list[Split]:
    if split.by == "content":
        return assign_splits(_identities(batch), seed, split)
    if split.by == "folder":
        # An example of the folder that trains trains, or chooses the epoch.
        draws = _uniform(b"split", seed, _identities(batch)).tolist()
        rows = zip(batch["split_by"].to_pylist(), draws, strict=True)
        return ["test" if folder == "test" else "eval" if drawn < split.eval else "train" for folder, drawn in rows]
    encoded = batch["split_by"].dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if split.by == "group":
        splits = assign_splits([value.encode() for value in values], seed, split)
    else:
        splits = [_split_of(value, split) for value in values]
    return [splits[index] for index in encoded.indices.to_pylist()]


def _split_of(value: str, split: SplitRows) -> Split:
    """Return the split of the rows with `value` in the column that `split` goes by: a name of one, or a time."""
    if split.by == "column":
        return SPLIT_NAMES[value.lower()]
    if value >= (split.test_from or ""):
        return "test"
    return "eval" if value >= (split.eval_from or "") else "train"


def assign_splits(contents: Sequence[bytes], seed: int, fractions: SplitRows) -> list[Split]:
    """Return the split of what has each digest, or is each group; equal content meets in one split."""
    draws = _uniform(b"split", seed, contents)
    numbers = np.searchsorted([fractions.train, fractions.train + fractions.eval], draws, side="right")
    return [SPLITS[number] for number in numbers.tolist()]


def _identities(batch: pa.RecordBatch) -> list[bytes]:
    """Return the identity of each row: the hash of the whole row of a table, or the content of an image."""
    if ROW_HASH not in batch.schema.names:
        return batch["content"].to_pylist()
    content = batch[ROW_HASH].to_numpy().astype(">u8").tobytes()
    return [content[start : start + 8] for start in range(0, len(content), 8)]


def order_keys(contents: Sequence[bytes], sources: Sequence[str], seed: int) -> list[bytes]:
    """Return the keys by which a split's examples are sorted: a shuffle that only content, name and seed decide."""
    before = f"order\0{seed}\0".encode()
    rows = zip(contents, sources, strict=True)
    return [sha256(b"%b%b\0%b" % (before, source.encode(), content)).digest()[:16] for content, source in rows]


def _uniform(purpose: bytes, seed: int, contents: Sequence[bytes]) -> NDArray[np.float64]:
    """Return a number in 0..1 for each of `contents`."""
    first = b"".join([digest[:8] for digest in _drawn(purpose, seed, contents)])
    return np.frombuffer(first, ">u8") / 2**64


def _drawn(purpose: bytes, seed: int, contents: Sequence[bytes]) -> list[bytes]:
    before = purpose + f"\0{seed}\0".encode()
    return [sha256(before + content).digest() for content in contents]
