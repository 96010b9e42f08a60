"""What a checkpoint folder gives back, and what it skips or refuses."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.damage import flip

from trainyard.contract.artifacts.train import Epoch
from trainyard.errors import ConfigurationError, DataError
from trainyard.steps.train.loop.checkpoint import CheckpointFolder, Progress
from trainyard.storage import storage

STATE = {"model/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "loop/step": np.asarray(7)}


def test_the_newest_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(str(tmp_path), "me", keep=2)
    history = [epoch(1, step=5, loss=1 / 3)]
    checkpoints.save(progress(5, history), {name: value + 1 for name, value in STATE.items()})
    checkpoints.save(progress(7, history), STATE)
    checkpoint = checkpoints.latest(STATE)
    assert checkpoint is not None and checkpoint.progress.step == 7 and checkpoint.progress.history == history
    for name, value in STATE.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], value)


def test_the_last_ones_and_the_best_one_are_kept(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(str(tmp_path), "me", keep=2)
    history: list[Epoch] = []
    for number, loss in enumerate([0.9, 0.2, 0.5, 0.4, 0.3], start=1):
        history.append(epoch(number, step=10 * number, loss=loss))
        checkpoints.save(progress(10 * number, history), STATE)
    assert checkpoints.steps() == [20, 40, 50]


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_the_best_checkpoint_that_is_lost_is_told_and_the_next_best_is_kept_in_its_place(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = CheckpointFolder(str(tmp_path), "me", keep=2)
    history: list[Epoch] = []
    for number, loss in enumerate([0.9, 0.2, 0.3], start=1):
        history.append(epoch(number, step=10 * number, loss=loss))
        checkpoints.save(progress(10 * number, history), STATE)
    if damage == "gone":
        storage.remove(str(tmp_path / "ckpt-20"))
    else:
        flip(tmp_path / "ckpt-20" / "state.npz")
    again = CheckpointFolder(str(tmp_path), "me", keep=2)
    checkpoint = again.latest(STATE)
    assert checkpoint is not None and checkpoint.progress.step == 30
    assert "the checkpoint of epoch 2, the best one (eval loss 0.2), is lost" in capsys.readouterr().err
    for number, loss in enumerate([0.5, 0.6, 0.7], start=4):
        history.append(epoch(number, step=10 * number, loss=loss))
        again.save(progress(10 * number, history), STATE)
    assert again.steps() == [30, 50, 60]


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "garbled progress", "other producer", "no manifest"])
def test_a_damaged_newest_checkpoint_is_skipped_for_the_one_before(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = CheckpointFolder(str(tmp_path), "me", keep=3)
    checkpoints.save(progress(5, []), STATE)
    checkpoints.save(progress(7, []), STATE)
    newest = tmp_path / "ckpt-7"
    if damage == "cut":
        os.truncate(newest / "state.npz", 100)
    elif damage == "flipped":
        content = bytearray((newest / "state.npz").read_bytes())
        content[content.index(STATE["model/kernel"].tobytes()) + 5] ^= 1
        (newest / "state.npz").write_bytes(content)
    elif damage == "missing":
        (newest / "state.npz").unlink()
    elif damage == "garbled progress":
        text = (newest / "progress.json").read_text()
        (newest / "progress.json").write_text("[" + text[1:])
    elif damage == "other producer":
        manifest = newest / "manifest.json"
        manifest.write_text(manifest.read_text().replace("trainyard.train", "another"))
    else:
        (newest / "manifest.json").unlink()
    checkpoint = checkpoints.latest(STATE)
    assert checkpoint is not None and checkpoint.progress.step == 5
    assert "ckpt-7" in capsys.readouterr().err
    # The run goes on and writes the step again.
    checkpoints.save(progress(7, []), STATE)
    again = checkpoints.latest(STATE)
    assert again is not None and again.progress.step == 7


def test_another_models_checkpoint_is_refused_by_the_names_of_its_variables(tmp_path: Path) -> None:
    CheckpointFolder(str(tmp_path), "me", keep=3).save(progress(5, []), STATE | {"model/extra": np.zeros(1)})
    expected = {"model/kernel": np.zeros((2, 4), np.float32), "loop/step": np.asarray(0), "model/bias": np.zeros(4)}
    with pytest.raises(ConfigurationError) as error:
        CheckpointFolder(str(tmp_path), "me", keep=3).latest(expected)
    for fault in ("model/bias is missing", "model/extra is not known", "model/kernel is (2, 3) instead of (2, 4)"):
        assert fault in str(error.value)


@pytest.mark.parametrize("foreign", [STATE, {"model/bias": np.zeros(4)}])
def test_another_recipes_checkpoint_is_skipped_for_the_one_before_and_replaced(
    foreign: dict[str, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = CheckpointFolder(str(tmp_path), "me", keep=3)
    mine.save(progress(3, []), STATE)
    CheckpointFolder(str(tmp_path), "other", keep=3).save(progress(5, [], "other"), foreign)
    before = mine.latest(STATE)
    assert before is not None and before.progress.step == 3
    assert "ckpt-5: skipped, it was made with another recipe" in capsys.readouterr().err
    mine.save(progress(5, []), {name: value * 2 for name, value in STATE.items()})
    checkpoint = mine.latest(STATE)
    assert checkpoint is not None and checkpoint.arrays["loop/step"] == 14


def test_what_a_killed_process_left_half_written_is_no_checkpoint_and_is_removed(tmp_path: Path) -> None:
    half = tmp_path / ".staging" / "ckpt-9-dead"
    half.mkdir(parents=True)
    (half / "state.npz").write_bytes(b"half")
    checkpoints = CheckpointFolder(str(tmp_path), "me", keep=3)
    assert checkpoints.latest(STATE) is None and checkpoints.steps() == []
    assert not half.exists()


def test_a_checkpoint_that_is_not_there_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ckpt-3"):
        CheckpointFolder(str(tmp_path), "me", keep=3).read(3)
    assert storage.committed(str(tmp_path / "ckpt-3")) is None


@pytest.mark.parametrize("unit", ["operation", "byte"])
def test_a_checkpoint_killed_at_any_of_its_writes_leaves_those_before_whole(unit: str, tmp_path: Path) -> None:
    """Killed before each operation on the file system, and within each file by the kernel's limit on its size."""
    state = {name: np.tile(value, 1000) for name, value in STATE.items()}
    outcomes = []
    for fatal in range(1, 200):
        uri = str(tmp_path / str(fatal))
        checkpoints = CheckpointFolder(uri, "me", keep=2)
        checkpoints.save(progress(5, []), state)
        checkpoints.save(progress(7, []), state)
        code = in_a_fork(lambda uri=uri, fatal=fatal: save_and_die(uri, state, unit, fatal))
        again = CheckpointFolder(uri, "me", keep=2)
        checkpoint = again.latest(state)
        assert checkpoint is not None and checkpoint.progress.step in (7, 9)
        np.testing.assert_array_equal(checkpoint.arrays["model/kernel"], state["model/kernel"])
        assert len([step for step in again.steps() if storage.committed(f"{uri}/ckpt-{step}")]) >= 2
        again.save(progress(9, []), state)
        assert again.steps() == [7, 9]
        outcomes.append(checkpoint.progress.step)
        if code == 0:
            break
    assert code == 0, "the writer was never left alone"
    assert outcomes[0] == 7 and outcomes[-1] == 9 and len(outcomes) > 5
    assert outcomes == sorted(outcomes)


def save_and_die(uri: str, state: dict[str, np.ndarray], unit: str, fatal: int) -> None:
    """Save step 9 in this process, killed at the `fatal`th operation, or `fatal` times 4,000 bytes into a file."""
    checkpoints, seen = CheckpointFolder(uri, "me", keep=2), 0

    def hook(event: str, _: object) -> None:
        nonlocal seen
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"):
            seen += 1
            if seen == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    if unit == "operation":
        sys.addaudithook(hook)
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000 * fatal, resource.RLIM_INFINITY))
    checkpoints.save(progress(9, []), state)


def in_a_fork(work: Callable[[], None]) -> int:
    process = os.fork()
    if process == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def progress(step: int, history: list[Epoch], identity: str = "me") -> Progress:
    return Progress(identity=identity, step=step, history=history)


def epoch(number: int, step: int, loss: float) -> Epoch:
    return Epoch(
        epoch=number,
        step=step,
        learning_rate=0.1,
        train_loss=loss,
        eval_loss=loss,
        metric=0.5,
        examples_per_second=10,
        seconds=1,
    )
