"""How a split is laid out in TFRecord shards of even size, and how one shard is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from trainyard.contract.artifacts import Split
from trainyard.steps.preprocess.facts.summary import SplitSummary


@dataclass(frozen=True)
class Layout:
    """Where the shards of a split begin: shard i takes the buckets of order keys from starts[i] on.

    examples: how many each shard holds.
    """

    starts: list[int]
    examples: list[int]

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.starts)


def plan_layout(summary: SplitSummary, shard_examples: int) -> Layout:
    """Return the layout of a split in shards of about `shard_examples` examples, even to the size of one bucket."""
    shards = max(1, math.ceil(summary.examples / shard_examples))
    starts, counts, seen = [0], [0], 0
    for bucket, examples in sorted(summary.buckets.items()):
        if len(starts) < shards and seen >= len(starts) * summary.examples / shards:
            starts.append(bucket)
            counts.append(0)
        counts[-1] += examples
        seen += examples
    return Layout(starts, counts)


def shard_name(split: Split, index: int, shards: int) -> str:
    """Return the file name of a shard."""
    return f"{split}-{index:05}-of-{shards:05}.tfrecord"


def write_shard(
    group: tuple[tuple[Split, int], Iterable[tuple[str, bytes]]], folder: str, layouts: dict[Split, Layout]
) -> None:
    """Write the examples of one shard into `folder`, sorted by their order key; written again, it is the same file."""
    (split, index), examples = group
    final = Path(folder) / shard_name(split, index, layouts[split].shards)
    temporary = final.with_suffix(".part")
    with tf.io.TFRecordWriter(str(temporary)) as writer:
        for _, serialized in sorted(examples):
            writer.write(serialized)
    temporary.replace(final)
