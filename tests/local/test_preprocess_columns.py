"""preprocess on a mixed CSV file: what tf.Transform learned, checked by hand, and carried into the graph."""

import datetime
import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from preprocess_sources import preprocess, write_rows

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.errors import ConfigurationError, DataError
from trainyard.quality.inspect import inspect
from trainyard.quality.recipe_draft import draft_recipe
from trainyard.readers import csv_rows
from trainyard.readers.table_file import TableFile
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

COLUMNS = {
    "tiny": {"type": "numeric"},
    "income": {"type": "numeric", "scale": "minmax", "impute": "median"},
    "age": {"type": "numeric", "scale": "buckets", "buckets": 4, "impute": 50.0},
    "visits": {"type": "numeric", "scale": "none"},
    "constant": {"type": "numeric"},
    "flag": {"type": "category"},
    "color, or none": {"type": "category", "min_count": 2, "oov_buckets": 2},
    "since": {"type": "date", "hour": True},
    "note": {"type": "text", "vocabulary_size": 6, "oov_buckets": 3, "words": 5, "ngrams": 2},
}
ROWS = 1000


def recipe(path: Path, module: Path | None = None, **data) -> Recipe:
    source = {"format": "csv", "path": str(path), "label": "bought", "features": COLUMNS, **data}
    document = {"name": "shop", "data": source, "model": {"name": "mlp"}}
    if module is not None:
        document |= {"module": module.name, "files": {module.name: module.read_text()}}
    return Recipe.model_validate(document)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The rows of a gzipped file by their key, and the examples made of them."""
    from trainyard.data.examples import open_examples

    folder = tmp_path_factory.mktemp("shop")
    rows = write_rows(folder / "shop.csv.gz", ROWS)
    examples = open_examples(preprocess(recipe(folder / "shop.csv.gz"), folder / "out"))
    return {f"shop.csv.gz:{number + 2}": row for number, row in enumerate(rows)}, examples


def split_rows(made, split):
    """The rows of a split in stored order, and its features (n,) by name."""
    rows, examples = made
    features, _, keys = zip(*examples.batches(split, 64), strict=True)
    joined = {name: np.concatenate([batch[name] for batch in features]) for name in features[0]}
    return [rows[key.decode()] for batch in keys for key in batch.numpy()], joined


def numbers(rows, name):
    return np.array([float(row[name]) if row[name] not in ("", "NA") else np.nan for row in rows])


def test_every_row_arrives_once_with_its_label(made):
    _, examples = made
    row_ids = []
    for split in ("train", "eval", "test"):
        members, _ = split_rows(made, split)
        assert [examples.document.labels[label] for label in examples.labels(split)] == [
            row["bought"] for row in members
        ]
        row_ids += [row["id"] for row in members]
    assert sorted(map(int, row_ids)) == list(range(ROWS))
    assert examples.document.labels == ["no", "yes"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_numbers_are_imputed_and_scaled_by_what_train_says(made, split):
    train, _ = split_rows(made, "train")
    rows, features = split_rows(made, split)
    tiny = numbers(train, "tiny")
    filled = np.where(np.isnan(numbers(rows, "tiny")), np.nanmean(tiny), numbers(rows, "tiny"))
    np.testing.assert_allclose(features["tiny"], (filled - np.nanmean(tiny)) / np.nanstd(tiny), atol=2e-6)

    income = numbers(train, "income")
    known = ~np.isnan(numbers(rows, "income"))
    low, high = np.nanmin(income), np.nanmax(income)
    expected = (numbers(rows, "income")[known] - low) / (high - low)
    np.testing.assert_allclose(features["income"][known], expected, rtol=1e-5, atol=1e-6)
    (imputed,) = set(features["income"][~known].tolist())
    rank = np.mean(income[~np.isnan(income)] < imputed * (high - low) + low)
    assert 0.49 < rank < 0.51

    np.testing.assert_array_equal(features["visits"], numbers(rows, "visits").astype(np.float32))
    assert not features["constant"].any()


def test_buckets_are_quantiles_of_train(made):
    rows, features = split_rows(made, "train")
    known = ~np.isnan(numbers(rows, "age"))
    counts = np.bincount(features["age"][known], minlength=4)
    assert counts.shape == (4,)
    # Ages are whole years: a boundary may fall anywhere within one, about 9 people wide.
    assert np.abs(counts - known.sum() / 4).max() < 12
    pairs = sorted(zip(numbers(rows, "age")[known], features["age"][known], strict=True))
    assert [bucket for _, bucket in pairs] == sorted(bucket for _, bucket in pairs)
    at_50 = {bucket for age, bucket in pairs if age == 50}
    assert set(features["age"][~known].tolist()) == at_50


def test_categories_have_ids_by_frequency_missing_its_own_and_rare_ones_share(made):
    train, _ = split_rows(made, "train")
    rows, features = split_rows(made, "test")
    counts = Counter(row["color, or none"] or "[missing]" for row in train)
    vocabulary = [name for name, count in counts.most_common() if count >= 2]
    assert vocabulary == ["red", "green", "blue", "[missing]"]
    for row, category_id in zip(rows, features["color, or none"], strict=True):
        name = row["color, or none"] or "[missing]"
        assert category_id == vocabulary.index(name) if name in vocabulary else category_id in (4, 5)
    sizes = {feature.name: feature.vocabulary_size for feature in made[1].document.features}
    assert sizes["color, or none"] == 6
    assert sizes["flag"] == 4
    assert sizes["age"] == 4
    assert sizes["tiny"] is None


def test_dates_become_days_month_weekday_and_hour(made):
    def days(row):
        return (datetime.date.fromisoformat(row["since"][:10]) - datetime.date(1970, 1, 1)).days

    train, _ = split_rows(made, "train")
    rows, features = split_rows(made, "eval")
    known = [days(row) for row in train if row["since"]]
    times = [row["since"] and (row["since"][11:13] or "00") for row in rows]  # a day without a time is midnight
    hours = dict(zip(times, features["since_hour"], strict=True))
    assert hours == {text: int(text) + 1 if text else 0 for text in hours} and len(hours) > 2
    for row, day, month, weekday in zip(
        rows, features["since_days"], features["since_month"], features["since_weekday"], strict=True
    ):
        if row["since"]:
            date = datetime.date.fromisoformat(row["since"][:10])
            assert (month, weekday) == (date.month, date.isoweekday())
            assert day == pytest.approx((days(row) - np.mean(known)) / np.std(known), abs=1e-5)
        else:
            assert (month, weekday, day) == (0, 0, pytest.approx(0, abs=1e-6))


def test_words_and_pairs_have_ids_by_frequency_and_a_short_text_is_filled_up(made):
    def terms(row):
        plain = "".join(letter if letter.isalnum() else " " for letter in row["note"].lower()).split()
        return [*plain, *(" ".join(pair) for pair in pairwise(plain))][:5]

    train, _ = split_rows(made, "train")
    rows, features = split_rows(made, "test")
    counts = Counter(word for row in train for word in terms(row))
    frequent = [word for word, _ in counts.most_common(6)]
    assert frequent[0] == "the" and features["note"].shape == (len(rows), 5)
    for row, ids in zip(rows, features["note"].tolist(), strict=True):
        for word, term_id in zip([*terms(row), *[None] * 5], ids, strict=False):
            expected = {0} if word is None else {1 + frequent.index(word)} if word in frequent else {7, 8, 9}
            assert term_id in expected, (row["note"], ids)
    (feature,) = [item for item in made[1].document.features if item.name == "note"]
    assert (feature.shape, feature.vocabulary_size, feature.filler) == ((5,), 10, 0)


def test_the_graph_gives_on_raw_rows_what_training_sees(made):
    from trainyard.data.examples import load_transform

    _, examples = made
    transform = load_transform(examples.uri)
    seen = 0
    for split in ("train", "eval", "test"):
        for (features, labels, _), (raw, raw_labels) in zip(
            examples.batches(split, 50), examples.raw_batches(split, 50), strict=True
        ):
            transformed = transform(raw)
            assert set(transformed) == set(features)
            for name, values in features.items():
                assert np.abs(transformed[name].numpy() - values.numpy()).max() <= 1e-6, name
            np.testing.assert_array_equal(labels, raw_labels)
            seen += len(labels)
    assert seen == ROWS
    assert "tensorflow_transform" not in transform.__module__


def test_the_graph_takes_rows_never_seen(made):
    import tensorflow as tf

    from trainyard.data.examples import load_transform

    _, examples = made
    transformed = load_transform(examples.uri)(
        {
            "tiny": tf.constant([np.nan, 1e6]),
            "income": tf.constant([0.0, 1e30]),
            "age": tf.constant([-5.0, 500.0]),
            "visits": tf.constant([np.nan, 0.0]),
            "constant": tf.constant([7.0, 8.0]),
            "flag": tf.constant(["1", "never seen"]),
            "color, or none": tf.constant(["never seen", "ünknown"]),
            "since": tf.constant(["2023-02-31", "2024-02-29 23:59"]),
            "note": tf.constant(["", "THE ünknown; the"]),
        }
    )
    # Of "the" and "the ünknown" the first is frequent; three more are of no known word.
    first, second = transformed["note"].numpy().tolist()
    assert (
        first == [0] * 5 and second[0] == second[2] == 1 and all(7 <= value <= 9 for value in second[1:2] + second[4:])
    )
    assert transformed["age"].numpy().tolist() == [0, 3]
    assert all(name in (4, 5) for name in transformed["color, or none"].numpy())
    assert transformed["flag"].numpy()[1] == 3
    assert transformed["since_month"].numpy().tolist() == [0, 2]
    assert transformed["since_weekday"].numpy().tolist() == [0, 4]
    assert all(np.isfinite(values.numpy()).all() for values in transformed.values())


def test_what_lies_beside_a_litert_file_suffices_to_feed_it_raw_rows_on_a_device(made, tmp_path):
    import device_folder
    import export_folders
    import keras
    import tensorflow as tf

    from trainyard.data.examples import load_transform
    from trainyard.data.values import as_read
    from trainyard.steps.export import run, signature

    _, examples = made
    keras.utils.set_random_seed(4)
    spread = keras.initializers.RandomNormal(stddev=1)  # every id has a say
    inputs = {
        feature.name: keras.Input(feature.shape, name=feature.name, dtype=feature.dtype)
        for feature in examples.document.features
    }
    parts = [
        keras.layers.Reshape((-1,))(
            keras.layers.Embedding(feature.vocabulary_size, 3, embeddings_initializer=spread)(inputs[feature.name])
        )
        if feature.vocabulary_size
        else keras.layers.Rescaling(1e-3 if feature.name == "visits" else 1)(
            keras.layers.Reshape((1,))(inputs[feature.name])
        )
        for feature in examples.document.features
    ]
    export_folders.commit_model(
        tmp_path / "model", keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()(parts)))
    )
    exported = tmp_path / "exported"
    exported.mkdir()
    text = recipe(Path("shop.csv"))
    formats = text.export.model_copy(update={"formats": ["saved_model", "litert_float32", "onnx"]})
    run.run(text.model_copy(update={"export": formats}), examples.uri, str(tmp_path / "model"), exported)

    rows = write_rows(tmp_path / "raw.csv", 300)
    for number, row in enumerate(rows[:100]):
        row["color, or none"] = f"{number}ö sixteen bytes"[: 1 + number % 15]  # out of vocabulary
        row["flag"] = "2"
        row["since"] = ["", "1600-02-29 23:00", "0001-01-01"][number % 3]
        row["age"] = str(3 * number - 90)
    raw = [
        {name: float(row[name] if row[name] not in ("", "NA") else "nan") for name in list(COLUMNS)[:5]}
        | {name: row[name] for name in list(COLUMNS)[5:]}
        for row in rows
    ]
    served = tf.saved_model.load(str(exported / "saved_model")).signatures["serving_default"](
        **{signature.input_name(name): tf.constant([row[name] for row in raw]) for name in COLUMNS}
    )
    cells = [{name: row[name] for name in COLUMNS} for row in rows]  # texts, as a file has them
    assert served["probabilities"].numpy().std() > 0.1
    np.testing.assert_allclose(device_folder.answers(exported, cells), served["probabilities"], rtol=0, atol=1e-5)
    columns = {name: tf.constant([row[name] for row in raw]) for name in COLUMNS}
    transformed = load_transform(examples.uri)(as_read(columns, text.data))
    assert device_folder.largest_difference(device_folder.features(exported, cells), transformed) <= 1e-6


def test_schema_and_statistics_describe_the_columns(made):
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    _, examples = made
    schema = text_format.Parse(Path(examples.uri, "schema.pbtxt").read_text(), schema_pb2.Schema())
    assert [feature.name for feature in schema.feature] == sorted(COLUMNS)
    train, _ = split_rows(made, "train")
    statistics = json.loads(Path(examples.uri, "statistics.json").read_text())["features"]
    assert statistics["tiny"]["train"]["missing"] == int(np.isnan(numbers(train, "tiny")).sum())
    assert statistics["income"]["train"]["mean"] == pytest.approx(np.nanmean(numbers(train, "income")), rel=1e-5)
    red = sum(row["color, or none"] == "red" for row in train)
    assert statistics["color, or none"]["train"]["top"][0] == {"value": "red", "count": red}


def test_a_recipes_own_preprocessing_fn_takes_over_and_a_wrong_one_is_named(tmp_path):
    from trainyard.data.examples import load_transform, open_examples

    write_rows(tmp_path / "shop.csv", 200)
    module = tmp_path / "own.py"
    module.write_text(
        "import tensorflow as tf\nimport tensorflow_transform as tft\n\n"
        "def preprocessing_fn(inputs):\n"
        "    share = inputs['visits'] / tft.max(inputs['visits'])\n"
        "    return {'pair': tf.stack([share, share], 1), 'big': inputs['visits'] > 500,\n"
        "            'flag': tft.compute_and_apply_vocabulary(inputs['flag'], num_oov_buckets=1)}\n"
    )
    examples = open_examples(preprocess(recipe(tmp_path / "shop.csv", module), tmp_path / "out"))
    features, _, _ = next(iter(examples.batches("train", 64)))
    raw, _ = next(iter(examples.raw_batches("train", 64)))
    np.testing.assert_array_equal(load_transform(examples.uri)(raw)["pair"], features["pair"])
    described = {
        feature.name: (feature.dtype, feature.shape, feature.vocabulary_size) for feature in examples.document.features
    }
    assert described == {"pair": ("float32", (2,), None), "big": ("float32", (), None), "flag": ("int64", (), 3)}
    assert {feature.learned for feature in examples.document.raw_features} == {None}

    for body, sentence in [
        ("raise KeyError('nothing')", "fails .KeyError"),
        ("return {'text': inputs['flag']}", "the output 'text' is"),
    ]:
        wrong = tmp_path / f"wrong_{len(body)}.py"
        wrong.write_text(f"def preprocessing_fn(inputs):\n    {body}\n")
        with pytest.raises(ConfigurationError, match=sentence):
            preprocess(recipe(tmp_path / "shop.csv", wrong), tmp_path / "wrong")


def test_what_a_preprocessing_fn_computes_from_the_label_is_no_feature(tmp_path):
    from trainyard.data.examples import open_examples

    write_rows(tmp_path / "shop.csv", 200)
    module = tmp_path / "own.py"
    start = "import tensorflow as tf\nimport tensorflow_transform as tft\n\ndef preprocessing_fn(inputs):\n"
    module.write_text(
        f"{start}    bought = tf.cast(inputs['bought'] == 'yes', tf.int64)\n"
        "    twice = tf.map_fn(lambda value: 2 * value, bought)\n"
        "    return {'visits': tft.scale_to_z_score(inputs['visits']), 'bought': bought, 'twice': twice}\n"
    )
    examples = open_examples(preprocess(recipe(tmp_path / "shop.csv", module), tmp_path / "out"))
    assert [feature.name for feature in examples.document.features] == ["visits"]
    assert examples.document.labels == ["no", "yes"]

    for number, (body, sentence) in enumerate(
        [
            ("{'visits': inputs['visits'], 'id': tft.compute_and_apply_vocabulary(inputs['bought'])}", "an analyzer"),
            (
                "{'x': inputs['visits'] - tft.mean(tf.strings.length(inputs['bought']))}",
                "an analyzer learns from bought",
            ),
            ("{'bought': tf.strings.length(inputs['bought'])}", "each output is computed from bought"),
            ("{'age': inputs['age'], 'id': inputs['id']}", "fails .KeyError: 'id'"),
        ]
    ):
        wrong = tmp_path / f"wrong_{number}.py"
        wrong.write_text(f"{start}    return {body}\n")
        with pytest.raises(ConfigurationError, match=sentence):
            preprocess(recipe(tmp_path / "shop.csv", wrong), tmp_path / "wrong")


def test_a_module_that_imports_what_is_not_there_is_told_what_to_do(tmp_path):
    write_rows(tmp_path / "shop.csv", 20)
    module = tmp_path / "own.py"
    module.write_text("from tfx import v1 as tfx\n")
    with pytest.raises(ConfigurationError, match="imports 'tfx', which is neither installed nor beside the recipe"):
        preprocess(recipe(tmp_path / "shop.csv", module), tmp_path / "out")


def test_a_file_wrong_as_a_whole_stops_the_run_by_name(tmp_path):
    write_rows(tmp_path / "a.csv", 50)
    (tmp_path / "b.csv").write_bytes((tmp_path / "a.csv").read_bytes().replace(b"red", b"r\xe9d"))
    with pytest.raises(DataError, match=r"b.csv: row \d+: column 8 'color, or none': is not UTF-8"):
        preprocess(recipe(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_in_pieces_gives_the_bytes_of_the_whole(tmp_path, monkeypatch):
    """Its batches are others, so what is learned would differ in its last digits."""
    table = tmp_path / "shop.csv"
    write_rows(table, 600)
    whole = preprocess(recipe(table), tmp_path / "whole" / "examples")
    monkeypatch.setattr(csv_rows, "PIECE_BYTES", 5000)
    monkeypatch.setattr(csv_rows, "_MOST_BYTES", 2000)
    assert len(csv_rows.csv_pieces(TableFile(str(table), "a", table.stat().st_size))) > 5
    cut = preprocess(recipe(table), tmp_path / "cut" / "examples")
    assert storage.require(cut).files == storage.require(whole).files


def test_the_program_gives_the_bytes_of_another_process_and_exit_code_10_on_bad_data(tmp_path):
    columns = {"tiny": {"type": "numeric"}, "flag": {"type": "category"}}
    write_rows(tmp_path / "shop.csv", 200)
    (tmp_path / "bad.csv").write_text("tiny,flag,bought\n" + "1,a,yes\n2,b,no\nx,c,no\n" * 20)
    processes = []
    for output, source in (("good", "shop.csv"), ("bad", "bad.csv")):
        made_of = recipe(tmp_path / source, features=columns)
        (tmp_path / f"{output}.yaml").write_text(made_of.model_dump_json(by_alias=True))
        command = [sys.executable, "-m", "trainyard.steps", "preprocess"]
        options = ["--recipe", str(tmp_path / f"{output}.yaml"), "--output", str(tmp_path / output / "examples")]
        # Each process hashes texts in its own way, which must not show: this one by a random seed.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        processes.append(subprocess.Popen(command + options, env=environment, stderr=subprocess.PIPE, text=True))
    here = preprocess(recipe(tmp_path / "shop.csv", features=columns), tmp_path / "here" / "examples")
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 10], errors
    good = storage.committed(str(tmp_path / "good" / "examples"))
    assert good is not None and good.files == storage.require(here).files
    assert "20 of 60 records are bad (33.33%): mistyped_value 20" in errors[1]
    assert '"progress", "done": 1, "total": 1, "unit": "files", "records": 200, "peak_mib":' in errors[0]
    assert '"progress", "done": 200, "total": 200, "unit": "examples", "peak_mib":' in errors[0]
    assert not (tmp_path / "bad" / "examples").exists()


def test_a_draft_of_a_table_with_all_that_public_ones_have_is_preprocessed(tmp_path: Path) -> None:
    draw = random.Random(4)
    lines = [",work,sex,seen,visits,from,image,one,none,y"]
    for row in range(300):
        label = "rare" if row == 7 else draw.choice(["yes", "no", "", "NA"])
        seen = f"{2016 + row % 5}-0{row % 9 + 1}-11"
        work, sex = draw.choice([" Private", " ?", " State-gov"]), draw.choice(['"male"', '"female"', "NA"])
        lines.append(
            f"{row},{work},{sex},{seen},{draw.randint(0, 40)},{draw.random():.3f},{draw.gauss(0, 1):.3f},x,,{label}"
        )
    (tmp_path / "table.csv").write_text("\n".join([*lines, ""]))
    (tmp_path / "t.yaml").write_text(draft_recipe("t", "table.csv", inspect(str(tmp_path / "table.csv"), "y"))[0])
    document = Examples.read(preprocess(recipes.load(str(tmp_path / "t.yaml")), tmp_path / "out"))
    kept = [line for line in lines[1:] if line.rpartition(",")[2] in ("yes", "no", "NA")]
    assert sum(files.examples for files in document.splits.values()) == len(kept) and not document.quarantined
    assert document.labels == ["NA", "no", "yes"]
    assert {feature.name for feature in document.raw_features} == {"work", "sex", "seen", "visits", "from", "image"}
