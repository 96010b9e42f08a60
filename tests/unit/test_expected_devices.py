"""Expected devices that are not there end a training before it costs anything."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec.hardware.pools import Pool, training_variables
from trainyard.steps.train.devices import (
    ExpectedDevices,
    Gpu,
    VisibleDevices,
    check_devices,
    difference,
    expected_devices,
    visible_devices,
)

L4 = ExpectedDevices("gpu", "nvidia-l4", 2)
V5E = ExpectedDevices("tpu", "tpu-v5-lite-podslice", 4)
RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
GIB = 2**30


def files(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_a_process_reads_the_devices_that_its_pool_names(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool.model_validate({"kind": "gpu", "accelerator": "nvidia-l4", "count": 2, "resources": RESOURCES})
    for name, value in training_variables(pool).items():
        monkeypatch.setenv(name, value)
    assert expected_devices() == L4
    assert training_variables(Pool.model_validate({"kind": "cpu", "resources": RESOURCES})) == {}


def test_nothing_is_checked_if_no_device_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_DEVICES", raising=False)
    assert expected_devices() is None
    check_devices()


def test_expected_devices_that_cannot_be_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_DEVICES", "two GPUs")
    with pytest.raises(ConfigurationError, match="'two GPUs' names no devices"):
        expected_devices()


@pytest.mark.parametrize(
    ("expected", "visible", "fault"),
    [
        (L4, VisibleDevices(["/dev/nvidia0", "/dev/nvidia1"], None, ""), ""),
        (L4, VisibleDevices([], None, ""), "no /dev/nvidia* is there"),
        (L4, VisibleDevices(["/dev/nvidia0"], None, ""), "1 found: /dev/nvidia0"),
        (L4, VisibleDevices(["/dev/nvidia0"], None, "", shared=True), ""),
        (L4, VisibleDevices([], [Gpu("NVIDIA L4", 23 * GIB)] * 2, "550.54"), ""),
        (L4, VisibleDevices(["/dev/nvidia0"], [Gpu("NVIDIA L4", 23 * GIB)], "", shared=True), ""),
        (L4, VisibleDevices([], [], "550.54"), "the driver shows 0 (none)"),
        (L4, VisibleDevices([], [Gpu("NVIDIA L4", 23 * GIB)], "550.54"), "the driver shows 1 (NVIDIA L4)"),
        (
            L4,
            VisibleDevices([], [Gpu("NVIDIA L4", 23 * GIB), Gpu("Tesla T4", 15 * GIB)], ""),
            "the driver shows Tesla T4",
        ),
        (L4, VisibleDevices([], [Gpu("NVIDIA L4", 12 * GIB)] * 2, ""), "one has 12 GiB of memory instead of 24"),
        (V5E, VisibleDevices(["/dev/vfio/0", "/dev/vfio/1", "/dev/vfio/2", "/dev/vfio/3"], None, ""), ""),
        (V5E, VisibleDevices(["/dev/accel0"], None, ""), "1 found: /dev/accel0"),
        (V5E, VisibleDevices([], None, ""), "no /dev/accel* and no /dev/vfio/* is there"),
    ],
)
def test_visible_devices_are_compared_with_the_expected_ones(
    expected: ExpectedDevices, visible: VisibleDevices, fault: str
) -> None:
    assert difference(expected, visible) == fault


def test_device_files_are_counted_and_their_controls_are_not(tmp_path: Path) -> None:
    root = files(
        tmp_path, "dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm", "dev/accel0", "dev/vfio/vfio"
    )
    assert [Path(name).name for name in visible_devices("gpu", root).files] == ["nvidia0", "nvidia1"]
    assert [Path(name).name for name in visible_devices("tpu", root).files] == ["accel0"]
    assert not visible_devices("gpu", root).shared
    # Every driver makes the files of MIG's configuration (1) and monitor (2); a partition has others.
    assert not visible_devices("gpu", files(root, "dev/nvidia-caps/nvidia-cap1", "dev/nvidia-caps/nvidia-cap2")).shared
    assert visible_devices("gpu", files(root, "dev/nvidia-caps/nvidia-cap12")).shared


def test_the_drivers_version_is_read_from_its_kernel_module(tmp_path: Path) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n")
    assert visible_devices("gpu", tmp_path).driver in ("550.54.15", visible_devices("gpu").driver)


def test_gpus_and_driver_are_those_that_nvml_gives_but_for_what_it_does_not_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def handle(index: int) -> int:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return index

    def init(code: int) -> None:
        if code:
            raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "550.54")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA L4")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(total=23 * GIB))
    for code, gpus, driver in (
        (0, [Gpu("NVIDIA L4", 23 * GIB)], "550.54"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, [], ""),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, None, ""),
    ):
        monkeypatch.setattr(pynvml, "nvmlInit", partial(init, code))
        assert visible_devices("gpu", tmp_path) == VisibleDevices([], gpus, driver)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert visible_devices("gpu", tmp_path) == VisibleDevices([], None, "")


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_a_step_without_its_gpu_ends_with_40_before_it_loads_tensorflow(tmp_path: Path) -> None:
    expected = json.dumps({"kind": "gpu", "accelerator": "nvidia-l4", "count": 1})
    arguments = ["--recipe=digits", "--examples=none", f"--checkpoints={tmp_path}/c", f"--output={tmp_path}/model"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trainyard.steps", "train", *arguments],
        env=os.environ | {"TRAINYARD_DEVICES": expected},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 40, done.stderr[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the processor: a busy machine takes longer
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    assert "the pool should have 1 nvidia-l4, no /dev/nvidia* is there" in done.stderr
    assert " tensorflow\n" not in done.stderr
