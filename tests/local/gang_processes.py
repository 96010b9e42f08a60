"""Starts gangs of real processes for the tests and looks into them."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from ports import free_port
from processes import descendants

from trainyard.contract.artifacts.train import Training
from trainyard.runtime import step
from trainyard.spec import recipe as recipes
from trainyard.steps.train import run as train
from trainyard.storage import storage

IPV6 = "[::1]" if socket.has_dualstack_ipv6() else "127.0.0.1"
"""The host of a gang that meets by IPv6, where this machine has it."""

MODULE = """
import keras
def build_model(features, outputs):
    image = keras.Input((8, 8, 1), name="image")
    x = keras.layers.Rescaling(1 / 255)(image)
    x = keras.layers.Conv2D(8, 3, padding="same", name="conv")(x)
    {normalization}
    x = keras.layers.Activation("tanh")(x)
    x = keras.layers.Dropout({dropout})(keras.layers.Flatten()(x))
    return keras.Model({{"image": image}}, keras.layers.Dense(outputs)(x), name="tiny")
"""
BROKEN = """
import keras
class Broken(keras.layers.Layer):
    calls = 0
    def call(self, images):
        def check(values):
            Broken.calls += 1
            if Broken.calls == 12:
                raise RuntimeError("no kernel for this")
            return values
        if keras.backend.backend() == "jax":
            import jax
            return jax.pure_callback(check, jax.ShapeDtypeStruct(images.shape, images.dtype), images)
        import tensorflow as tf
        checked = tf.numpy_function(check, [images], images.dtype)
        checked.set_shape(images.shape)
        return checked
"""
"""A layer that raises an error in the 12th batch, for which the frameworks have the status of a lost worker."""
RECIPE = """
name: tiny
seed: 3
module: {module}
data: {{format: image_folder, bundled: digits, channels: 1}}
train:
  workers: {workers}
  epochs: {epochs}
  batch_size: 32
  accumulation_steps: {accumulation_steps}
  xla: {xla}
  batch_statistics: {batch_statistics}
  select: {select}
  optimizer: {{name: {optimizer}, learning_rate: 0.02, learning_rate_batch: 32, clip_norm: {clip_norm}}}
  augment: {{shift: 0.1, rotate: 10, contrast: 0.2}}
  checkpoints: {{every_steps: {every_steps}}}
"""


ENTER = """
import os, pathlib, runpy, sys
group, module = sys.argv.pop(1), sys.argv.pop(1)
children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()  # what forks its processes
for process in (os.getpid(), *children):
    pathlib.Path(group, "cgroup.procs").write_text(str(process))
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
UNDER_JAX = """
import sys
from trainyard.runtime import step
from trainyard.spec import recipe
from trainyard.steps.train.process import train_in_process
for line in sys.stdin:
    folder, examples = line.split()
    loaded, checkpoints = recipe.load(f"{folder}/recipe.yaml"), f"{folder}/checkpoints"
    step.execute(train_in_process, f"{folder}/output", recipe=loaded, examples=examples, checkpoints=checkpoints)
    print("trained", flush=True)
"""
"""Trains by the recipe in each folder that stdin names, with its examples."""
NOBODY = "http://127.0.0.1:9"
"""A proxy for the outside, which no process of a gang may ask for another one."""


@dataclass
class Trained:
    """A run of the train step, the folder of its recipe, and the one that it writes."""

    folder: Path
    root: str = ""

    def __post_init__(self) -> None:
        self.root = self.root or str(self.folder)

    @property
    def training(self) -> Training:
        return Training.model_validate_json(storage.read(f"{self.root}/output", "training.json") or "")

    def weights(self) -> np.ndarray:
        return _vector(self._model().weights)

    def learned(self) -> np.ndarray:
        """The weights without moving averages."""
        return _vector(self._model().trainable_variables)

    def _model(self) -> keras.Model:
        return keras.saving.load_model(storage.local(f"{self.root}/output") / "model.keras")


