"""A tar archive, whoever made it, holds no surprise; a split by folder is known before an image is read."""

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import pytest
from benchmarks.data.made_imagenet import archive

from trainyard.errors import ConfigurationError, DataError
from trainyard.quality.source import find_source
from trainyard.readers.rows import WHOLE, Piece
from trainyard.spec import documents
from trainyard.spec.recipe import Data, Recipe
from trainyard.steps.preprocess.readers.files import find_files, names_in, tar_pieces
from trainyard.steps.preprocess.readers.official import with_official
from trainyard.storage import tar


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, form: int = tarfile.GNU_FORMAT) -> bytes:
    """One member with its headers."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
    return info.tobuf(form, "utf-8", "surrogateescape") + content + bytes(-len(content) % 512)


def walked(content: bytes) -> list[tuple[str, int, str]]:
    return [(member.name, member.size, member.reason) for member in tar.members(io.BytesIO(content))]


END = bytes(1024)
LONG = "a/" * 150 + "x.jpg"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_found_with_names_of_any_length_and_alphabet(form):
    names = ["./cat/1.jpg", "dög/2.jpg", *([LONG] if form != tarfile.USTAR_FORMAT else [])]
    made = b"".join(entry(name, name.encode() * 100, form=form) for name in names) + END
    stream = io.BytesIO(made)
    seen = list(tar.members(stream))
    assert [member.name for member in seen] == ["cat/1.jpg", *names[1:]]
    for member, name in zip(seen, names, strict=True):
        assert made[member.at : member.at + member.size] == name.encode() * 100


def test_what_is_no_image_of_the_archive_is_named_with_its_reason():
    made = (
        entry("cat", kind=tarfile.DIRTYPE)
        + entry("../up.jpg", b"1")
        + entry("/root.jpg", b"1")
        + entry("cat/../../up.jpg", b"1")
        + entry("cat/link.jpg", kind=tarfile.SYMTYPE)
        + entry("cat/hard.jpg", kind=tarfile.LNKTYPE)
        + entry("cat/pipe.jpg", kind=tarfile.FIFOTYPE)
        + entry("cat/sda.jpg", kind=tarfile.BLKTYPE)
        + entry("cat/\udcff.jpg", b"1")
        + entry("cat/._hidden.jpg", b"1")
        + entry("cat/holes.jpg", b"1", kind=tarfile.GNUTYPE_SPARSE)
        + entry("cat/good.jpg", b"1")
        + END
    )
    assert walked(made) == [
        ("../up.jpg", 1, "unsafe_name"),
        ("root.jpg", 1, "unsafe_name"),
        ("cat/../../up.jpg", 1, "unsafe_name"),
        ("cat/link.jpg", 0, "link_in_archive"),
        ("cat/hard.jpg", 0, "link_in_archive"),
        ("cat/pipe.jpg", 0, "not_a_file"),
        ("cat/sda.jpg", 0, "not_a_file"),
        ("cat/\\xff.jpg", 1, "name_not_utf8"),
        ("cat/holes.jpg", 1, "not_a_file"),
        ("cat/good.jpg", 1, ""),
    ]


def huge(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header alone that promises so many bytes."""
    info = tarfile.TarInfo("huge.jpg")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("tail", "reason", "sentence"),
    [
        (b"", "truncated_archive", "in or after cat/1.jpg"),
        (b"\0" * 100, "truncated_archive", "in or after cat/1.jpg"),
        (b"garbage!" * 64, "broken_archive", "after cat/1.jpg"),
        (huge(1 << 40), "truncated_archive", "in or after huge.jpg"),
        (huge(1 << 62), "broken_archive", "promises 4,611,686,018,427,387,904 bytes"),
        (huge(-1024), "broken_archive", "promises -1,024 bytes"),
        (huge(1 << 33, tarfile.XHDTYPE), "broken_archive", "an extended header has 8,589,934,592 bytes"),
        (huge(1 << 33, tarfile.GNUTYPE_LONGNAME), "broken_archive", "an extended header has 8,589,934,592 bytes"),
        (entry("x", b"no lengths at all\n", kind=tarfile.XHDTYPE), "broken_archive", "an extended header is invalid"),
        (entry("x", b"12 size=-99\n", kind=tarfile.XHDTYPE) + huge(5), "broken_archive", "promises -99 bytes"),
        (entry("x", b"0 path=x\n", kind=tarfile.XHDTYPE), "broken_archive", "an extended header is invalid"),
    ],
)
def test_a_cut_or_broken_archive_says_which_member_was_the_last(tail, reason, sentence):
    seen = [*tar.members(io.BytesIO(entry("cat/1.jpg", b"1") + tail))]
    assert seen[0].name == "cat/1.jpg" and not seen[0].reason
    assert seen[-1].reason == reason and sentence in seen[-1].detail
    assert len(seen) <= 3


