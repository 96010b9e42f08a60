"""The files of a source: read, set aside with a reason, or refused; never waited for and never passed over."""

import gzip
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.contract.keys import fingerprint
from trainyard.errors import DataError
from trainyard.quality import source as inspected
from trainyard.readers.formats import FORMATS
from trainyard.spec.recipe import Recipe
from trainyard.steps.predict import source as predicted
from trainyard.steps.preprocess.readers.files import find_files
from trainyard.storage import listing
from trainyard.storage.listing import list_files, open_file
from trainyard_control.planning.data import _rows


def recipe(path: object, **data: object) -> Recipe:
    columns = {"csv": {"x": {"type": "numeric"}}}.get(str(data.get("format")), {})
    source = {"format": "image_folder", "path": str(path), "features": columns, **data}
    return Recipe.model_validate({"name": "r", "data": source, "model": {"name": "mlp" if columns else "cnn_small"}})


def listed(path: object) -> dict[str, str]:
    return {file.name: file.reason for file in list_files(str(path)).files}


@pytest.mark.parametrize("name", ["rows.tsv", "ROWS.CSV", "rows.Tsv.gz"])
def test_a_table_is_known_by_its_ending_to_preprocess_inspect_and_predict_alike(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert [Path(path).name for path in find_files(recipe(tmp_path, format="csv").data, str(tmp_path)).paths] == [name]
    assert [file.name for file in inspected.find_source(str(tmp_path)).files] == [name]
    assert predicted.find_source(str(tmp_path), images=False).kind == "csv"


FOUND = {
    "": ["B.CSV", "_a.csv", "a.csv", "c.csv.gz", "d.tsv", "empty.csv"],
    "/*": ["B.CSV", "_a.csv", "a.csv", "c.csv.gz", "d.tsv", "empty.csv", "notes.txt"],
    "/**/*.csv": ["_a.csv", "a.csv", "day=1/f.csv", "empty.csv", "sub/e.csv"],
    "/[ab]*": ["a.csv"],
    "/sub": ["sub/e.csv"],
    "/notes.txt": ["notes.txt"],
}


@pytest.mark.parametrize("path", FOUND)
def test_training_prediction_inspection_and_plans_read_the_same_files(path: str, tmp_path: Path) -> None:
    names = {name for found in FOUND.values() for name in found} | {"x.parquet", ".hidden.csv", "sub/.h.csv"}
    for name in names:
        content = b"" if name == "empty.csv" else b"x,label\n1,a\n"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source, expected = f"{tmp_path}{path}", [f"{tmp_path}/{name}" for name in FOUND[path]]
    assert find_files(recipe(source, format="csv").data, source).paths == expected
    files = predicted.find_source(source, images=False)
    assert [files.path_of(file.name) for file in files.files] == expected
    assert [table.path for table in inspected.find_source(source, "csv").tables] == expected
    counted: list[str] = []
    csv = replace(FORMATS["csv"], count=lambda file: counted.append(file.path) or 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FORMATS, "csv", csv)
        assert _rows("csv", source) == len(expected) and counted == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.png").write_bytes(b"one")
    return folder


def test_what_must_not_be_opened_is_named_with_its_reason(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"x")
    os.mkfifo(folder / "cat" / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "cat" / "socket"))
    os.mkfifo(folder / "pipe")
    (folder / "cat" / "zero.png").symlink_to("/dev/zero")
    (folder / "cat" / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "cat" / "up.png").symlink_to("../../secret.png")
    (folder / "cat" / "nothing.png").symlink_to("nowhere.png")
    (folder / "cat" / "below.png").symlink_to("1.png/2.png")
    (folder / "cat" / "itself.png").symlink_to("itself.png")
    (folder / "cat" / "circle").symlink_to("..")
    Path(os.fsdecode(bytes(folder) + b"/cat/\xff.png")).write_bytes(b"x")
    Path(os.fsdecode(bytes(folder) + b"/d\xe9j\xe0")).mkdir()
    Path(os.fsdecode(bytes(folder) + b"/d\xe9j\xe0/1.png")).write_bytes(b"x")
    assert listed(folder) == {
        "cat/1.png": "",
        "cat/pipe.png": "not_a_file",
        "cat/socket": "not_a_file",
        "pipe": "not_a_file",
        "cat/zero.png": "link_out_of_root",
        "cat/out.png": "link_out_of_root",
        "cat/up.png": "link_out_of_root",
        "cat/nothing.png": "dangling_link",
        "cat/below.png": "dangling_link",
        "cat/itself.png": "looping_link",
        "cat/circle": "looping_link",
        "cat/\\xff.png": "name_not_utf8",
        "d\\xe9j\\xe0/1.png": "name_not_utf8",
    }
    files = find_files(recipe(folder).data, str(folder))
    assert [files.name(path) for path in files.paths] == ["cat/1.png"]
    assert len(files.bad) == 12
    before = fingerprint(recipe(folder))
    (folder / "cat" / "nothing.png").unlink()
    assert fingerprint(recipe(folder)) != before


def test_links_below_the_root_are_read_and_links_to_folders_once(folder: Path, tmp_path: Path) -> None:
    (folder / "cat" / "same.png").symlink_to("1.png")
    (folder / "kitten").symlink_to("cat")
    (folder / "both").mkdir()
    (folder / "both" / "cats").symlink_to(folder / "cat")
    (folder / "again").symlink_to("both")
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert listed(link) == {
        **dict.fromkeys(["cat/1.png", "cat/same.png", "kitten/1.png", "kitten/same.png"], ""),
        **dict.fromkeys(["both/cats/1.png", "both/cats/same.png"], ""),
        "again/cats": "nested_link",
    }


