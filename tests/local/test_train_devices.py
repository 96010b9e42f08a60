"""Real TensorFlow is asked for the devices that were promised, and for what it delivers."""

from __future__ import annotations

import json

import pytest

from trainyard.errors import InfrastructureError
from trainyard.steps.train.engines import strategy
from trainyard.steps.train.engines.tensorflow_engine import TensorFlowEngine


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        ({"kind": "gpu", "accelerator": "nvidia-l4", "count": 64}, "lists "),
        ({"kind": "tpu", "accelerator": "tpu-v5-lite-podslice", "count": 4}, "could not start them"),
    ],
)
def test_devices_that_tensorflow_does_not_find_end_the_step_with_40(
    expected: dict[str, object], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_DEVICES", json.dumps(expected))
    with pytest.raises(InfrastructureError) as error:
        TensorFlowEngine().check()
        strategy.create_strategy()
    assert error.value.exit_code == 40
    message, devices = str(error.value), f"{expected['count']} {expected['accelerator']}"
    assert message.startswith(f"devices: the pool should have {devices}, TensorFlow")
    assert fault in message


def test_each_device_is_measured_before_it_trains(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINYARD_DEVICES", raising=False)
    device = TensorFlowEngine().probe()[0]
    assert device.tflops > 0.001 and device.gb_per_second > 0.1
    log = capfd.readouterr().err
    assert '"devices", "name":' in log and '"tensorflow": "2.' in log
