"""Trainings under JAX on a stand-in for an accelerator, which computes on a clock and occupies no core.

    python -m benchmarks accelerator_input

Loop, files and threads are those of a real training. The stand-in takes each batch as a GPU does: a thread copies it to
pinned memory, a link transfers it, and steps are queued and computed one after the other, each in the time that the
simulated speed says. It knows for how long it had nothing to compute. The input is real, or it also comes on a clock,
as from cores that this machine does not have.
"""

from __future__ import annotations

import os
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "jax"

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split

import jax
import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing  # its only clock

from benchmarks.data import random_images
from trainyard.contract.artifacts.train import Device, Training
from trainyard.data.examples import open_examples
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import session
from trainyard.steps.train.engines.jax_engine import JaxEngine, JaxSteps
from trainyard.steps.train.engines.steps import LOSS_SUM
from trainyard.steps.train.input import input as training_input
from trainyard.steps.train.input.input import Input

# Chosen: bytes a second of the link, about those of PCI Express 5; programs that JAX queues (in-flight computations of
# its clients); seconds of a training and of a measurement of the input.
_LINK, _QUEUED = 40e9, 32
_EPOCHS, _EPOCH_SECONDS, _INPUT_SECONDS = 4, 1.5, 2.0
_EXAMPLES = 4096


@dataclass(frozen=True)
class Case:
    """Images of `side` pixels in batches of `batch`, for devices of `rates` images a second.

    clock: images a second of an input on a clock; 0: JPEG images are decoded; None: images in memory.
    """

    side: int
    batch: int
    clock: int | None
    rates: Sequence[int]

    @property
    def work(self) -> str:
        """The name of the input."""
        return "clock" if self.clock else "memory, flip" if self.clock is None else "JPEG, flip"


CASES = [
    Case(224, 256, 7_200, (1_000, 5_244, 10_000)),
    Case(96, 1024, 33_078, (20_000, 45_301)),
    Case(32, 256, 50_000, (50_000,)),
    Case(224, 64, 0, (1_000, 4_000)),
    Case(96, 256, None, (5_000, 20_000)),
]
"""The clocks of the first two, and their faster devices, are what 16 cores and an H100 gave."""


@dataclass(frozen=True)
class Result:
    """Images a second of a device and of a training on it.

    waits, idle: shares of a step, in which the training waited for input by its report, and the device for anything.
    """

    case: Case
    device: int
    alone: float
    cached: float
    measured: float
    waits: float
    idle: float

    @property
    def ratio(self) -> float:
        """The training's speed, relative to the smaller of the input alone and one batch."""
        return self.measured / min(self.alone, self.cached)


class _Clock:
    """A device that computes each step in `step_seconds`, once the step before it and the transfer of its batch end."""

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self._transfers: dict[int, Future[float]] = {}
        self._staging = ThreadPoolExecutor(1)
        self._pinned: dict[int, np.ndarray] = {}
        self._link_free = self._free = 0.0
        self._steps: queue.SimpleQueue[tuple[float, Future[float], Future[None]]] = queue.SimpleQueue()
        self._queued = threading.Semaphore(_QUEUED)
        threading.Thread(target=self._compute, daemon=True).start()

    def put(self, rows: np.ndarray) -> None:
        """Start the transfer of `rows`."""
        self._transfers[rows.ctypes.data] = self._staging.submit(self._transfer, rows)

    def step(self, address: int) -> Future[None]:
        """Queue a step on the rows at `address`, and return its end."""
        self._queued.acquire()
        end: Future[None] = Future()
        self._steps.put((time.perf_counter(), self._transfers[address], end))
        return end

    def _transfer(self, rows: np.ndarray) -> float:
        """Copy `rows` to pinned memory; return when the link has transferred them."""
        pinned = self._pinned.setdefault(rows.nbytes, np.zeros(rows.nbytes, np.uint8))
        np.copyto(pinned.view(rows.dtype).reshape(rows.shape), rows)
        self._link_free = max(self._link_free, time.perf_counter()) + rows.nbytes / _LINK
        return self._link_free

    def _compute(self) -> None:
        while True:
            queued, transfer, end = self._steps.get()
            # Not the present time: this thread wakes late, and a device does not.
            self._free = max(self._free, transfer.result(), queued) + self.step_seconds
            time.sleep(max(0.0, self._free - time.perf_counter()))
            self._queued.release()
            end.set_result(None)


@dataclass(frozen=True)
class _Loss:
    """The sum of losses, known when the last step ends."""

    value: jax.Array
    end: Future[None]

    def block_until_ready(self) -> jax.Array:
        self.end.result()
        return self.value

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.asarray(self.block_until_ready())


class _StandInSteps(JaxSteps):
    """The steps of the engine, whose programs change nothing and end when the clock says so."""

    clock: _Clock

    def __post_init__(self) -> None:
        super().__post_init__()
        # With all arguments and results of the real program, because dispatching them takes time.
        same = jax.jit(lambda state, _batch, _teacher: state, donate_argnums=0, keep_unused=True)

        def update(state: Any, _accumulated: Any, batch: Any, _phase: int, teacher: Any) -> Any:
            after = same({**state, LOSS_SUM: _known(state[LOSS_SUM])}, batch, teacher)
            address = batch[0]["image"].addressable_data(0).unsafe_buffer_pointer()
            return {**after, LOSS_SUM: _Loss(after[LOSS_SUM], self.clock.step(address))}

        self._compiled_update = update

    def evaluate(self, batches: Any, count: int, totals: np.ndarray) -> np.ndarray:
        for _ in range(count):
            next(batches)
        return totals + np.ones_like(totals)

    def not_finite(self) -> str | None:
        self._state[LOSS_SUM] = jax.block_until_ready(self._state[LOSS_SUM])
        return super().not_finite()


