"""Checked rows between the readers and the shards: files of Arrow streams, sorted by split and order key.

    task 1:  part 1-0000 | train 3 17 40 62 | eval 5 71 | test 9 |    the numbers are buckets of order keys
             part 1-0001 | train 1 22       | eval      | test   |
    task 2:  part 2-0000 | train 8 39 90    | eval 64   | test 2 |
                                 ^^^^^
    shard of the training split with the buckets 16 to 50: one slice of each part, sorted once more

So no rows are shuffled between workers, and no part is read whole. In a folder a split is one stream of its part,
memory-mapped; what is not in use is the page cache's. In a bucket it is cut into pieces, of which those are fetched
that a shard has rows in, and the columns that the step itself reads are in a file of their own, `<part>.light`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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


class Part(FrozenModel):
    """One part: its file name, and how many rows of each split it holds, in the order of `SPLITS`.

    pieces: of each split in the order of the rows. light: of a bucket's, how many bytes of the file beside it each
    split has.
    """

    name: str
    rows: dict[Split, int]
    pieces: dict[Split, list[StreamPiece]]
    light: dict[Split, int] = {}

    @property
    def split_numbers(self) -> npt.NDArray[np.int8]:
        """The number in `SPLITS` of the split of each row, (rows,)."""
        return np.repeat(np.arange(len(SPLITS), dtype=np.int8), [self.rows[split] for split in SPLITS])

    def is_whole(self, work: TaskStore) -> bool:
        """Return True if no row is missing."""
        if work.uri:
            return True  # an object is whole or not there
        try:
            return sum(map(len, self.batches(work))) == len(self.split_numbers)
        except (OSError, pa.ArrowInvalid):  # not there, or the machine was switched off as it was written
            return False

    def batches(self, work: TaskStore, split: Split | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows, or those of `split`, sorted by split and order key."""
        for pieces in (self.pieces[name] for name in _chosen(split) if self.rows[name]):
            yield from _opened(work.buffers([_range(self.name, pieces)])[0], pieces)

    def training_rows(self, work: TaskStore, weight: str | None) -> pa.RecordBatch:
        """Return the training rows whose column `weight` is above 0, all if that is None. The part has some."""
        [rows] = pa.Table.from_batches([*self.batches(work, "train")]).combine_chunks().to_batches()
        return rows.filter(pa.array(rows[f"measure/{weight}"].to_numpy() > 0)) if weight else rows

    def light_batches(self, work: TaskStore, split: Split | None = None) -> Iterator[pa.RecordBatch]:
        """Yield as `batches`, with the columns that the step reads, all but features and measures.

        Meant for the step's own process, which keeps its copy of them.
        """
        if not work.uri:
            yield from self.batches(work, split)
            return
        ends = dict(zip(SPLITS, np.cumsum([self.light[name] for name in SPLITS]).tolist(), strict=True))
        with pa.memory_map(work.copied(f"{self.name}{_LIGHT}")) as stream:
            for name in (name for name in _chosen(split) if self.rows[name]):
                stream.seek(ends[name] - self.light[name])
                yield ipc.open_stream(stream.read_buffer(self.light[name])).read_next_batch()

    def pieces_between(self, split: Split, low: int, high: int) -> list[StreamPiece]:
        """Return the pieces that may hold rows of `split` in buckets from `low` on and below `high`."""
        pieces = self.pieces[split]
        first = [piece.bucket for piece in pieces]
        return pieces[max(0, bisect_left(first, low) - 1) : bisect_left(first, high)]


@dataclass(frozen=True)
class Parts:
    """All rows of an attempt: its parts, and the store in which they are."""

    work: TaskStore
    parts: list[Part] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(sum(part.rows.values()) for part in self.parts)

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `split`, part by part."""
        return (rows for part in self.parts for rows in part.batches(self.work, split))

    def light_batches(self, split: Split | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows, or those of `split`, part by part, as `Part.light_batches`."""
        return (rows for part in self.parts for rows in part.light_batches(self.work, split))

    def bucket_counts(self, split: Split) -> dict[int, int]:
        """Return the number of rows of `split` by bucket, without the empty ones."""
        counts = np.zeros(BUCKETS, np.int64)
        for rows in self.light_batches(split):
            first_bytes = fixed_bytes(rows["order"])[:, :2].copy()
            counts += np.bincount(first_bytes.view(">u2")[:, 0].astype(np.int64), minlength=BUCKETS)
        return {int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}

    def between(self, split: Split, low: int, high: int) -> list[pa.RecordBatch]:
        """Return the rows of `split` in low <= bucket < high: a slice of each part that has some."""
        pieces_of = {part.name: part.pieces_between(split, low, high) for part in self.parts if part.rows[split]}
        overlapping = [(name, pieces) for name, pieces in pieces_of.items() if pieces]
        contents = self.work.buffers([_range(name, pieces) for name, pieces in overlapping])
        slices = []
        for content, (_, pieces) in zip(contents, overlapping, strict=True):
            for rows in _opened(content, pieces):
                bucket_of = partial(_bucket, fixed_bytes(rows["order"]))
                start, end = (bisect_left(range(len(rows)), bucket, key=bucket_of) for bucket in (low, high))
                if start < end:
                    slices.append(rows.slice(start, end - start))
        return slices


