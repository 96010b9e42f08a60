"""Checked rows between the readers and the shards: Arrow files, each sorted by split and order key.

So the rows of a shard, a range of order keys, are one slice of each part: no shuffle, and no part is read whole. A
part is memory-mapped; what is not in use is the page cache's.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from trainyard.contract.document import SPLITS, Part, Split

BUCKETS = 1 << 16  # chosen: shards differ by less than 1 in 65,536 of a split
_BYTES = 64 << 20  # chosen: three times as much is in memory while a part is sorted
_UNFINISHED = ".part-"
_ROWS = 1 << 16  # chosen: as many short rows take some seconds to read


@contextmanager
def finished(final: Path) -> Iterator[Path]:
    """Yield a path of its own to write a file to, which becomes `final` at the end of the block.

    So the file is whole, though a runner may have two workers do the same when it took one for lost.
    """
    temporary = final.with_name(f"{final.name}{_UNFINISHED}{secrets.token_hex(4)}")
    yield temporary
    temporary.replace(final)


def remove_unfinished(folder: Path) -> None:
    """Remove what workers that were lost left of files in `folder`."""
    for path in folder.glob(f"*{_UNFINISHED}*"):
        path.unlink(missing_ok=True)


class PartFile(Part):
    """One part: its file name, and how many rows of each split it holds, in the order of `SPLITS`."""

    name: str
    rows: dict[Split, int]

    def open(self, folder: str) -> pa.RecordBatch:
        """Return all rows, memory-mapped."""
        with pa.memory_map(f"{folder}/{self.name}") as stream:
            return ipc.open_file(stream).get_batch(0)

    def split(self, folder: str, split: Split) -> pa.RecordBatch:
        """Return the rows of `split`, sorted by order key, memory-mapped."""
        before = sum(self.rows[other] for other in SPLITS[: SPLITS.index(split)])
        return self.open(folder).slice(before, self.rows[split])


class PartWriter:
    """Sorts rows into parts named `<prefix>-<number>.arrow` below `folder`.

    A row has what its reader gave, `split` (int8, its number in `SPLITS`) and `order` (16 bytes).
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._batches: list[pa.RecordBatch] = []
        self.parts: list[PartFile] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[Split, pa.RecordBatch]]:
        """Take `batch`, and yield (split, its sorted rows) of a part if one is full."""
        if not len(batch):  # as data.fraction may leave a small file
            return
        self._batches.append(batch)
        if sum(each.nbytes for each in self._batches) >= _BYTES or sum(map(len, self._batches)) >= _ROWS:
            yield from self.flush()

    def flush(self) -> Iterator[tuple[Split, pa.RecordBatch]]:
        """Write what was taken as a part, and yield (split, its sorted rows)."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches).combine_chunks()
        self._batches = []
        order = pc.sort_indices(table, [("split", "ascending"), ("order", "ascending")])
        rows = table.take(order).combine_chunks().to_batches()[0]
        counts = np.bincount(rows["split"].to_numpy(), minlength=len(SPLITS))
        name = f"{self._prefix}-{len(self.parts):04}.arrow"
        rows = rows.drop_columns(["split"])
        with (
            finished(self._folder / name) as temporary,
            pa.OSFile(str(temporary), "wb") as stream,
            ipc.new_file(stream, rows.schema) as writer,
        ):
            writer.write_batch(rows)
        self.parts.append(PartFile(name=name, rows=dict(zip(SPLITS, counts.tolist(), strict=True))))
        start = 0
        for split, count in zip(SPLITS, counts.tolist(), strict=True):
            yield split, rows.slice(start, count)
            start += count


def buckets(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return which of the `BUCKETS` equal ranges of order keys each row lies in: (rows,), int64."""
    return fixed_bytes(rows["order"])[:, :2].copy().view(">u2")[:, 0].astype(np.int64)


class _Buckets:
    """The buckets of sorted rows, each read when it is asked for: a shard of many looks at a few rows of a part."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._orders = fixed_bytes(rows["order"])

    def __len__(self) -> int:
        return len(self._orders)

    def __getitem__(self, row: int) -> int:
        return int(self._orders[row, 0]) << 8 | int(self._orders[row, 1])


def fixed_bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return a column of values of equal size as uint8 (rows, size)."""
    size = column.type.byte_width
    content = memoryview(column.buffers()[1])
    return np.frombuffer(content, np.uint8, len(column) * size, column.offset * size).reshape(len(column), size)


def rows_between(parts: Iterable[PartFile], folder: str, split: Split, low: int, high: int) -> list[pa.RecordBatch]:
    """Return the rows of `split` whose buckets are in low <= bucket < high: a slice of each part that has some."""
    slices = []
    for part in parts:
        if part.rows[split]:
            rows = part.split(folder, split)
            start, end = (bisect_left(_Buckets(rows), bucket) for bucket in (low, high))
            if start < end:
                slices.append(rows.slice(start, end - start))
    return slices
