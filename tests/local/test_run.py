"""The whole command on real data: what a newcomer does first, and what goes wrong after that."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import descendants

sys.path.insert(0, str(Path(__file__).parent.parent / "golden"))
import screenshots

import trainyard as ty
from trainyard.contract import keys
from trainyard.errors import DataError, InfrastructureError
from trainyard.spec import recipe as recipes
from trainyard.storage import storage
from trainyard_control.api import drawing
from trainyard_control.cli import screen

pytestmark = pytest.mark.usefixtures("warm_processes")

TRAINYARD = [str(Path(sys.executable).parent / "trainyard")]
FEW = ["--set", "export.formats=[saved_model]", "--set", "evaluate.bootstrap=20"]


def environment(folder: Path) -> Path:
    """Write an environment that stores below `folder`."""
    file = folder / "here.yaml"
    file.write_text(yaml.safe_dump({"target": "local", "storage": str(folder / "storage")}))
    return file


def trainyard(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run([*TRAINYARD, *arguments], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    return ended


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def record(here: Path, temporary: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        ended = trainyard("run", "digits", "-e", str(here), "-o", "json", "--require-blessed")
    return json.loads(ended.stdout)


def test_a_run_leaves_no_temporary_file(record: dict[str, Any], temporary: Path) -> None:
    assert [path.name for path in temporary.iterdir()] == [f"trainyard-cache-{os.geteuid()}"]
    assert not [*temporary.glob("*/*")]


def test_the_default_recipe_reaches_its_accuracy_and_tells_all_of_the_run(record: dict[str, Any]) -> None:
    assert record["metrics"]["accuracy"] >= 0.98
    assert sum(record["data"][split] for split in ("train", "eval", "test")) + record["data"]["quarantined"] == 1797
    assert record["gate"]["verdict"] == "blessed"
    assert set(record) == {
        *("recipe", "run_id", "data", "train", "metrics", "remark", "gate", "exports", "pushed", "report"),
        *("seconds", "folders", "time_to"),
    }
    assert record["time_to"] is None
    assert record["remark"] == "'4' as the answer to everything has accuracy 0.0876."
    assert {export["format"] for export in record["exports"]} == {
        *("saved_model", "keras", "litert_float32", "litert_float16", "litert_int8"),
    }
    assert all(Path(export["path"]).exists() for export in record["exports"])
    assert record["train"]["bottleneck"] in ("input", "compute", "unclear")
    assert (Path(record["pushed"]["path"]) / "saved_model.pb").is_file()
    assert "<html" in Path(record["report"]).read_text(encoding="utf-8")


def test_the_readme_shows_the_screen_of_such_a_run(
    here: Path, record: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "_PLAIN_WIDTH", 1000)  # the test's folders have longer names than the README's
    screen.show(ty.runs(str(here))[record["run_id"]])
    shown = screenshots.structure(capsys.readouterr().out.splitlines())
    drawn = screenshots.structure(screenshots.lines((screenshots.ASSETS / "run.svg").read_text(encoding="utf-8")))
    assert drawn[drawn.index("digits · ✓ blessed") :] == shown, "`make screenshots` draws it again"


def test_a_second_run_uses_what_is_there_and_pushes_nothing_new(here: Path, record: dict[str, Any]) -> None:
    again = json.loads(trainyard("run", "digits", "-e", str(here), "-o", "json").stdout)
    assert again["pushed"] == record["pushed"]
    assert again["train"] == record["train"]  # its speed, too: it did not train again
    assert not list(Path(record["report"]).parents[2].glob("train/*.checkpoints"))
    assert again["metrics"] == record["metrics"]
    difference = next(t for t in again["gate"]["thresholds"] if "champion" in t["name"])
    assert (difference["value"], difference["passed"]) == (0, True)


def test_push_alone_tells_by_a_dry_run_what_it_would_do(here: Path, record: dict[str, Any], tmp_path: Path) -> None:
    run = Path(record["report"]).parent
    options = {"recipe": run / "recipe.yaml", "destination": tmp_path / "models", "output": tmp_path / "pushed"}
    for option, step in (("evaluation", "evaluate"), ("exported", "export")):
        options[option] = next(run.parents[1].glob(f"{step}/*/manifest.json")).parent
    command = [
        sys.executable,
        "-m",
        "trainyard.steps",
        "push",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    subprocess.run([*command, "--dry-run"], check=True, capture_output=True)
    assert json.loads((tmp_path / "pushed" / "pushed.json").read_text())["version"] == 1
    assert not (tmp_path / "models").exists()
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "models" / "1" / "saved_model.pb").is_file()


@pytest.fixture(scope="module")
def attempt(here: Path, record: dict[str, Any]) -> list[str]:
    return ["run", "digits", "-e", str(here), "--no-push", *FEW, "-o", "json"]


def test_a_try_leaves_the_champion_as_it_is_and_from_a_step_does_that_step_again_and_none_before(
    attempt: list[str], record: dict[str, Any]
) -> None:
    versions = Path(record["pushed"]["path"]).parent
    before = {path.name for path in versions.iterdir()}
    ended = trainyard(*attempt)
    tried = json.loads(ended.stdout)
    assert (tried["gate"]["verdict"], tried["pushed"], len(tried["exports"])) == ("blessed", None, 1)
    assert {path.name for path in versions.iterdir()} == before and "no push was asked for" in ended.stderr

    ended = trainyard(*attempt, "--from", "export")
    again = json.loads(ended.stdout)
    assert "✓ train       reused" in ended.stderr
    assert "✓ export      reused" not in ended.stderr
    assert "· export      runs again: --from export" in ended.stderr
    assert again["exports"][0]["path"] == tried["exports"][0]["path"]


def test_a_refused_model_is_not_exported_and_the_exit_code_says_so_where_asked(here: Path) -> None:
    arguments = (
        "run",
        "digits",
        "-e",
        str(here),
        "--set",
        "evaluate.gates=[{metric: log_loss, max: 0.0}]",
        *FEW,
        "-o",
        "json",
    )
    refused = json.loads(trainyard(*arguments).stdout)
    assert (refused["gate"]["verdict"], refused["exports"], refused["pushed"]) == ("refused", None, None)
    ended = trainyard(*arguments, "--require-blessed", code=60)
    assert "log_loss <= 0" in ended.stderr


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([*TRAINYARD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(run: subprocess.Popen[str], condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.02)


def test_ctrl_c_in_training_loses_nothing_and_of_two_re_runs_one_goes_on_and_one_waits_for_it(here: Path) -> None:
    arguments = ["run", "digits", "-e", str(here), "--set", "train.epochs=12", *FEW, "-o", "json"]
    steps = here.parent / "storage" / "digits" / "train"
    known = {*steps.glob("*.checkpoints/ckpt-*")}
    # A shell starts what runs in the background with SIGINT ignored, and processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = start(arguments)
    wait_for(ended, lambda: {*steps.glob("*.checkpoints/ckpt-[1-9]*")} - known)
    ended.send_signal(signal.SIGINT)
    _, output = ended.communicate(timeout=300)
    assert ended.returncode == 130
    assert "Run the same command again" in output

    (failure,) = steps.glob("*.failure.json")
    written = failure.stat().st_mtime_ns
    first = start(arguments)
    wait_for(first, lambda: failure.stat().st_mtime_ns != written)  # it has the lease, and begins
    processes = descendants(first.pid)
    for process in processes:  # it trains until the second has come
        os.kill(process, signal.SIGSTOP)
    try:
        second = start(arguments)
        assert second.stderr
        assert any("Waiting" in line for line in second.stderr)
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    records = [json.loads(run.communicate(timeout=300)[0]) for run in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert records[0]["train"]["resumed_from"] > 0
    assert [record["pushed"]["version"] for record in records] == [records[0]["pushed"]["version"]] * 2
    assert records[0]["folders"] == records[1]["folders"]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["run", "digist"], 20, "Did you mean 'digits'?"),
        (["run", "digits", "--set", "train.epoch=3"], 20, "unknown key. Did you mean 'epochs'?"),
        (["run", "digits", "-e", "lokal"], 20, "Did you mean 'local'?"),
        (["run", "digits", "-e", "vertex"], 20, "its target is vertex"),
        (["run", "digits", "--from", "training"], 2, "training"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_no_traceback(arguments: list[str], code: int, expected: str) -> None:
    ended = trainyard(*arguments, code=code)
    assert expected in ended.stderr and "Traceback" not in ended.stderr


def test_data_that_are_not_there_or_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "pets.yaml").write_text(
        "name: pets\ndata: {format: image_folder, path: pets}\nmodel: {name: cnn_small}\n", encoding="utf-8"
    )
    arguments = ("run", str(tmp_path / "pets.yaml"), "-e", str(environment(tmp_path)))
    assert str(tmp_path / "pets") in trainyard(*arguments, code=10).stderr
    (report,) = tmp_path.glob("storage/pets/runs/*/report.html")
    assert "no files found" in report.read_text()
    output = trainyard("explain", "-e", str(environment(tmp_path))).stdout
    assert output.rstrip().endswith(f"Report: {report}.")


def test_storage_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("a file, not a folder")
    ended = trainyard("run", "digits", "-e", str(environment(tmp_path)), code=40)
    assert str(tmp_path / "storage") in ended.stderr
    (tmp_path / "here.yaml").write_text("{target: local, storage: /proc/nowhere}")
    ended = trainyard("run", "digits", "-e", str(tmp_path / "here.yaml"), code=40)
    assert "/proc/nowhere" in ended.stderr and "Traceback" not in ended.stderr


def test_a_disk_that_is_full_is_named_and_nothing_half_written_is_left(
    here: Path, record: dict[str, Any], tmp_path: Path
) -> None:
    """Full in the first step, and, when there was room for all the others, while the report is written."""
    small = here.parent / "storage"
    done = shutil.copytree(small / "digits", tmp_path / "digits", ignore=shutil.ignore_patterns("runs"))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "none", str(small)], capture_output=True).returncode:
        pytest.skip("may not mount a small file system here")
    arguments = ("-e", str(here))
    try:
        for more, free in (([], 120 << 10), (["--from", "push"], 40 << 10)):
            if more:
                (small / "ballast").unlink()
                shutil.copytree(done, small / "digits", dirs_exist_ok=True)
            fill(small / "ballast", free)
            ended = trainyard("run", "digits", *arguments, *more, code=40)
            assert "the disk is full" in ended.stderr and "Traceback" not in ended.stderr
            assert not list(small.glob("**/.staging/*"))
            assert all(json.loads(path.read_text())["exit_code"] == 40 for path in small.glob("**/*.failure.json"))
            *_, run = sorted(small.glob("digits/runs/*"))
            failed = json.loads((run / "run.json").read_text())
            assert failed["exit_code"] == 40 and "the disk is full" in failed["failure"]
            assert "the disk is full" in trainyard("explain", *arguments).stdout
        for manifest in small.glob("digits/*/*/manifest.json"):
            storage.require(str(manifest.parent))
        (small / "ballast").unlink()
        trainyard("run", "digits", *arguments)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def fill(ballast: Path, free: int) -> None:
    """Leave `free` bytes on the disk of `ballast`."""
    with ballast.open("ab", buffering=0) as stream:
        while (room := os.statvfs(ballast).f_bavail * os.statvfs(ballast).f_frsize - free) > 0:
            stream.write(bytes(min(room, 1 << 20)))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not write")
def test_a_folder_that_may_not_be_written_or_read_is_named(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    unreadable = recipes.load("digits", ["data.bundled=null", f"data.path={locked}"])
    os.seteuid(65534)
    try:
        with pytest.raises(InfrastructureError, match="may not be written"), storage.stage(str(locked / "out"), "test"):
            pass
        with pytest.raises(DataError, match=str(locked)):
            keys.fingerprint(unreadable)
    finally:
        os.seteuid(0)
