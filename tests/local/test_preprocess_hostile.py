"""preprocess on a folder with everything that would hang, crash or mislead a reader, through the real pipelines."""

import gzip
import json
import os
import socket
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from preprocess_sources import preprocess

from trainyard.contract.artifacts.preprocess import Examples
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec.recipe import Recipe

GOOD = 40  # images a class

HOSTILE = {
    "cat/cut.png.gz": "broken_gzip",
    "cat/no.png.gz": "broken_gzip",
    "cat/bomb.png.gz": "too_many_bytes",
    "cat/huge.png": "too_many_bytes",
    "cat/pipe.png": "not_a_file",
    "cat/socket": "not_a_file",
    "cat/zero.png": "link_out_of_root",
    "cat/secret.png": "link_out_of_root",
    "cat/nothing.png": "dangling_link",
    "cat/itself.png": "looping_link",
    "cat/circle": "looping_link",
    "cat/\\xff.png": "name_not_utf8",
    "d\\xe9j\\xe0/0.png": "name_not_utf8",
    "do\ng/0.png": "unknown_label",
    "program.png": "missing_label",
    "cat/program.png": "not_an_image",
    "gone": "dangling_link",
}


def recipe(path: Path, **data: object) -> Recipe:
    source = {"format": "image_folder", "path": str(path), "max_image_pixels": 1000, "max_bad_fraction": 0.2, **data}
    source["split"] = {"train": 0.6, "eval": 0.2, "test": 0.2}
    return Recipe.model_validate({"name": "pets", "data": source, "model": {"name": "cnn_small"}})


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose own name is a glob, with three classes, one of them a link, and an entry for each of `HOSTILE`."""
    folder = tmp_path_factory.mktemp("hostile") / "img[1]"
    draw = np.random.default_rng(5)
    for name, level in (("cat", 60), ("dog", 180), (".store/bird", 120)):
        (folder / name).mkdir(parents=True)
        for index in range(GOOD):
            pixels = np.clip(draw.normal(level, 30, (6, 6, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    (folder / "bird").symlink_to(".store/bird")
    good = (folder / "dog" / "0.png").read_bytes()
    (folder / "dog" / "zipped.png.gz").write_bytes(gzip.compress(good))
    (folder / "dog" / "linked.png").symlink_to("../cat/../dog/0.png")
    (folder / "dog" / 'line\u2028 "feed\n.png').write_bytes(good)
    _write_hostile(folder, good)
    return folder


def _write_hostile(folder: Path, good: bytes) -> None:
    cat = folder / "cat"
    (cat / "cut.png.gz").write_bytes(gzip.compress(good)[:-20])
    (cat / "no.png.gz").write_bytes(good)
    (cat / "bomb.png.gz").write_bytes(gzip.compress(bytes(40 << 20), 1))
    (cat / "huge.png").write_bytes(good)
    os.truncate(cat / "huge.png", 2 << 30)  # a hole: it takes no room on the disk
    os.mkfifo(cat / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        folder_number = os.open(cat, os.O_RDONLY)  # for the whole path may be longer than a socket's name
        server.bind(f"/proc/self/fd/{folder_number}/socket")
        os.close(folder_number)
    (cat / "zero.png").symlink_to("/dev/zero")
    (folder.parent / "secret.png").write_bytes(good)
    (cat / "secret.png").symlink_to("../../secret.png")
    (cat / "nothing.png").symlink_to("nowhere.png")
    (cat / "itself.png").symlink_to("itself.png")
    (cat / "circle").symlink_to("..")
    (folder / "gone").symlink_to("/no/such/class")
    Path(os.fsdecode(bytes(cat) + b"/\xff.png")).write_bytes(good)
    for name in (b"/d\xe9j\xe0", b"/do\ng"):
        Path(os.fsdecode(bytes(folder) + name)).mkdir()
        Path(os.fsdecode(bytes(folder) + name + b"/0.png")).write_bytes(good)
    for path in (folder / "program.png", cat / "program.png"):
        Image.new("RGB", (6, 6)).save(path, "EPS")


def test_a_hostile_folder_is_read_or_set_aside_to_the_last_entry(hostile: Path, tmp_path: Path) -> None:
    made = preprocess(recipe(hostile), tmp_path / "out")
    lines = Path(made, "quarantine.jsonl").read_text().split("\n")[:-1]
    assert {item["source"]: item["reason"] for item in map(json.loads, lines)} == HOSTILE
    document = Examples.read(made)
    assert document.quarantined == len(lines) == len(HOSTILE)
    assert document.quarantine == dict(Counter(HOSTILE.values()))
    assert document.labels == ["bird", "cat", "dog"]
    counts = np.sum([split.class_counts for split in document.splits.values()], axis=0)
    assert counts.tolist() == [GOOD, GOOD, GOOD + 3]


def test_more_of_it_than_the_recipe_allows_ends_the_run_with_the_counts(hostile: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=rf"{len(HOSTILE):,} of {3 * GOOD + 3 + len(HOSTILE):,} records are bad .*not_a_file 2"
    ):
        preprocess(recipe(hostile, max_bad_fraction=0.01), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_storage_that_beam_would_take_for_a_pattern_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"out\[1\].*: holds one of the characters"):
        preprocess(recipe(tmp_path / "nothing"), tmp_path / "out[1]")
