"""Devices over a real SSH server on this machine, and what one that cannot measure says."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import arm64
import keras
import pytest
import ssh_server
import tensorflow as tf
from typer.testing import CliRunner, Result

from trainyard.contract.artifacts.export import DeviceTiming, ExportedFile, Latency
from trainyard.errors import ConfigurationError, InfrastructureError, TrainyardError, TransientError
from trainyard.spec import devices as registered
from trainyard.spec.devices import Device
from trainyard.spec.recipe import DeviceLimits
from trainyard.steps.export import devices
from trainyard_control.cli.main import app

pytestmark = ssh_server.needs_sshd
HERE = Device(ssh="pi", python=sys.executable)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ssh")
    network = keras.Sequential([keras.Input((8,), batch_size=1), keras.layers.Dense(4)])
    (folder / "model.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(network).convert())
    with ssh_server.serving(folder):
        yield folder / "model.tflite"


@pytest.fixture
def registry(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config/trainyard/devices"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["devices", *arguments])


def test_a_machine_times_a_file_with_one_thread_and_all(model: Path) -> None:
    timed = devices.measure("pi", HERE, model)
    assert 1 in timed.latency_ms and timed.device == "pi" and timed.machine.endswith("x86_64")
    assert all(0 < latency.p50 <= latency.p95 < 60_000 for latency in timed.latency_ms.values())
    assert 20 < timed.memory_mb < 500


def shell(path: Path, command: str) -> str:
    """Write a program that runs `command` with its arguments, and return its path."""
    path.write_text(f'#!/bin/sh\n{command} "$@"\n')
    path.chmod(0o755)
    return str(path)


@arm64.needs_arm64
def test_an_emulated_raspberry_pi_is_registered_and_times_a_file(model: Path, registry: Path, tmp_path: Path) -> None:
    python = shell(tmp_path / "python", f"PYTHONPATH={arm64.system()}/site exec {' '.join(arm64.command())}")
    found = invoke("add", "board", "--ssh", f"{getpass.getuser()}@pi", "--python", python)
    assert found.stdout.startswith("✓ board: Cortex-A72, aarch64, "), found
    assert "; Python 3.11.2; ai-edge-litert 2.3.0; " in found.stdout and found.stdout.endswith(" GB free\n")
    timed = devices.measure("board", registered.find("board"), model)
    assert timed.machine == "Cortex-A72, aarch64" and {*timed.latency_ms} >= {1}


FULL = f"ulimit -f 0; exec {sys.executable}"
BARE = f"{sys.executable} -S"


@pytest.mark.parametrize(
    ("name", "python", "kind", "message"),
    [
        (
            "off",
            "python3",
            TransientError,
            "board: cannot be reached .*refused.* Check it with `ssh off`, and run again",
        ),
        ("stranger", "python3", InfrastructureError, "its host key changed, to ssh-ed25519 SHA256:.{43}. It may be"),
        ("new", "python3", InfrastructureError, "host key is not known, ssh-ed25519 SHA256:.{43}. Connect once with"),
        ("locked", "python3", InfrastructureError, "board: refuses the login .* Run `ssh-copy-id locked`"),
        ("pi", "nopython", ConfigurationError, "board: its nopython does not start .* Run `ssh pi 'python3 -m venv"),
        ("pi", "/etc/passwd", ConfigurationError, "passwd does not start .*Permission denied"),
        ("pi", BARE, ConfigurationError, "-S cannot import LiteRT .No module named 'ai_edge_litert"),
        ("pi", "echo", ConfigurationError, "board: its echo printed no figures"),
        ("pi", FULL, InfrastructureError, "board: cannot write a temporary file .* Free space in /tmp there"),
    ],
)
def test_a_machine_that_cannot_measure_is_not_registered_and_says_what_to_do(
    registry: Path, tmp_path: Path, name: str, python: str, kind: type[TrainyardError], message: str
) -> None:
    command = shell(tmp_path / "full", python) if python == FULL else python
    ended = invoke("add", "board", "--ssh", name, "--python", command)
    with pytest.raises(kind, match=message) as raised:
        raise ended.exception or AssertionError(ended.stdout)
    assert "\n" not in str(raised.value) and not registry.exists()


def test_a_host_key_is_shown_as_the_machine_shows_it_and_never_accepted(model: Path) -> None:
    known = (model.parent / "known_hosts").read_text()
    printed = subprocess.run(
        ["ssh-keygen", "-lf", str(model.parent / "host.pub")], check=True, capture_output=True, text=True
    ).stdout
    for name in ("new", "stranger"):
        with pytest.raises(InfrastructureError) as raised:
            devices.check(name, Device(ssh=name))
        assert printed.split()[1] in str(raised.value)
    assert f"delete line 4 of {model.parent}/known_hosts" in str(raised.value)
    assert (model.parent / "known_hosts").read_text() == known


def test_a_check_of_all_devices_exits_with_the_most_severe_fault(registry: Path) -> None:
    assert invoke("add", "pi", "--ssh", "pi", "--python", sys.executable).exit_code == 0
    for name in ("off", "locked"):
        assert invoke("add", name, "--ssh", name, "--no-check").exit_code == 0
    ended = invoke("check")
    assert [line.partition(":")[0] for line in ended.stdout.splitlines()] == ["✗ device locked", "✗ device off", "✓ pi"]
    assert ended.exit_code == InfrastructureError.exit_code
    ended = invoke("check", "off", "-o", "json")
    assert ended.exit_code == TransientError.exit_code
    (document,) = json.loads(ended.stdout)["devices"]
    assert document["name"] == "off" and document["fault"].startswith("device off: cannot be reached")
    ended = invoke("check", "pi", "-o", "json")
    (document,) = json.loads(ended.stdout)["devices"]
    assert ended.exit_code == 0 and {*document} == {
        "name",
        "exit_code",
        "machine",
        "cpus",
        "python",
        "litert",
        "free_mb",
    }


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