def test_an_archive_in_an_archive_ends_where_its_member_does():
    outer = archive([("a.tar", entry("x.jpg", b"1") + huge(4096)), ("b.tar", archive([("y.jpg", b"22")]))])
    stream = io.BytesIO(outer)
    first, second = tar.members(stream)
    assert [(inner.name, inner.reason) for inner in tar.inside(stream, first)] == [
        ("x.jpg", ""),
        ("huge.jpg", "truncated_archive"),
    ]
    assert [inner.name for inner in tar.inside(stream, second)] == ["y.jpg"]


def test_more_members_than_are_taken_end_the_walk(monkeypatch):
    monkeypatch.setattr(tar, "_MAX_MEMBERS", 3)
    seen = walked(b"".join(entry(f"{number}.jpg") for number in range(9)))
    assert [name for name, _, _ in seen[:3]] == ["0.jpg", "1.jpg", "2.jpg"]
    assert seen[3][2] == "broken_archive" and len(seen) == 4


def test_pieces_begin_at_whole_members(tmp_path, monkeypatch):
    monkeypatch.setattr("trainyard.steps.preprocess.readers.files.PIECE_BYTES", 2048)
    path = tmp_path / "train.tar"
    path.write_bytes(archive([(f"n{number}.tar", archive([("x.jpg", b"1" * 100)])) for number in range(3)]))
    pieces = tar_pieces(str(path), "train.tar")
    assert [piece.start for piece in pieces] == [0, 10752, 21504] and pieces[-1].end is None
    with path.open("rb") as stream:
        assert [next(tar.members(stream, piece.start)).name for piece in pieces] == ["n0.tar", "n1.tar", "n2.tar"]
    assert all(isinstance(piece, Piece) for piece in pieces)


@pytest.mark.parametrize("content", [b"", b"<html>404</html>" * 99])
def test_a_file_that_is_no_archive_is_refused_by_name(content, tmp_path):
    path = tmp_path / "n01.tar"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"n01\.tar: is not a tar archive, despite its name\. Copy it again"):
        tar_pieces(str(path), "n01.tar")
    outer = tmp_path / "train.tar"
    outer.write_bytes(archive([("n01.tar", content)]))
    if content:
        with pytest.raises(DataError, match=r"train\.tar/n01\.tar: is not a tar archive"):
            tar_pieces(str(outer), "train.tar")


def test_an_archive_that_cannot_be_read_is_a_sentence(tmp_path):
    assert tar_pieces(str(tmp_path / "gone.tar"), "gone.tar") == [WHOLE]
    with pytest.raises(DataError, match=r"gone\.tar: cannot be read \(.*No such file.*\)\. Check its permissions"):
        names_in(str(tmp_path / "gone.tar"))
    noise = random.Random(1).randbytes(100_000)
    cut = gzip.compress(archive([("cat/1.jpg", noise)]))[:-200]
    (tmp_path / "cut.tar.gz").write_bytes(cut)
    with pytest.raises(DataError, match=r"cut\.tar\.gz: cannot be read \(Compressed file ended"):
        names_in(str(tmp_path / "cut.tar.gz"))


