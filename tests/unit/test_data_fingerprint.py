"""The fingerprint of a source: what changes it, what does not."""

import os

import pytest

from trainyard.contract.keys import fingerprint
from trainyard.errors import DataError
from trainyard.spec.recipe import Recipe


def recipe(path=None, bundled=None) -> Recipe:
    data = {"format": "image_folder", "path": path and str(path), "bundled": bundled}
    return Recipe.model_validate({"name": "r", "data": data, "model": {"name": "cnn_small"}})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "cat" / "1.png").write_bytes(b"one")
    return tmp_path / "data"


def test_a_bundled_source_is_its_name_and_the_version_that_carries_it():
    assert fingerprint(recipe(bundled="digits")).startswith("digits scikit-learn ")


def test_a_new_changed_or_touched_file_changes_it_and_a_hidden_one_does_not(folder):
    seen = [fingerprint(recipe(folder))]
    (folder / ".cache").write_bytes(b"x")
    assert fingerprint(recipe(folder)) == seen[0]
    (folder / "cat" / "2.png").write_bytes(b"two")
    seen.append(fingerprint(recipe(folder)))
    (folder / "cat" / "1.png").write_bytes(b"longer")
    seen.append(fingerprint(recipe(folder)))
    os.utime(folder / "cat" / "2.png", ns=(1, 1))
    seen.append(fingerprint(recipe(folder)))
    assert len(set(seen)) == 4


def test_the_folder_may_move(folder, tmp_path):
    before = fingerprint(recipe(folder))
    folder.rename(tmp_path / "elsewhere")
    assert fingerprint(recipe(tmp_path / "elsewhere")) == before


def test_a_glob_counts_what_matches(folder):
    one = fingerprint(recipe(f"{folder}/*/*.png"))
    (folder / "cat" / "notes.txt").write_bytes(b"x")
    assert fingerprint(recipe(f"{folder}/*/*.png")) == one
    assert fingerprint(recipe(folder / "cat" / "1.png")) == fingerprint(recipe(f"{folder}/cat/1*.png"))


def test_nothing_there_is_a_data_error(folder):
    for path in (folder / "missing", f"{folder}/*.jpg"):
        with pytest.raises(DataError, match=r"data.path: .*: no files found"):
            fingerprint(recipe(path))
