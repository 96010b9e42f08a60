"""Splits and intervals on random data with a known truth, with fixed seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from judged_rows import judged
from numpy.typing import NDArray
from split_rows import split_rows

from trainyard.spec.columns import SplitRows
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.metrics.bootstrap import intervals
from trainyard.steps.evaluate.metrics.predictions import SplitPredictions
from trainyard.steps.preprocess.split import by_rows, identity_draws, misses_share, numbers_of, row_draws

ROWS = 400
Row = tuple[str, ...]


def few_values(rows: int = ROWS) -> list[Row]:
    """Rows that repeat: 12 values of x, and y = 1 with a probability of x / 12."""
    random = np.random.default_rng(7)
    return [(f"{x}", f"c{int(random.random() < x / 12)}") for x in random.integers(1, 13, rows)]


def mostly_distinct(rows: int = ROWS) -> list[Row]:
    random = np.random.default_rng(8)
    return [(f"{random.normal():.6f}", f"c{random.integers(2)}") for _ in range(rows)]


def splits_of(
    folder: Path, files: list[list[Row]], seed: int = 1, header: str = "x,y", **data: object
) -> list[tuple[Row, int]]:
    """The rows with the number of their split, in any order."""
    read = {"format": "csv", "path": "-", "label": "y", "features": {"x": {"type": "numeric"}}} | data
    recipe = Recipe.model_validate({"name": "rows", "seed": seed, "data": read, "model": {"name": "mlp"}})
    folder.mkdir(exist_ok=True)
    tasks, rows_of = [], {}
    for number, rows in enumerate(files):
        path = folder / f"{number}.csv"
        path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
        tasks += [batch for batch in judged(path, recipe) if isinstance(batch, pa.RecordBatch)]
        rows_of |= {f"{path.name}:{line}": row for line, row in enumerate(rows, 2)}
    table = split_rows(tasks, recipe, folder)
    return [
        (rows_of[name], split)
        for name, split in zip(*(table[key].to_pylist() for key in ("source", "split")), strict=True)
    ]


@pytest.mark.parametrize("rows", [few_values(), mostly_distinct()], ids=["few values", "distinct"])
def test_order_files_class_names_and_a_constant_column_move_no_row(tmp_path: Path, rows: list[Row]) -> None:
    expected = Counter(splits_of(tmp_path / "one", [rows]))
    shuffled = [rows[index] for index in np.random.default_rng(1).permutation(len(rows))]
    assert Counter(splits_of(tmp_path / "ten", [shuffled[start::10] for start in range(10)])) == expected
    constant = splits_of(tmp_path / "constant", [[(*row, "") for row in rows]], header="x,y,always")
    assert Counter((row[:2], split) for row, split in constant) == expected


def test_other_names_of_classes_move_no_row_of_a_table_without_repeats(tmp_path: Path) -> None:
    rows = mostly_distinct()
    renamed = splits_of(tmp_path / "renamed", [[(x, y.replace("c", "class ")) for x, y in rows]])
    assert Counter((x, split) for (x, _), split in renamed) == Counter(
        (x, split) for (x, _), split in splits_of(tmp_path / "rows", [rows])
    )


def test_added_rows_move_none_that_were_there(tmp_path: Path) -> None:
    for name, rows in {"few": few_values(), "distinct": mostly_distinct()}.items():
        before = Counter(splits_of(tmp_path / f"{name} before", [rows[:300]]))
        after = Counter(splits_of(tmp_path / f"{name} after", [rows[:300], rows[300:]]))
        assert before <= after


def test_a_table_that_is_copied_as_a_whole_is_split_as_before_and_no_copy_crosses(tmp_path: Path) -> None:
    rows = mostly_distinct()
    once = Counter(splits_of(tmp_path / "once", [rows]))
    assert Counter(splits_of(tmp_path / "twice", [rows, rows])) == once + once
    # As a rare class that is oversampled by hand.
    rare = [row for row in rows if row[1] == "c1"][:10]
    many = Counter(splits_of(tmp_path / "rare", [rows, *[rare] * 19]))
    assert all(split == 2 or times in (1, 20) for (_, split), times in many.items())
    assert len({row for row, _ in many}) == len(many)


def test_rows_of_equal_features_stay_together_though_labels_differ(tmp_path: Path) -> None:
    rows = mostly_distinct()
    relabelled = [(x, "c1" if y == "c0" else "c0") for x, y in rows[:10]]
    splits: dict[str, set[int]] = {}
    for (x, _), split in splits_of(tmp_path / "rows", [rows, relabelled]):
        splits.setdefault(x, set()).add(split)
    assert all(len(found) == 1 for found in splits.values())


@pytest.mark.parametrize("data", [{}, {"split": {"by": "class"}}, {"fraction": 0.5}])
def test_the_majority_of_a_value_is_judged_as_by_random_splits(tmp_path: Path, data: dict[str, object]) -> None:
    """The classes of a value are as frequent in test as in train: by the hash of the whole row they were apart."""
    rows, found = few_values(), []
    for seed in range(40):
        votes: dict[str, Counter[str]] = {}
        test = []
        for (x, y), split in splits_of(tmp_path / f"{seed}", [rows], seed, **data):
            votes.setdefault(x, Counter()).update([y] if split == 0 else [])
            test += [(x, y)] if split == 2 else []
        found.append(np.mean([votes[x].most_common(1)[0][0] == y for x, y in test]))
    truth, error = 0.730, np.std(found) / np.sqrt(len(found))  # of 3,000 random splits; error 0.001
    assert abs(np.mean(found) - truth) < 3 * error


def test_no_split_misses_half_of_its_share_and_few_rows_move() -> None:
    random = np.random.default_rng(3)
    for rows in (20, 60, 200):
        for seed in range(50):
            draws = identity_draws(seed, [random.bytes(8) for _ in range(rows)])
            assert not misses_share(np.bincount(by_rows(draws, SplitRows()), minlength=3), SplitRows())
    moved = (by_rows(draws, SplitRows()) != numbers_of(draws, SplitRows())).mean()
    assert moved < 0.1


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([10] * 6, [40, 10, 10]),
        ([10] * 3, [10, 10, 10]),
        ([1000, 10, 10, 10, 10, 10], None),
        ([100, 90, 80, 70, 60, 50, 40, 30, 20, 10], None),
    ],
)
def test_each_split_has_a_group_and_none_has_a_group_more_than_its_share(
    sizes: list[int], counts: list[int] | None
) -> None:
    for seed in range(100):
        groups = identity_draws(seed, [bytes([number]) for number in range(len(sizes))])
        found = np.bincount(by_rows(np.repeat(groups, sizes), SplitRows()), minlength=3)
        assert found.min() >= min(sizes) and found.argmax() == 0
        assert counts is None or found.tolist() == counts
        assert found[1:].max() <= max(sum(sizes) * 0.2, min(sizes))


def test_the_draws_of_rows_that_repeat_are_uniform_and_follow_from_the_rows_alone() -> None:
    random = np.random.default_rng(4)
    wholes = random.integers(0, 30, 3000).astype(np.uint64)
    features = wholes // np.uint64(3)
    draws = row_draws(features, wholes, 1, natural=True)
    assert len(set(draws.tolist())) == len(draws)
    order = random.permutation(3000)
    assert sorted(row_draws(features[order], wholes[order], 1, natural=True).tolist()) == sorted(draws.tolist())
    counts = np.bincount((draws >> np.uint64(61)).astype(int), minlength=8)
    assert np.abs(counts - 375).max() < 4 * np.sqrt(375)


def covered(test_set: NDArray[np.int64], truth: float, seed: int) -> bool:
    """Whether the interval of the accuracy holds the truth: `test_set` has 1 for each right answer."""
    outputs = np.stack([1 - test_set, test_set], axis=1).astype(np.float32)
    answers = SplitPredictions(np.ones(len(test_set), np.int64), outputs)
    interval = intervals("classification", answers, {"accuracy": float(test_set.mean())}, 400, seed)["accuracy"]
    return interval.low <= truth <= interval.high


def test_intervals_cover_the_truth_in_92_to_98_percent_of_simulated_test_sets() -> None:
    random = np.random.default_rng(5)
    sets = (random.random((300, 250)) < 0.8).astype(np.int64)
    assert 0.92 <= np.mean([covered(each, 0.8, seed) for seed, each in enumerate(sets)]) <= 0.98
