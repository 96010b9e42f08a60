"""Code that is larger than a recipe's text may be: the archive, what is refused, and where it is kept."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.unit.test_code import MODULE, carried, load, write

from trainyard.contract import keys, version
from trainyard.contract.provenance import provenance
from trainyard.errors import ConfigurationError, DataError
from trainyard.graph import OUTPUTS
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import archive, code, documents
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.archive import Archive
from trainyard.storage import storage
from trainyard.storage.manifest import File, Manifest
from trainyard_control.api.progress import Screen
from trainyard_control.api.uploads import with_uploads
from trainyard_control.local import retention
from trainyard_control.local.local_run import LocalRun

LARGE = "x" * 200_000
FILES: dict[str, str | bytes] = {
    "shop.py": MODULE,
    "layers.py": "WIDTH = 3\n",
    "data/words.txt": LARGE,
    "data/weights.npy": b"\x93NUMPY\xff\r\n",
}


def reference(content: bytes, folder: Path) -> Archive:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "code.tar").write_bytes(content)
    return Archive(archive=str(folder / "code.tar"), sha256=hashlib.sha256(content).hexdigest())


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_larger_code_is_an_archive_that_holds_the_same_files(tmp_path: Path) -> None:
    recipe = load(tmp_path, FILES, "files=[data]")
    assert isinstance(recipe.files, Archive) and len(recipe.model_dump_json()) < 20_000
    assert {name: code.as_bytes(each) for name, each in code.files(recipe).items()} == {
        name: each if isinstance(each, bytes) else each.encode() for name, each in FILES.items()
    }
    assert load_module("shop.py", code.files(recipe), {}).build_model([], 2) == 3


@pytest.mark.parametrize(
    "files",
    [
        {"data/words.txt": "a" * 65_537},
        {"data/a.txt": "a" * 40_000, "data/b.txt": "b" * 30_000},
        {"data/words.txt": "ж" * 30_000},  # twice as long in ASCII
        {f"data/{n}.txt": "" for n in range(1001)},
    ],
)
def test_files_that_the_text_of_a_recipe_cannot_hold_are_an_archive(
    tmp_path: Path, files: dict[str, str | bytes]
) -> None:
    assert isinstance(load(tmp_path, {"shop.py": ""} | files, "files=[data]").files, Archive)


def test_the_archive_is_the_same_whatever_the_order_and_the_times_of_the_files(tmp_path: Path) -> None:
    one = load(tmp_path / "a", FILES, "files=[data]")
    another = load(tmp_path / "b", dict(reversed(FILES.items())), "files=[data]")
    for name in FILES:
        os.utime(tmp_path / "b" / name, (1, 1))
        (tmp_path / "b" / name).chmod(0o700)
    assert one.files == another.files == load(tmp_path / "b", FILES, "files=[data]").files


def test_the_files_that_travel_are_used_and_not_those_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = code.files(load(tmp_path, FILES, "files=[data]"))
    (tmp_path / "layers.py").write_text("WIDTH = 4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as a notebook and `python -m` do
    assert load_module("shop.py", files, {}).build_model([], 2) == 3


def test_keys_are_those_of_the_same_files_in_the_text_of_a_recipe(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"shop.py": MODULE, "layers.py": "WIDTH = 3\n", "a.bin": b"\xff\x00"}
    small = load(tmp_path, files, "files=[a.bin]")
    contents = {name: code.as_bytes(each) for name, each in code.files(small).items()}
    packed = small.model_copy(update={"files": archive.pack(contents)})
    for step in OUTPUTS:
        assert keys.output_uri("/runs", small, step) == keys.output_uri("/runs", packed, step)


@pytest.mark.parametrize(
    ("name", "text", "steps"),
    [
        ("data/words.txt", LARGE + "y", ["preprocess", "train"]),
        ("layers.py", "WIDTH = 4\n", ["preprocess", "train"]),
        ("layers.py", "# A comment.\nWIDTH = 3\n", []),
    ],
)
def test_a_change_in_an_archive_reruns_the_steps_that_call_the_module(
    tmp_path: Path, name: str, text: str, steps: list[str]
) -> None:
    before, after = load(tmp_path, FILES, "files=[data]"), load(tmp_path, FILES | {name: text}, "files=[data]")
    assert [step for step in OUTPUTS if provenance(before, step) != provenance(after, step)] == steps


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([(member("../shop.py"), b"")], "'../shop.py': the member's name leads out of the archive"),
        ([(member("/etc/shop.py"), b"")], "etc/shop.py': the member's name leads out of the archive"),
        ([(member("shop.py", tarfile.SYMTYPE, "/etc/passwd"), b"")], "'shop.py': is a link, which is not followed"),
        ([(member("shop.py", tarfile.LNKTYPE, "a"), b"")], "'shop.py': is a hard link, which is not followed"),
        ([(member("shop.py", tarfile.CHRTYPE), b"")], "'shop.py': is a device; a regular file is expected"),
        ([(member("shop.py", tarfile.FIFOTYPE), b"")], "'shop.py': is a named pipe"),
        ([(member("a\\b.py"), b"")], r"'a.*b.py': is no name of a file that travels"),
        ([(member("a"), b"1"), (member("a"), b"2")], "'a': is there twice"),
        ([(member(f"{n}.txt"), b"") for n in range(3)], "has more than 2 files"),
        ([(member("shop.py"), b"\xff")], "'shop.py': is not UTF-8 text"),
    ],
)
def test_an_archive_that_trainyard_does_not_pack_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[tuple[tarfile.TarInfo, bytes]], expected: str
) -> None:
    monkeypatch.setattr(archive, "MAX_FILES", 2)
    with pytest.raises(DataError, match=expected) as refused:
        archive.unpack(reference(tar_of(*members), tmp_path))
    assert str(refused.value).startswith(f"files: {tmp_path}/code.tar: ")


@pytest.mark.parametrize("content", [b"no archive", tar_of((member("a"), b"a" * 600))[:1000]])
def test_a_file_that_is_no_whole_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"code\.tar: '.*': .*Trainyard packs no such archive"):
        archive.unpack(reference(content, tmp_path))


def test_an_archive_that_was_changed_or_deleted_is_not_used(tmp_path: Path) -> None:
    named = reference(tar_of((member("a"), b"1")), tmp_path)
    Path(named.archive).write_bytes(tar_of((member("a"), b"2")))
    with pytest.raises(DataError, match=r"has the SHA-256 [0-9a-f]{12}…, and [0-9a-f]{12}… is expected"):
        archive.unpack(named)
    Path(named.archive).unlink()
    with pytest.raises(DataError, match=r"code\.tar: the archive of the code is not there. Start the run from"):
        archive.unpack(named)


def test_a_huge_archive_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "code.tar").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(DataError, match=r"has more than [0-9,]+ bytes"):
        archive.unpack(Archive(archive=str(tmp_path / "code.tar"), sha256="0" * 64))


def test_a_tree_that_is_too_large_is_refused_by_its_folders_before_a_file_is_read(tmp_path: Path) -> None:
    recipe = write(tmp_path, {"shop.py": "", "data/small.txt": "a"})
    for name, size in {"data/raw/x/a.bin": 8 << 30, "data/raw/y/b.bin": 1 << 30, "data/old/c.bin": 1 << 20}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(size)
        (tmp_path / name).chmod(0)
    with pytest.raises(
        ConfigurationError,
        match=r"files: 4 files hold 9,217.0 MiB, and at most 10,000 with 100 MiB travel with a recipe. "
        r"The largest are data/raw \(9,216.0 MiB\), data/old \(1.0 MiB\).*Nothing was sent",
    ):
        recipes.load(recipe, ["files=[data]"])


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write(tmp_path, FILES)
    words = tmp_path / "data" / "words.txt"
    fstat = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        if os.path.samestat(status, words.stat()):
            with words.open("a") as stream:
                stream.write("y")
        return status

    monkeypatch.setattr(os, "fstat", grow)
    with pytest.raises(ConfigurationError, match=r"data/words.txt: was changed while it was read. Run the command"):
        recipes.load(recipe, ["files=[data]"])


def test_a_key_in_a_large_file_is_refused(tmp_path: Path) -> None:
    text = LARGE + f"\nrisk-free ask-me eyJ\nK = 'AKIA{'A' * 16}'\n"
    with pytest.raises(ConfigurationError, match=r"files: data/words.txt: holds a password or a key") as refused:
        load(tmp_path, FILES | {"data/words.txt": text}, "files=[data]")
    assert "AKIA" not in str(refused.value)


@pytest.mark.parametrize(
    "key",
    [
        "-----BEGIN RSA PRIVATE KEY-----\n",
        *(f"{start}{'A' * 16}" for start in ("AKIA", "ASIA")),
        "AIza" + "a" * 35,
        "ya29." + "a" * 20,
        *(f"gh{kind}_{'a' * 36}" for kind in "oprsu"),
        "github_pat_" + "a" * 22,
        "hf_" + "a" * 34,
        "glpat-" + "a" * 20,
        *(f"xox{kind}-{'a' * 10}" for kind in "abprs"),
        "sk-" + "a" * 32,
        "eyJ" + "a" * 10 + ".eyJ" + "a" * 10 + ".",
    ],
)
def test_each_form_of_a_key_is_found_at_any_place(key: str) -> None:
    assert documents.holds_secret(key) and documents.holds_secret(f"a = 'sk-'\nb = '{key}'")
    assert not documents.holds_secret(key[:-1])


def test_files_named_as_the_parts_of_a_reference_are_files(tmp_path: Path) -> None:
    recipe = load(tmp_path, {"shop.py": "", "archive": "/a", "sha256": "0" * 63}, "files=[archive, sha256]")
    assert list(code.files(carried(recipe))) == ["shop.py", "archive", "sha256"]


def test_the_recipe_of_a_run_is_loaded_without_the_project(tmp_path: Path) -> None:
    recipe = load(tmp_path / "project", FILES, "files=[data]")
    (tmp_path / "again.yaml").write_text(recipe.model_dump_json())
    again = recipes.load(str(tmp_path / "again.yaml"))
    assert again == recipe and code.digest(code.files(again)) == code.digest(code.files(recipe))
    with pytest.raises(ConfigurationError, match=r"module: other.py: the archive that files names holds no such file"):
        recipes.load(str(tmp_path / "again.yaml"), ["module=other.py"])


def test_a_worker_gets_the_name_of_the_archive_and_not_its_content(tmp_path: Path) -> None:
    files = code.files(load(tmp_path, FILES, "files=[data]"))
    sent = pickle.dumps(files)
    assert len(sent) < 1000 and pickle.loads(sent) == files


def test_a_cluster_gets_the_place_of_the_archive_and_its_upload(tmp_path: Path) -> None:
    recipe, kind = load(tmp_path, FILES, "files=[data]"), environments.load("kind")
    remote, sent = with_uploads(recipe, kind)
    assert isinstance(remote.files, Archive) and remote.files.archive == sent["files"].uri
    assert sent["files"].uri.startswith(f"{kind.storage}/uploads/") and sent["files"].bytes > len(LARGE)
    assert with_uploads(remote, kind) == (remote, {})
    assert carried(remote) == remote  # compiled before the upload


def test_an_archive_that_only_this_machine_has_is_not_compiled(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"shop: files: code of more than 64 KiB is an archive on this machine"
    ):
        carried(load(tmp_path, FILES, "files=[data]"))


def test_a_storage_keeps_one_archive_which_prune_removes_when_no_output_names_it(tmp_path: Path) -> None:
    recipe, root = load(tmp_path, FILES, "files=[data]"), str(tmp_path / "runs")
    assert isinstance(recipe.files, Archive)
    stored = code.stored(recipe, root)
    assert stored == code.stored(recipe, root) == code.stored(stored, root)
    assert code.files(stored) == code.files(recipe) and isinstance(stored.files, Archive)
    place = stored.files.archive
    folder = place.removesuffix("/code.tar")
    assert storage.children(f"{root}/uploads") == [folder.rpartition("/")[2]]
    assert not retention.plan(root, 1).removals
    storage.write_text(f"{folder}/.used", "2020-01-01T00:00:00+00:00")
    with storage.stage(f"{root}/shop/train/0123", "trainyard train", origin={"uploads": [place]}):
        pass
    assert not retention.plan(root, 1).removals
    storage.remove(f"{root}/shop/train/0123")
    kept = {"recipe": {"packages": {"shop-1.0-py3-none-any.whl": {"location": place}}}}
    with storage.stage(f"{root}/shop/models/1", version.PRODUCER, origin=kept):
        pass
    assert not retention.plan(root, 1).removals
    storage.remove(f"{root}/shop/models/1")
    (removal,) = retention.plan(root, 1).removals
    assert removal.uri(root) == folder


def test_the_code_in_a_version_does_not_make_another_model() -> None:
    files = {"saved_model.pb": File(1, "00000000")}
    with_code = Manifest("p", files | {version.CODE: File(2, "00000001")})
    assert version.digest(with_code) == version.digest(Manifest("p", files))


LOADING = """import sys
from pathlib import Path
from trainyard.runtime.recipe_module import load_module
from trainyard.spec import code, documents
from trainyard.spec.recipe import Recipe
recipe = documents.load(Path(sys.argv[1]), Recipe)
module = load_module(recipe.module, code.files(recipe), {})
print(module.build_model([], 2), (Path(module.__file__).parent / "data/words.txt").stat().st_size)
"""


class FirstStep(LocalRun):
    """A run whose step loads the module in another process, in another folder and with an empty cache."""

    printed = ""

    def _process(self, step: str, output: str, arguments: dict[str, str]) -> None:
        with self._step_files(step) as (recipe, _):
            elsewhere = Path(self.root) / "elsewhere"
            elsewhere.mkdir()
            command = [sys.executable, "-c", LOADING, recipe]
            variables = os.environ | {"TRAINYARD_CACHE": str(elsewhere / "cache")}
            self.printed = subprocess.run(command, cwd=elsewhere, env=variables, stdout=-1, text=True).stdout
        with storage.stage(output, producer=f"trainyard.{step}"):
            pass


def test_a_step_runs_larger_code_in_another_process_after_the_project_was_moved_away(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("price,bought\n1,no\n")
    recipe = load(tmp_path / "project", FILES, "files=[data]", f"data.path={tmp_path}/rows.csv")
    (tmp_path / "project").rename(tmp_path / "moved")
    local = environments.load("local").model_copy(update={"storage": str(tmp_path / "storage")})
    run = FirstStep(recipe, local, "1", None, Screen())
    run.preprocess()
    assert run.printed == "3 200000\n"
    written = documents.load(tmp_path / "storage" / "shop" / "runs" / "1" / "recipe.yaml", recipes.Recipe)
    assert isinstance(written.files, Archive) and written.files.archive.startswith(f"{tmp_path}/storage/uploads/")
