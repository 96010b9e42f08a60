"""The layout of a split in TFRecord shards of even size, and the reading and writing of one shard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import tensorflow as tf

from trainyard.contract.document import Split
from trainyard.steps.preprocess.parts import BUCKETS, Parts, fixed_bytes
from trainyard.steps.preprocess.statistics import SplitSummary

_IMAGE = "raw/image"
_EXAMPLES, _SHARDS = 4096, 1024  # chosen: many small shards shuffle well, and go round many workers
_MOST_EXAMPLES = 1 << 20  # chosen: some hundred bytes each, without their images


@dataclass(frozen=True)
class Layout:
    """The layout of a split: shard i takes the buckets of order keys from starts[i] on.

    examples: how many each shard holds.
    """

    starts: list[int]
    examples: list[int]

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.starts)

    def buckets(self, shard: int) -> tuple[int, int]:
        """Return the first bucket of `shard`, and the one after its last."""
        return self.starts[shard], [*self.starts, BUCKETS][shard + 1]


def plan_layout(summary: SplitSummary, shard_examples: int | None) -> Layout:
    """Return the layout of a split in shards of about `shard_examples` examples, even to the size of one bucket."""
    shards = count_shards(summary.examples, shard_examples)
    starts, counts, seen = [0], [0], 0
    for bucket, examples in sorted(summary.buckets.items()):
        if len(starts) < shards and seen >= len(starts) * summary.examples / shards:
            starts.append(bucket)
            counts.append(0)
        counts[-1] += examples
        seen += examples
    return Layout(starts, counts)


def count_shards(examples: int, shard_examples: int | None) -> int:
    """Return the number of shards for `examples` examples: at most 1,024 by default, if they fit.

    Each shard reads a slice of every part, so their number counts twice in large data.
    """
    if shard_examples is None:
        shard_examples = min(max(_EXAMPLES, math.ceil(examples / _SHARDS)), _MOST_EXAMPLES)
    return max(1, math.ceil(examples / shard_examples))


def shard_name(split: Split, index: int, shards: int) -> str:
    """Return the file name of a shard."""
    return f"{split}-{index:05}-of-{shards:05}.tfrecord"


def read_shard(
    parts: Parts, split: Split, buckets: tuple[int, int], batch_size: int
) -> Iterator[tuple[pa.RecordBatch, list[bytes] | None]]:
    """Yield the rows of one shard, sorted by their order key, and apart from them their encoded images, if any.

    No more images are copied than a batch holds.
    """
    slices = parts.between(split, *buckets)
    if not slices:
        return
    schema = slices[0].schema
    has_images = _IMAGE in schema.names and pa.types.is_binary(schema.field(_IMAGE).type)  # else a table's column
    names = [name for name in schema.names if name != _IMAGE or not has_images]
    rows = pa.Table.from_batches([item.select(names) for item in slices]).combine_chunks()
    keys = np.concatenate([fixed_bytes(item["order"]) for item in slices]).copy().view(">u8")
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    slice_index = np.repeat(np.arange(len(slices)), [len(item) for item in slices])
    row_index = np.concatenate([np.arange(len(item)) for item in slices])
    images = [item[_IMAGE] for item in slices] if has_images else None
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = rows.take(pa.array(chosen)).combine_chunks().to_batches()[0]
        places = zip(slice_index[chosen].tolist(), row_index[chosen].tolist(), strict=True)
        yield batch, [images[index][row].as_py() for index, row in places] if images else None


def write_shard(examples: Iterable[bytes], path: Path) -> None:
    """Write the serialized `examples` of one shard; written again, it is the same file."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for serialized in examples:
            writer.write(serialized)
