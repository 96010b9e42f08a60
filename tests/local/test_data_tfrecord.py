"""TFRecord and TFDS folders: read whole, or refused by name."""

import gzip
import io
import json
import os
import random
import re
import struct
import tracemalloc
import zlib
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from trainyard.errors import DataError
from trainyard.readers import tf_examples
from trainyard.readers.rows import BadRow
from trainyard.readers.table_file import TableFile
from trainyard.readers.tf_examples import DamagedRecord, masked, read_records
from trainyard.spec.recipe import Recipe
from trainyard.steps.predict.columns import read_rows
from trainyard.steps.predict.pushed_model import PushedModel, RawInput
from trainyard.steps.predict.source import find_source
from trainyard.steps.preprocess.readers.files import Files, find_files
from trainyard.steps.preprocess.readers.sources import Reader
from trainyard.steps.preprocess.readers.tfds import Dataset, read_dataset


def recipe(data: dict, **more) -> Recipe:
    model = "mlp" if data.get("features") else "cnn_small"
    return Recipe.model_validate({"name": "r", "data": {"path": "x", **data}, "model": {"name": model}, **more})


def example(**features) -> bytes:
    kinds = {bytes: "bytes_list", str: "bytes_list", int: "int64_list", float: "float_list"}
    message = tf.train.Example()
    for name, value in features.items():
        encoded = value.encode() if isinstance(value, str) else value
        getattr(message.features.feature[name.replace("__", "/")], kinds[type(value)]).value.append(encoded)
    return message.SerializeToString()


def sequence_example(**context) -> tf.train.SequenceExample:
    """An example with a list of features, and perhaps a context."""
    message = tf.train.SequenceExample()
    message.feature_lists.feature_list["words"].feature.add().int64_list.value.append(1)
    if context:
        message.context.MergeFromString(tf.train.Example.FromString(example(**context)).features.SerializeToString())
    return message


def write(path, records) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def judged(path, recipe: Recipe, dataset: Dataset | None = None) -> tuple[list[dict], list[BadRow]]:
    """The good examples of a file and the bad ones. Raises what is wrong with the file as a whole."""
    rows, bad = [], []
    for item in Reader(recipe, Files(str(path).rpartition("/")[0], {}), dataset).read([str(path)]):
        if isinstance(item, DataError):
            raise item
        rows += item.to_pylist() if isinstance(item, pa.RecordBatch) else []
        bad += [item] if isinstance(item, BadRow) else []
    return rows, bad


def png(color: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (4, 4), color).save(stream, "PNG")
    return stream.getvalue()


def test_what_tensorflow_wrote_is_read_back(tmp_path):
    records = [b"", b"a", bytes(100_000)]
    path = write(tmp_path / "a.tfrecord", records)
    with Path(path).open("rb") as stream:
        assert list(read_records(stream, 1 << 20)) == records


