"""By class, each class gives its exact share to every split, whatever the order and the number of files."""

import csv
import random
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from preprocess_sources import preprocess

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.document import SPLITS
from trainyard.errors import DataError
from trainyard.readers.rows import batched
from trainyard.runtime import step
from trainyard.spec.columns import SplitRows
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.run import run
from trainyard.steps.preprocess.split import cut, share

PERCENTS = st.tuples(st.integers(1, 98), st.integers(1, 98)).filter(lambda two: sum(two) < 100)
CLASSES = {"often": 1000, "seldom": 37, "rare": 5, "least": 3}


def fractions(train_eval: tuple[int, int]) -> SplitRows:
    train, evaluation = train_eval
    return SplitRows(by="class", train=train / 100, eval=evaluation / 100, test=(100 - train - evaluation) / 100)


def split_counts(draws, split):
    """How many rows of the sorted draws lie in each split."""
    limits = cut(draws, split)
    return [Counter(int((draw > np.array(limits, np.uint64)).sum()) for draw in draws)[index] for index in range(3)]


@given(st.integers(1, 10_000), PERCENTS)
def test_each_split_gets_its_share_to_less_than_a_row_and_one_at_least(rows, percents):
    split = fractions(percents)
    counts = share(rows, split)
    assert sum(counts) == rows
    exact = [rows * fraction for fraction in (split.train, split.eval, split.test)]
    if min(exact) >= 1:
        assert all(abs(count - quota) < 1 for count, quota in zip(counts, exact, strict=True))
    if rows >= 3:
        assert min(counts) >= 1


def test_shares_are_those_of_a_calculation_by_hand():
    tenths = SplitRows(by="class")
    assert share(1000, tenths) == (800, 100, 100)
    assert share(37, tenths) == (29, 4, 4)  # 29.6, 3.7 and 3.7: two rows are left over for the remainders of 0.7
    assert share(5, tenths) == (3, 1, 1)  # 4, 0.5 and 0.5: eval gets the row that is left over, train gives test one
    assert share(3, tenths) == (1, 1, 1)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=60, unique=True), PERCENTS)
def test_different_rows_are_cut_exactly_where_their_shares_end(draws, percents):
    split = fractions(percents)
    assert split_counts(np.sort(np.array(draws, np.uint64)), split) == list(share(len(draws), split))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), PERCENTS)
def test_equal_rows_stay_together_and_three_different_ones_reach_every_split(draws, percents):
    counts = split_counts(np.sort(np.array(draws, np.uint64)), fractions(percents))
    assert sum(counts) == len(draws)
    # Whole groups of equal draws, in their order: the cuts are among the running totals.
    totals = {0, *np.cumsum([count for _, count in sorted(Counter(draws).items())]).tolist()}
    assert {counts[0], counts[0] + counts[1]} <= totals
    assert counts[0] >= 1 and (len({*draws}) < 3 or min(counts) >= 1)


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 40), min_size=1, max_size=12))
def test_classes_are_sorted_together_as_long_as_they_fit(counts):
    batches = list(batched(sorted(counts), str, counts.__getitem__, len(counts), 50))
    assert [name for batch in batches for name in batch] == sorted(counts)
    assert all(len(batch) == 1 or sum(counts[name] for name in batch) <= 50 for batch in batches)


def table() -> list[dict[str, str]]:
    draw = random.Random(5)
    rows = [
        {"n": f"{draw.uniform(0, 9):.9g}", "place": draw.choice("abc"), "label": name}
        for name, count in CLASSES.items()
        for _ in range(count)
    ]
    draw.shuffle(rows)
    return rows