class PartWriter:
    """Sorts rows into parts named `<prefix>-<number>.arrow` in `work`.

    A row has what its reader gave, `split` (int8, its number in `SPLITS`) and `order` (16 bytes).
    """

    def __init__(self, work: TaskStore, prefix: str) -> None:
        self._work, self._prefix = work, prefix
        self._batches: list[pa.RecordBatch] = []
        self.parts: list[Part] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[Split, pa.RecordBatch]]:
        """Take `batch`, and yield (split, its sorted rows) of a part if one is full."""
        if len(batch):  # none, if data.fraction leaves out all of a small file
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
        starts = np.searchsorted(rows["split"].to_numpy(), np.arange(len(SPLITS) + 1))
        rows = rows.drop_columns(["split"])
        by_split = {
            split: rows.slice(starts[number], starts[number + 1] - starts[number])
            for number, split in enumerate(SPLITS)
        }
        self.parts.append(self._write(by_split))
        yield from by_split.items()

    def _write(self, rows: Mapping[Split, pa.RecordBatch]) -> Part:
        part = Part(
            name=f"{self._prefix}-{len(self.parts):04}.arrow",
            rows={split: len(batch) for split, batch in rows.items()},
            pieces={split: [] for split in rows},
        )

        def fill(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as stream:
                for split, batch in rows.items():
                    for piece in _cut(batch, _PIECE_BYTES if self._work.uri else None):
                        start, size = stream.tell(), _write_stream(stream, piece)
                        bucket = _bucket(fixed_bytes(piece["order"]), 0)
                        part.pieces[split].append(StreamPiece(start=start, bytes=size, bucket=bucket))

        def fill_light(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as stream:
                for split, batch in rows.items():
                    names = [name for name in batch.schema.names if not name.startswith(_HEAVY_COLUMNS)]
                    part.light[split] = _write_stream(stream, batch.select(names))

        self._work.write(part.name, fill)
        if self._work.uri:
            self._work.write(f"{part.name}{_LIGHT}", fill_light)
        return part


def fixed_bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return a column of values of equal size as uint8 (rows, size)."""
    size = column.type.byte_width
    content = memoryview(column.buffers()[1])
    return np.frombuffer(content, np.uint8, len(column) * size, column.offset * size).reshape(len(column), size)


def _chosen(split: Split | None) -> tuple[Split, ...]:
    return (split,) if split else SPLITS


def _cut(rows: pa.RecordBatch, size: int | None) -> Iterator[pa.RecordBatch]:
    """Yield `rows` in batches of about `size` bytes, or in one."""
    count = max(1, int(len(rows) * size / max(1, rows.nbytes)) if size else len(rows))
    return (rows.slice(start, count) for start in range(0, len(rows), count))


def _write_stream(stream: pa.NativeFile, batch: pa.RecordBatch) -> int:
    """Write `batch` as an Arrow stream, and return its bytes."""
    start = stream.tell()
    with ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return stream.tell() - start


def _range(name: str, pieces: list[StreamPiece]) -> Range:
    start = pieces[0].start
    return Range(name, start, pieces[-1].start + pieces[-1].bytes - start)


def _opened(content: pa.Buffer, pieces: list[StreamPiece]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `pieces`, whose bytes are `content`."""
    for piece in pieces:
        start = piece.start - pieces[0].start
        yield ipc.open_stream(content.slice(start, piece.bytes)).read_next_batch()


def _bucket(orders: npt.NDArray[np.uint8], row: int) -> int:
    """Return the bucket of one row, one of `BUCKETS` equal ranges of order keys."""
    return int(orders[row, 0]) << 8 | int(orders[row, 1])