@given(st.data())
def test_a_flipped_or_missing_byte_is_never_a_shorter_file(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flip.tfrecord"
    whole = path.read_bytes() if path.exists() else Path(write(path, [b"first", b"second"])).read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[position] ^= data.draw(st.integers(1, 255))
    first_ends = 12 + len(b"first") + 4
    cut = whole[:position]
    for broken in [bytes(flipped)] + ([cut] if position not in (0, first_ends) else []):
        with pytest.raises(DamagedRecord, match=r"^record [12]: "):
            list(read_records(io.BytesIO(broken), 1 << 20))


def test_images_with_labels_are_read_and_bad_ones_named(tmp_path):
    records = [
        example(image=png(1), label=3),
        example(image__encoded=png(2), label="three"),
        example(image=png(3)),
        example(label=1),
        example(image=b"no image", label=1),
        b"\xff\xff no example",
        sequence_example(label=1).SerializeToString(),
        sequence_example().SerializeToString(),
    ]
    path = write(tmp_path / "a.tfrecord", records)
    rows, bad = judged(path, recipe({"format": "tfrecord", "channels": 1}))
    assert [row["label"] for row in rows] == ["3", "three"]
    bad.sort(key=lambda item: item.row)
    assert [(item.key, item.reason) for item in bad] == [
        ("a.tfrecord:3", "missing_label"),
        ("a.tfrecord:4", "not_an_image"),
        ("a.tfrecord:5", "not_an_image"),
        ("a.tfrecord:6", "not_an_example"),
        ("a.tfrecord:7", "not_an_example"),
        ("a.tfrecord:8", "not_an_example"),
    ]
    assert bad[-1].detail == "is a tf.SequenceExample with feature_lists; tf.Example is read"


def test_the_columns_of_examples_of_several_types_are_all_seen(tmp_path):
    several = tf.train.Example.FromString(example(tags="a"))
    several.features.feature["tags"].bytes_list.value.append(b"b")
    records = [
        example(n=1, c="a"),
        example(n=1.5, d="2024-03-01"),
        example(n=2, c=b"\xff"),
        several.SerializeToString(),
    ]
    path = write(tmp_path / "a.tfrecord", records)
    file = TableFile(path, "a.tfrecord")
    assert sorted(tf_examples.example_columns(file)) == ["d", "n", "tags"]
    assert tf_examples.nested_examples(file) == {"c": pa.binary(), "tags": pa.list_(pa.string())}


def test_columns_are_read_by_the_types_of_the_recipe(tmp_path):
    two = tf.train.Example.FromString(example(n=1.0, c="b", y=1))
    two.features.feature["n"].float_list.value.append(2.0)
    path = write(tmp_path / "a.tfrecord", [example(n=2, c="a", y=1), example(y=0), two.SerializeToString()])
    columns = {"n": {"type": "numeric"}, "c": {"type": "category"}}
    (first, second), (third,) = judged(path, recipe({"format": "tfrecord", "label": "y", "features": columns}))
    assert (first["raw/n"], first["raw/c"]) == (2.0, "a")
    assert (str(second["raw/n"]), second["raw/c"], second["label"]) == ("nan", "", "0")
    assert (third.reason, third.detail) == ("mistyped_value", "'n': one value is expected, 2 were found")


def test_batches_hold_what_the_examples_give_one_by_one(tmp_path, monkeypatch):
    draw = random.Random(7)
    two = tf.train.Example.FromString(example(n=1.0, c="b", y=1))
    two.features.feature["n"].float_list.value.append(2.0)
    odd = [
        two.SerializeToString(),
        b"\xff no example",
        b"",
        example(n="1.5", c=2, y="1"),
        example(n="x", c=b"\xff", y=1),
    ]
    records = []
    for number in range(1200):
        columns = {"n": draw.choice([draw.gauss(0, 1e6), 0.1, 3.0, float("inf"), 1e-30]), "c": draw.choice("ab'\u2028")}
        columns |= {"d": "2024-02-29", "y": draw.randint(0, 1), "spare": b"\xff"}
        missing = draw.choice([*columns, *["none"] * 20])
        whole = number < 600 or draw.random() > 0.03
        records.append(
            example(**{name: value for name, value in columns.items() if name != missing})
            if whole
            else draw.choice(odd)
        )
    path = write(tmp_path / "a.tfrecord", records)
    kinds = {"n": "numeric", "c": "category", "d": "date"}
    features = {name: {"type": kind} for name, kind in kinds.items()}
    columns = recipe({"format": "tfrecord", "label": "y", "features": features})
    named = Dataset(label_names=["no"], image=None, records={"a.tfrecord": len(records)})
    for dataset in (None, named):
        rows, bad = judged(path, columns, dataset)
        with monkeypatch.context() as patch:
            patch.setattr(tf_examples, "MOST_ROWS", 1)
            expected_rows, expected_bad = judged(path, columns, dataset)
        assert list(map(repr, rows)) == list(map(repr, expected_rows))
        assert sorted(bad, key=lambda item: item.row) == expected_bad
        assert {item.reason for item in bad} >= {"mistyped_value", "missing_label", "not_an_example"}
        assert len(rows) > 300


def tfds_folder(folder, shards, lengths) -> Files:
    """A prepared data set as tensorflow_datasets lays it out: shards, features.json, dataset_info.json, labels."""
    folder.mkdir()
    for index, records in enumerate(shards):
        write(folder / f"pets-train.tfrecord-{index:05}-of-{len(shards):05}", records)
    prefix = "tensorflow_datasets.core.features"
    features = {
        "image": {
            "pythonClassName": f"{prefix}.image_feature.Image",
            "image": {"shape": {"dimensions": ["-1", "-1", "1"]}, "dtype": "uint8", "encodingFormat": "png"},
        },
        "label": {
            "pythonClassName": f"{prefix}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": "2"},
        },
    }
    document = {"pythonClassName": f"{prefix}.features_dict.FeaturesDict", "featuresDict": {"features": features}}
    (folder / "features.json").write_text(json.dumps(document))
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    split = {"filepathTemplate": template, "name": "train", "numBytes": "1", "shardLengths": [str(n) for n in lengths]}
    info = {"name": "pets", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "label.labels.txt").write_text("cat\ndog\n")
    return find_files(TFDS.data, str(folder))


