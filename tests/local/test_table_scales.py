"""Logarithms, lists in a cell and computed features, as train says and as a device without TensorFlow computes them."""

import io
import json
import math
import random
import runpy
from collections import Counter
from contextlib import redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path

import device_folder
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from preprocess_sources import preprocess

from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.statistics import quantiles
from trainyard.steps.preprocess.transforming import vocabularies
from trainyard.steps.preprocess.transforming.features import column_preprocessing
from trainyard.steps.preprocess.transforming.vocabularies import NO_VALUES, frequent_values, in_shares

ROWS = 400
COLUMNS = {
    "debt": {"type": "numeric", "scale": "log"},
    "gain": {"type": "numeric", "scale": "log", "impute": -99.0, "clip": [0.05, 0.9]},
    "tags": {"type": "text", "separator": ";", "vocabulary_size": 4, "min_count": 1, "oov_buckets": 2, "words": 3},
    "fee": {"type": "numeric", "scale": "log"},
    "age": {"type": "numeric", "missing": [-999, "unknown"]},
    "due": {"type": "date", "missing": ["9999-12-31", "never"], "clip": [0.05, 0.9], "hour": True},
    "town": {"type": "category", "missing": ["unknown", -1]},
}
COMPUTED = {
    "share": ("gain / debt", {"type": "numeric", "scale": "minmax", "impute": 0.0, "clip": [0.1, 0.95]}),
    "kind": ("join(debt > gain, bin(gain, 2e7))", {"type": "category", "oov_buckets": 3, "min_count": 9}),
}


