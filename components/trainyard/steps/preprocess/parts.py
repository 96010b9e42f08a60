"""Checked rows between the readers and the shards: files of Arrow streams, sorted by split and order key.

So the rows of a shard, a range of order keys, are one slice of each part: no shuffle, and no part is read whole. A part
is memory-mapped; what is not in use is the page cache's. In a bucket it is cut into pieces of which those are fetched
that a shard has rows in, and the columns that the step itself looks at are in a file of their own beside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from trainyard.contract.document import SPLITS, FrozenModel, Split
from trainyard.steps.preprocess.task_store import Range, TaskStore

BUCKETS = 1 << 16  # chosen: shards differ by less than 1 in 65,536 of a split
_BYTES = 64 << 20  # chosen: three times as much is in memory while a part is sorted
_ROWS = 1 << 16  # chosen: as many short rows take some seconds to read
_PIECE_BYTES = 256 << 10  # chosen: what a request costs is then little beside what it brings
_LIGHT = ".light"
_HEAVY_COLUMNS = ("raw/", "measure/")


class StreamPiece(FrozenModel):
    """Consecutive rows in a part's file, as an Arrow stream: `bytes` bytes from `start`.

    bucket: that of the first row.
    """

    start: int
    bytes: int
    bucket: int


class SortedRun(FrozenModel):
    """One part: its file name, and how many rows of each split it holds, in the order of `SPLITS`.

    pieces: of each split in the order of the rows. light: of a bucket's, how many bytes of the file beside it each
    split has.
    """

    name: str
    rows: dict[Split, int]
    pieces: dict[Split, list[StreamPiece]]
    light: dict[Split, int] = {}

    def is_whole(self, work: TaskStore) -> bool:
        """Return True if no row is missing."""
        if work.uri:
            return True  # an object is whole or not there
        try:
            return sum(map(len, self.batches(work))) == sum(self.rows.values())
        except (OSError, pa.ArrowInvalid):  # not there, or the machine was switched off as it was written
            return False

    def batches(self, work: TaskStore, split: Split | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows, or those of `split`, sorted by split and order key."""
        for name in [split] if split else SPLITS:
            if self.rows[name]:
                pieces = self.pieces[name]
                yield from opened(work.buffers([_range(self.name, pieces)])[0], pieces)

    def light_batches(self, work: TaskStore, split: Split | None = None) -> Iterator[pa.RecordBatch]:
        """Yield as `batches`, with the columns that the step looks at, all but features and measures.

        Meant for the step's own process, which keeps its copy of them.
        """
        if not work.uri:
            yield from self.batches(work, split)
            return
        start, path = 0, work.copied(f"{self.name}{_LIGHT}")
        for name in SPLITS:
            if self.rows[name] and split in (None, name):
                with pa.memory_map(path) as stream:
                    stream.seek(start)
                    yield ipc.open_stream(stream.read_buffer(self.light[name])).read_next_batch()
            start += self.light[name]

    def pieces_between(self, split: Split, low: int, high: int) -> list[StreamPiece]:
        """Return the pieces that may hold rows of `split` in buckets from `low` on and below `high`."""
        pieces = self.pieces[split]
        first = [piece.bucket for piece in pieces]
        return pieces[max(0, bisect_left(first, low) - 1) : bisect_left(first, high)]


