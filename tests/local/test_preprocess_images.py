"""preprocess on a folder of images of every kind, good and bad, through the real Beam pipelines."""

import io
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from preprocess_sources import BAD_IMAGES, CLASSES, HOSTILE, preprocess, write_images

from trainyard.errors import DataError
from trainyard.spec.recipe import Recipe


def recipe(path: Path, **data) -> Recipe:
    source = {"format": "image_folder", "path": str(path), "max_bad_fraction": 0.1, "shard_examples": 16, **data}
    return Recipe.model_validate({"name": "pets", "data": source, "model": {"name": "cnn_small"}})


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pets")
    write_images(folder)
    return folder


@pytest.fixture(scope="module")
def examples(source, tmp_path_factory):
    from trainyard.data.examples import open_examples

    return open_examples(preprocess(recipe(source), tmp_path_factory.mktemp("out") / "examples"))


def test_every_bad_image_is_quarantined_with_its_reason_and_no_good_one(examples):
    lines = Path(examples.uri, "quarantine.jsonl").read_text().splitlines()
    assert {item["source"]: item["reason"] for item in map(json.loads, lines)} == BAD_IMAGES
    document = examples.document
    assert document.quarantined == len(BAD_IMAGES)
    assert document.quarantine == dict(Counter(BAD_IMAGES.values()))
    assert sum(split.examples for split in document.splits.values()) == 123


def test_the_classes_are_the_folders_whatever_their_names(examples):
    assert examples.document.labels == CLASSES
    assert Path(examples.uri, "labels.txt").read_text().splitlines() == CLASSES
    for split, files in examples.document.splits.items():
        assert np.bincount(examples.labels(split)).tolist() == files.class_counts
        assert sum(files.class_counts) == files.examples


def test_the_document_says_how_many_examples_each_shard_holds(source, tmp_path):
    import tensorflow as tf

    from trainyard.data.examples import open_examples

    made = open_examples(preprocess(recipe(source, shard_examples=40), tmp_path / "out"))
    for split, files in made.document.splits.items():
        counts = [sum(1 for _ in tf.data.TFRecordDataset(file)) for file in made.files(split)]
        assert files.shard_examples == counts
        assert sum(counts) == files.examples
    assert len(made.files("train")) == 3


def test_duplicates_meet_in_one_split_and_are_warned_of(examples):
    splits = {}
    for split in ("train", "eval", "test"):
        for _, _, keys in examples.batches(split, 32):
            splits |= {key.decode(): split for key in keys.numpy()}
    copies = ["dog/000.png", "dog/copy-1.png", "dog/copy-2.png", f"{HOSTILE}/as-cat.png"]
    assert len(splits) == 123
    assert len({splits[name] for name in copies}) == 1
    again, contradiction = examples.document.warnings
    assert again.startswith("3 examples repeat another one")
    assert "different labels" in contradiction
    assert HOSTILE in contradiction


