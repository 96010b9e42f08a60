"""preprocess on a small set in the forms of ImageNet: archives, folders and TFDS, through the real pipelines."""

import json
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.data import made_imagenet
from benchmarks.data.made_imagenet import archive, image
from preprocess_sources import preprocess

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.errors import DataError
from trainyard.spec.recipe import Recipe

TRAIN, VAL, CLASSES = 40, 8, 3


def recipe(path: Path, **data: object) -> Recipe:
    source = {"format": "image_folder", "path": str(path), "split": {"by": "folder", "eval": 0.2}, **data}
    return Recipe.model_validate({"name": "pets", "data": source, "model": {"name": "cnn_small"}})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    for form in made_imagenet.FORMS:
        made_imagenet.write(folder / form, form, TRAIN, VAL, 16, CLASSES)
    return {form: folder / form for form in made_imagenet.FORMS}


def test_archives_folders_and_tfds_give_the_same_examples_in_the_official_split(sources, tmp_path):
    made = {
        form: Examples.read(
            preprocess(recipe(path, format="tfds" if form == "tfds" else "image_folder"), tmp_path / form)
        )
        for form, path in sources.items()
    }
    document = made["archives"]
    assert document.labels == made_imagenet.CLASSES[:CLASSES]
    assert document.splits["test"].class_counts == [VAL] * CLASSES
    assert sum(document.splits[split].examples for split in ("train", "eval")) == TRAIN * CLASSES
    # A binomial of 120 with 0.2: 24, with a standard deviation of 4.4.
    assert 10 < document.splits["eval"].examples < 38
    assert document.quarantined == 0 and document.warnings == []
    for other in made.values():
        assert other.fingerprint == document.fingerprint
        assert {split: files.class_counts for split, files in other.splits.items()} == {
            split: files.class_counts for split, files in document.splits.items()
        }


def test_a_cut_archive_is_counted_by_its_last_member_and_bad_members_by_their_own(tmp_path):
    good = [(f"{number}.JPEG", image(0, number, 16)) for number in range(20)]
    other = archive([(f"{number}.JPEG", image(1, number, 16)) for number in range(20)])
    cut = archive(good)
    at = cut.index(good[17][1]) + 30  # within the eighteenth image
    nested = archive([("x.tar", archive([("y.tar", b"")]))])
    inner = [("cat.tar", cut[:at]), ("dog.tar", other), ("dog/up/../../x.JPEG", b"1"), ("dog/deep.tar", nested)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pets_train.tar").write_bytes(archive(inner))
    judged = [
        (f"{name}/{number}.JPEG", image(label, 90 + number, 16))
        for label, name in enumerate(("cat", "dog"))
        for number in range(5)
    ]
    (tmp_path / "data" / "pets_val.tar").write_bytes(archive(judged))
    made = preprocess(recipe(tmp_path / "data", max_bad_fraction=0.2), tmp_path / "out")
    lines = [json.loads(line) for line in Path(made, "quarantine.jsonl").read_text().splitlines()]
    assert {item["source"]: item["reason"] for item in lines} == {
        "pets_train.tar/cat.tar/17.JPEG": "truncated_archive",
        "pets_train.tar/dog/up/../../x.JPEG": "unsafe_name",
        "pets_train.tar/dog/deep.tar/x.tar": "not_an_image",
    }
    document = Examples.read(made)
    assert document.quarantine == dict(Counter(item["reason"] for item in lines))
    assert document.splits["test"].class_counts == [5, 5]
    counts = [document.splits[split].class_counts for split in ("train", "eval")]
    assert [sum(pair) for pair in zip(*counts, strict=True)] == [17, 20]


def test_one_archive_without_a_split_is_a_folder_of_classes(tmp_path):
    names = ("cat", "dog")
    content = [
        (f"{name}/{number}.JPEG", image(label, number, 16)) for label, name in enumerate(names) for number in range(30)
    ]
    (tmp_path / "pets.tar").write_bytes(archive(content))
    source = recipe(tmp_path / "pets.tar", split={"by": "class"})
    document = Examples.read(preprocess(source, tmp_path / "out"))
    assert document.labels == ["cat", "dog"]
    assert [files.class_counts for files in document.splits.values()] == [[24, 24], [3, 3], [3, 3]]


def test_an_archive_that_is_none_ends_the_step_before_it_reads(tmp_path):
    (tmp_path / "cat.tar").write_bytes(b"<html>404</html>" * 99)
    with pytest.raises(DataError, match=r"cat\.tar: is not a tar archive"):
        preprocess(recipe(tmp_path, split={"by": "content"}), tmp_path / "out")
