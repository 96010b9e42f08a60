"""The whole train step on a real Kubernetes: its launcher in a pod, its workers on two nodes, and their faults.

TRAINYARD_IMAGE names the image (images/Dockerfile, target cpu) of this very code that every node has.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import Namespace, until
from train_step import IMAGE, STORAGE, Desk, Run, signal_training_process

from trainyard.spec import plain_yaml

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image")]

INTERVAL = 10  # steps that may be lost
EPOCH = 23  # steps; an epoch's end is a checkpoint too
TOLERANCE = 1e-6  # |difference| / |weights| to the run that nothing happened to

PREPARE = f"""
import os, pathlib, sys
pathlib.Path("{STORAGE}").mkdir(exist_ok=True)
path = pathlib.Path("/runs/recipe.yaml")
data = "data: {{format: image_folder, bundled: digits, channels: 1}}"
path.write_text(f"name: digits\\n{{data}}\\nmodel: {{{{name: cnn_small}}}}\\n")
command = ["python", "-m", "trainyard.steps", "preprocess", f"--recipe={{path}}", "--output={STORAGE}/examples"]
os.execvp("python", command)
"""
OWN = """
name: own
data: {format: image_folder, bundled: digits, channels: 1}
train: {command: [python, my_train.py], epochs: 5}
"""
CERTIFICATE = """
import sys
from trainyard.spec.documents import parse
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.search.speed.pools import collect
recipe, environment = (parse(text, kind, name="it") for text, kind in zip(sys.argv[1:], (Recipe, Environment)))
print(collect(recipe, environment, {"train": "speed-train", "cpu": "speed-cpu"}).certificate.model_dump_json())
"""
COMPARE = """
import json, sys
import keras, numpy as np
from trainyard.contract.artifacts.train import Training
def weights(folder):
    model = keras.saving.load_model(f"{folder}/model.keras")
    return np.concatenate([weight.numpy().ravel() for weight in model.weights]).astype(np.float64)