def data(path: Path, **split: object) -> Data:
    source = {"format": "image_folder", "path": str(path), "split": {"by": "folder", **split}}
    return Recipe.model_validate({"name": "pets", "data": source, "model": {"name": "cnn_small"}}).data


def make(folder: Path, *names: str, **lists: str) -> Data:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    for name, text in lists.items():
        (folder / f"{name}.{'csv' if name.startswith('LOC') else 'txt'}").write_text(text)
    return data(folder)


def split_files(made: Data):
    return with_official(find_files(made, made.path or ""), made)


TRAIN = ("train/cat/1.jpg", "train/dog/2.jpg")
FLAT = ("val/v_00000001.jpg", "val/v_00000002.jpg")


def test_val_judges_train_trains_and_others_are_left_out(tmp_path):
    files = split_files(make(tmp_path, *TRAIN, "val/cat/3.jpg", "val/dog/4.jpg", "test/5.jpg", "notes.txt"))
    assert len(files.paths) == len(files.states) == 4
    assert files.official.parts == {"train": "train", "val": "test"}
    assert files.ignored == ("notes.txt", "test/5.jpg")
    assert files.official.folder("val/cat/3.jpg") == "cat"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("val_labels", "dog\ncat\n"),
        ("val_labels", "v_00000002.jpg cat\nv_00000001.jpg dog\n"),
        ("val_labels", "v_00000001\tdog\n\nv_00000002\tcat\r\n"),
        ("LOC_val_solution", "ImageId,PredictionString\nv_00000002,cat 1 2 3 4\nv_00000001,dog 5 6 7 8 dog 1 1 1 1 \n"),
    ],
)
def test_flat_images_have_the_classes_of_the_list_beside_them(name, text, tmp_path):
    files = split_files(make(tmp_path, *TRAIN, *FLAT, **{name: text}))
    assert [files.official.label(flat) for flat in FLAT] == ["dog", "cat"]
    assert files.ignored == ()


@pytest.mark.parametrize(
    ("names", "lists", "sentence"),
    [
        (TRAIN, {}, r"finds no folder or archive that judges \(val, validation, test\) in .*There are: train\. Name"),
        (("val/cat/1.jpg",), {}, r"no folder or archive that trains \(train\) in .*There are: val\."),
        (("cat/1.jpg", "dog/1.jpg"), {}, r"no folder or archive that trains \(train\) .*There are: cat, dog\."),
        ((*TRAIN, *FLAT), {}, r"2 images in val lie in no class folder, such as val/v_00000001.jpg\. Put their"),
        ((*TRAIN, *FLAT), {"val_labels": "cat\n"}, r"classes of 1 images, and 2 lie in val .*this very split"),
        ((*TRAIN, *FLAT), {"val_labels": "v_1 cat\nv_9 dog\n"}, r"has no class for 2 of the images in val, such as"),
        ((*TRAIN, *FLAT), {"val_labels": "v_1 cat\nv_9\n"}, r"row 2 has no class, 'v_9' was found"),
        ((*TRAIN, *FLAT), {"val_labels": "cat\ncow\n"}, r"1 classes are in val and not in train, such as cow\. Each"),
        ((*TRAIN, "val/cat/3.jpg"), {}, r"1 classes are in train and not in val, such as dog\."),
        ((*TRAIN, "val/cat/3.jpg", "my_train/cat/1.jpg"), {}, r"my_train and train in .* both are the split train\."),
    ],
)
def test_a_split_that_cannot_be_is_one_sentence_before_an_image_is_read(names, lists, sentence, tmp_path):
    with pytest.raises(DataError, match=sentence) as error:
        split_files(make(tmp_path, *names, **lists))
    assert "\n" not in str(error.value)