def test_shards_are_even_mixed_and_hold_every_example_once(examples):
    import tensorflow as tf

    sizes = [sum(1 for _ in tf.data.TFRecordDataset(file)) for file in examples.files("train")]
    assert len(sizes) == -(-sum(sizes) // 16)
    assert max(sizes) - min(sizes) <= 2
    labels = examples.labels("train")[:16]
    assert 0 < labels.sum() < 16


def test_images_come_out_as_pillow_shows_them(examples, source):
    from PIL import Image, ImageOps

    seen = 0
    for features, _, keys in examples.batches("train", 32):
        for image, key in zip(features["image"].numpy(), keys.numpy(), strict=True):
            shown = ImageOps.exif_transpose(Image.open(source / key.decode())).convert("RGB")
            # Pillow and TensorFlow decode JPEG with different transforms: a few levels apart.
            allowed = 12 if key.endswith(b".jpg") else 0
            assert np.abs(image - np.asarray(shown, np.float32)).max() <= allowed, key
            seen += 1
    assert seen == examples.document.splits["train"].examples


def test_the_transform_graph_gives_what_training_sees(examples):
    from trainyard.data.examples import load_transform

    transform = load_transform(examples.uri)
    for split in ("train", "eval", "test"):
        for (features, labels, _), (raw, raw_labels) in zip(
            examples.batches(split, 7), examples.raw_batches(split, 7), strict=True
        ):
            np.testing.assert_array_equal(transform(raw)["image"], features["image"])
            np.testing.assert_array_equal(labels, raw_labels)


@pytest.mark.parametrize("store", ["training_size", "raw"])
def test_stored_small_the_examples_are_the_same_and_the_transform_graph_gives_what_training_sees(
    store, examples, source, tmp_path
):
    from trainyard.data.examples import load_transform, open_examples

    sized = recipe(source, image_size=(8, 9), store=store)
    smaller = sized.data.model_copy(update={"image_size": (4, 6)})  # less than any network takes
    small = open_examples(preprocess(sized.model_copy(update={"data": smaller}), tmp_path / "out"))
    assert small.document.fingerprint == examples.document.fingerprint
    assert small.document.quarantine == examples.document.quarantine
    assert [feature.pixels for feature in small.document.features] == [store == "raw"]
    transform = load_transform(small.uri)
    keys = []
    for (features, _, key), (raw, _) in zip(small.batches("train", 32), small.raw_batches("train", 32), strict=True):
        assert features["image"].shape[1:] == (4, 6, 3)
        np.testing.assert_array_equal(transform(raw)["image"], features["image"])
        keys += list(key.numpy())
    assert keys == [key for _, _, batch in examples.batches("train", 32) for key in batch.numpy()]


def test_one_example_decodes_as_in_a_batch(examples):
    import tensorflow as tf

    serialized = next(iter(tf.data.TFRecordDataset(examples.files("test"))))
    features, label = examples.decode(serialized)
    batch, labels, _ = next(iter(examples.batches("test", 1)))
    assert features["image"].shape == (10, 14, 3)
    np.testing.assert_array_equal(features["image"], batch["image"][0])
    assert label.numpy() == labels[0].numpy()


def test_statistics_count_classes_and_sizes(examples):
    statistics = json.loads(Path(examples.uri, "statistics.json").read_text())
    assert sum(statistics["classes"]["dog"].values()) == 62
    assert statistics["features"]["height"]["train"]["mean"] == 10
    assert statistics["features"]["width"]["train"]["max"] == 14


def test_a_new_image_moves_no_old_one(examples, source, tmp_path):
    """Through the other entry: resized to gray, so that only names, order and splits can be equal."""
    from PIL import Image

    from trainyard.data.examples import open_examples

    shutil.copytree(source, tmp_path / "more", symlinks=True)
    stream = io.BytesIO()
    Image.new("RGB", (14, 10), "white").save(stream, "PNG")
    (tmp_path / "more" / "dog" / "new.png").write_bytes(stream.getvalue())
    small = recipe(tmp_path / "more", image_size=(8, 9), channels=1)
    more = open_examples(preprocess(small, tmp_path / "out"))
    assert more.document.fingerprint != examples.document.fingerprint
    for split in ("train", "eval", "test"):
        old, new = (
            [key for _, _, keys in folder.batches(split, 64) for key in keys.numpy()] for folder in (examples, more)
        )
        assert [key for key in new if key != b"dog/new.png"] == old
    features, _, _ = next(iter(more.batches("train", 2)))
    assert features["image"].shape == (2, 8, 9, 1)


def test_too_many_bad_images_stop_the_run_with_their_counts(source, tmp_path):
    with pytest.raises(DataError, match=r"6 of 129 records are bad \(4.65%\): missing_label 1, not_an_image 1"):
        preprocess(recipe(source, max_bad_fraction=0.04), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tfds_folder_and_tfrecord_give_the_examples_of_the_folder(examples, source, tmp_path):
    import tensorflow as tf

    from trainyard.data.examples import open_examples

    images = sorted(file for file in source.glob("*/*") if file.relative_to(source).as_posix() not in BAD_IMAGES)
    shards = [images[::2], images[1::2]]
    for number, shard in enumerate(shards):
        with tf.io.TFRecordWriter(str(tmp_path / f"pets-train.tfrecord-{number:05}-of-00002")) as writer:
            for image in shard:
                message = tf.train.Example()
                message.features.feature["image"].bytes_list.value.append(image.read_bytes())
                message.features.feature["label"].int64_list.value.append(CLASSES.index(image.parent.name))
                writer.write(message.SerializeToString())
    kinds = {"image": {"image": {"dtype": "uint8"}}, "label": {"classLabel": {"numClasses": "2"}}}
    (tmp_path / "features.json").write_text(json.dumps({"featuresDict": {"features": kinds}}))
    split = {"name": "train", "shardLengths": [str(len(shard)) for shard in shards]}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"fileFormat": "tfrecord", "splits": [split]}))
    (tmp_path / "label.labels.txt").write_text("\n".join(CLASSES) + "\n")

    made = open_examples(preprocess(recipe(tmp_path, format="tfds"), tmp_path / "out")).document
    assert made.labels == CLASSES
    assert made.fingerprint == examples.document.fingerprint
    assert {split: files.class_counts for split, files in made.splits.items()} == {
        split: files.class_counts for split, files in examples.document.splits.items()
    }

    broken = bytearray((tmp_path / "pets-train.tfrecord-00001-of-00002").read_bytes())
    broken[len(broken) // 2] ^= 1
    (tmp_path / "pets-train.tfrecord-00001-of-00002").write_bytes(broken)
    with pytest.raises(DataError, match=r"pets-train.tfrecord-00001-of-00002: record \d+: its .* checksum"):
        preprocess(recipe(tmp_path / "*.tfrecord*", format="tfrecord"), tmp_path / "no")


def test_a_full_disk_in_a_worker_is_a_full_disk_to_the_step(source, tmp_path, monkeypatch):
    import tensorflow as tf

    from trainyard.errors import InfrastructureError

    # A device that is always full: Linux answers every write to it with ENOSPC.
    writer = tf.io.TFRecordWriter
    monkeypatch.setattr(tf.io, "TFRecordWriter", lambda _: writer("/dev/full"))
    with pytest.raises(InfrastructureError, match="the disk is full"):
        preprocess(recipe(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / ".staging").glob("*")) == []


def write_rolled(folder: Path, pixels: np.ndarray) -> None:
    from PIL import Image

    for index in range(60):
        target = folder / "ab"[index % 2] / f"{index}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.roll(pixels, index, axis=0)).save(target)


def test_twelve_bits_in_sixteen_end_the_run_and_a_white_level_keeps_them(tmp_path):
    from trainyard.data.examples import open_examples

    write_rolled(tmp_path / "pics", np.arange(120).reshape(60, 2).astype(np.uint16) * 8)
    with pytest.raises(DataError, match=r"values up to about 1023 of 65535, so 4 levels are left .* such as 1023"):
        preprocess(recipe(tmp_path / "pics", channels=1, split={"by": "class"}), tmp_path / "refused")
    scaled = recipe(tmp_path / "pics", channels=1, white_level=1023, split={"by": "class"})
    made = open_examples(preprocess(scaled, tmp_path / "out"))
    features, _, _ = next(iter(made.batches("train", 8)))
    assert len(np.unique(features["image"].numpy())) > 100
    assert made.document.image.white_level == 1023


def test_images_of_one_color_are_warned_of_and_a_run_of_nothing_else_ends(tmp_path):
    write_rolled(tmp_path / "pics", np.dstack([np.full((60, 2, 3), 255), np.arange(120).reshape(60, 2)]).astype("u1"))
    with pytest.raises(DataError, match=r"all \d+ training images are one color after decoding, such as a/\d+\.png"):
        preprocess(recipe(tmp_path / "pics", split={"by": "class"}), tmp_path / "out")
