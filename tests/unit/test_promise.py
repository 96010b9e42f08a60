"""Devices that were promised and are not there end a training before it costs anything."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec.pools import Pool
from trainyard.spec.pools import promise as variable
from trainyard.steps.train import promise
from trainyard.steps.train.promise import Gpu, Promise, Seen, difference, promised, seen

L4 = Promise("gpu", "nvidia-l4", 2)
V5E = Promise("tpu", "tpu-v5-lite-podslice", 4)
RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
GIB = 2**30


def files(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_a_pools_promise_is_what_the_process_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool.model_validate({"kind": "gpu", "accelerator": "nvidia-l4", "count": 2, "resources": RESOURCES})
    for name, value in variable(pool).items():
        monkeypatch.setenv(name, value)
    assert promised() == L4
    assert variable(Pool.model_validate({"kind": "cpu", "resources": RESOURCES})) == {}


def test_nothing_is_checked_where_nothing_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_DEVICES", raising=False)
    assert promised() is None
    promise.check()


def test_a_promise_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_DEVICES", "two GPUs")
    with pytest.raises(ConfigurationError, match="'two GPUs' is no promise"):
        promised()


@pytest.mark.parametrize(
    ("expected", "found", "fault"),
    [
        (L4, Seen(["/dev/nvidia0", "/dev/nvidia1"], None, ""), ""),
        (L4, Seen([], None, ""), "no /dev/nvidia* is there"),
        (L4, Seen(["/dev/nvidia0"], None, ""), "1 found: /dev/nvidia0"),
        (L4, Seen(["/dev/nvidia0"], None, "", shared=True), ""),
        (L4, Seen([], [Gpu("NVIDIA L4", 23 * GIB)] * 2, "550.54"), ""),
        (L4, Seen(["/dev/nvidia0"], [Gpu("NVIDIA L4", 23 * GIB)], "", shared=True), ""),
        (L4, Seen([], [], "550.54"), "the driver shows 0 (none)"),
        (L4, Seen([], [Gpu("NVIDIA L4", 23 * GIB)], "550.54"), "the driver shows 1 (NVIDIA L4)"),
        (L4, Seen([], [Gpu("NVIDIA L4", 23 * GIB), Gpu("Tesla T4", 15 * GIB)], ""), "the driver shows Tesla T4"),
        (L4, Seen([], [Gpu("NVIDIA L4", 12 * GIB)] * 2, ""), "one has 12 GiB of memory instead of 24"),
        (V5E, Seen(["/dev/vfio/0", "/dev/vfio/1", "/dev/vfio/2", "/dev/vfio/3"], None, ""), ""),
        (V5E, Seen(["/dev/accel0"], None, ""), "1 found: /dev/accel0"),
        (V5E, Seen([], None, ""), "no /dev/accel* and no /dev/vfio/* is there"),
    ],
)
def test_what_is_found_is_held_against_what_was_promised(expected: Promise, found: Seen, fault: str) -> None:
    assert difference(expected, found) == fault


def test_device_files_are_counted_and_their_controls_are_not(tmp_path: Path) -> None:
    root = files(
        tmp_path, "dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm", "dev/accel0", "dev/vfio/vfio"
    )
    assert [Path(name).name for name in seen("gpu", root).files] == ["nvidia0", "nvidia1"]
    assert [Path(name).name for name in seen("tpu", root).files] == ["accel0"]
    assert not seen("gpu", root).shared
    assert seen("gpu", files(root, "dev/nvidia-caps/nvidia-cap1")).shared


def test_the_drivers_version_is_read_from_its_kernel_module(tmp_path: Path) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n")
    assert seen("gpu", tmp_path).driver in ("550.54.15", seen("gpu").driver)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_a_step_without_its_gpu_ends_with_40_before_it_loads_tensorflow(tmp_path: Path) -> None:
    told = json.dumps({"kind": "gpu", "accelerator": "nvidia-l4", "count": 1})
    arguments = ["--recipe=digits", "--examples=none", f"--checkpoints={tmp_path}/c", f"--output={tmp_path}/model"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trainyard.steps.train", *arguments],
        env=os.environ | {"TRAINYARD_DEVICES": told},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 40, done.stderr[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the processor: a busy machine takes longer
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    assert "the pool promised 1 nvidia-l4, no /dev/nvidia* is there" in done.stderr
    assert " tensorflow\n" not in done.stderr