def _known(value: Any) -> Any:
    return value.value if isinstance(value, _Loss) else value


class _StandIn(JaxEngine):
    def probe(self) -> list[Device]:
        return []


def measure() -> list[Result]:
    """Return the results of all cases; the input alone is measured before and after each training."""
    results = []
    with tempfile.TemporaryDirectory() as name:
        for case in CASES:
            uri = f"{name}/{case.side}"
            if not Path(uri).exists():
                random_images.write_photographs(uri, case.side, case.side, _EXAMPLES)
            for number, rate in enumerate(case.rates):
                results.append(_result(case, rate, uri, Path(f"{name}/{case.work}-{case.side}-{number}")))
                print(results[-1], f"{results[-1].ratio:.2f}", os.getloadavg()[0], file=sys.stderr, flush=True)
    return results


def section(results: Sequence[Result]) -> str:
    """Return the part of the page."""
    rows = "\n".join(
        f"| {result.case.work} | {result.case.side} | {result.case.batch} | {result.device:,} | {result.alone:,.0f} "
        f"| {result.cached:,.0f} | {result.measured:,.0f} | {result.ratio:.2f} | {100 * result.waits:.0f} "
        f"| {100 * result.idle:.0f} |"
        for result in results
    )
    return f"""Images/s under JAX on a stand-in for an accelerator, which computes on a clock. *One batch* sends the
same batch in every step. The ratio is of training to the smaller of input alone and one batch. *Waits* is the share of
a step that the report says the training waits for input; *idle* the share in which the device computed nothing.

| input | pixels | batch | device | input alone | one batch | training | ratio | waits, % | idle, % |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}"""


def _result(case: Case, rate: int, uri: str, folder: Path) -> Result:
    before = _alone(case, uri)
    training = _train(case, rate, uri, folder)
    speed = training.speed
    return Result(
        case=case,
        device=rate,
        alone=statistics.fmean([before, _alone(case, uri)]),
        cached=1000 * case.batch / speed.cached_step_ms,
        measured=speed.examples_per_second,
        waits=speed.step_split_ms["input"] / speed.step_ms,
        idle=1 - speed.examples_per_second / rate,
    )


def _recipe(case: Case, epochs: int) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "stand-in",
            "data": {"format": "image_folder", "path": "/nowhere", "image_size": [case.side, case.side]},
            "model": {"name": "cnn_small"},
            "train": {"epochs": epochs, "batch_size": case.batch, "augment": {"flip": True}},
        }
    )


def _train(case: Case, rate: int, uri: str, folder: Path) -> Training:
    clock, steps = _Clock(case.batch / rate), round(_EPOCH_SECONDS * min(rate, case.clock or rate) / case.batch)
    put = jax.device_put

    def transfer(rows: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(rows, np.ndarray) and rows.ndim == 4:
            clock.put(rows)
        return put(rows, *arguments, **options)

    folder.mkdir()
    with (
        mock.patch("trainyard.steps.train.engines.jax_engine.JaxSteps", type("_", (_StandInSteps,), {"clock": clock})),
        mock.patch("trainyard.steps.train.engines.engine.create_engine", _StandIn),
        mock.patch("jax.device_put", transfer),
        # Long epochs of images that repeat, because what is prepared ahead at an epoch's start is no speed.
        mock.patch.object(Input, "steps_per_epoch", steps) if case.clock != 0 else nullcontext(),
        _paced(case),
    ):
        return session.train(_recipe(case, _EPOCHS), uri, f"{folder}/checkpoints", "stand-in", folder)


@contextmanager
def _paced(case: Case) -> Iterator[None]:
    """Have the input of the case: decoded, from memory, or on a clock."""
    training_input.MEMORY_BYTES = 0 if case.clock == 0 else 4 << 30
    real = Input.train

    def train(data: Input, start: int) -> Any:
        if not case.clock:
            return real(data, start)
        microseconds = round(1e6 * case.batch / case.clock)
        return real(data, start).take(1).cache().repeat().apply(testing.sleep(microseconds)).prefetch(4)

    with mock.patch.object(Input, "train", train):
        yield


def _alone(case: Case, uri: str) -> float:
    """Return the images a second of the input alone."""
    with _paced(case):
        batches = iter(Input(_recipe(case, 10_000), open_examples(uri), None).train(0))
        _take(batches, _INPUT_SECONDS / 2)
        start = time.perf_counter()
        count = _take(batches, _INPUT_SECONDS)
        return case.batch * count / (time.perf_counter() - start)


def _take(batches: Any, seconds: float) -> int:
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        next(batches)
        count += 1
    return count


if __name__ == "__main__":
    tf.config.set_visible_devices([], "GPU")
    with redirect_stdout(sys.stderr):  # the events of the trainings
        measured = measure()
    print(section(measured))
