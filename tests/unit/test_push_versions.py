"""Where pushed files go, and the pointer to the champion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.contract import version
from trainyard.contract.champion import Champion, champion, set_champion
from trainyard.errors import DataError
from trainyard.steps.push import versions
from trainyard.storage.storage import File, Manifest

EXPORTED = Manifest(
    producer="trainyard.export",
    files={
        name: File(bytes=size, crc32c=f"{size:08x}")
        for size, name in enumerate(
            [
                "saved_model/saved_model.pb",
                "saved_model/assets/city",
                "model.keras",
                "vocabularies/city",
                "exports.json",
            ]
        )
    },
)
BEST = Champion(version=3, path="/elsewhere/3", digest="d", metrics={"accuracy": 0.98})


def test_the_saved_model_is_the_version_and_the_rest_lies_where_servers_do_not_look() -> None:
    assert version.layout(EXPORTED) == {
        "saved_model.pb": "saved_model/saved_model.pb",
        "assets/city": "saved_model/assets/city",
        "assets.extra/model.keras": "model.keras",
        "assets.extra/vocabularies/city": "vocabularies/city",
    }


def test_a_model_s_digest_depends_on_its_files_and_not_on_what_was_measured() -> None:
    same = EXPORTED.files | {"exports.json": File(bytes=999, crc32c="other")}
    other = EXPORTED.files | {"model.keras": File(bytes=999, crc32c="other")}
    digest = version.content(EXPORTED).digest
    assert version.content(replace(EXPORTED, files=same)).digest == digest
    assert version.content(replace(EXPORTED, files=other)).digest != digest


@given(numbers=st.sets(st.integers(0, 10**6)), names=st.sets(st.sampled_from(["x1", "1.tmp", "-5", "٣", ".9", "1e3"])))
def test_the_newest_version_is_the_highest_plain_number(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int], names: set[str]
) -> None:
    folder = tmp_path_factory.mktemp("models")
    for name in {*map(str, numbers), *names}:
        (folder / name).mkdir()
    assert versions.newest(str(folder)) == max(numbers, default=0)


def test_there_is_no_champion_before_the_first_push(tmp_path: Path) -> None:
    assert champion(str(tmp_path)) is None and champion(str(tmp_path / "missing")) is None


def test_the_champion_is_found_where_its_folder_is_now(tmp_path: Path) -> None:
    (tmp_path / "before" / "3").mkdir(parents=True)
    (tmp_path / "before" / "3" / "saved_model.pb").touch()
    set_champion(str(tmp_path / "before"), BEST)
    (tmp_path / "before").rename(tmp_path / "after")
    assert champion(str(tmp_path / "after")) == BEST.model_copy(update={"path": str(tmp_path / "after" / "3")})


def test_a_pointer_to_a_version_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    set_champion(str(tmp_path), BEST)
    with pytest.raises(DataError, match="points to version 3, which is not there"):
        champion(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": "../..", "path": "x", "digest": "d", "metrics": {}}'])
def test_a_damaged_pointer_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "champion.json").write_text(text)
    with pytest.raises(DataError, match=r"champion\.json: not a pointer of Trainyard"):
        champion(str(tmp_path))
