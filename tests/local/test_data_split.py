"""Where an example goes: a function of content and seed."""

import hashlib
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.spec.columns import SplitRows
from trainyard.steps.preprocess.facts.summary import SplitSummary
from trainyard.steps.preprocess.shards import count_shards, plan_layout
from trainyard.steps.preprocess.split import assign_split, order_key

CONTENTS = st.binary(min_size=1, max_size=64)


@given(CONTENTS, st.integers(0, 2**31), st.integers(0, 2**31))
def test_the_seed_and_the_content_alone_decide_the_split(content, seed, other):
    fractions = SplitRows()
    assert assign_split(content, seed, fractions) == assign_split(bytes(content), seed, fractions)
    assert assign_split(content, other, fractions) in ("train", "eval", "test")


@given(CONTENTS, st.integers(0, 100))
def test_growing_train_moves_nothing_out_of_it(content, seed):
    if assign_split(content, seed, SplitRows(train=0.6, eval=0.2, test=0.2)) == "train":
        assert assign_split(content, seed, SplitRows(train=0.8, eval=0.1, test=0.1)) == "train"


def test_the_fractions_are_met():
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(10_000)]
    counts = Counter(assign_split(digest, 1, SplitRows()) for digest in digests)
    # Standard deviation of a binomial: sqrt(10000 * 0.8 * 0.2) = 40, sqrt(10000 * 0.1 * 0.9) = 30.
    assert abs(counts["train"] - 8000) < 160
    assert abs(counts["eval"] - 1000) < 120


def test_shards_are_even_and_in_order():
    keys = [order_key(hashlib.sha256(str(number).encode()).digest(), f"{number}.png", 1) for number in range(1000)]
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