def test_a_linked_folder_outside_of_the_root_is_refused_for_it_may_be_a_class(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data-of-others" / "dog").mkdir(parents=True)
    (folder / "dog").symlink_to(tmp_path / "data-of-others" / "dog")
    for look in (lambda: fingerprint(recipe(folder)), lambda: find_files(recipe(folder).data, str(folder))):
        with pytest.raises(DataError, match=r"data/dog: is a link to the folder .*/data-of-others/dog, outside of"):
            look()


def test_a_name_that_is_there_is_no_glob(folder: Path) -> None:
    strange = folder.rename(folder.parent / "img[1]*")
    (strange / "a[b].csv").write_bytes(b"x")
    assert listed(strange) == {"cat/1.png": "", "a[b].csv": ""}
    assert listed(strange / "a[b].csv") == {"a[b].csv": ""}
    assert listed(f"{strange}/cat/*.png") == {}, "a glob, whose folder is another pattern"
    assert listed(f"{folder.parent}/img*/cat/?.png") == {"img[1]*/cat/1.png": ""}
    source = recipe(strange / "a[b].csv", format="csv")
    files = find_files(source.data, source.data.path or "")
    assert files.paths == [f"{strange}/a[b].csv"]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*", {"top.csv"}),
        ("*/*.csv", {"a/1.csv", "b/1.csv"}),
        ("[!b]/*.csv", {"a/1.csv"}),
        ("**", {"top.csv", "a/1.csv", "b/1.csv", "b/deep/2.csv"}),
        ("**/*.csv", {"top.csv", "a/1.csv", "b/1.csv", "b/deep/2.csv"}),
        ("b/**.csv", {"1.csv", "deep/2.csv"}),
        ("b/d*/?.csv", {"deep/2.csv"}),
        ("b/[de]*/[^]]2.csv", set()),
    ],
)
def test_a_local_glob_means_what_it_means_in_a_bucket(glob: str, expected: set[str], tmp_path: Path) -> None:
    for name in ("top.csv", "a/1.csv", "b/1.csv", "b/deep/2.csv", ".hidden/3.csv", "a/.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    assert listed(f"{tmp_path}/{glob}").keys() == expected


def test_a_folder_that_a_glob_does_not_enter_may_be_closed(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.csv").touch()
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "other" / "deep" / "out").symlink_to("/usr")
    assert listed(f"{tmp_path}/day=*/*.csv") == {"day=1/a.csv": ""}
    with pytest.raises(DataError, match="outside of"):
        listed(f"{tmp_path}/**/*.csv")


def test_a_table_that_is_no_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("x,label\n1,a\n")
    (tmp_path / "notes.txt").write_text("read me")
    source = recipe(tmp_path, format="csv")
    files = find_files(source.data, str(tmp_path))
    assert (len(files.paths), files.ignored) == (1, ("notes.txt",))
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "gone.csv").symlink_to("nowhere")
    with pytest.raises(DataError) as error:
        find_files(source.data, str(tmp_path))
    assert "files cannot be read: gone.csv (the link leads to nowhere, which is not there); " in str(error.value)
    assert "pipe.csv (is a named pipe; a regular file is expected)" in str(error.value)


@pytest.mark.parametrize("path", ["/dev/zero", "pipe.csv", "gone.csv", "a\0b", "x" * 5000, "loop"])
def test_a_source_that_is_no_file_itself_is_refused(path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "gone.csv").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    source = str(tmp_path / path)
    with pytest.raises(DataError, match=r"^data.path: "):
        find_files(recipe("any", format="csv").data, source)


def test_a_file_that_became_a_pipe_after_it_was_listed_is_not_waited_for(folder: Path) -> None:
    path = folder / "cat" / "1.png"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="is no regular file"):
        open_file(str(path))


@pytest.mark.parametrize(
    ("bytes_", "reason"), [(16 << 20, ""), ((16 << 20) + 41, "too_many_bytes"), (2 << 30, "too_many_bytes")]
)
def test_a_file_that_is_too_large_for_an_image_is_not_read(bytes_: int, reason: str, folder: Path) -> None:
    os.truncate(folder / "cat" / "1.png", bytes_)  # a hole: it takes no room on the disk
    files = find_files(recipe(folder, max_image_pixels=10).data, str(folder))
    assert [item.reason for item in files.bad] == [reason] * bool(reason)


@pytest.mark.parametrize("path", ["/", "//", "/**/**/**", "/**/*.csv", "/tmp/../**", "/./**/x"])
def test_the_whole_file_system_is_not_looked_through(path: str) -> None:
    with pytest.raises(DataError, match=r"data\.path: .*: means the whole file system\. Name the folder"):
        list_files(path)


def test_a_folder_of_too_many_files_is_refused_in_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listed(f"{folder}/**/**/**/**/*.png") == listed(f"{folder}/**/*.png")
    monkeypatch.setattr(listing, "MAX_ENTRIES", 1)
    for path in (str(folder), f"{folder}/**"):
        with pytest.raises(DataError, match=r"there are more than 1 files and folders to look through\. Name a folder"):
            list_files(path)
