"""What is refused before anything is trained, with its counts."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from preprocess_sources import preprocess

from trainyard.contract.statistics.drift import FeatureStatistics, Statistics, drift
from trainyard.errors import DataError
from trainyard.quality.conformity import Conformity
from trainyard.quality.tables.columns import Numbers
from trainyard.readers.rows import BadRow
from trainyard.spec.recipe import Data, Recipe
from trainyard.spec.schedule import Bounds
from trainyard.steps.preprocess import quality
from trainyard.steps.preprocess.collect import Collected
from trainyard.steps.preprocess.parts import Parts, PartWriter
from trainyard.steps.preprocess.readers.files import find_files
from trainyard.steps.preprocess.readers.records import ROW_HASH, WHOLE_HASH, record_batch
from trainyard.steps.preprocess.repeats import Repeated
from trainyard.steps.preprocess.split import assign, split_by_class
from trainyard.steps.preprocess.statistics import SplitSummary, Summary, Texts, conformity
from trainyard.steps.preprocess.task_store import TaskStore

RECIPE = Recipe.model_validate(
    {"name": "r", "data": {"format": "image_folder", "path": "x"}, "model": {"name": "cnn_small"}}
)
EVEN = {"a": 10, "b": 10}


def collected(train=None, evaluation=None, test=None, bad=0, repeated=()) -> Collected:
    splits = {"train": train or EVEN, "eval": evaluation or EVEN, "test": test or EVEN}
    return Collected(
        name="",
        bytes=0,
        parts=Parts(TaskStore("")),
        splits={
            split: SplitSummary(examples=sum(labels.values()), labels={k: v for k, v in labels.items() if v})
            for split, labels in splits.items()
        },
        bad=[BadRow(f"a/{n}.png", None, "zero_bytes", "the file is empty") for n in range(bad)],
        repeated=list(repeated),
    )


def test_good_data_pass_and_a_tolerated_share_of_bad_records_too():
    quality.require_usable(collected(), RECIPE)
    allowing = RECIPE.model_copy(update={"data": RECIPE.data.model_copy(update={"max_bad_fraction": 0.1})})
    quality.require_usable(collected(bad=6), allowing)
    with pytest.raises(DataError, match=r"7 of 67 records are bad \(10.45%\): zero_bytes 7. .*10.00%.*a/0.png"):
        quality.require_usable(collected(bad=7), allowing)


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        (collected(evaluation={"a": 0}), "the split 'eval' is empty; examples: train 20, eval 0, test 20"),
        (collected({"a": 9}, {"a": 9}, {"a": 9}), "every example has the class 'a'"),
        (collected({"a": 9, "b": 1}, {"a": 9}, {"a": 9}), "the class 'b' has one example"),
        (
            collected({f"{n}.5": 1 for n in range(101)}, {"0.5": 9}, {"0.5": 9}),
            r"'1.5' has one example \(100 such classes\). .* the class. Is this task: regression\?$",
        ),
        (collected(test={"a": 9}), r"the split 'test' has no example of class 'b' \(train 10, eval 10, test 0"),
        (collected(train={"b": 9}), "the split 'train' has no example of class 'a'"),
    ],
    ids=["empty split", "one class", "one example", "numbers", "not in test", "not in train"],
)
def test_data_that_cannot_be_judged_are_refused(summary, sentence):
    with pytest.raises(DataError, match=sentence):
        quality.require_usable(summary, RECIPE)


def test_a_class_with_one_example_is_refused_with_what_leaves_it_out():
    once = collected({"a": 9, "b": 5, "c": 1}, {"a": 9, "b": 5}, {"a": 9, "b": 5})
    for data, way in (
        ({"label": "m"}, "leave the class out by data.where: m not in ['c']"),
        ({"label": "m", "label_separator": ";"}, "drop such classes by data.label_min_count: 2"),
    ):
        read = RECIPE.data.model_copy(update={"features": {"x": {"type": "numeric"}}, **data})
        with pytest.raises(DataError, match=re.escape(way)):
            quality._require_classes(once, read)
    kept = quality.without_rare_classes(once, 2)
    assert quality.class_names(kept) == ["a", "b"] and kept.rare_classes == {"c": 1}
    assert quality.without_rare_classes(once, 1) is once


COLUMNS = {"x": {"type": "numeric"}, "c": {"type": "category"}, "d": {"type": "date"}}
LABELS = {
    "classification": {"label": "k"},
    "regression": {"label": "y"},
    "targets": {"targets": ["y", "z"]},
    "multi_label": {"label": "m", "label_separator": ";"},
    "weight": {"label": "k", "weight": "y"},
    "fraction": {"label": "k", "fraction": 0.5},
    "group": {"label": "k", "split": {"by": "group", "column": "c"}},
    "column": {"label": "y", "split": {"by": "column", "column": "s"}},
    "time": {
        "label": "k",
        "split": {"by": "time", "column": "d", "eval_from": "2024-01-10", "test_from": "2024-02-01"},
    },
}


def table_recipe(kind: str, path: str = "x") -> Recipe:
    task = {"targets": "regression", "column": "regression"}.get(kind, kind)
    data = {"format": "csv", "path": path, "features": COLUMNS, "max_bad_fraction": 1.0, **LABELS[kind]}
    task = task if task in ("regression", "multi_label") else "classification"
    return Recipe.model_validate({"name": "r", "task": task, "data": data, "model": {"name": "mlp"}})


@pytest.mark.parametrize("kind", LABELS)
def test_a_batch_without_rows_counts_nothing(kind):
    recipe = table_recipe(kind)
    rows = record_batch([], recipe.data)
    for name in (ROW_HASH, WHOLE_HASH) if recipe.data.hashes_rows else ():
        rows = rows.append_column(name, pa.array([], pa.uint64()))
    assigned, digests = assign(rows, recipe.seed, recipe.data)
    targets = recipe.data.labels if recipe.task == "regression" else []
    summary = Summary.from_rows(assigned, targets)
    assert summary.examples == 0 and set(digests.values()) == {0} and not summary.labels
    assert {numbers.count for numbers in summary.numbers.values()} <= {0} and set(targets) <= set(summary.numbers)
    assert conformity(rows, recipe.data) == Conformity()
    assert len(split_by_class(rows["label"], np.zeros(0, np.uint64), {})) == 0
    assert list(PartWriter(TaskStore(""), "p").add(assigned)) == []


@pytest.mark.parametrize("kind", LABELS)
def test_a_table_of_few_rows_is_refused_with_its_counts(kind, tmp_path):
    cells = ["0.5,a,2024-01-09,yes,1.5,2,a;b,train", "0.6,b,2024-01-11,no,1.0,3,a,eval", "oops,b,,no,1.0,3,a,eval"]
    for count in range(4):
        path = tmp_path / f"{count}.csv"
        path.write_text("\n".join(["x,c,d,k,y,z,m,s", *cells[:count]]) + "\n")
        with pytest.raises(DataError, match=r"the split '\w+' is empty; examples: train|no records found"):
            preprocess(table_recipe(kind, str(path)), tmp_path / "output")


def test_a_condition_of_no_row_is_named_with_the_number_of_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,k\n" + "1,yes\n" * 1200)
    data = {"format": "csv", "path": str(path), "label": "k", "features": {"x": {"type": "numeric"}}, "where": "x > 9"}
    recipe = Recipe.model_validate({"name": "r", "data": data, "model": {"name": "mlp"}})
    with pytest.raises(DataError, match=r"data\.where: 'x > 9' is true of none of 1,200 rows\. Correct it\."):
        preprocess(recipe, tmp_path / "output")


def test_a_column_without_any_value_is_refused():
    data = {"format": "csv", "path": "x", "features": {"n": {"type": "numeric"}, "c": {"type": "category"}}}
    recipe = Recipe.model_validate({"name": "r", "data": data, "model": {"name": "mlp"}})
    summary = collected()
    statistics = {"n": {"count": 0, "missing": 20}, "c": {"count": 20, "missing": 0}}
    summary.splits["train"] = summary.splits["train"].model_copy(update={"statistics": statistics})
    with pytest.raises(DataError, match="the column 'n' is missing in all 20 training examples"):
        quality.require_usable(summary, recipe)


SECONDS = {"count": 20, "missing": 0, "mean": 1_700_000_100.0, "std": 57.0, "min": 1.7e9, "max": 1.7e9 + 195}
YEARS = {**SECONDS, "std": 9e6, "max": 1.73e9}


@pytest.mark.parametrize(
    ("task", "more", "statistics", "sentence"),
    [
        ("classification", {}, {"n": SECONDS}, "data.features: 'n' lies from 1700000000 to 1700000195 .* steps of 128"),
        ("regression", {}, {"n": YEARS, "label": SECONDS}, "data.label: 'label' lies from 1700000000 to"),
        (
            "classification",
            {"derive": {"n": "b - a"}},
            {"n": {**SECONDS, "min": 0.0, "max": 600.0}, "a": YEARS, "b": YEARS},
            "data.derive: n: 'b' lies from 1700000000 to 1730000000",
        ),
    ],
)
def test_numbers_that_32_bits_cut_are_refused(task, more, statistics, sentence):
    data = {"format": "csv", "path": "x", "features": {"n": {"type": "numeric"}}, **more}
    recipe = Recipe.model_validate({"name": "r", "task": task, "data": data, "model": {"name": "mlp"}})
    summary = collected()

    def judge(given):
        summary.splits["train"] = summary.splits["train"].model_copy(update={"statistics": given})
        quality.require_usable(summary, recipe)

    with pytest.raises(DataError, match=sentence):
        judge(statistics)
    judge({name: {**YEARS, "std": 1e7} for name in statistics} | ({"n": {**YEARS, "std": 1e6}} if more else {}))


def test_classes_that_differ_in_their_writing_alone_are_warned_of():
    [warning] = quality.warnings(collected({"Cat": 5, "cat": 5, "dog": 5}, {"dog": 1}, {"dog": 1}), RECIPE.data)
    assert (
        warning == "classes differ in their writing alone: 'Cat' = 'cat'. If they are one class, write it in one way."
    )


def test_class_ids_follow_numbers_where_all_names_are_numbers():
    assert quality.class_names(collected({"10": 1, "9": 1, "0": 1})) == ["0", "9", "10"]
    assert quality.class_names(collected({"10": 1, "9": 1, "b": 1})) == ["10", "9", "b"]


def test_repeated_examples_and_contradicting_labels_are_warned_of():
    groups = [
        Repeated(splits=["train"], times=3, labels=["a"], sources=["a/1", "a/2", "a/3"]),
        Repeated(splits=["test"], times=2, labels=["a", "b"], sources=["a/4", "b/4"]),
    ]
    first, second = quality.warnings(collected(repeated=groups), RECIPE.data)
    assert first.startswith("3 examples repeat another one")
    assert second == "equal examples with different labels a, b: a/4, b/4."
    many = Repeated(splits=["train"], times=50, labels=list(map(str, range(50))), sources=["a.csv:2", "a.csv:3"])
    last = quality.warnings(collected(repeated=[many]), RECIPE.data)[-1]
    assert last.startswith("equal examples with different labels 0, 1, 2, 3, 4 and 45 more: a.csv:2, ")
    assert quality.warnings(collected(), RECIPE.data) == []
    apart = Repeated(splits=["train", "test"], times=2, labels=["a"], sources=["a/5", "a/6"])
    first, second, _ = quality.warnings(collected(repeated=[*groups, apart]), RECIPE.data)
    assert first.startswith("4 examples repeat another one (kept), such as")
    assert (
        second.startswith("1 groups of equal examples lie in different splits") and "a/5 = a/6 (train, test)" in second
    )


def test_statistics_do_not_depend_on_how_they_were_merged():
    values = np.array([1e9, 1e9 + 1, 1e9 + 2, np.nan, 1e9 + 3])
    left, right, whole = (Numbers.from_values(some) for some in (values[::2], values[1::2], values))
    left.merge(right)
    assert left.document() == whole.document()
    # Six digits are kept, of the extremes as many as tell them apart. The deviation of 0, 1, 2, 3 is sqrt(5) / 2.
    expected = {"mean": 1e9, "std": 1.11803, "min": 1e9, "max": 1e9 + 3}
    assert expected.items() <= whole.document().items() >= {"count": 4, "missing": 1}.items()


def test_a_mean_far_from_zero_has_digits_enough_to_tell_of_drift():
    """Days written as 20240101 are within months far closer to each other than to 0."""
    days = np.tile(np.arange(20240101.0, 20240131.0), 100)
    before, now = (Numbers.from_values(days + later).document() for later in (0, 9))
    assert (before["mean"], now["mean"], before["std"]) == (20240115.5, 20240124.5, 8.65544)
    (moved,) = drift(*(feature_of(document) for document in (before, now)), Bounds())
    assert moved == "x: mean 20240115.5 before, 20240124.5 now (standard deviation 8.65544)"


def feature_of(document):
    feature = FeatureStatistics.model_validate(document)
    return Statistics(examples={"train": 3000, "eval": 0, "test": 0}, classes={}, features={"x": {"train": feature}})


@pytest.mark.parametrize("values", [[1e300, -1e300], [1e308, 1e308], [5e-324, 0.0], [0.1] * 3, [0.0, 0.0]])
def test_the_statistics_of_any_numbers_can_be_written(values):
    assert Numbers.from_values(np.array(values)).document()["count"] == len(values)


def test_texts_that_are_forgotten_still_count_as_present():
    """What drift calls the missing ones' share is theirs of all examples, however many different texts there are."""
    parts = [pa.array([f"{part} {row}" for row in range(25_000)] + [""] * 500 + ["often"] * 100) for part in range(3)]
    texts = Texts.from_values(parts[0])
    for part in parts[1:]:
        texts.merge(Texts.from_values(part))
    document = texts.document()
    assert (document["count"], document["missing"]) == (75_300, 1500)
    assert document["top"][0] == {"value": "often", "count": 300}


