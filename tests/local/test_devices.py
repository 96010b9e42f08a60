"""Exported files timed over a real SSH server on this machine, and what a machine that cannot time them says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import arm64
import keras
import pytest
import ssh_server
import tensorflow as tf

from trainyard.contract.artifacts.export import DeviceTiming, ExportedFile, Latency
from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError, TransientError
from trainyard.spec.recipe import DeviceLimits
from trainyard.steps.export import devices

pytestmark = ssh_server.needs_sshd


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ssh")
    network = keras.Sequential([keras.Input((8,), batch_size=1), keras.layers.Dense(4)])
    (folder / "model.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(network).convert())
    with ssh_server.serving(folder):
        yield folder / "model.tflite"


def test_a_machine_times_a_file_with_one_thread_and_all(model: Path) -> None:
    timed = devices.measure("pi", DeviceLimits(python=sys.executable), model)
    assert 1 in timed.latency_ms and timed.device == "pi" and timed.machine.endswith("x86_64")
    assert all(0 < latency.p50 <= latency.p95 < 1000 for latency in timed.latency_ms.values())
    assert 20 < timed.memory_mb < 500


@arm64.needs_arm64
def test_the_python_of_an_emulated_raspberry_pi_times_a_file(model: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={arm64.system()}/site exec {" ".join(arm64.command())} "$@"\n')
    python.chmod(0o755)
    timed = devices.measure("pi", DeviceLimits(python=str(python)), model)
    assert timed.machine == "0xd08, aarch64" and {*timed.latency_ms} >= {1}


@pytest.mark.parametrize(
    ("name", "python", "kind", "message"),
    [
        ("off", "python3", TransientError, "off: cannot be reached .*refused.* Check it with `ssh off`, and run again"),
        ("stranger", "python3", InfrastructureError, "stranger: its host key is not the known one"),
        ("locked", "python3", InfrastructureError, "locked: refuses the login .* Run `ssh-copy-id locked`"),
        ("pi", "nopython", ConfigurationError, "pi: its nopython does not start .* Install ai-edge-litert there"),
        ("pi", f"{sys.executable} -S", ConfigurationError, "-S cannot import LiteRT .No module named 'ai_edge_litert"),
        ("pi", "echo", ConfigurationError, "pi: its echo printed no figures"),
    ],
)
def test_a_machine_that_cannot_time_a_file_says_what_to_do(
    model: Path, name: str, python: str, kind: type[TrainyardError], message: str
) -> None:
    with pytest.raises(kind, match=message) as raised:
        devices.measure(name, DeviceLimits(python=python), model)
    assert "\n" not in str(raised.value)


def test_each_limit_is_a_condition() -> None:
    latency = Latency(p50=1, p95=2)
    file = ExportedFile(
        format="litert_int8",
        path="model_int8.tflite",
        bytes=3_000_000,
        accuracy=1,
        accuracy_difference=0,
        max_abs_difference=0,
        latency_ms=latency,
    )
    times = {1: Latency(p50=20, p95=30), 4: Latency(p50=8, p95=9.5)}
    timed = DeviceTiming(device="pi", machine="Raspberry Pi 4", latency_ms=times, memory_mb=80)
    limits = DeviceLimits(latency_ms_p95=10, size_mb=2, memory_mb=100)
    assert [(each.name, each.value, each.passed) for each in devices.judge("pi", limits, file, timed)] == [
        ("litert_int8 on pi: p95 in ms <= 10", 9.5, True),
        ("litert_int8 on pi: size in MB <= 2", 3.0, False),
        ("litert_int8 on pi: peak memory in MB <= 100", 80.0, True),
    ]
    assert not list(devices.judge("pi", DeviceLimits(), file, timed))