def rows():
    """Numbers over ten magnitudes of both signs, some missing; up to four tags, with space and nothing between."""
    draw = random.Random(7)
    made = []
    for number in range(ROWS):
        known = ["Rock", "rock", "hip hop", "R&B", f"rare {number}", ""]
        tags = draw.choices(known, [32, 16, 8, 4, 4, 4], k=draw.randint(0, 4))
        debt, gain = (f"{draw.choice([1, -1]) * 10 ** draw.uniform(-2, 8):.6g}" for _ in range(2))
        made.append(
            {
                "debt": draw.choice([debt, debt, debt, debt, "0", ""]),
                "gain": draw.choice([gain, gain, gain, "NA"]),
                "tags": ";".join(f" {tag} " for tag in tags),
                "fee": "3.7",
                "age": draw.choice([str(number), "-999", "-999.0", "unknown", ""]),
                "due": draw.choice(
                    [f"2024-{1 + number % 12:02}-{1 + number % 28:02}T05:00", "9999-12-31 10:00", "9999-12-31", "never"]
                ),
                "town": draw.choice(["Oslo", "Bergen", "unknown", "-1.0", ""]),
                "label": draw.choice(["no", "yes"]),
            }
        )
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The rows by their key, and the examples made of them."""
    from trainyard.data.examples import open_examples

    folder, table = tmp_path_factory.mktemp("logs"), rows()
    lines = [",".join(COLUMNS) + ",label", *(",".join(row.values()) for row in table)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    data = {"format": "csv", "path": str(folder / "a.csv"), "label": "label", "features": COLUMNS}
    data["derive"] = {name: formula for name, (formula, _) in COMPUTED.items()}
    data["features"] = COLUMNS | {name: feature for name, (_, feature) in COMPUTED.items()}
    recipe = Recipe.model_validate({"name": "logs", "data": data, "model": {"name": "mlp"}})
    examples = open_examples(preprocess(recipe, folder / "out"))
    return recipe, {f"a.csv:{number + 2}": row for number, row in enumerate(table)}, examples


def split_rows(made, split):
    """The rows of a split in stored order, and its features (n, ...) by name."""
    _, table, examples = made
    features, _, keys = zip(*examples.batches(split, 64), strict=True)
    joined = {name: np.concatenate([batch[name] for batch in features]) for name in features[0]}
    return [table[key.decode()] for batch in keys for key in batch.numpy()], joined


def numbers(row):
    return {name: float(row[name]) if row[name] not in ("", "NA") else math.nan for name in ("debt", "gain")}


def computed(row):
    """What Python makes of the numbers of a row, which a served model takes as 32-bit floats."""
    debt, gain = (float(np.float32(row[name])) for name in ("debt", "gain"))
    known = not math.isnan(debt + gain)
    share = gain / debt if known and debt else math.nan
    return {"share": share, "kind": f"{str(debt > gain).lower()} & {math.floor(gain / 2e7)}" if known else ""}


def limits(values, low, high):
    """Return the values that have a share of `low` of them below, and a share of 1 - `high` above, counted in rows."""
    known = sorted(value for value in values if not math.isnan(value))
    rows = len(known)
    above = math.ceil(high * rows - 1e-9 * rows) - 1
    return known[min(rows - 1, math.floor(low * rows + 1e-9 * rows))], known[max(0, above)]


def test_a_feature_is_computed_before_it_is_scaled_or_counted(made):
    train, _ = split_rows(made, "train")
    table, features = split_rows(made, "eval")
    low, high = limits([computed(numbers(row))["share"] for row in train], 0.1, 0.95)
    shares = np.nan_to_num(np.clip([computed(numbers(row))["share"] for row in table], low, high), nan=0.0)
    np.testing.assert_allclose(features["share"], (shares - low) / (high - low), rtol=1e-4, atol=1e-6)
    counts = Counter(computed(numbers(row))["kind"] or "[missing]" for row in train)
    frequent = {kind for kind, count in counts.items() if count >= 9}
    assert {"[missing]", "true & 0", "false & 0"} < frequent
    for row, category_id in zip(table, features["kind"], strict=True):
        assert (category_id < len(frequent)) == ((computed(numbers(row))["kind"] or "[missing]") in frequent)


def logarithm(text):
    return math.copysign(math.log(1 + abs(float(text))), float(text)) if text not in ("", "NA") else math.nan


@given(
    st.lists(st.lists(st.floats(allow_infinity=False, width=32), max_size=9), min_size=1, max_size=4).filter(
        lambda parts: not np.isnan([*chain(*parts), math.nan]).all()
    ),
    st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda shares: shares[0] != shares[1]),
)
def test_quantiles_are_exact_whatever_the_parts_and_their_order(parts, shares):
    batches = [pa.record_batch({"n": pa.array(part, pa.float64())}) for part in parts]
    expected = np.array(limits([*chain(*parts)], *sorted(shares)))
    for ordered in (batches, batches[::-1]):
        assert quantiles(partial(list, ordered), {"n": tuple(sorted(shares))})["n"] == tuple(expected + 0.0)


def test_a_column_without_a_value_has_no_quantiles():
    batch = pa.record_batch({"raw/due": pa.array([None, ""], pa.string())})
    assert quantiles(lambda: [batch], {"raw/due": (0.0, 1.0)}) == {}


@pytest.mark.parametrize("split", ["train", "test"])
def test_logarithms_keep_the_sign_and_are_scaled_by_what_train_says(made, split):
    train, _ = split_rows(made, "train")
    table, features = split_rows(made, split)
    known = np.array([logarithm(row["debt"]) for row in train])
    values = np.array([logarithm(row["debt"]) for row in table])
    expected = np.nan_to_num((values - np.nanmean(known)) / np.nanstd(known))  # the mean stands in: 0
    np.testing.assert_allclose(features["debt"], expected, atol=1e-5)

    ends = limits([numbers(row)["gain"] for row in train], 0.05, 0.9)
    known = np.array([logarithm(np.clip(numbers(row)["gain"], *ends)) for row in train])
    filled = np.array([logarithm(np.clip(numbers(row)["gain"], *ends)) for row in table])
    filled[np.isnan(filled)] = -math.log(100)  # -99, as in the data
    np.testing.assert_allclose(features["gain"], (filled - np.nanmean(known)) / np.nanstd(known), atol=1e-5)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_model_is_told_which_numbers_are_missing_if_train_lacks_some(made, split):
    table, features = split_rows(made, split)
    for name in ("debt", "gain"):
        assert features[f"{name}_missing"].tolist() == [float(math.isnan(numbers(row)[name])) for row in table]
    assert features["share_missing"].tolist() == [float(math.isnan(computed(numbers(row))["share"])) for row in table]
    assert "fee_missing" not in features
    assert made[2].document.indicators == {name: f"{name}_missing" for name in ("debt", "gain", "share", "age")}


def test_an_indicator_is_shuffled_with_its_column(made):
    from trainyard.steps.evaluate.baselines import features_by_column

    columns = features_by_column(made[0], made[2])
    assert columns["age"] == ["age", "age_missing"] and columns["fee"] == ["fee"]
    assert columns.keys() == made[0].data.features.keys()


def test_values_that_the_recipe_declares_as_missing_are(made):
    train, _ = split_rows(made, "train")
    table, features = split_rows(made, "test")
    known = np.array([float(row["age"]) if row["age"].isdecimal() else math.nan for row in train])
    ages = np.array([float(row["age"]) if row["age"].isdecimal() else math.nan for row in table])
    assert features["age_missing"].tolist() == np.isnan(ages).astype(float).tolist() and np.isnan(ages).any()
    expected = np.nan_to_num((ages - np.nanmean(known)) / np.nanstd(known))
    np.testing.assert_allclose(features["age"], expected, atol=1e-5)

    def days(rows):
        dates = [row["due"][:10] if row["due"].startswith("2") else "NaT" for row in rows]
        found = np.array(dates, "datetime64[D]")
        return np.where(np.isnat(found), math.nan, found.astype(np.int64).astype(float))

    low, high = limits(days(train), 0.05, 0.9)
    clipped, mine = (np.clip(days(rows), low, high) for rows in (train, table))
    assert np.nanmax(days(table)) > high
    expected = np.nan_to_num((mine - np.nanmean(clipped)) / np.nanstd(clipped))
    np.testing.assert_allclose(features["due_days"], expected, atol=1e-4)
    months = [int(row["due"][5:7]) if row["due"].startswith("2") else 0 for row in table]
    assert features["due_month"].tolist() == months
    towns = {row["town"]: int(number) for row, number in zip(table, features["town"], strict=True)}
    assert towns["unknown"] == towns["-1.0"] == towns[""] and len({*towns.values()}) == 3
    age = made[2].document.raw_features[-3]
    assert age.name == "age" and age.learned.mean == pytest.approx(np.nanmean(known))


def test_one_and_the_same_number_everywhere_says_nothing_in_logarithms_either(made):
    """Its logarithm has digits beyond those of 32 bits, and so a rounding error where its deviation should be."""
    for split in ("train", "test"):
        assert not split_rows(made, split)[1]["fee"].any()
    (fee,) = [feature for feature in made[2].document.raw_features if feature.name == "fee"]
    assert fee.learned.standard_deviation == 0


def test_values_of_a_list_have_ids_by_frequency_as_they_are_written(made):
    def values(row):
        return [value for part in row["tags"].split(";") if (value := part.strip())]

    train, _ = split_rows(made, "train")
    table, features = split_rows(made, "eval")
    counts = Counter(value for row in train for value in values(row)[:3])
    vocabulary = [value for value, _ in counts.most_common(4)]
    assert vocabulary == ["Rock", "rock", "hip hop", "R&B"]
    assert any(len(values(row)) > 3 for row in table) and any(";  ;" in row["tags"] for row in table)
    for row, ids in zip(table, features["tags"], strict=True):
        for value, value_id in zip([*values(row), None, None, None][:3], ids, strict=True):
            if value is None:
                assert value_id == 0
            else:
                assert value_id == vocabulary.index(value) + 1 if value in vocabulary else value_id in (5, 6)


def asked(exported, row, monkeypatch):
    """Return what the example for the SavedModel prints for a row."""
    script, argument = exported / "examples" / "ask_saved_model.py", exported / "examples" / "asked.json"
    argument.write_text(json.dumps(row))
    monkeypatch.setattr("sys.argv", [str(script), str(argument)])
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(script), run_name="__main__")
    assert len(script.read_text().splitlines()) <= 20 and "probabilities" in printed.getvalue()
    return printed.getvalue()


def test_the_served_model_and_a_device_give_the_same_answers_to_raw_rows(made, tmp_path, monkeypatch):
    import export_folders
    import keras
    import tensorflow as tf

    from trainyard.data.examples import load_transform
    from trainyard.data.values import as_read
    from trainyard.models.mlp import dense_vector
    from trainyard.steps.export import run

    recipe, table, examples = made
    keras.utils.set_random_seed(4)
    features = examples.document.features
    inputs = {feature.name: keras.Input(feature.shape, name=feature.name, dtype=feature.dtype) for feature in features}
    spread = keras.initializers.RandomNormal(stddev=1)
    outputs = keras.layers.Dense(2, kernel_initializer=spread)(dense_vector(features, inputs))
    export_folders.commit_model(tmp_path / "model", keras.Model(inputs, outputs))
    exported = tmp_path / "exported"
    exported.mkdir()
    formats = recipe.export.model_copy(update={"formats": ["saved_model", "litert_float32"]})
    run.run(recipe.model_copy(update={"export": formats}), examples.uri, str(tmp_path / "model"), exported)

    ages = [math.nan if row["age"] in ("", "unknown") else float(row["age"]) for row in table.values()]
    texts = [{name: row[name] for name in ("tags", "due", "town")} for row in table.values()]
    raw = [
        {**numbers(row), **cells, "fee": float(row["fee"]), "age": age}
        for row, cells, age in zip(table.values(), texts, ages, strict=True)
    ]
    assert -999 in ages
    served = tf.saved_model.load(str(exported / "saved_model")).signatures["serving_default"](
        **{name: tf.constant([row[name] for row in raw]) for name in COLUMNS}
    )
    assert served["probabilities"].numpy().std() > 0.1
    np.testing.assert_allclose(device_folder.answers(exported, raw), served["probabilities"], rtol=0, atol=1e-5)
    columns = {name: tf.constant([row[name] for row in raw]) for name in COLUMNS}
    transformed = load_transform(examples.uri)(as_read(columns, recipe.data))
    assert device_folder.largest_difference(device_folder.features(exported, raw), transformed) <= 1e-6
    row = json.loads((exported / "examples" / "row.json").read_text())
    assert row["tags"] == "Rock;rock;hip hop"
    assert device_folder.features(exported, [row])["tags"].tolist() == [[1, 2, 3]]
    assert asked(exported, row, monkeypatch) == asked(exported, row | {"tags": row["tags"].split(";")}, monkeypatch)
    (exported / "saved_model").rename(tmp_path / "saved_model")  # a device gets the other files alone
    with pytest.raises(OSError, match=r"SavedModel file does not exist at: .*exported/saved_model"):
        asked(exported, row, monkeypatch)
    content = json.loads((exported / "preprocessing.json").read_text())
    assert {column["name"]: column["formula"] for column in content["computed_features"]} == {
        name: formula for name, (formula, _) in COMPUTED.items()
    }
    debt, gain, *_ = (column["learned"] for column in content["raw_features"])
    assert debt["log"] is True
    assert gain["imputed"] == pytest.approx(-math.log(100))


def test_a_column_that_is_scaled_adds_no_operations_of_its_own_but_to_read_it() -> None:
    """Each is traced six times: of 1,000 columns, those of every column took two minutes."""

    def operations(columns: int) -> int:
        features = {f"c{number}": {"type": "numeric", "impute": "median"} for number in range(columns)}
        data = Data.model_validate({"format": "csv", "path": "a.csv", "label": "y", "features": features})
        with tf.Graph().as_default() as graph:
            inputs = {name: tf.compat.v1.placeholder(tf.float32, (None,)) for name in features}
            assert set(column_preprocessing(data, {}, [], Path())(inputs)) == set(features)
            return len(graph.get_operations())

    assert operations(40) - operations(20) <= 20  # a placeholder


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({}, ["b", "[missing]", "d", "a"]),  # equally frequent ones as tf.Transform orders them
        ({"vocabulary_size": 2}, ["b", "[missing]"]),
        ({"min_count": 2}, ["b", "[missing]"]),
        ({"min_count": 9}, [NO_VALUES]),
    ],
)
def test_a_vocabulary_has_the_frequent_values_of_the_category(settings: dict[str, int], lines: list[str]) -> None:
    features = {"n": {"type": "numeric"}, "c": {"type": "category", **settings}}
    data = Data.model_validate({"format": "csv", "path": "a.csv", "label": "y", "features": features})
    first, second = Counter({b"a": 1, b"[missing]": 2, b"two\nlines": 5, b"": 9}), Counter({b"d": 1, b"b": 3})
    assert frequent_values(data, [{"c": first}, {"c": second}]) == {"c": [line.encode() for line in lines]}


def test_more_values_than_are_counted_at_once_are_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).integers(0, 60, (2, 500)).astype("S")
    read = [
        {name: Counter(part.tolist()) for name, part in zip("cd", parts, strict=True)}
        for parts in zip(*(np.split(row, 10) for row in values), strict=True)
    ]
    monkeypatch.setattr(vocabularies, "_VALUES", 30)
    shares = [*in_shares(lambda: read)]
    assert len(shares) > 3 and all(sum(map(len, share.values())) <= 30 for share in shares)
    for name, column in zip("cd", values, strict=True):
        assert sum((share[name] for share in shares), Counter()) == Counter(column.tolist())
        assert sum(len(share[name]) for share in shares) == len(set(column.tolist()))