class SortedRunWriter:
    """Sorts rows into parts named `<prefix>-<number>.arrow` in `work`.

    A row has what its reader gave, `split` (int8, its number in `SPLITS`) and `order` (16 bytes).
    """

    def __init__(self, work: TaskStore, prefix: str) -> None:
        self._work, self._prefix = work, prefix
        self._batches: list[pa.RecordBatch] = []
        self.parts: list[SortedRun] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[Split, pa.RecordBatch]]:
        """Take `batch`, and yield (split, its sorted rows) of a part if one is full."""
        if not len(batch):  # as data.fraction may leave a small file
            return
        self._batches.append(batch)
        if sum(other.nbytes for other in self._batches) >= _BYTES or sum(map(len, self._batches)) >= _ROWS:
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
        rows = rows.drop_columns(["split"])
        ends = np.cumsum(counts).tolist()
        by_split = {
            split: rows.slice(end - count, count)
            for split, end, count in zip(SPLITS, ends, counts.tolist(), strict=True)
        }
        self.parts.append(self._write(by_split))
        yield from by_split.items()

    def _write(self, rows: dict[Split, pa.RecordBatch]) -> SortedRun:
        part = SortedRun(
            name=f"{self._prefix}-{len(self.parts):04}.arrow",
            rows={split: len(batch) for split, batch in rows.items()},
            pieces={split: [] for split in rows},
        )

        def fill(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as stream:
                for split, batch in rows.items():
                    for piece in _cut(batch) if self._work.uri else [batch] * bool(len(batch)):
                        start = stream.tell()
                        _write_stream(stream, piece)
                        size, bucket = stream.tell() - start, _bucket(fixed_bytes(piece["order"]), 0)
                        part.pieces[split].append(StreamPiece(start=start, bytes=size, bucket=bucket))

        def fill_light(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as stream:
                for split, batch in rows.items():
                    start = stream.tell()
                    names = [name for name in batch.schema.names if not name.startswith(_HEAVY_COLUMNS)]
                    _write_stream(stream, batch.select(names))
                    part.light[split] = stream.tell() - start

        self._work.write(part.name, fill)
        if self._work.uri:
            self._work.write(f"{part.name}{_LIGHT}", fill_light)
        return part


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield `rows` in batches of about `_PIECE_BYTES`."""
    count = max(1, int(len(rows) * _PIECE_BYTES / max(1, rows.nbytes)))
    for start in range(0, len(rows), count):
        yield rows.slice(start, count)


def _write_stream(stream: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)


def _range(name: str, pieces: list[StreamPiece]) -> Range:
    start = pieces[0].start
    return Range(name, start, pieces[-1].start + pieces[-1].bytes - start)


def opened(content: pa.Buffer, pieces: list[StreamPiece]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `pieces`, whose bytes are `content`."""
    for piece in pieces:
        start = piece.start - pieces[0].start
        yield ipc.open_stream(content.slice(start, piece.bytes)).read_next_batch()


def buckets(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bucket of each row, one of `BUCKETS` equal ranges of order keys: int64 (rows,)."""
    return fixed_bytes(rows["order"])[:, :2].copy().view(">u2")[:, 0].astype(np.int64)


def _bucket(orders: npt.NDArray[np.uint8], row: int) -> int:
    """Return the bucket of one row: a shard of many looks at a few rows of a part."""
    return int(orders[row, 0]) << 8 | int(orders[row, 1])


def fixed_bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return a column of values of equal size as uint8 (rows, size)."""
    size = column.type.byte_width
    content = memoryview(column.buffers()[1])
    return np.frombuffer(content, np.uint8, len(column) * size, column.offset * size).reshape(len(column), size)


def rows_between(
    parts: Iterable[SortedRun], work: TaskStore, split: Split, low: int, high: int
) -> list[pa.RecordBatch]:
    """Return the rows of `split` whose buckets are in low <= bucket < high: slices of the parts that have some."""
    chosen = [
        (part.name, pieces) for part in parts if part.rows[split] and (pieces := part.pieces_between(split, low, high))
    ]
    slices = []
    contents = work.buffers([_range(name, pieces) for name, pieces in chosen])
    for content, (_, pieces) in zip(contents, chosen, strict=True):
        for rows in opened(content, pieces):
            bucket_of = partial(_bucket, fixed_bytes(rows["order"]))
            start, end = (bisect_left(range(len(rows)), bucket, key=bucket_of) for bucket in (low, high))
            if start < end:
                slices.append(rows.slice(start, end - start))
    return slices
