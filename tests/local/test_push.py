"""Push into a folder that a real reader polls the way TensorFlow Serving does, with delays and kills in the writes."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf
from push_folders import evaluated, exported

from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.version import champion, record
from trainyard.contract.version import digest as model_digest
from trainyard.errors import ConfigurationError, DataError, GateRefused, TransientError
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.push import run, versions
from trainyard.steps.push.versions import Rollback, rollback
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")

RECIPE = "name: table\ndata: {format: csv, path: x.csv, features: {x: {type: numeric}}}\nmodel: {name: mlp}\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Five exports; model i multiplies by i + 1."""
    root = tmp_path_factory.mktemp("models")
    return [exported(root / f"export{index}", float(index + 1)) for index in range(5)]


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> str:
    return evaluated(tmp_path_factory.mktemp("evaluation") / "evaluation")


def push(
    evaluation: str,
    export: str,
    destination: Path,
    output: Path,
    dry_run: bool = False,
    override: str = "",
    run_folder: str = "",
) -> Pushed:
    output.mkdir(parents=True)
    recipe = documents.parse(RECIPE, Recipe, name="recipe.yaml")
    run.run(recipe, evaluation, export, output, str(destination), dry_run, override, run_folder)
    return Pushed.read(str(output))


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_push_lays_the_model_out_as_a_server_expects_and_points_the_champion_at_it(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    destination = tmp_path / "models"
    pushed = push(evaluation, models[0], destination, tmp_path / "out")
    version = destination / "1"
    assert pushed == Pushed(path=str(version), version=1, digest=pushed.digest, already=False)
    files = {str(path.relative_to(version)) for path in version.rglob("*") if path.is_file()}
    assert {"saved_model.pb", "variables/variables.index", "labels.txt", "assets/export0.asset"} <= files
    assert {name for name in files if name.startswith("assets.extra/")} == {
        "assets.extra/model.keras",
        "assets.extra/model_int8.tflite",
        "assets.extra/vocabularies/city",
    }
    assert model_digest(storage.require(str(version))) == pushed.digest
    assert "| accuracy | 0.9800 |" in (version / "README.md").read_text()
    pointer = json.loads((destination / "champion.json").read_text())
    assert len(pointer.pop("checksum")) == 64
    assert datetime.fromisoformat(pointer.pop("pushed")).utcoffset() == timedelta(0)
    assert pointer == {
        "version": 1,
        "path": "1",
        "digest": pushed.digest,
        "metrics": {"accuracy": pytest.approx(0.98)},
    }
    best = champion(str(destination))
    assert best is not None and best.path == str(version)
    served = tf.saved_model.load(best.path).signatures["serving_default"](x=tf.constant([21.0]))
    assert served["prediction"].numpy().tolist() == served["from_asset"].numpy().tolist() == [21.0]
    assert [child.name for child in destination.iterdir() if child.name.isdigit()] == ["1"]


def test_the_same_model_pushed_again_writes_nothing(models: list[str], evaluation: str, tmp_path: Path) -> None:
    destination = tmp_path / "models"
    first = push(evaluation, models[0], destination, tmp_path / "first")
    before = snapshot(destination / "1")
    again = push(evaluation, models[0], destination, tmp_path / "again")
    assert again == first.model_copy(update={"already": True})
    assert snapshot(destination / "1") == before
    assert sorted(child.name for child in destination.iterdir() if not child.name.startswith(".")) == [
        "1",
        "champion.json",
    ]


def test_versions_count_on_from_the_highest_whoever_wrote_it(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    destination = tmp_path / "models"
    for name in ("7", "9", "10", "11.tmp", "x12"):
        (destination / name).mkdir(parents=True)
    assert push(evaluation, models[0], destination, tmp_path / "a").version == 11
    assert push(evaluation, models[1], destination, tmp_path / "b").version == 12
    best = champion(str(destination))
    assert best is not None and best.version == 12


def test_an_older_model_pushed_again_becomes_the_newest_version(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    destination = tmp_path / "models"
    version_numbers = [
        push(evaluation, models[model], destination, tmp_path / f"{n}").version for n, model in enumerate((0, 1, 0))
    ]
    assert version_numbers == [1, 2, 3]
    best = champion(str(destination))
    assert best is not None and best.version == 3


def test_a_rollback_publishes_the_model_before_and_records_it_and_another_one_undoes_it(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    destination = str(tmp_path / "models")
    with pytest.raises(ConfigurationError, match="no version serves, so there is no earlier one"):
        rollback(destination)
    first = push(evaluation, models[0], Path(destination), tmp_path / "a", run_folder="runs/first")
    with pytest.raises(ConfigurationError, match="version 1 serves, and no earlier version has another model"):
        rollback(destination)
    push(evaluation, models[1], Path(destination), tmp_path / "b")
    before = snapshot(Path(destination))
    assert rollback(destination, dry_run=True).version == 3 and snapshot(Path(destination)) == before
    assert rollback(destination) == Rollback(3, f"{destination}/3", restored=1, replaced=2, changed=True)
    best = champion(destination)
    assert best is not None and (best.version, best.digest) == (3, first.digest) and best.metrics == {"accuracy": 0.98}
    old, new = (record(f"{destination}/{number}") for number in (1, 3))
    assert (new.restored, new.by, new.run) == (1, getpass.getuser(), "runs/first") and old.restored is None
    assert rollback(destination, "3").changed is False and versions.newest(destination) == 3
    assert rollback(destination).restored == 2 and rollback(destination).restored == 3, "undone, and undone again"
    assert (rollback(destination, "1").version, versions.newest(destination)) == (5, 5), "the same model serves already"


def test_a_rollback_finishes_what_was_killed_before_the_pointer_and_replaces_a_damaged_one(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    destination = str(tmp_path / "models")
    for number in (0, 1):
        push(evaluation, models[number], Path(destination), tmp_path / f"{number}")
    pointer = Path(destination, "champion.json")
    before = pointer.read_text()
    rollback(destination)
    pointer.write_text(before)
    assert rollback(destination, "1").version == 3 and versions.newest(destination) == 3
    pointer.write_text("{}")
    with pytest.raises(DataError, match="not a pointer"):
        rollback(destination)
    assert rollback(destination, "2") == Rollback(4, f"{destination}/4", restored=2, replaced=None, changed=True)


def test_a_rollback_to_files_that_are_gone_or_changed_is_refused_before_anything_changes(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    destination = tmp_path / "models"
    for number in (0, 1):
        push(evaluation, models[number], destination, tmp_path / f"{number}")
    (destination / "7").mkdir()
    (destination / "7" / "saved_model.pb").touch()
    variables, extra = destination / "1" / "variables" / "variables.index", destination / "1" / "labels.txt"
    content = variables.read_bytes()
    variables.write_bytes(content[:-1] + b"x")
    before = snapshot(destination)
    with pytest.raises(DataError, match=r"1: cannot serve, and nothing was changed.\n.*its content differs"):
        rollback(str(destination))
    variables.write_bytes(content)
    extra.unlink()
    with pytest.raises(DataError, match=r"nothing was changed.\n.*labels.txt: missing, its manifest says"):
        rollback(str(destination), "1")
    with pytest.raises(DataError, match=r"nothing was changed.\n.*no manifest, so it is not a version"):
        rollback(str(destination), "7")
    with pytest.raises(ConfigurationError, match=r"no version '3'.*The nearest is 2"):
        rollback(str(destination), "3")
    with storage.lease(str(destination)), pytest.raises(TransientError, match="is writing it"):
        rollback(str(destination), "2")
    del before["1/labels.txt"]
    after = snapshot(destination)
    assert {name for name, state in after.items() if before.get(name) != state} == {"1/variables/variables.index"}


@pytest.mark.parametrize("which", ["evaluation", "export"])
def test_a_refused_model_is_not_pushed_and_the_sentence_names_the_threshold(which: str, tmp_path: Path) -> None:
    judged = evaluated(tmp_path / "evaluation", blessed=which != "evaluation")
    export = exported(tmp_path / "export", 2.0, blessed=which != "export")
    reason = {"evaluation": "accuracy >= 0.97, was 0.9", "export": "accuracy - trained >= -0.01, was -0.25"}[which]
    with pytest.raises(GateRefused, match=reason):
        push(judged, export, tmp_path / "models", tmp_path / "out")
    assert not (tmp_path / "models").exists()


def test_a_refused_model_leaves_the_champion_as_it_is(models: list[str], evaluation: str, tmp_path: Path) -> None:
    destination = tmp_path / "models"
    push(evaluation, models[0], destination, tmp_path / "a")
    before = champion(str(destination))
    with pytest.raises(GateRefused):
        push(evaluated(tmp_path / "evaluation", blessed=False), models[1], destination, tmp_path / "b")
    assert champion(str(destination)) == before and versions.newest(str(destination)) == 1


def test_a_refused_model_is_pushed_with_a_reason_that_is_recorded_and_a_blessed_one_needs_none(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    refused, destination = evaluated(tmp_path / "evaluation", blessed=False), tmp_path / "models"
    pushed = push(refused, models[0], destination, tmp_path / "a", override="the labels of May are wrong")
    best = champion(str(destination))
    assert best is not None and best.override is not None and best.override == pushed.override
    assert (best.override.name, best.override.reason) == (getpass.getuser(), "the labels of May are wrong")
    assert datetime.fromisoformat(best.override.time).utcoffset() == timedelta(0)
    assert push(evaluation, models[1], destination, tmp_path / "b", override="not needed").override is None
    best = champion(str(destination))
    assert best is not None and (best.version, best.override) == (2, None)


def test_a_dry_run_tells_the_version_and_touches_nothing(models: list[str], evaluation: str, tmp_path: Path) -> None:
    destination = tmp_path / "models"
    assert push(evaluation, models[0], destination, tmp_path / "a", True).version == 1
    assert not destination.exists() and not list(tmp_path.glob(".*"))
    push(evaluation, models[0], destination, tmp_path / "b")
    before = snapshot(destination)
    same, other = (push(evaluation, models[n], destination, tmp_path / f"{n}", True) for n in (0, 1))
    assert (same.version, same.already) == (1, True)
    assert (other.version, other.already) == (2, False)
    assert snapshot(destination) == before


def test_a_file_that_changed_after_the_export_is_never_published(evaluation: str, tmp_path: Path) -> None:
    export = exported(tmp_path / "export", 2.0)
    path = Path(export) / "saved_model" / "saved_model.pb"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"saved_model\.pb: its content differs from its manifest's checksum"):
        push(evaluation, export, tmp_path / "models", tmp_path / "out")
    assert versions.newest(str(tmp_path / "models")) == 0 and champion(str(tmp_path / "models")) is None


def test_a_reader_that_polls_never_sees_part_of_a_version(
    models: list[str], evaluation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader takes every numeric name at first sight, compares it with all files it must hold, and loads it."""
    destination = tmp_path / "models"
    destination.mkdir()
    _slow_down(monkeypatch, 0.004)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(_serve, destination, stop)
        for index, model in enumerate(models):
            push(evaluation, model, destination, tmp_path / f"out{index}")
        rolled_back = rollback(str(destination), "2")
        time.sleep(0.05)
        stop.set()
        seen, polls, pointers = reader.result()
    assert seen == {version: float(version) for version in range(1, 6)} | {6: 2.0}, "a rollback serves the old model"
    assert rolled_back == Rollback(6, str(destination / "6"), restored=2, replaced=5, changed=True)
    assert polls > 20
    assert pointers == sorted(pointers) and pointers[-1] == 6


def test_the_reader_of_these_tests_does_catch_a_version_that_is_copied_in_place(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "models"
    destination.mkdir()
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(_serve, destination, stop)
        (destination / "1").mkdir()
        wait([reader], timeout=60)
        shutil.copytree(Path(models[0]) / "saved_model", destination / "1", dirs_exist_ok=True)
        stop.set()
        with pytest.raises(AssertionError, match="version 1 is not whole"):
            reader.result()


PUSH = """
import sys
from pathlib import Path
from trainyard.spec import documents
from trainyard.contract.artifacts.push import Pushed
from trainyard.spec.recipe import Recipe
from trainyard.steps.push import run
recipe = documents.parse(sys.argv[5], Recipe, name="recipe")
output = Path(sys.argv[4]); output.mkdir(parents=True)
run.run(recipe, sys.argv[1], sys.argv[2], output, sys.argv[3])
print(Pushed.read(str(output)).version)
"""


def test_pushes_at_one_time_take_turns_and_each_gets_a_version_of_its_own(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    destination = tmp_path / "models"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PUSH, evaluation, model, str(destination), str(tmp_path / model[-1]), RECIPE],
            stdout=subprocess.PIPE,
            text=True,
        )
        for model in models[:4]
    ]
    version_numbers = sorted(int(process.communicate(timeout=300)[0]) for process in running)
    assert version_numbers == [1, 2, 3, 4]
    for version in version_numbers:
        storage.require(str(destination / str(version)))
    best = champion(str(destination))
    assert best is not None and best.version == 4


KILLED = """
import os, signal, sys
from pathlib import Path
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe
from trainyard.steps.push import run

def push(root, countdown):
    def hook(event, arguments):
        nonlocal countdown
        writes = event in ("os.rename", "os.mkdir", "os.remove") or (event == "open" and arguments[2] & os.O_WRONLY)
        if writes and str(root / "models") in str(arguments[0]):
            countdown -= 1
            if countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    (root / "out").mkdir(parents=True)
    sys.addaudithook(hook)
    run.run(recipe, sys.argv[1], sys.argv[2], root / "out", str(root / "models"))

recipe = documents.parse(sys.argv[4], Recipe, name="recipe")
for countdown in range(1, 200):
    child = os.fork()
    if not child:
        push(Path(sys.argv[3]) / str(countdown), countdown)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != -signal.SIGKILL:
        print(countdown - 1)
        sys.exit(status)
"""


def test_a_push_killed_at_any_write_leaves_no_part_and_the_next_one_finishes_it(
    models: list[str], evaluation: str, tmp_path: Path
) -> None:
    arguments = [evaluation, models[0], str(tmp_path / "at"), RECIPE]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    killed = int(done.stdout)
    assert killed > 25
    already = []
    for countdown in range(1, killed + 1):
        destination = tmp_path / "at" / str(countdown) / "models"
        for name in [child.name for child in destination.glob("*") if child.name.isdigit()]:
            _require_whole(destination / name)
        best = champion(str(destination))
        assert best is None or (Path(best.path) / "saved_model.pb").is_file()
        again = push(evaluation, models[0], destination, tmp_path / f"again{countdown}")
        best = champion(str(destination))
        assert again.version == 1
        assert best is not None and best.version == 1 and best.digest == again.digest
        assert not list(destination.glob(".staging/*")) and not list(destination.glob(".champion*"))
        already.append(again.already)
    assert already == sorted(already) and set(already) == {False, True}


def _serve(destination: Path, stop: threading.Event) -> tuple[dict[int, float], int, list[int]]:
    """Poll `destination` until `stop`; return each version's factor, the number of polls, and the champions seen."""
    seen: dict[int, float] = {}
    pointers: list[int] = []
    polls = 0
    while True:
        ending = stop.is_set()
        polls += 1
        for name in [child.name for child in destination.iterdir()]:
            if name.isdigit() and int(name) not in seen:
                _require_whole(destination / name)
                answer = tf.saved_model.load(str(destination / name)).signatures["serving_default"](
                    x=tf.constant([1.0])
                )
                assert answer["prediction"].numpy() == answer["from_asset"].numpy()
                seen[int(name)] = float(answer["prediction"].numpy()[0])
        best = champion(str(destination))
        if best is not None and (not pointers or pointers[-1] != best.version):
            assert (Path(best.path) / "manifest.json").is_file()
            pointers.append(best.version)
        if ending:
            return seen, polls, pointers


def _require_whole(version: Path) -> None:
    manifest = storage.committed(str(version))
    assert manifest is not None, f"version {version.name} is not whole: no manifest"
    for name, file in manifest.files.items():
        path = version / name
        assert path.is_file() and path.stat().st_size == file.bytes, f"version {version.name} is not whole: {name}"


def _slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make every opening, rename and sync of a file by the pushing thread wait before and after."""
    pushing = threading.get_ident()

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            delay = seconds if threading.get_ident() == pushing else 0
            time.sleep(delay)
            result = function(*arguments, **named)
            time.sleep(delay)
            return result

        return wrapped

    for name in ("open", "mkdir", "rename", "replace"):
        monkeypatch.setattr(Path, name, slow(getattr(Path, name)))
    monkeypatch.setattr(os, "fsync", slow(os.fsync))