def test_a_path_without_files_is_refused(tmp_path):
    (tmp_path / ".hidden").write_text("")
    with pytest.raises(DataError, match="no files found"):
        find_files(RECIPE.data, str(tmp_path))
    (tmp_path / "rows.csv.zip").write_bytes(b"PK")
    table = {"format": "csv", "path": "x", "label": "y", "features": {"x": {"type": "numeric"}}}
    data = Recipe.model_validate(RECIPE.model_dump() | {"data": table, "model": {"name": "mlp"}}).data
    with pytest.raises(
        DataError, match=r"no files found\. .* rows\.csv\.zip is a ZIP archive, which is not read: unpack"
    ):
        find_files(data, str(tmp_path))
    with pytest.raises(DataError, match="no files found"):
        find_files(RECIPE.data, str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("feature", "warned"),
    [({}, True), ({"scale": "log"}, False), ({"clip": [0.01, 0.99]}, False), ({"missing": [-1]}, True)],
)
def test_preprocess_warns_of_a_number_that_flattens_the_others(feature, warned):
    values = pa.array([*np.random.default_rng(1).lognormal(3, 1, 500), 1e12])
    rows = pa.record_batch({"label": pa.array(["a"] * 501), "raw/n": values})
    summary = Summary.from_rows(rows, []).document({})
    data = Data.model_validate({"format": "csv", "path": "-", "features": {"n": {"type": "numeric", **feature}}})
    assert [
        "far away" in text for text in quality.far_value_warnings(replace(collected(), splits={"train": summary}), data)
    ] == [True] * warned


def test_preprocess_warns_of_a_day_that_occurs_often_and_is_far_from_the_others():
    days = [f"2024-{1 + index % 12:02}-{1 + index % 28:02}T05" for index in range(300)] + ["9999-12-31T00"] * 200 + [""]
    rows = pa.record_batch({"label": pa.array(["a"] * 501), "raw/d": pa.array(days)})
    total = Summary()
    total.merge(Summary.from_rows(rows, [], dates=["d"]))
    data = Data.model_validate({"format": "csv", "path": "-", "features": {"d": {"type": "date", "hour": True}}})
    [warning] = quality.far_value_warnings(replace(collected(), splits={"train": total.document({})}), data)
    assert warning.startswith("'d' is 9999-12-31 in 40.0% of its cells, far from the others, 20")
    assert warning.endswith("declare it, missing: [9999-12-31].")