def write(folder: Path, rows: list[dict[str, str]], files: int) -> Path:
    folder.mkdir()
    for number in range(files):
        with (folder / f"{number}.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ["n", "place", "label"])
            writer.writeheader()
            writer.writerows(rows[number::files])
    return folder


def recipe_of(path: Path, **data: object) -> Recipe:
    features = {"n": {"type": "numeric"}, "place": {"type": "category"}}
    read = {"format": "csv", "path": str(path), "label": "label", "features": features, "split": {"by": "class"}}
    return Recipe.model_validate({"name": "classes", "data": {**read, **data}, "model": {"name": "mlp"}})


def rows_by_split(folder: str) -> dict[str, list[tuple[str, float, bytes]]]:
    from trainyard.data.examples import open_examples

    examples = open_examples(folder)
    names = examples.document.labels or []
    return {
        split: sorted(
            (names[label], number, position)
            for raw, labels in examples.raw_batches(split, 256).as_numpy_iterator()
            for label, number, position in zip(labels.tolist(), raw["n"].tolist(), raw["place"].tolist(), strict=True)
        )
        for split in SPLITS
    }


def test_a_table_gives_each_class_its_share_whatever_the_order_files_runs_and_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table()
    whole = rows_by_split(preprocess(recipe_of(write(tmp_path / "whole", rows, 1)), tmp_path / "out"))
    for index, split in enumerate(SPLITS):
        counts = Counter(label for label, _, _ in whole[split])
        assert counts == {name: share(count, SplitRows(by="class"))[index] for name, count in CLASSES.items()}
    assert sum(map(len, whole.values())) == len({*chain.from_iterable(whole.values())}) == len(rows)

    # The same rows in another order and other files, one of which came after a first run.
    monkeypatch.setattr("trainyard.steps.preprocess.split._DRAWS", 40)
    later = [row for row in rows if row["label"] == "often"][:400]
    folder = write(tmp_path / "grown", [row for row in rows[::-1] if row not in later], 2)
    recipe = recipe_of(folder, incremental=True, shard_examples=100)
    step.execute(run, str(tmp_path / "outputs" / "first"), recipe=recipe)
    write(tmp_path / "later", later, 1).joinpath("0.csv").rename(folder / "later.csv")
    output = str(tmp_path / "outputs" / "second")
    step.execute(run, output, recipe=recipe)
    assert rows_by_split(output) == whole
    assert len(Examples.read(output).splits["train"].files) > 1


def test_a_table_that_repeats_is_split_row_by_row_whatever_the_order_and_the_number_of_files(tmp_path: Path) -> None:
    draw = random.Random(6)
    values = [draw.randrange(1, 13) for _ in range(600)]
    rows = [{"n": f"{n}", "place": "a", "label": "often" if draw.random() < n / 12 else "seldom"} for n in values]
    whole = rows_by_split(preprocess(recipe_of(write(tmp_path / "one", rows, 1), split={}), tmp_path / "out"))
    assert [len(whole[split]) / 600 for split in SPLITS] == pytest.approx([0.8, 0.1, 0.1], abs=0.05)
    assert all(len({n for _, n, _ in whole[split]}) > 9 for split in SPLITS)
    draw.shuffle(rows)
    assert rows_by_split(preprocess(recipe_of(write(tmp_path / "five", rows, 5), split={}), tmp_path / "more")) == whole


def test_a_class_of_two_different_rows_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    rows = [*table(), *({"n": number, "place": "a", "label": "pair"} for number in "1122")]
    with pytest.raises(DataError, match=r"'test' has no example of class 'pair' \(train 2, eval 2, test 0.* three dif"):
        preprocess(recipe_of(write(tmp_path / "pair", rows, 1)), tmp_path / "out")


def test_images_are_split_by_their_folders(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    for name, count in {"cat": 31, "dog": 4}.items():
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number}.png")
    data = {"format": "image_folder", "path": str(tmp_path / "pets"), "split": {"by": "class"}, "near_duplicates": True}
    recipe = Recipe.model_validate({"name": "pets", "data": data, "model": {"name": "cnn_small"}})
    splits = Examples.read(preprocess(recipe, tmp_path / "out")).splits
    assert [splits[split].class_counts for split in SPLITS] == [[25, 2], [3, 1], [3, 1]]