TFDS = recipe({"format": "tfds", "channels": 1})


def test_a_tfds_folder_gives_its_class_names(tmp_path):
    shards = [[example(image=png(1), label=1)], [example(image=png(2), label=0), example(image=png(3), label=2)]]
    files = tfds_folder(tmp_path / "pets", shards, [1, 2])
    dataset = read_dataset(TFDS.data, files)
    (first, _), (second, bad) = (judged(path, TFDS, dataset) for path in files.paths)
    assert [row["label"] for row in first + second] == ["dog", "cat"]
    assert [(item.reason, item.key) for item in bad] == [("unknown_label", "pets-train.tfrecord-00001-of-00002:2")]


def test_a_tfds_shard_with_fewer_records_than_its_description_is_refused(tmp_path):
    files = tfds_folder(tmp_path / "pets", [[example(image=png(1), label=1)]], [2])
    dataset = read_dataset(TFDS.data, files)
    with pytest.raises(DataError, match=r"pets-train.tfrecord-00000-of-00001: 1 records, dataset_info.json counts 2"):
        judged(files.paths[0], TFDS, dataset)


def test_a_missing_tfds_shard_or_description_is_refused(tmp_path):
    shards = [[example(image=png(1), label=1)], [example(image=png(2), label=0)]]
    files = tfds_folder(tmp_path / "pets", shards, [1, 1])
    with pytest.raises(DataError, match=r"1 shards found, dataset_info.json counts 2"):
        read_dataset(TFDS.data, Files(files.root, dict.fromkeys(files.paths[:1], ("", 0))))
    with pytest.raises(DataError, match=r"no feature 'lable'. It has: image, label. Did you mean 'label'?"):
        read_dataset(TFDS.data.model_copy(update={"label": "lable"}), files)
    (tmp_path / "pets" / "features.json").unlink()
    with pytest.raises(DataError, match=r"no features.json"):
        read_dataset(TFDS.data, files)


def test_a_record_that_is_too_large_is_passed_over_and_checked_all_the_same(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"first", bytes(3_000_000), b"last"])
    with Path(path).open("rb") as stream:
        assert list(read_records(stream, 2_999_999)) == [b"first", 3_000_000, b"last"]
    broken = bytearray(Path(path).read_bytes())
    broken[1_000_000] ^= 1
    for content, reason in ((bytes(broken), "do not match"), (bytes(broken[:2_000_000]), "ends inside")):
        with pytest.raises(DamagedRecord, match=rf"^record 2: .*{reason}"):
            list(read_records(io.BytesIO(content), 1000))


def test_a_file_that_is_compressed_with_zlib_is_named_as_such(tmp_path):
    content = zlib.compress(Path(write(tmp_path / "a.tfrecord", [b"first"])).read_bytes())
    with pytest.raises(DamagedRecord, match=r"compressed with ZLIB\. It is read plain, or with GZIP as \.tfrecord\.gz"):
        list(read_records(io.BytesIO(content), 1000))


def test_a_zipped_bomb_of_one_record_takes_no_memory_of_its_size(tmp_path):
    path = tmp_path / "bomb.tfrecord.gz"
    size = 300_000_000
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for part in framed(size):
            stream.write(part)
    assert path.stat().st_size < 3_000_000
    columns = recipe({"format": "tfrecord", "label": "y", "features": {"n": {"type": "numeric"}}})
    tracemalloc.start()
    try:
        _, (item,) = judged(path, columns)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert (item.key, item.reason) == ("bomb.tfrecord.gz:1", "too_many_bytes")


