"""Real TensorFlow is asked for the devices that were promised, and for what it delivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from trainyard.errors import InfrastructureError
from trainyard.steps.train.engines.tensorflow import strategy, tensorflow_probe as probe
try:
    probe.check()
    made = strategy.create_strategy()
except InfrastructureError as error:
    sys.exit(f"{int(error.exit_code)} {error}")
for device in probe.probe():
    print(device.model_dump_json())
"""


def run(expected: dict[str, object] | None) -> subprocess.CompletedProcess[str]:
    variables = {"TRAINYARD_DEVICES": json.dumps(expected)} if expected else {}
    environment = {name: value for name, value in os.environ.items() if name != "TRAINYARD_DEVICES"} | variables
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        ({"kind": "gpu", "accelerator": "nvidia-l4", "count": 64}, "lists "),
        ({"kind": "tpu", "accelerator": "tpu-v5-lite-podslice", "count": 4}, "could not start them"),
    ],
)
def test_devices_that_tensorflow_does_not_find_end_the_step_with_40(expected: dict[str, object], fault: str) -> None:
    done = run(expected)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith(
        f"40 devices: the pool should have {expected['count']} {expected['accelerator']}, TensorFlow"
    )
    assert fault in message


def test_each_device_is_measured_before_it_trains() -> None:
    done = run(None)
    assert done.returncode == 0, done.stderr
    device = json.loads(done.stdout.splitlines()[0])
    assert device["tflops"] > 0.001 and device["gb_per_second"] > 0.1
    assert '"devices", "name":' in done.stderr and '"tensorflow": "2.' in done.stderr