@dataclass
class Gang(Trained):
    """A run of the train step as a process, whose log lies beside the recipe."""

    process: subprocess.Popen[str] = field(kw_only=True)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith(f'{{"event": "{kind}"')]

    def wait_for(self, condition: Callable[[], bool], seconds: float = 480) -> None:
        """Return as soon as `condition()` holds; fails where the run ends or the time passes before."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None and time.monotonic() < end, self.log[-3000:]
            time.sleep(0.02)

    @contextmanager
    def descriptors(self, spare: int) -> Iterator[None]:
        """Let the step's process open no more than `spare` files in the block."""
        files, used = (
            resource.RLIMIT_NOFILE,
            {int(name.name) for name in Path(f"/proc/{self.process.pid}/fd").iterdir()},
        )
        free = (number for number in itertools.count() if number not in used)
        limits = resource.prlimit(self.process.pid, files)
        resource.prlimit(self.process.pid, files, (next(itertools.islice(free, spare, None)), limits[1]))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, files, limits)

    def wait_for_team(self, workers: int) -> None:
        """Return as soon as the newest team has so many workers: one that is late may miss the first team."""
        self.wait_for(lambda: [team["workers"] for team in self.events("started_together")][-1:] == [workers])

    def wait_for_recovery(self, times: int, step: int) -> None:
        """Return once the gang recovered so often, and is past `step`: it may have been before a fault that is late."""
        self.wait_for(lambda: len(self.events("recovered")) >= times and self.step() >= step)

    def step(self) -> int:
        return max((event["done"] for event in self.events("progress")), default=0)

    def finish(self, code: int = 0, seconds: float = 480) -> None:
        assert self.process.wait(seconds) == code, self.log[-3000:]

    def training_process(self, worker: int) -> int:
        """Return the process id of the worker's training process."""
        return training_process(self.events("supervisor")[worker]["process"])


def start(folder: Path, examples: str, workers: int, **options: Any) -> Gang:
    """Start the train step; `options`: those of `write_recipe` and `resume`, or environment variables in capitals."""
    ours = ("root", "input_workers", "elastic", "http_proxy")
    kept = {name: options.pop(name) for name in list(options) if name.isupper() or name in ours}
    write_recipe(folder, workers, **options)
    return resume(folder, examples, **kept)


def resume(
    folder: Path,
    examples: str,
    cgroup: Path | None = None,
    root: str = "",
    input_workers: int = 0,
    elastic: str = "",
    **environment: str,
) -> Gang:
    """Start the train step with the recipe that is there; it writes below `root`, by default `folder`.

    input_workers: how many prepare the batches. elastic: as of the step. cgroup: the control group that it runs in, if
    one is given.
    """
    root = root or str(folder)
    given = {"--input-workers": input_workers, "--elastic": elastic}
    module = ["trainyard.steps", "train", *(f"{option}={value}" for option, value in given.items() if value)]
    process = _step(folder, root, examples, module, environment, cgroup)
    return Gang(folder, root, process=process)


def start_broken(folder: Path, examples: str, seconds_apart: int = 0, **environment: str) -> Gang:
    """Start a gang of two whose network fails in its second epoch.

    seconds_apart: how much longer the second worker builds it.
    """
    own = write_recipe(folder, 2, epochs=4) / "own.py"
    text = own.read_text().replace("(1 / 255)(image)", "(1 / 255)(Broken()(image))")
    if seconds_apart:
        index = "json.loads(os.environ['TF_CONFIG'])['task']['index']"
        pause = f"import json, os, time\n    time.sleep({seconds_apart} * {index})"
        text = text.replace("(features, outputs):\n", f"(features, outputs):\n    {pause}\n")
    own.write_text(BROKEN + text)
    return resume(folder, examples, **environment)


def train_here(folder: Path, examples: str, **options: Any) -> Trained:
    """Train alone in this process, which has imported TensorFlow already; `options` are those of `write_recipe`."""
    write_recipe(folder, 1, **options)
    return resume_here(folder, examples)


def resume_here(folder: Path, examples: str) -> Trained:
    """Train in this process with the recipe that is there, which asks for one worker."""
    recipe = recipes.load(str(folder / "recipe.yaml"))
    step.execute(train.run, f"{folder}/output", recipe=recipe, examples=examples, checkpoints=f"{folder}/checkpoints")
    return Trained(folder)


def train_together(folders: Sequence[Path], examples: str, workers: int, devices: int = 1) -> list[Trained]:
    """Train the recipe in each folder with the same processes, each of so many devices, which have no supervisors.

    A recipe that is refused leaves the exit code and the sentence in the file `refused` of its folder.
    """
    script = Path(__file__).with_name("trainings.py")
    ports = ",".join(str(free_port()) for _ in range(workers))
    command = [sys.executable, script, ports, str(devices), examples, *folders]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [Trained(folder) for folder in folders]