def framed(size: int):
    """Yield a TFRecord of so many zeros, in parts."""
    length = struct.pack("<Q", size)
    yield length + struct.pack("<I", masked(google_crc32c.value(length)))
    zeros, crc = bytes(1_000_000), 0
    for _ in range(size // len(zeros)):
        crc = google_crc32c.extend(crc, zeros)
        yield zeros
    yield struct.pack("<I", masked(crc))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("features.json", b"[1]", "Input should be an object"),
        ("features.json", b"[" * 100_000, "Invalid JSON"),
        ("features.json", b'{"featuresDict": {"features": {"label": 7}}}', "featuresDict: features: label: "),
        ("features.json", b"\xff\xfe{}", "cannot be read"),
        (
            "dataset_info.json",
            b'{"splits": [{"name": "train", "shardLengths": ["many"]}]}',
            "splits: 0: shardLengths: 0: ",
        ),
        ("dataset_info.json", b'{"splits": [{"name": "train", "shardLengths": [-1]}]}', "splits: 0: shardLengths: 0: "),
        ("dataset_info.json", b'{"splits": 7}', "splits: "),
        ("label.labels.txt", b"caf\xe9\n", "cannot be read"),
    ],
)
def test_a_description_that_is_not_one_is_refused_by_name(name, content, sentence, tmp_path):
    files = tfds_folder(tmp_path / "pets", [[example(image=png(1), label=1)]], [1])
    (tmp_path / "pets" / name).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(f"pets/{name}: {sentence}")):
        read_dataset(TFDS.data, files)


def test_a_description_that_is_a_pipe_or_huge_and_a_shard_beyond_the_last_are_refused(tmp_path):
    files = tfds_folder(tmp_path / "pets", [[example(image=png(1), label=1)]], [1])
    shard = Path(files.paths[0])
    beyond = shard.rename(shard.with_name("pets-train.tfrecord-00001-of-00001"))
    with pytest.raises(DataError, match=r"is shard 00001 of 00001, dataset_info.json counts 1 from 0 on"):
        read_dataset(TFDS.data, find_files(TFDS.data, files.root))
    beyond.rename(shard)
    os.truncate(tmp_path / "pets" / "label.labels.txt", 65 << 20)
    with pytest.raises(DataError, match=r"label.labels.txt: has more than"):
        read_dataset(TFDS.data, files)
    (tmp_path / "pets" / "features.json").unlink()
    os.mkfifo(tmp_path / "pets" / "features.json")
    with pytest.raises(DataError, match=r"features.json: is no regular file|features.json: cannot be read"):
        read_dataset(TFDS.data, files)


def test_a_class_name_may_hold_what_python_takes_for_the_end_of_a_line(tmp_path):
    files = tfds_folder(tmp_path / "pets", [[example(image=png(1), label=1)]], [1])
    (tmp_path / "pets" / "label.labels.txt").write_bytes("cat\u2028s\r\ndog\x0cs\r\n".encode())
    assert read_dataset(TFDS.data, files).label_names == ["cat\u2028s", "dog\x0cs"]


@pytest.mark.parametrize("count", [3, 200])
def test_several_values_of_a_label_or_a_list_are_read_as_the_text_that_a_table_has(tmp_path, count):
    def listed(number):
        message = tf.train.Example()
        features = message.features.feature
        features["genres"].bytes_list.value.extend([b"rock", b"pop"][: number % 3])
        features["years"].int64_list.value.extend(range(number % 2 * 2))
        features["n"].float_list.value.append(number)
        return message.SerializeToString()

    path = write(tmp_path / "a.tfrecord", [listed(number) for number in range(count)])
    years = {"type": "text", "separator": "|"}
    songs = recipe(
        {
            "format": "tfrecord",
            "label": "genres",
            "label_separator": ";",
            "features": {"n": {"type": "numeric"}, "years": years},
        },
        task="multi_label",
    )
    rows, bad = judged(path, songs)
    labels = ["", "rock", "pop\nrock"]
    assert (bad, [row["label"] for row in rows]) == ([], [labels[number % 3] for number in range(count)])
    years = [row["raw/years"] for row in rows]
    assert years == ["0|1" if number % 2 else "" for number in range(count)]

    items = [
        {"name": "n", "dtype": "float32", "column": {"type": "numeric"}},
        {"name": "years", "dtype": "string", "column": {"type": "text", "separator": "|"}},
    ]
    inputs = tuple(map(RawInput.model_validate, items))
    model = PushedModel(folder="", inputs=inputs)
    batches = list(read_rows(find_source(path, images=False), model, None))
    served = [text for batch in batches for text in batch.inputs["years"]]
    assert served == years, "a prediction reads what the training read"


def test_an_image_may_have_several_classes(tmp_path):
    message = tf.train.Example.FromString(example(image=png(7), label="sky;sea "))
    path = write(tmp_path / "a.tfrecord", [message.SerializeToString()])
    images = recipe({"format": "tfrecord", "label_separator": ";"}, task="multi_label")
    ([row], []) = judged(path, images)
    assert row["label"] == "sea\nsky"
