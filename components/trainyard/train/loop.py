"""The training loop: a small state machine over (step, history), so that a run goes on from wherever it was stopped."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf

from trainyard.core import events
from trainyard.core.artifacts import Epoch
from trainyard.core.errors import ConfigurationError, DataError, PeerLost, Preempted
from trainyard.core.recipe import Train
from trainyard.train.checkpoint import Checkpoint, Checkpoints, best_epoch
from trainyard.train.input import Input
from trainyard.train.steps import Steps
from trainyard.train.strategy import Place

# Chosen: seconds of work a compiled call, after which progress is told, the loss is checked and a signal is heard.
CALL_SECONDS = 0.25
# Chosen: the learning rate of the one retry after a divergence, as a share of the recipe's.
RETRY_SCALE = 0.1


class Loop:
    """Trains to the end of the schedule or to the early stop; `history` then tells each epoch.

    The workers of a gang run the same loop in step: whatever decides its course is the same on each, or is agreed upon
    in the call itself. The chief alone writes.

    on_start: called once new steps are taken, with the step that they went on from.
    on_epoch: called with each epoch's evidence, those of a resumed run's past included.
    """

    def __init__(
        self,
        train: Train,
        steps: Steps,
        data: Input,
        checkpoints: Checkpoints,
        on_epoch: Callable[[Epoch], None],
        place: Place,
        on_start: Callable[[int], None],
    ) -> None:
        self.place = place
        self.on_start = on_start
        self.settings = train
        self.steps = steps
        self.data = data
        self.checkpoints = checkpoints
        self.on_epoch = on_epoch
        self.total = train.epochs * data.steps_per_epoch
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.history: list[Epoch] = []
        self.resumed_from: int | None = None
        self._dataset: Any = None
        self._batches: Any = None
        self._evaluation: Any = None
        self._saved = -1
        self._told = 0.0
        self._call_steps = 1
        self._speed = _Speed(data)
        self._told_to_stop = False

    def run(self) -> None:
        """Train. Raises `DataError` where the loss is not finite twice, `Preempted` after a last checkpoint."""
        if self.place.workers > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._stop_later)
        self._resume()
        while not self._finished():
            step = self._step()
            if step and step % self.data.steps_per_epoch == 0 and len(self.history) < step // self.data.steps_per_epoch:
                self._end_epoch(step)
            else:
                self._advance(step)

    def cached_step_seconds(self) -> float:
        """Return the seconds a step takes on one batch over and over. The weights are spoiled by it."""
        with self._clock("bottleneck"):
            dataset = self._dataset or self.data.train(0)
            batch = iter(self._distributed(dataset.take(self.data.share.local).cache().repeat()))
            wanted = min(100, max(3, round(CALL_SECONDS / max(1e-6, self._speed.step_seconds(self.history)))))
            agreed, _ = self._take(batch, 1, float(wanted))
            count = round(agreed)
            start = time.perf_counter()
            self._take(batch, count)
            return (time.perf_counter() - start) / count

    def all_reduce_seconds(self) -> float:
        """Return the seconds that the gradients' sum over the replicas alone takes."""
        with self._clock("bottleneck"):
            vector, count = tf.zeros((self.steps.gradient_bytes // 4,)), 10
            self.steps.all_reduce(vector, tf.constant(1, tf.int64))
            start = time.perf_counter()
            self.steps.all_reduce(vector, tf.constant(count, tf.int64))
            return (time.perf_counter() - start) / count

    def restore_best(self) -> Epoch:
        """Set the weights to those of the epoch with the smallest eval loss whose checkpoint is whole; return it."""
        with self._clock("checkpoint"):
            for epoch in sorted(self.history, key=lambda epoch: epoch.eval_loss):
                if epoch.step not in self.checkpoints.steps():
                    continue
                try:
                    self.steps.load(self.checkpoints.read(epoch.step).arrays)
                    return epoch
                except DataError as error:
                    events.emit("warning", message=str(error))
        raise DataError(f"{self.checkpoints.uri}: no whole checkpoint of any epoch is left. Remove it and train again.")

    @property
    def step_seconds(self) -> float:
        """Seconds a step took in training, the first calls of each process left out."""
        return self._speed.step_seconds(self.history)

    def _resume(self) -> None:
        with self._clock("checkpoint"):
            found = self.checkpoints.latest(self.steps.arrays())
            step = 0 if found is None else found.progress.step
            agreed = float(self.steps.mean(tf.constant([step], tf.float32))[0])
            if agreed != step:
                raise PeerLost(
                    f"worker {self.place.index} found the checkpoint of step {step}, others found another one. Start again."
                )
            if found is None:
                self._save(0)
            else:
                self.resumed_from = step
                self._load(found)
                events.emit("resumed", step=step, steps=self.total)
        for epoch in self.history:
            self.on_epoch(epoch)

    def _load(self, found: Checkpoint) -> None:
        self.steps.load(found.arrays)
        self.history = list(found.progress.history)
        self._saved = found.progress.step
        self._batches = None

    def _finished(self) -> bool:
        best, patience = best_epoch(self.history), self.settings.early_stopping
        if best and patience and len(self.history) - best.epoch >= patience.patience:
            return True
        return len(self.history) == self.settings.epochs

    def _advance(self, step: int) -> None:
        """Take steps up to the next end of an epoch, checkpoint or call, whichever comes first."""
        if self._batches is None:
            with self._clock("input"):
                self._dataset = self.data.train(step)
                self._batches = iter(self._distributed(self._dataset))
        count = min(self._call_steps, self.data.steps_per_epoch - step % self.data.steps_per_epoch)
        every = self.settings.checkpoints.every_steps
        if every:
            count = min(count, every - step % every)
        try:
            stop = self._timed_call(count)
        except (Preempted, KeyboardInterrupt):
            self._save_last()
            raise
        if not math.isfinite(float(self.steps.loss_sum.numpy())):
            self._diverged("training loss")
            return
        if stop:
            self._stop_together()
        done = step + count
        self._tell(done)
        if every and done % every == 0 and done % self.data.steps_per_epoch:
            self._save(done)

    def _timed_call(self, count: int) -> bool:
        """Take `count` steps and return whether a worker was told to stop."""
        start = time.perf_counter()
        each, stop = self._take(self._batches, count, self._speed.last_step_seconds, float(self._told_to_stop))
        seconds = time.perf_counter() - start
        self.seconds["compile" if self._speed.cold else "step"] += seconds
        if self._speed.cold:
            self.on_start(self.resumed_from or 0)
        self._speed.add(count, seconds)
        if self.place.workers == 1:
            each = self._speed.last_step_seconds
        if each:
            self._call_steps = max(1, round(CALL_SECONDS / each))
        return stop > 0

    def _take(self, batches: Any, count: int, number: float = 0.0, stop: float = 0.0) -> tuple[float, float]:
        """Take `count` steps and return the means over the workers of their `number` and their `stop`."""
        try:
            mean = self.steps.train(batches, tf.constant(count, tf.int64), tf.constant([number, stop], tf.float32))
            return float(mean[0]), float(mean[1])
        except tf.errors.ResourceExhaustedError as error:
            raise ConfigurationError(
                f"train.batch_size: {self.settings.batch_size} examples do not fit the device's memory "
                f"({error.message.splitlines()[0]}). Lower train.batch_size or data.image_size, or name a larger device."
            ) from error

    def _end_epoch(self, step: int) -> None:
        with self._clock("eval"):
            if self._evaluation is None:
                self._evaluation = self._distributed(self.data.evaluation())
            count = tf.constant(self.data.evaluation_steps, tf.int64)
            loss, metric = (float(value) for value in self.steps.evaluate(iter(self._evaluation), count))
        if not math.isfinite(loss):
            self._diverged("eval loss")
            return
        rate, seconds = self._speed.end_epoch()
        epoch = Epoch(
            epoch=len(self.history) + 1,
            step=step,
            learning_rate=float(self.steps.optimizer.learning_rate),
            train_loss=float(self.steps.loss_sum.numpy()) / self.data.steps_per_epoch,
            eval_loss=loss,
            metric=metric,
            examples_per_second=rate,
            seconds=seconds,
        )
        self.steps.loss_sum.assign(0.0)
        self.history.append(epoch)
        if self._save(step):
            self.on_epoch(epoch)

    def _save(self, step: int) -> bool:
        """Commit a checkpoint of `step`; return False after a rollback, because a variable was not finite."""
        with self._clock("checkpoint"):
            arrays = self.steps.arrays()
            bad = next((name for name, value in arrays.items() if not np.isfinite(value).all()), None)
            if bad is None:
                if self.place.chief:
                    self.checkpoints.save(step, self.history, arrays)
                self._saved = step
                return True
        self._diverged(bad)
        return False

    def _save_last(self) -> None:
        """Save where the process was told to stop, unless nothing is new or nothing good is there."""
        step = self._step()
        arrays = self.steps.arrays()
        if self.place.chief and step > self._saved and all(np.isfinite(value).all() for value in arrays.values()):
            self.checkpoints.save(step, self.history, arrays)
            events.emit("saved", step=step)

    def _stop_later(self, _signal: int, _frame: FrameType | None) -> None:
        """Have the gang stop after the next call: in the middle of one, the others would wait for ever."""
        self._told_to_stop = True

    def _stop_together(self) -> None:
        self._save_last()
        if self._told_to_stop:
            raise Preempted("told to stop (SIGTERM). Run the same command again to go on.")
        raise PeerLost("another worker was told to stop. Start again when it is back.")

    def _diverged(self, what: str) -> None:
        """Go back to the last checkpoint with a smaller learning rate, once; raises `DataError` the second time."""
        step = self._step()
        if float(self.steps.scale.numpy()) != 1.0:
            raise DataError(
                f"train: {what} is not finite at step {step}, again after one retry at {RETRY_SCALE:g} times the "
                f"learning rate {self.settings.optimizer.learning_rate:g}. Lower train.optimizer.learning_rate, set "
                "train.optimizer.clip_norm, or look for NaN and extreme values in the data."
            )
        good = self.checkpoints.latest(self.steps.arrays())
        if good is None:
            raise DataError(f"train: {what} is not finite at step {step}, and no checkpoint is left to go back to.")
        events.emit("diverged", what=what, step=step, back_to=good.progress.step, learning_rate_scale=RETRY_SCALE)
        self._load(good)
        self.steps.scale.assign(RETRY_SCALE)

    def _tell(self, done: int) -> None:
        now = time.monotonic()
        if now - self._told >= CALL_SECONDS or done == self.total:
            self._told = now
            in_epoch = (done - 1) % self.data.steps_per_epoch + 1
            events.progress(
                done,
                self.total,
                "steps",
                loss=round(float(self.steps.loss_sum.numpy()) / in_epoch, 4),
                examples_per_second=round(self._speed.rate),
            )

    def _step(self) -> int:
        return int(self.steps.step.numpy())

    def _distributed(self, batches: tf.data.Dataset) -> Any:
        return self.steps.strategy.distribute_datasets_from_function(lambda _: batches)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


class _Speed:
    """Examples a second, without the first call of a process, which compiles."""

    def __init__(self, data: Input) -> None:
        self._batch = data.batch_size
        self._steps_per_epoch = data.steps_per_epoch
        self.cold = True
        self.last_step_seconds = 0.0
        self._steps = 0
        self._seconds = 0.0
        self._cold_seconds = 0.0
        self._epoch_start = time.perf_counter()

    @property
    def rate(self) -> float:
        """Examples a second in this epoch."""
        steps, seconds = (self._steps, self._seconds) if self._steps else (1, self._cold_seconds)
        return steps * self._batch / max(seconds, 1e-9)

    def add(self, steps: int, seconds: float) -> None:
        """Count a call of `steps` that took `seconds`."""
        if self.cold:
            self.cold, self._cold_seconds = False, seconds
            return
        self.last_step_seconds = seconds / steps
        self._steps += steps
        self._seconds += seconds

    def end_epoch(self) -> tuple[float, float]:
        """Return the epoch's examples a second and its wall seconds, and begin another."""
        now = time.perf_counter()
        result = self.rate, now - self._epoch_start
        self._steps, self._seconds, self._epoch_start = 0, 0.0, now
        return result

    def step_seconds(self, history: list[Epoch]) -> float:
        """Return the mean seconds a step over `history`."""
        rates = [epoch.examples_per_second for epoch in history]
        return self._batch * sum(1 / rate for rate in rates) / len(rates)
