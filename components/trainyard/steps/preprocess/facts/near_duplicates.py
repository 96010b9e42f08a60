"""Warns of pictures that look the same and lie in different splits: what is learnt by heart is then taken for skill."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from trainyard.contract.document import SPLITS
from trainyard.quality.pictures.look import Look, look_of_bytes, near
from trainyard.steps.preprocess.parts import PartFile, fixed_bytes

_COLUMN = "look"
_SHOWN = 5


def with_looks(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return `rows` of images with a column more, the look of each."""
    looks: list[Look] = [look_of_bytes(encoded) for encoded in rows["raw/image"].to_pylist()]
    return rows.append_column(_COLUMN, pa.array(looks, pa.binary(16)))


def warnings(parts: list[PartFile], folder: str) -> list[str]:
    """Return a sentence if pictures of different splits look the same, by the looks that the parts hold, or [].

    Takes some 100 bytes a picture; their names are read of those alone that are told.
    """
    if not parts:
        return []
    looks = np.concatenate([fixed_bytes(part.open(folder)[_COLUMN]) for part in parts])
    splits = np.concatenate(
        [np.repeat(np.arange(len(SPLITS)), [part.rows[split] for split in SPLITS]) for part in parts]
    )
    found = near(looks)
    pairs = sorted((apart, pair) for pair, apart in found.items() if splits[pair[0]] != splits[pair[1]])
    if not pairs:
        return []
    shown = [" ≈ ".join(sorted(_name(parts, folder, splits, row) for row in pair)) for _, pair in pairs[:_SHOWN]]
    what = "pair of pictures looks" if len(pairs) == 1 else "pairs of pictures look"
    return [f"{len(pairs)} {what} the same and lie in different splits, such as {'; '.join(sorted(shown))}."]


def _name(parts: list[PartFile], folder: str, splits: np.ndarray, row: int) -> str:
    """Return the name of the `row`-th picture of all parts, with its split."""
    split, before = SPLITS[splits[row]], row
    for part in parts:
        count = sum(part.rows.values())
        if before < count:
            return f"{part.open(folder)['source'][before].as_py()} ({split})"
        before -= count
    raise IndexError(row)
