"""What every component does around its step's own code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from trainyard import events
from trainyard.contract.keys import again_record, code_digest, output_uri
from trainyard.contract.origin import origin
from trainyard.contract.pipeline import Pipeline
from trainyard.errors import DataError
from trainyard.runtime import step, task
from trainyard.spec import recipe as recipes
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

RECIPE = recipes.load("digits")
TEXT = yaml.safe_dump(RECIPE.model_dump(mode="json"))


def failure(path: Path) -> dict[str, object]:
    return json.loads(path.with_name(f"{path.name}.failure.json").read_text())


def test_a_task_finds_the_folder_that_every_other_way_of_running_the_step_finds(tmp_path: Path) -> None:
    with task.opened("train", TEXT, str(tmp_path), code_digest()) as this:
        pipeline = Pipeline(str(tmp_path), RECIPE, outputs={"preprocess": "examples"})
        assert this.place(examples="examples") == pipeline.place("train").output


def test_a_relative_storage_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with task.opened("train", TEXT, "runs", "") as this:
        assert this.place(examples="examples").startswith(f"{tmp_path}/runs/digits/train/")


def test_a_failure_ends_the_process_with_its_code_and_is_recorded_beside_the_output(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end, task.opened("train", TEXT, str(tmp_path), "") as this:
        output = this.place(examples="examples")
        raise DataError("examples: gone.")
    assert end.value.code == 10
    assert failure(Path(output)) == {
        "step": "train", "exit_code": 10, "class": "DataError", "message": "examples: gone.",
    }  # fmt: skip


def test_a_step_that_nobody_else_would_end_ends_itself_at_its_timeout(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom trainyard.runtime import step\n"
        "with step.recorded('train', lambda: sys.argv[1]): time.sleep(60)"
    )
    output = tmp_path / "model"
    environment = {**os.environ, step.TIMEOUT_VARIABLE: "0.2"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(output)], env=environment, capture_output=True, timeout=300
    )
    assert done.returncode == 40
    assert failure(output)["message"] == (
        "train: ran for more than the 0.2 s that it may. Raise timeout_seconds.train in the environment."
    )


KILLED = """
import os, signal, sys
from trainyard.runtime import step
def run(output): os.kill(os.getpid(), signal.SIGKILL)
run.__module__ = "trainyard.steps.train.run"
with step.recorded("train", lambda: sys.argv[1]): step.execute(run, sys.argv[1])
"""


def test_a_step_that_is_killed_has_said_so_beforehand_and_takes_it_back_when_it_succeeds(tmp_path: Path) -> None:
    output = tmp_path / "model"
    done = subprocess.run([sys.executable, "-c", KILLED, str(output)], capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL
    record = failure(output)
    assert (record["step"], record["exit_code"], record["class"]) == ("train", 30, "Killed")
    assert str(record["message"]).startswith("train: was killed and left no reason: out of memory")

    def run(output: Path) -> None:
        (output / "file").touch()

    run.__module__ = "trainyard.steps.train.run"
    step.execute(run, str(output))
    assert not output.with_name("model.failure.json").exists()


MISTAKEN = """
import os, sys
import trainyard.steps.train.run
from trainyard.runtime import step
def run(recipe, output):
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
    except BaseException:
        pass
    raise SystemError("bad argument to internal function")