def test_the_class_of_an_archive_in_val_alone_is_known_too(tmp_path):
    (tmp_path / "img_train.tar").write_bytes(archive([(f"{name}.tar", archive([("1.jpg", b"x")])) for name in "ab"]))
    (tmp_path / "img_val.tar").write_bytes(archive([(f"{name}/1.jpg", b"x") for name in "abc"]))
    with pytest.raises(DataError, match=r"1 classes are in img_val and not in img_train, such as c\."):
        split_files(data(tmp_path))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("format: tfrecord, path: x, split: {by: folder}", "data.split: by: folder is for images in folders"),
        ("format: image_folder, path: x, split: {by: folder, test: 0.2}", "train and test are not for by: folder"),
        ("format: image_folder, path: x, split: {by: folder, column: y}", "column is for by: group, time or column"),
    ],
)
def test_a_recipe_says_where_a_split_by_folder_can_be(source, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        documents.parse(f"name: pets\ndata: {{{source}}}\nmodel: {{name: cnn_small}}", Recipe, name="x", overrides=[])


def test_shards_of_a_prepared_data_set_are_of_the_split_in_their_names(tmp_path):
    from trainyard.steps.preprocess.readers.tfds import read_dataset

    for split in ("train", "validation", "test"):
        (tmp_path / f"imagenet2012-{split}.tfrecord-00000-of-00001").write_bytes(b"")
    kinds = {"image": {"image": {}}, "label": {"classLabel": {}}}
    (tmp_path / "features.json").write_text(json.dumps({"featuresDict": {"features": kinds}}))
    splits = [{"name": name, "shardLengths": ["3"]} for name in ("train", "validation", "test", "more")]
    (tmp_path / "dataset_info.json").write_text(json.dumps({"splits": splits}))
    made = data(tmp_path).model_copy(update={"format": "tfds"})
    files = split_files(made)
    names = [files.name(path) for path in files.paths]
    assert [files.official.split(name) for name in names] == ["train", "test"]
    assert read_dataset(made, files).records == dict.fromkeys(names, 3)
    assert files.ignored == ("imagenet2012-test.tfrecord-00000-of-00001",)


def test_a_look_reads_few_headers_and_estimates_the_rest_by_bytes(tmp_path):
    path = tmp_path / "train.tar"
    classes = [archive([(f"{number}.jpg", b"1" * 1000) for number in range(count)]) for count in (40, 20)]
    path.write_bytes(archive([(f"n{number}.tar", content) for number, content in enumerate(classes)]))
    whole, few = (tar.list_archive(str(path), path.stat().st_size, limit) for limit in (None, 12))
    assert (whole.count, whole.is_whole) == (60, True) and len({member.name for member in whole.members}) == 60
    assert [member.name for member in few.members] == [f"n{n}/{number}.jpg" for n in (0, 1) for number in range(5)]
    assert not few.is_whole and 60 <= few.count < 75, "what closes an archive counts as members here"
    packed = tmp_path / "train.tar.gz"
    packed.write_bytes(gzip.compress(entry("bomb.jpg", b"0") + huge(1 << 50) + b"0" * 9999))
    assert len(tar.list_archive(str(packed), 99, 12).members) == 2, "nothing far behind is unpacked to be skipped"


def test_members_are_found_again_by_their_place(tmp_path):
    (tmp_path / "img_train.tar.gz").write_bytes(gzip.compress(archive([("cat/1.jpg", b"x"), ("dog/2.jpg", b"yy")])))
    source = find_source(str(tmp_path), "image_folder", has_splits=True)
    assert [(file.name, source.label(file.name)) for file in source.files] == [
        ("img_train/cat/1.jpg", "cat"),
        ("img_train/dog/2.jpg", "dog"),
    ]
    assert [source.open(file).read() for file in reversed(source.files)] == [b"yy", b"x"]
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert find_source(str(tmp_path)).kind == "csv", "an archive beside a table may hold anything"
    alone = find_source(str(tmp_path / "img_train.tar.gz"), "image_folder")
    assert [file.name for file in alone.files] == ["cat/1.jpg", "dog/2.jpg"]
    with pytest.raises(OSError, match="at most 268,435,456 are read"):
        tar.Archives().read(str(tmp_path / "img_train.tar.gz"), 512, 1 << 40)
