"""Where an example goes: a function of content and seed."""

import hashlib
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_rows import split_rows

from trainyard.contract.document import SPLITS, Split
from trainyard.spec.columns import SplitRows
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.parts import PartWriter
from trainyard.steps.preprocess.readers.records import ROW_HASH, WHOLE_HASH, Record, record_batch
from trainyard.steps.preprocess.shards import count_shards, plan_layout
from trainyard.steps.preprocess.split import assign, identity_draws, numbers_of, order_keys
from trainyard.steps.preprocess.statistics import SplitSummary
from trainyard.steps.preprocess.task_store import TaskStore

CONTENTS = st.binary(min_size=1, max_size=64)


def splits_of_contents(contents: list[bytes], seed: int, fractions: SplitRows) -> list[Split]:
    return [SPLITS[number] for number in numbers_of(identity_draws(seed, contents), fractions)]


@given(CONTENTS, st.integers(0, 2**31), st.integers(0, 2**31))
def test_the_seed_and_the_content_alone_decide_the_split(content, seed, other):
    fractions = SplitRows()
    assert (
        splits_of_contents([content] * 2, seed, fractions) == splits_of_contents([bytes(content)], seed, fractions) * 2
    )
    assert splits_of_contents([content], other, fractions)[0] in SPLITS


def test_a_row_stays_where_the_first_release_put_it():
    """Data that were split once are not split anew: the share is in the first 8 bytes of a digest."""
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(1000)]
    draws = [hashlib.sha256(b"split\0007\0" + digest).digest() for digest in digests]
    shares = [int.from_bytes(drawn[:8], "big") / 2**64 for drawn in draws]
    expected = ["train" if share < 0.8 else "eval" if share < 0.8 + 0.1 else "test" for share in shares]
    assert splits_of_contents(digests, 7, SplitRows()) == expected


@given(CONTENTS, st.integers(0, 100))
def test_growing_train_moves_nothing_out_of_it(content, seed):
    if splits_of_contents([content], seed, SplitRows(train=0.6, eval=0.2, test=0.2)) == ["train"]:
        assert splits_of_contents([content], seed, SplitRows(train=0.8, eval=0.1, test=0.1)) == ["train"]


def test_the_fractions_are_met():
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(10_000)]
    counts = Counter(splits_of_contents(digests, 1, SplitRows()))
    # Standard deviation of a binomial: sqrt(10000 * 0.8 * 0.2) = 40, sqrt(10000 * 0.1 * 0.9) = 30.
    assert abs(counts["train"] - 8000) < 160
    assert abs(counts["eval"] - 1000) < 120


def splits_of(folder: Path, values: list[str], fraction: float = 1.0, **split: object) -> list[tuple[str, str]]:
    """The values of the column that `split` goes by, each with the split of its row, which differs from all others."""
    features = {"n": {"type": "numeric"}}
    data = {
        "format": "csv",
        "path": "-",
        "features": features,
        "fraction": fraction,
        "split": {"column": "by", **split},
    }
    recipe = Recipe.model_validate({"name": "rows", "data": data, "model": {"name": "mlp"}})
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(len(values))]
    records = [
        Record(f"{number}", value, {"n": 0.0}, digests[number], {}, value) for number, value in enumerate(values)
    ]
    batch = record_batch(records, recipe.data)
    for name in (ROW_HASH, WHOLE_HASH) if recipe.data.hashes_rows else ():
        batch = batch.append_column(name, pa.array(np.frombuffer(b"".join(digests), np.uint64)[::4]))
    batch = split_rows([batch], recipe, folder)
    assert "split_by" not in batch.schema.names and batch["order"].type == pa.binary(16)
    return [(row["label"], ("train", "eval", "test")[row["split"]]) for row in batch.to_pylist()]


def test_no_group_is_in_two_splits_and_their_shares_are_met(tmp_path):
    rows = splits_of(tmp_path, [f"driver {number % 997}" for number in range(10_000)], by="group")
    assert len(rows) == 10_000 and len(set(rows)) == 997
    counts = Counter(split for _, split in rows)
    # 997 groups of about 10: the standard deviation of a share is sqrt(997 * 0.8 * 0.2) / 997 = 0.013.
    assert abs(counts["train"] / 10_000 - 0.8) < 0.05 and counts["eval"] > 500 and counts["test"] > 500


def test_later_days_judge_what_earlier_ones_taught(tmp_path):
    days = ["2023-12-31", "2024-02-29", "2024-03-01", "2024-03-31", "2024-04-01", "2025-01-01"]
    rows = splits_of(tmp_path, days, by="time", eval_from="2024-03-01", test_from="2024-04-01")
    assert [split for _, split in rows] == ["train", "train", "eval", "eval", "test", "test"]


def test_a_column_may_name_the_split(tmp_path):
    rows = splits_of(tmp_path, ["Train", "validation", "val", "dev", "EVAL", "test"], by="column")
    assert [split for _, split in rows] == ["train", *["eval"] * 4, "test"]


def test_a_fraction_leaves_the_other_splits_whole(tmp_path):
    values = ["train"] * 1000 + ["eval"] * 100 + ["test"] * 100
    counts = Counter(split for _, split in splits_of(tmp_path, values, 0.5, by="column"))
    assert 400 < counts["train"] < 600 and (counts["eval"], counts["test"]) == (100, 100)


def test_a_file_that_a_fraction_leaves_no_rows_of_makes_no_part(tmp_path):
    split = {"by": "column", "column": "by"}
    data = Data.model_validate({"format": "csv", "path": "-", "features": {"n": {"type": "numeric"}}, "split": split})
    rows, _ = assign(record_batch([Record("0", "a", {"n": 0.0}, bytes(32), {}, "eval")], data), 1, data)
    writer = PartWriter(TaskStore(str(tmp_path)), "x")
    assert [*writer.add(rows.slice(0, 0)), *writer.flush()] == [] and writer.parts == []
    assert [len(part) for _, part in (*writer.add(rows), *writer.flush())] == [0, 1, 0]


def test_shards_are_even_and_in_order():
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(1000)]
    keys = order_keys(digests, [f"{number}.png" for number in range(1000)], 1)
    buckets = [int.from_bytes(key[:2], "big") for key in keys]
    summary = SplitSummary(examples=1000, buckets=dict(Counter(buckets)))
    layout = plan_layout(summary, 300)
    edges = [*layout.starts, 1 << 16]
    sizes = [sum(low <= bucket < high for bucket in buckets) for low, high in pairwise(edges)]
    assert layout.shards == 4
    assert sum(sizes) == 1000
    assert max(sizes) - min(sizes) <= 3
    assert layout.examples == sizes


def test_a_small_split_is_one_shard_and_one_shard_takes_every_bucket():
    layout = plan_layout(SplitSummary(examples=3, buckets={5: 2, 65535: 1}), None)
    assert (layout.starts, layout.examples) == ([0], [3])


@pytest.mark.parametrize(
    ("examples", "shards"), [(0, 1), (4096, 1), (4097, 2), (1 << 22, 1024), (100_000_000, 1024), (10 << 30, 10_240)]
)
def test_by_default_a_large_split_has_larger_shards(examples: int, shards: int) -> None:
    assert count_shards(examples, None) == shards
    assert count_shards(examples, 100) == max(1, -(-examples // 100))