run.__module__ = "trainyard.steps.train.run"
step.main(run, ["--recipe=digits", f"--output={sys.argv[2]}"])
"""


@pytest.mark.parametrize(
    ("number", "code", "name"), [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Preempted")]
)
def test_a_signal_of_which_a_library_made_an_error_of_its_own_is_still_that_signal(
    tmp_path: Path, number: signal.Signals, code: int, name: str
) -> None:
    command = [sys.executable, "-c", MISTAKEN, str(int(number)), str(tmp_path / "model")]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == code
    assert failure(tmp_path / "model")["class"] == name


def test_a_thread_that_ends_the_process_leaves_the_steps_failure(tmp_path: Path) -> None:
    program = (
        "import sys, threading, time\nfrom trainyard.runtime import step\nfrom trainyard.errors import TransientError\n"
        "with step.recorded('train', lambda: sys.argv[1]):\n"
        "    threading.Thread(target=step.end_with, args=(TransientError('train: no progress.'),)).start()\n"
        "    time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "model")], capture_output=True, timeout=300)
    assert (done.returncode, failure(tmp_path / "model")["message"]) == (30, "train: no progress.")


def test_a_failure_before_the_output_is_known_is_recorded_in_the_runs_folder(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), task.opened("preprocess", TEXT, str(tmp_path), "", "run-1"):
        raise DataError("data: gone.")
    assert failure(tmp_path / "digits" / "runs" / "run-1" / "preprocess")["message"] == "data: gone."


@pytest.mark.parametrize(
    ("text", "code", "sentence"), [("nmae: digits", "", "Did you mean 'name'?"), (TEXT, "f" * 64, code_digest()[:12])]
)
def test_a_recipe_that_cannot_be_read_and_other_code_than_the_pipelines_are_recorded_too(
    text: str, code: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as end, task.opened("train", text, str(tmp_path), code):
        raise AssertionError
    assert end.value.code == 20
    assert sentence in str(failure(tmp_path / "train")["message"])


def test_an_error_nobody_foresaw_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end, task.opened("train", TEXT, str(tmp_path), ""):
        raise ZeroDivisionError("division by zero")
    assert end.value.code == 50


def test_a_task_whose_delegates_leave_nothing_fails_as_one_to_try_again(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end, task.opened("train", TEXT, str(tmp_path), "") as this:
        this.place(examples="examples")
        this.delegate(lambda recipe, output: None)
    assert end.value.code == 30


def test_a_finished_output_is_used_again_and_noted_for_the_summary(tmp_path: Path) -> None:
    with task.opened("evaluate", TEXT, str(tmp_path), "", "run-1") as this:
        folder = this.place(examples="examples", model="model")
        assert this.unfinished()
        with storage.stage(folder, producer="trainyard.evaluate") as staging:
            (staging / "file").write_text("content")
        assert not this.unfinished()
    note = json.loads((tmp_path / "digits" / "runs" / "run-1" / "evaluate.json").read_text())
    assert note == {"folder": folder, "seconds": 0.0, "time": note["time"]}


def commit(uri: str) -> None:
    with storage.stage(uri, producer="trainyard.test") as staging:
        (staging / "file").write_text("content")


def plans(root: Path, run: str, first: str = "") -> tuple[str, str, str]:
    """Return the folder of train's output, and the makers of it and of export's, as a run is told of them."""
    with task.opened("preprocess", TEXT, str(root), "", run) as this:
        plan = this.plan_training("examples", first)
    with task.opened("evaluate", TEXT, str(root), "", run) as this:
        return plan.model, plan.maker, this.plan_export("examples", plan.model, "evaluation", first)


def test_kfp_is_told_of_another_maker_only_where_the_output_is_gone(tmp_path: Path) -> None:
    exported = output_uri(str(tmp_path), RECIPE, "export", "examples", plans(tmp_path, "run-1")[0])
    model, *first = plans(tmp_path, "run-2")  # the first one failed
    assert first == ["run-2", "run-2"]
    commit(model)
    commit(exported)
    assert plans(tmp_path, "run-3") == (model, "run-2", "run-2")
    storage.remove(exported)
    assert plans(tmp_path, "run-4") == (model, "run-2", "run-4")
    storage.remove(model)
    commit(exported)
    assert plans(tmp_path, "run-5") == (model, "run-5", "run-4")


@pytest.mark.parametrize(
    ("first", "left"),
    [
        ("", {"preprocess", "train", "checkpoints", "evaluate", "export"}),
        ("export", {"preprocess", "train", "checkpoints", "evaluate"}),
        ("evaluate", {"preprocess", "train", "checkpoints"}),
        ("train", {"preprocess"}),
        ("preprocess", set()),
    ],
)
def test_what_is_done_again_is_removed_from_the_first_step_on(first: str, left: set[str], tmp_path: Path) -> None:
    model = plans(tmp_path, "run-1")[0]
    outputs = {name: output_uri(str(tmp_path), RECIPE, name, "examples") for name in ("preprocess", "evaluate")}
    outputs |= {"train": model, "checkpoints": f"{model}.checkpoints"}
    outputs["export"] = output_uri(str(tmp_path), RECIPE, "export", "examples", model)
    for uri in outputs.values():
        commit(uri)
    for name in ("preprocess", "evaluate"):
        with task.opened(name, TEXT, str(tmp_path), "", "run-2") as this:
            this.redo(name, first, outputs[name])
    _, *makers = plans(tmp_path, "run-2", first)
    assert {name for name, uri in outputs.items() if storage.committed(uri)} == left
    assert makers == ["run-1" if name in left else "run-2" for name in ("train", "export")]
    reasons = {name: storage.read_text(again_record(uri)) for name, uri in outputs.items() if name != "checkpoints"}
    assert reasons == {name: None if name in left else f"--from {first}" for name in reasons}


def test_checkpoints_go_when_their_model_is_committed_and_not_before(tmp_path: Path) -> None:
    model, checkpoints = str(tmp_path / "model"), tmp_path / "model.checkpoints"
    with storage.stage(f"{checkpoints}/ckpt-5", "trainyard.train"):
        pass
    step.drop_checkpoints(model)
    assert checkpoints.is_dir()
    with storage.stage(model, "trainyard.train"):
        pass
    with storage.lease(model):  # as somebody who trains it anew holds it
        step.drop_checkpoints(model)
    assert checkpoints.is_dir()
    step.drop_checkpoints(model)
    assert not checkpoints.exists() and storage.committed(model)
    step.drop_checkpoints(model)


def test_a_step_clears_up_after_its_killed_attempt(tmp_path: Path) -> None:
    (tmp_path / ".staging" / "key-0123abcd").mkdir(parents=True)

    def write(output: Path) -> None:
        assert [path.name for path in output.parent.iterdir()] == [output.name]

    write.__module__ = "trainyard.steps.train.run"
    step.execute(write, str(tmp_path / "key"))


def test_a_push_is_repeated_unless_another_run_made_it_while_this_one_waited_and_stays_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, ran = str(tmp_path / "key"), []

    def push(output: Path, recipe: Recipe) -> None:
        ran.append(storage.committed(str(tmp_path / "key")) is not None)
        (output / "run").write_text(f"{len(ran)}")

    def push_and_release(_: str) -> None:
        with storage.stage(output, "trainyard.push", origin=origin(RECIPE, "push", {}).model_dump()) as folder:
            (folder / "run").write_text("another's")
        other.close()

    push.__module__ = "trainyard.steps.push.run"
    other = ExitStack()
    other.enter_context(storage.lease(output))
    monkeypatch.setattr(events, "warn", push_and_release)
    step.execute(push, output, recipe=RECIPE)
    assert (ran, storage.read(output, "run")) == ([], b"another's")
    for times in (1, 2):
        step.execute(push, output, recipe=RECIPE)
        assert (ran, storage.read(output, "run")) == ([True] * times, f"{times}".encode())