this, other = map(weights, sys.argv[1:])
document = json.loads(Training.read(sys.argv[1]).model_dump_json())
document["difference"] = float(np.linalg.norm(this - other) / np.linalg.norm(other))
print("result " + json.dumps(document))
"""


@pytest.fixture(scope="module")
def desk(namespace: Namespace) -> Desk:
    made = Desk(namespace)
    made.python(PREPARE)
    return made


@pytest.fixture(scope="module")
def calm(desk: Desk) -> Run:
    """A run that nothing happens to."""
    run = Run(desk.namespace, "calm", label="speed-train").start()
    run.ends()
    print(run.log)
    return run


@pytest.fixture
def run(request: pytest.FixtureRequest, desk: Desk, calm: Run) -> Iterator[Run]:
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
    run = Run(desk.namespace, f"{words[:18].strip('-')}-{zlib.crc32(words.encode()):08x}")
    yield run
    print(run.log)


def result(desk: Desk, run: Run, calm: Run) -> dict[str, Any]:
    said = desk.python(COMPARE, run.output, calm.output)
    return json.loads(next(line for line in said.splitlines() if line.startswith("result ")).removeprefix("result "))


def assert_survived(desk: Desk, run: Run, calm: Run) -> dict[str, Any]:
    gang = run.gang
    run.ends()
    until(lambda: not run.namespace.left_of(gang), 30)
    found, undisturbed = result(desk, run, calm), result(desk, calm, calm)
    assert found["steps"] == undisturbed["steps"]
    assert found["difference"] < TOLERANCE
    return found


def test_the_launcher_in_its_pod_ends_with_the_output_that_worker_0_committed(desk: Desk, calm: Run) -> None:
    found = result(desk, calm, calm)
    assert (found["workers"], found["restarts"], found["steps"]) == (2, [], 12 * EPOCH)
    seconds = calm.moment('"event": "progress"') - calm.moment('"launched"')
    print(f"seconds from the Job to the first steps: {seconds:.1f}")
    assert '"launched", "job": "ty-calm-' in calm.log and '"how": "created", "workers": 2' in calm.log
    until(lambda: not calm.gang, 10)


def test_a_finished_output_needs_no_gang(calm: Run) -> None:
    again = Run(calm.namespace, calm.name, attempt=calm.attempt, label=calm.label).start()
    again.ends()
    assert '"reused", "step": "train"' in again.log and "launched" not in again.log


def test_what_a_pool_has_measured_becomes_a_certificate(desk: Desk, calm: Run) -> None:
    recipe = plain_yaml.dump(calm.recipe.model_dump(mode="json"))
    said = json.loads(desk.python(CERTIFICATE, recipe, calm.environment_text).splitlines()[-1])
    (speed,) = said["speeds"]
    assert (speed["pool"], speed["hardware"], speed["workers"], speed["batch_size"]) == ("train", "2 x CPU", 2, 64)
    assert 0 < speed["low"] <= speed["high"] and speed["examples_per_second"] > 0
    assert said["skipped"] == {"cpu": "It has not been measured yet."}


@pytest.mark.parametrize("index", [0, 1], ids=["chief", "worker"])
def test_a_training_process_killed_in_its_pod_costs_at_most_one_checkpoint_interval(
    desk: Desk, calm: Run, run: Run, index: int
) -> None:
    run.start().reaches(40)
    killed = signal_training_process(run.namespace, run.worker(index))
    found = assert_survived(desk, run, calm)
    recovered = run.moment('"event": "recovered"')
    print(f"seconds from the kill to new steps: {recovered - killed:.1f}")
    (restart,) = found["restarts"]
    assert restart["lost_steps"] <= INTERVAL and "killed by SIGKILL" in restart["reason"]


@pytest.mark.parametrize("index", [0, 1], ids=["chief", "worker"])
def test_a_pod_deleted_by_force_costs_at_most_one_checkpoint_interval(
    desk: Desk, calm: Run, run: Run, index: int
) -> None:
    run.start().reaches(40)
    told = run.step()
    run.namespace.kubectl("delete", "pod", run.worker(index), "--grace-period=0", "--force")
    assert_survived(desk, run, calm)
    resumed = [event["step"] for event in run.event("resumed")]
    assert resumed and resumed[-1] >= told - INTERVAL


def test_a_gang_fed_by_input_workers_survives_the_death_of_one_with_the_weights_of_an_unfed_one(
    desk: Desk, calm: Run, run: Run
) -> None:
    run.input_workers = 2
    run.start().reaches(40)
    told = run.step()
    run.namespace.kubectl("delete", "pod", run.worker(1, "-input"), "--grace-period=0", "--force")
    found = assert_survived(desk, run, calm)
    (restart,) = found["restarts"]
    assert "input worker 1 of 2" in restart["reason"] and restart["resumed_at"] >= told - INTERVAL


def test_a_worker_with_ten_seconds_of_grace_saves_the_step_it_is_at(desk: Desk, calm: Run, run: Run) -> None:
    run.start().reaches(40)
    run.namespace.kubectl("delete", "pod", run.worker(1), "--grace-period=10", "--wait=false")
    found = assert_survived(desk, run, calm)
    (restart,) = found["restarts"]
    assert restart["lost_steps"] == 0 and "told to stop" in restart["reason"]


def test_a_drained_node_gives_its_worker_to_another(desk: Desk, calm: Run, run: Run) -> None:
    run.start().reaches(40)
    node = run.namespace.kubectl("get", "pod", run.worker(1), "-o", "jsonpath={.spec.nodeName}")
    selector = f"--pod-selector=batch.kubernetes.io/job-name={run.gang}"
    try:
        run.namespace.kubectl("drain", node, selector, "--delete-emptydir-data", "--force", "--timeout=60s")
    finally:
        run.namespace.kubectl("uncordon", node)
    assert_survived(desk, run, calm)


@pytest.mark.parametrize("how", [["--grace-period=1"], ["--grace-period=0", "--force"]], ids=["told", "by-force"])
def test_a_launcher_whose_pod_is_deleted_finds_its_gang_again(desk: Desk, calm: Run, run: Run, how: list[str]) -> None:
    run.start().reaches(30)
    before = {pod["metadata"]["uid"] for pod in run.namespace.pods(run.gang)}
    run.namespace.kubectl("delete", "pod", run.pod, *how)
    run.start().says('"how": "attached"')
    assert {pod["metadata"]["uid"] for pod in run.namespace.pods(run.gang)} == before
    found = assert_survived(desk, run, calm)
    assert found["restarts"] == []


def test_a_program_of_the_recipes_own_survives_the_loss_of_a_worker(desk: Desk, run: Run, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "own-script.md").read_text()
    (tmp_path / "my_train.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    run.file = str(tmp_path / "own.yaml")
    Path(run.file).write_text(OWN)
    run.start().reaches(46)
    told = run.step()
    gang = run.gang
    signal_training_process(run.namespace, run.worker(1))
    run.ends()
    until(lambda: not run.namespace.left_of(gang), 30)
    found = json.loads(desk.python(f"print(open('{run.output}/training.json').read())"))
    (restart,) = found["restarts"]
    assert restart["resumed_at"] >= told - EPOCH and "was killed" in restart["reason"]
    assert (found["model"], found["workers"], found["steps"]) == ("two_layers", 2, 5 * EPOCH)
    assert [epoch["epoch"] for epoch in found["history"]] == [*range(1, 6)]


def test_a_gpu_pod_that_sees_no_gpu_stops_within_ten_seconds(calm: Run, run: Run) -> None:
    """The cluster's GPUs are made up: pods get them from the scheduler, and nothing is there."""
    run.pool = {"kind": "gpu", "accelerator": "nvidia-l4", "count": 1, "nodeSelector": {}}
    with run.namespace.ends_of_containers() as ends:
        run.start().ends(code=40)
    assert "the pool should have 1 nvidia-l4, no /dev/nvidia* is there" in run.log
    seconds = [end.seconds for end in ends() if end.code == 40]
    assert seconds and max(seconds) <= 10, seconds
    print("seconds from start to exit:", seconds)


def test_a_worker_that_never_comes_is_named_with_the_schedulers_reason(calm: Run, run: Run) -> None:
    run.pool = {"nodeSelector": {"cloud.google.com/gke-nodepool": "none"}, "start_deadline_seconds": 5}
    run.start().ends(code=30)
    assert re.search(r"waiting for worker 0 of 2 \(pod pending: 0/\d+ nodes are available: .*didn't match", run.log)
    until(lambda: not run.gang, 10)
