"""Warns of images that look the same and lie in different splits, which makes metrics too good."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from trainyard.contract.document import SPLITS
from trainyard.quality.images import PerceptualHash, hash_encoded, near_duplicates
from trainyard.steps.preprocess.parts import Parts, fixed_bytes

_COLUMN = "look"
_SHOWN = 5


def with_hashes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return `rows` of images with a column of their perceptual hashes."""
    hashes: list[PerceptualHash] = [hash_encoded(encoded) for encoded in rows["raw/image"].to_pylist()]
    return rows.append_column(_COLUMN, pa.array(hashes, pa.binary(16)))


def warnings(parts: Parts) -> list[str]:
    """Return a sentence if images of different splits look the same, by the hashes that the parts hold, otherwise [].

    Takes some 100 bytes an image; only the reported names are read.
    """
    if not parts.parts:
        return []
    hashes = np.concatenate([fixed_bytes(rows[_COLUMN]) for rows in parts.light_batches()])
    splits = np.concatenate([part.split_numbers for part in parts.parts])
    distances = near_duplicates(hashes)
    pairs = sorted((apart, pair) for pair, apart in distances.items() if splits[pair[0]] != splits[pair[1]])
    if not pairs:
        return []
    shown = [" ≈ ".join(sorted(_name(parts, splits, row) for row in pair)) for _, pair in pairs[:_SHOWN]]
    subject = "pair of images looks" if len(pairs) == 1 else "pairs of images look"
    return [f"{len(pairs)} {subject} the same and lie in different splits, such as {'; '.join(sorted(shown))}."]


def _name(parts: Parts, splits: np.ndarray, row: int) -> str:
    """Return the name of the `row`-th image of all parts, with its split."""
    split, before = SPLITS[splits[row]], row
    for rows in parts.light_batches():
        if before < len(rows):
            return f"{rows['source'][before].as_py()} ({split})"
        before -= len(rows)
    raise IndexError(row)