def write_recipe(
    folder: Path,
    workers: int,
    epochs: int = 2,
    normalization: bool = False,
    clip_norm: float | str = "null",
    optimizer: str = "sgd",
    every_steps: int = 5,
    accumulation_steps: int = 1,
    dropout: float = 0.2,
    xla: bool = False,
    batch_statistics: str = "global",
    select: str = "loss",
) -> Path:
    """Leave a recipe in `folder`, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    layer = "x = keras.layers.BatchNormalization()(x)" if normalization else "pass"
    (folder / "own.py").write_text(MODULE.format(normalization=layer, dropout=dropout))
    text = RECIPE.format(
        module=folder / "own.py",
        workers=workers,
        epochs=epochs,
        clip_norm=clip_norm,
        optimizer=optimizer,
        every_steps=every_steps,
        accumulation_steps=accumulation_steps,
        xla=str(xla).lower(),
        batch_statistics=batch_statistics,
        select=select,
    )
    (folder / "recipe.yaml").write_text(text)
    return folder


def supervisor(
    folder: Path,
    examples: str,
    worker: int,
    ports: list[int],
    root: str = "",
    host: str = "127.0.0.1",
    **environment: str,
) -> Gang:
    """Start one supervisor alone, as a pod would; it writes below `root`, by default `folder`."""
    root = root or str(folder)
    addresses = ",".join(f"{host}:{port}" for port in ports)
    variables = {"TRAINYARD_WORKERS": addresses, "TRAINYARD_WORKER_INDEX": str(worker), "TRAINYARD_GANG_TOKEN": "known"}
    variables |= environment
    process = _step(folder, root, examples, ["trainyard.steps.train.gang.supervisor"], variables)
    return Gang(folder, root, process=process)


def input_worker(examples: str, output: str, number: int, addresses: str, **environment: str) -> subprocess.Popen[str]:
    """Start one of the input workers of a gang whose token is `known`, as a pod would."""
    variables = {"TRAINYARD_INPUT_WORKERS": addresses, "TRAINYARD_WORKER_INDEX": str(number)}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "trainyard.steps.train.input.service.worker"),
            *("--examples", examples, "--output", output),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TRAINYARD_GANG_TOKEN": "known", **variables, **environment},
    )


def _vector(variables: list[keras.Variable]) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in variables]).astype(np.float64)


def relative_difference(one: Trained, other: Trained) -> float:
    """Return |a - b| / |b| over all weights."""
    a, b = one.weights(), other.weights()
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of the processes that have `folder` in theirs."""
    command_lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if str(folder) in line:
            command_lines.append(line)
    return command_lines


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def listening(pid: int) -> list[tuple[str, int]]:
    """Return address and port of every TCP server of a process and its descendants."""
    inodes = set()
    for process in [pid, *descendants(pid)]:
        for entry in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):
                inodes.add(str(entry.readlink()))
    servers = []
    for name, family, width in (("tcp", socket.AF_INET, 4), ("tcp6", socket.AF_INET6, 16)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                host, _, port = fields[1].partition(":")
                integers = struct.iter_unpack("<I", bytes.fromhex(host))
                packed = b"".join(struct.pack(">I", word) for (word,) in integers)[:width]
                servers.append((socket.inet_ntop(family, packed), int(port, 16)))
    return servers


def training_process(supervisor: int) -> int:
    """Return the process id of a supervisor's training process: the group leader that it has forked."""
    for pid in descendants(supervisor):
        if os.getsid(pid) == pid:
            return pid
    raise AssertionError(f"supervisor {supervisor} has no training process")


def python(module: str, *arguments: str, cgroup: Path | None = None) -> list[str]:
    """Return the command that runs a module, in a control group if one is given."""
    return [sys.executable, *(("-c", ENTER, str(cgroup)) if cgroup else ("-m",)), module, *arguments]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _step(
    folder: Path, root: str, examples: str, module: list[str], environment: dict[str, str], cgroup: Path | None = None
) -> subprocess.Popen[str]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [
                *(*python(*module, cgroup=cgroup), "--recipe", str(folder / "recipe.yaml"), "--examples", examples),
                *("--checkpoints", f"{root}/checkpoints", "--output", f"{root}/output"),
            ],
            stderr=subprocess.STDOUT,
            stdout=log,
            text=True,
            env={**os.environ, **environment},
        )
