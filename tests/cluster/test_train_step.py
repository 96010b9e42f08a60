"""The whole train step on a real Kubernetes: its launcher in a pod, which may be lost, its workers on two nodes.

TRAINYARD_IMAGE names the image (images/Dockerfile, target cpu) of this very code that every node has.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from namespaces import until
from survival import EPOCH, assert_survived
from tests.unit.test_packages import wheel
from train_step import EPOCHS, IMAGE, Desk, Run, signal_training_process

from trainyard.spec import plain_yaml
from trainyard.spec.packages import Wheel
from trainyard.storage import cache

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not IMAGE, reason="TRAINYARD_IMAGE names no image")]

OWN = """
name: own
data: {format: image_folder, bundled: digits, channels: 1}
train: {command: [python, my_train.py], epochs: 5}
"""
UNPACK = "import base64, pathlib, sys; pathlib.Path(sys.argv[1]).write_bytes(base64.b64decode(sys.argv[2]))"
COLLECT = """
import sys
from trainyard.spec.documents import parse
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.search.bench import collect
recipe, environment = (parse(text, kind, name="it") for text, kind in zip(sys.argv[1:], (Recipe, Environment)))
print(collect(recipe, environment, {"train": "speed-train", "cpu": "speed-cpu"})[0].model_dump_json())
"""


def test_the_launcher_in_its_pod_ends_with_the_output_that_worker_0_committed(desk: Desk, calm: Run) -> None:
    calm.ends()
    training = desk.training(calm)
    assert (training["gang"]["workers"], training["gang"]["restarts"], training["steps"]) == (2, [], EPOCHS * EPOCH)
    seconds = calm.moment('"event": "progress"') - calm.moment('"launched"')
    print(f"seconds from the Job to the first steps: {seconds:.1f}")
    assert '"launched", "job": "ty-calm-' in calm.log and '"how": "created", "workers": 2' in calm.log
    until(lambda: not calm.gang)


def test_a_finished_output_needs_no_gang(calm: Run) -> None:
    calm.ends()
    again = Run(calm.namespace, calm.name, attempt=calm.attempt, label=calm.label).start()
    again.ends()
    assert '"reused", "step": "train"' in again.log and "launched" not in again.log


def test_what_a_pool_has_measured_becomes_a_report(desk: Desk, calm: Run) -> None:
    calm.ends()
    recipe = plain_yaml.dump(calm.recipe.model_dump(mode="json"))
    report = json.loads(desk.python(COLLECT, recipe, calm.environment_text).splitlines()[-1])
    (speed,) = report["speeds"]
    assert (speed["pool"], speed["hardware"], speed["workers"], speed["batch_size"]) == ("train", "2 x CPU", 2, 64)
    assert 0 < speed["low"] <= speed["high"] and speed["examples_per_second"] > 0
    assert report["skipped"] == {"cpu": "It has not been measured yet."}


def test_a_launcher_whose_pod_is_deleted_finds_its_gang_again(desk: Desk, calm: Run, run: Run) -> None:
    run.start().says('"started_together"')
    before = {pod["metadata"]["uid"] for pod in run.namespace.pods(run.gang)}
    for how in (["--grace-period=1"], ["--grace-period=0", "--force"]):
        run.namespace.kubectl("delete", "pod", run.pod, *how)
        run.start().says('"how": "attached"')
        assert {pod["metadata"]["uid"] for pod in run.namespace.pods(run.gang)} == before
    training = assert_survived(desk, run, calm)
    assert training["gang"]["restarts"] == []


def test_a_program_of_the_recipes_own_survives_the_loss_of_a_worker(desk: Desk, run: Run, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "own-script.md").read_text()
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    imports = "from own_layers import LAYERS\nimport shift\n"
    (tmp_path / "my_train.py").write_text(f"{imports}{program}\nassert LAYERS == shift.WIDTH == 2\n")
    (tmp_path / "own_layers.py").write_text("LAYERS = 2\n")
    run.file = str(tmp_path / "own.yaml")
    path = wheel(tmp_path, "shift", {"shift.py": "WIDTH = 2\n"})
    place = f"/runs/{path.name}"
    desk.python(UNPACK, place, base64.b64encode(path.read_bytes()).decode())
    sent = Wheel(sha256=str(cache.digest_of(path)), bytes=path.stat().st_size, location=place)
    Path(run.file).write_text(f"{OWN}packages: {json.dumps({path.name: sent.model_dump()})}\n")
    run.start().reaches(46)
    step = run.step()
    gang = run.gang
    signal_training_process(run.namespace, run.worker(1))
    run.ends()
    until(lambda: not run.namespace.left_of(gang))
    training = desk.training(run)
    (restart,) = training["gang"]["restarts"]
    assert restart["resumed_at"] >= step - EPOCH and "was killed" in restart["reason"]
    assert (training["model"], training["gang"]["workers"], training["steps"]) == ("two_layers", 2, 5 * EPOCH)
    assert [epoch["epoch"] for epoch in training["history"]] == [*range(1, 6)]
