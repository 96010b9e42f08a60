"""The training loop: a small state machine over (step, history), so that a run goes on from wherever it was stopped."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np

from trainyard import events
from trainyard.contract.artifacts import Epoch, Rollback
from trainyard.errors import (
    ConfigurationError,
    DataError,
    PeerLost,
    Preempted,
    TrainyardError,
)
from trainyard.spec.recipe import Train
from trainyard.steps.train.engines.engine import Steps
from trainyard.steps.train.gang.place import Place
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.loop.checkpoint import Checkpoint, Checkpoints, Progress, best_epoch, lost_best
from trainyard.steps.train.loop.pace import Pace
from trainyard.steps.train.loop.speed import Speed
from trainyard.steps.train.loop.watchdog import Watchdog
from trainyard.steps.train.loop.writer import Writer

# Chosen: seconds of work a compiled call, after which the loss is checked and a signal is heard.
CALL_SECONDS = 0.25
CACHED_CALLS = 5  # chosen: enough to show by how much they differ, a second or so
# Chosen: where the recipe names no interval, a checkpoint within an epoch is not closer to another than that.
CHECKPOINT_SECONDS = 30.0
# Chosen: the learning rate of the one retry after a divergence, as a share of the recipe's.
RETRY_SCALE = 0.1
# Chosen: how long the last checkpoint waits for one under way, out of the 10 s that SIGTERM gives.
LAST_WAIT_SECONDS = 5.0
# Chosen: how long the input may get ahead, to see what a step takes without a wait for it.
LONGEST_PAUSE_SECONDS = 3.0


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
        watchdog: Watchdog,
    ) -> None:
        self.place = place
        self.on_start = on_start
        self.settings = train
        self.steps = steps
        self.data = data
        self.checkpoints = checkpoints
        self.writer = Writer(checkpoints)
        self.watchdog = watchdog
        self.on_epoch = on_epoch
        self.total = train.epochs * data.steps_per_epoch
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.history: list[Epoch] = []
        self.rollbacks: list[Rollback] = []
        self.resumed_from: int | None = None
        self._dataset: Any = None
        self._batches: Any = None
        self._evaluation: Any = None
        self._saved = -1
        self._seconds_since_saved = self._seconds_apart = 0.0
        self._call_steps = 1
        self._speed = Speed(data)
        self._pace = Pace(steps, data, self._speed, self.total, self.seconds)
        self._told_to_stop = False

    def run(self) -> None:
        """Train. Raises `DataError` where the loss is not finite twice, `Preempted` after a last checkpoint."""
        with self._hearing_sigterm(), self._finishing_writes():
            self._resume()
            while not self._finished():
                step, length = self.steps.step, self.data.steps_per_epoch
                if step and step % length == 0 and len(self.history) < step // length:
                    self._end_epoch(step)
                else:
                    self._advance(step)
                if self._told_to_stop and self.place.workers == 1:
                    self._stop_together()

    def cached_step_seconds(self) -> list[float]:
        """Return the seconds a step takes on one batch over and over, in calls as long as those of the training.

        A call costs time of its own, so that only calls of one length compare. The weights are spoiled by it.
        """
        with self._clock("bottleneck"):
            dataset = self._dataset or self.data.train(0)
            batch = iter(self.steps.distributed(dataset.take(self.data.share.local).cache().repeat()))
            count = max(1, min(self._call_steps, self.data.steps_per_epoch))  # the same on all workers
            self._take(batch, count)
            found = []
            for _ in range(CACHED_CALLS):
                start = time.perf_counter()
                self._take(batch, count)
                found.append((time.perf_counter() - start) / count)
            return found

    def all_reduce_seconds(self, count: int = 10) -> float:
        """Return the seconds that the gradients' sum over the replicas alone takes, the mean of `count`."""
        with self._clock("bottleneck"):
            self.steps.all_reduce(1)
            start = time.perf_counter()
            self.steps.all_reduce(count)
            return (time.perf_counter() - start) / count

    def restore_best(self) -> Epoch:
        """Set the weights to those of the epoch with the smallest eval loss whose checkpoint is whole; return it."""
        with self._clock("checkpoint"):
            best = best_epoch(self.history)
            for epoch in sorted(self.history, key=lambda epoch: epoch.eval_loss):
                try:
                    self.steps.load(self.checkpoints.read(epoch.step).arrays)
                    return epoch
                except DataError as error:
                    if epoch is best and self.place.chief:
                        events.emit("warning", message=f"{lost_best(epoch)} ({error})")
        raise DataError(f"{self.checkpoints.uri}: no whole checkpoint of any epoch is left. Remove it and train again.")

    @property
    def step_seconds(self) -> list[float]:
        """Seconds a step took in each epoch, the first calls of each process left out."""
        return self._speed.step_seconds(self.history)

    def _resume(self) -> None:
        found = self._newest()
        if found is None:
            self._save(0)
        else:
            self.resumed_from = found.progress.step
            self._load(found)
            events.emit("resumed", step=self.resumed_from, steps=self.total)
        for epoch in self.history:
            self.on_epoch(epoch)

    def _newest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, which is the same one on every worker."""
        with self._clock("checkpoint"):
            self.writer.wait()
            self.steps.mean([0.0])  # Nobody looks before the chief has written.
            found = self.checkpoints.latest(self.steps.arrays())
            step = 0 if found is None else found.progress.step
            agreed = self.steps.mean([step])[0]
        if agreed != step:
            raise PeerLost(
                f"worker {self.place.index} found the checkpoint of step {step}, others found another one. Start again."
            )
        return found

    def _load(self, found: Checkpoint) -> None:
        self.steps.load(found.arrays)
        self.history = list(found.progress.history)
        self.rollbacks = list(found.progress.rollbacks)
        self._saved, self._seconds_since_saved = found.progress.step, 0.0
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
                self._batches = iter(self.steps.distributed(self._dataset))
        length, due = self.data.steps_per_epoch, self._due(step)
        count = min(self._call_steps, length - step % length, due - step)
        look = self._pace.looks()
        if look:
            count = self._pause(count)
        try:
            stop = self._timed_call(count)
        except KeyboardInterrupt:
            self._save_last()
            raise
        if look:
            self._pace.rested_step_seconds = self._speed.last_step_seconds
        self.writer.check()
        if not math.isfinite(self.steps.loss_sum):
            self._diverged("training loss")
            return
        if stop:
            self._stop_together()
        done = step + count
        self._tell(done, at_once=done == due)
        if done == due and done % length and self._pays():
            self._save(done)

    def _due(self, step: int) -> int:
        """Return the step of the next checkpoint within the epoch, beyond the epoch where none is left.

        Half an interval after the last one, by default half an epoch: while one is written, the one before it, which is
        committed, is at most an interval old.
        """
        length, every = self.data.steps_per_epoch, self.settings.checkpoints.every_steps
        due = self._saved + (max(1, every // 2) if every else (length + 1) // 2)
        return due if due > step else step + length

    def _pays(self) -> bool:
        """Whether a checkpoint within the epoch is worth its cost: one of the recipe's always, one by default where what
        the last one cost is at most `writer.SHARE` of the steps since.

        The workers agree: `_timed_call` has them all know the chief's cost and their common speed.
        """
        apart = max(CHECKPOINT_SECONDS, self._seconds_apart)
        return bool(self.settings.checkpoints.every_steps) or self._seconds_since_saved >= apart

    def _pause(self, count: int) -> int:
        """Let the input get ahead; return how many of `count` steps then show the speed without a wait for it.

        All workers of a gang do so in the same call. A second pipeline would say the same at twice the memory.
        """
        each = self._speed.step_seconds_so_far
        if self.data.share.replicas > 1 and not self._pace.all_reduce_seconds:
            self._pace.all_reduce_seconds = self.all_reduce_seconds(3)
        with self._clock("bottleneck"):
            time.sleep(min(LONGEST_PAUSE_SECONDS, max(0.5, 4 * each)))
        return min(count, 2)

    def _timed_call(self, count: int) -> bool:
        """Take `count` steps and return whether a worker was told to stop."""
        start = time.perf_counter()
        each, stop, apart = self._take(
            self._batches, count, self._speed.last_step_seconds, float(self._told_to_stop), self.writer.seconds_apart
        )
        seconds = time.perf_counter() - start
        self.seconds["compile" if self._speed.cold else "step"] += seconds
        if self._speed.cold:
            self.on_start(self.resumed_from or 0)
        self._speed.add(count, seconds)
        if self.place.workers == 1:
            each = self._speed.last_step_seconds
        if each:
            self._call_steps = max(1, round(CALL_SECONDS / each))
        self._seconds_since_saved += count * each
        self._seconds_apart = apart * self.place.workers  # the chief's: the others write nothing
        return stop > 0

    def _take(self, batches: Any, count: int, *said: float) -> list[float]:
        """Take `count` steps and return the means over the workers of the three numbers that they `said`, or 0."""
        try:
            with self.watchdog.call("train"):
                return self.steps.train(batches, count, [*said, 0.0, 0.0, 0.0][:3])
        except MemoryError as error:
            raise ConfigurationError(
                f"train.batch_size: {self.settings.batch_size} examples do not fit the device's memory "
                f"({error}). Raise train.accumulation_steps, lower data.image_size, or name a larger device."
            ) from error

    def _end_epoch(self, step: int) -> None:
        loss, metric = self._evaluate(step)
        if not math.isfinite(loss):
            self._diverged("eval loss")
            return
        rate, seconds = self._speed.end_epoch()
        epoch = Epoch(
            epoch=len(self.history) + 1,
            step=step,
            learning_rate=self.steps.learning_rate,
            train_loss=self.steps.loss_sum / self.data.steps_per_epoch,
            eval_loss=loss,
            metric=metric,
            examples_per_second=rate,
            seconds=seconds,
        )
        self.steps.loss_sum = 0.0
        self.history.append(epoch)
        if self._save(step):
            self.on_epoch(epoch)

    def _evaluate(self, step: int) -> tuple[float, float]:
        """Return mean loss and mean metric over the eval split."""
        with self._clock("eval"):
            if self._evaluation is None:
                self._evaluation = self.steps.distributed(self.data.evaluation())
            batches, left = iter(self._evaluation), self.data.evaluation_steps
            totals = np.zeros(3, np.float32)
            while left:
                count = min(left, self._call_steps)
                with self.watchdog.call("evaluate"):
                    totals = self.steps.evaluate(batches, count, totals)
                left -= count
                self._tell(step)
            loss, metric, weight = (float(value) for value in totals)
        return loss / weight, metric / weight

    def _save(self, step: int) -> bool:
        """Have a checkpoint of `step` written; return False after a rollback, because a variable was not finite."""
        with self._clock("save"):
            start = time.perf_counter()
            bad = self.steps.not_finite()
            if bad is None:
                if self.place.chief:
                    self.writer.wait()
                    arrays = self.steps.arrays()
                    # Compiling the test, at a process's first one, does not count.
                    waited = time.perf_counter() - start if self.writer.count else 0.0
                    self.writer.save(self._progress(step), arrays, waited)
                    if self.settings.checkpoints.every_steps == 1:  # there is no half of it
                        self.writer.wait()
                self._saved, self._seconds_since_saved = step, 0.0
                return True
        self._diverged(bad)
        return False

    def _progress(self, step: int) -> Progress:
        return Progress(
            identity=self.checkpoints.identity, step=step, history=list(self.history), rollbacks=list(self.rollbacks)
        )

    def _save_last(self) -> None:
        """Save where the process was told to stop, unless nothing is new or nothing good is there."""
        step = self.steps.step
        if not self.place.chief:
            return
        if not self.writer.wait(LAST_WAIT_SECONDS):
            events.emit(
                "warning",
                message=f"the checkpoint of step {self._saved} is still being written: step {step} is not saved.",
            )
        elif step > self._saved and self.steps.not_finite() is None:
            self.checkpoints.save(self._progress(step), self.steps.arrays())
            events.emit("saved", step=step)

    def _stop_later(self, _signal: int, _frame: FrameType | None) -> None:
        """Have the loop stop after the next call: in the middle of one, the others of a gang would wait for ever."""
        self._told_to_stop = True

    @contextmanager
    def _hearing_sigterm(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._stop_later)
        try:
            yield
        finally:
            # A gang goes on to its end: one that left now would leave the others waiting.
            if self.place.workers == 1:
                signal.signal(signal.SIGTERM, before)

    @contextmanager
    def _finishing_writes(self) -> Iterator[None]:
        """Leave no checkpoint half written, whatever ends the block."""
        try:
            yield
        except BaseException:
            with suppress(TrainyardError):
                self.writer.wait(LAST_WAIT_SECONDS)
            raise
        with self._clock("checkpoint"):
            self.writer.wait()

    def _stop_together(self) -> None:
        self._save_last()
        if self._told_to_stop:
            raise Preempted("told to stop (SIGTERM). Run the same command again to go on.")
        raise PeerLost("another worker was told to stop. Start again when it is back.")

    def _diverged(self, what: str) -> None:
        """Go back to the last checkpoint with a smaller learning rate, once; raises `DataError` the second time."""
        step = self.steps.step
        if self.steps.scale != 1.0:
            raise DataError(
                f"train: {what} is not finite at step {step}, again after one retry at {RETRY_SCALE:g} times the "
                f"learning rate {self.settings.optimizer.learning_rate:g}. Lower train.optimizer.learning_rate, set "
                "train.optimizer.clip_norm, or look for NaN and extreme values in the data."
            )
        good = self._newest()
        if good is None:
            raise DataError(f"train: {what} is not finite at step {step}, and no checkpoint is left to go back to.")
        rollback = Rollback(what=what, step=step, back_to=good.progress.step, learning_rate_scale=RETRY_SCALE)
        events.emit("diverged", **rollback.model_dump())
        self._load(good)
        self.rollbacks.append(rollback)
        self.steps.scale = RETRY_SCALE

    def _tell(self, done: int, at_once: bool = False) -> None:
        self.watchdog.alive()
        self._pace.tell(done, at_once)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start
