"""The training loop: a state machine over (step, history) that resumes from any checkpoint."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from trainyard import events
from trainyard.contract.artifacts.train import Epoch, Rollback, best_first
from trainyard.errors import ConfigurationError, DataError, PeerLost, Preempted, TrainyardError
from trainyard.process.signals import on_sigterm
from trainyard.spec.hardware.pools import PREEMPTIONS_VARIABLE
from trainyard.spec.train import Train
from trainyard.steps.train.engines.objective import EVAL_SUMS, Evaluated, has_top5
from trainyard.steps.train.engines.steps import Steps
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.loop.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    CheckpointWriter,
    Progress,
    SaveSchedule,
    best_epoch,
    lost_best_message,
)
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard.steps.train.loop.speed import ProgressReporter, SpeedMeter, Stragglers
from trainyard.steps.train.loop.watchdog import Watchdog
from trainyard.steps.train.peers.settings import Rank

# Chosen: duration of a compiled call, after which loss and signals are checked.
CALL_SECONDS = 0.25
CACHED_CALLS = 5  # chosen: enough to show their variation, about a second
# Chosen: factor of the recipe's learning rate for the one retry after a divergence.
RETRY_SCALE = 0.1
# Chosen: wait of the last checkpoint for one under way, within the 10 s after SIGTERM.
LAST_WAIT_SECONDS = 5.0
# Chosen: pause that lets the input get ahead, to measure a step without waiting for input.
MAX_PAUSE_SECONDS = 3.0


class WorkerValues(NamedTuple):
    """Control values of a worker; a training call returns their means over the gang.

    stop: 1 if the worker got SIGTERM. save_interval_seconds: `CheckpointWriter.interval_seconds` of the
    chief, 0 of the others.
    """

    step_seconds: float = 0.0
    stop: float = 0.0
    save_interval_seconds: float = 0.0


@dataclass(eq=False)
class Loop:
    """Trains to the end of the schedule or to early stopping; `history` then holds every epoch.

    All workers of a gang run the same loop in step: every decision depends on values that are equal on all workers or
    averaged in the call itself. Only the chief writes. past: updated once new steps are taken. on_epoch: called for
    each epoch, including those before a resume.
    """

    settings: Train
    steps: Steps
    data: Input
    checkpoints: CheckpointFolder
    on_epoch: Callable[[Epoch], None]
    rank: Rank
    past: GangHistory
    watchdog: Watchdog
    history: list[Epoch] = field(default_factory=list)
    rollbacks: list[Rollback] = field(default_factory=list)
    resumed_from: int | None = None
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _dataset: Any = None
    _batches: Any = None
    _evaluation: Any = None
    _call_steps: int = 1
    _started: bool = False
    _stop_requested: bool = False
    _cold_epochs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        rate = os.environ.get(PREEMPTIONS_VARIABLE)
        self.writer = CheckpointWriter(self.checkpoints, float(rate) if rate else None)
        self.total = self.settings.epochs * self.data.steps_per_epoch
        self.began = self.past.reads_since
        self._saves = SaveSchedule(self.settings.checkpoints, self.data.steps_per_epoch)
        self._speed = SpeedMeter(self.data.batch_size)
        self._stragglers = Stragglers(self.rank, self.past, self.steps.all_reduced_seconds is not None)
        self._reporter = ProgressReporter(
            self.steps,
            self.data,
            self.rank,
            self._speed,
            self.total,
            self.seconds,
            self._stragglers,
            self.past.max_workers,
        )

    def run(self) -> None:
        """Train. Raises `DataError` if the loss is not finite twice, `Preempted` after a last checkpoint."""
        # In a gang the handler stays: a worker that left now would leave the others waiting.
        with on_sigterm(self._request_stop, restore=self.rank.workers == 1), self._finishing_writes():
            self._resume()
            while not self._finished():
                step, length = self.steps.step, self.data.steps_per_epoch
                if step and step % length == 0 and len(self.history) < step // length:
                    self._end_epoch(step)
                else:
                    self._advance(step)
                if self._stop_requested and self.rank.workers == 1:
                    self._stop_together()

    def cached_step_seconds(self) -> list[float]:
        """Return the seconds a step takes on one cached batch, in calls as long as those of the training.

        A call has overhead, so only calls of equal length compare. The weights are invalid afterwards.
        """
        with self._clock("bottleneck"):
            dataset = self._dataset or self.data.train(0)
            batch = iter(self.steps.distributed(dataset.take(self.data.replicas.count).cache().repeat()))
            count = max(1, min(self._call_steps, self.data.steps_per_epoch))  # the same on all workers
            self._take(batch, count, WorkerValues())
            seconds = []
            for _ in range(CACHED_CALLS):
                start = time.perf_counter()
                self._take(batch, count, WorkerValues())
                seconds.append((time.perf_counter() - start) / count)
            return seconds

    def all_reduce_seconds(self, count: int = 10) -> float:
        """Return the mean seconds of an all-reduce of the gradients alone, over `count` calls."""
        with self._clock("bottleneck"):
            self.steps.all_reduce(1)
            start = time.perf_counter()
            self.steps.all_reduce(count)
            return (time.perf_counter() - start) / count

    def restore_best(self) -> Epoch:
        """Load the best complete checkpoint and return its epoch."""
        with self._clock("checkpoint"):
            epochs = best_first(self.history, self.checkpoints.selection)
            for epoch in epochs:
                try:
                    self.steps.load(self.checkpoints.read(epoch.step).arrays)
                    return epoch
                except DataError as error:
                    if epoch is epochs[0] and self.rank.chief:
                        events.warn(f"{lost_best_message(epoch)} ({error})")
        raise DataError(f"{self.checkpoints.uri}: no whole checkpoint of any epoch is left. Remove it and train again.")

    @property
    def step_seconds(self) -> list[float]:
        """Seconds a step in each epoch of the last phase, without this process's compiling calls."""
        phase, cold = self.steps.phase(self.history[-1].step - 1), self._cold_epochs
        last = [epoch for epoch in self.history if self.steps.phase(epoch.step - 1) == phase]
        epochs = [epoch for epoch in last if epoch.epoch not in cold] or last
        return [self.data.batch_size / epoch.examples_per_second for epoch in epochs]

    def _resume(self) -> None:
        checkpoint = self._newest()
        if checkpoint is None:
            self._save(0)
        else:
            self.resumed_from = checkpoint.progress.step
            self._load(checkpoint)
            events.emit("resumed", step=self.resumed_from, steps=self.total)
        for epoch in self.history:
            self._note_epoch(epoch)

    def _note_epoch(self, epoch: Epoch) -> None:
        if self.rank.chief:
            events.emit("epoch", of=self.settings.epochs, **epoch.model_dump())
        self.on_epoch(epoch)

    def _newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint, the same one on every worker."""
        with self._clock("checkpoint"):
            self.writer.wait()
            self.steps.mean([0.0])  # Nobody reads before the chief has written.
            checkpoint = self.checkpoints.latest(self.steps.arrays())
            step = checkpoint.progress.step if checkpoint else 0
            agreed = self.steps.mean([step])[0]
        if agreed != step:
            raise PeerLost(
                f"worker {self.rank.index} found the checkpoint of step {step}, others found another one. Start again."
            )
        return checkpoint

    def _load(self, checkpoint: Checkpoint) -> None:
        self.steps.load(checkpoint.arrays)
        self.history = list(checkpoint.progress.history)
        self.rollbacks = list(checkpoint.progress.rollbacks)
        self.began = checkpoint.progress.began or self.began
        self._saves.note_saved(checkpoint.progress.step)
        self._batches = None

    def _finished(self) -> bool:
        # Only the epochs of the last phase: otherwise the training could end before the backbone learns.
        fine_tune, patience = self.settings.fine_tune, self.settings.early_stopping
        last_phase = self.history[fine_tune.head_epochs if fine_tune else 0 :]
        best = best_epoch(last_phase, self.checkpoints.selection)
        if best and patience and len(self.history) - best.epoch >= patience.patience:
            return True
        return len(self.history) == self.settings.epochs

    def _advance(self, step: int) -> None:
        """Take steps up to the end of the epoch, the next checkpoint or the end of a call."""
        if self._batches is None:
            with self._clock("input"):
                self._dataset = self.data.train(step)
                self._batches = iter(self.steps.distributed(self._dataset))
        self._speed.begin(self.steps.phase(step))
        # A compiling call takes one step, so that the epoch's other calls show the speed.
        count = min(1 if self._speed.cold else self._call_steps, self._saves.steps_left(step))
        probed = self._reporter.is_probe_call()
        if probed:
            count = self._let_input_get_ahead(count)
        try:
            stop = self._timed_call(count)
        except KeyboardInterrupt:
            self._save_last()
            raise
        if probed:
            self._reporter.prefetched_step_seconds = self._speed.last_step_seconds
        self.writer.check()
        if not math.isfinite(self.steps.loss_sum):
            self._roll_back("training loss")
            return
        if stop:
            self._stop_together()
        done = step + count
        due = self._saves.is_due(done)
        self._report_progress(done, at_once=due)
        if due:
            self._save(done)

    def _let_input_get_ahead(self, count: int) -> int:
        """Pause so that the input gets ahead; return how many of `count` steps then run without waiting for it.

        All workers do so in the same call. A second pipeline would need twice the memory.
        """
        step_seconds = self._speed.step_seconds_so_far
        if self.data.replicas.total > 1 and not self._reporter.all_reduce_seconds:
            self._reporter.all_reduce_seconds = self.all_reduce_seconds(3)
        with self._clock("bottleneck"):
            time.sleep(min(MAX_PAUSE_SECONDS, max(0.5, 4 * step_seconds)))
        return min(count, 2)

    def _timed_call(self, count: int) -> bool:
        """Take `count` steps and return whether a worker is to stop."""
        start, summed = time.perf_counter(), self.steps.all_reduced_seconds
        interval = self.writer.interval_seconds if self.rank.chief else 0.0
        values = WorkerValues(self._speed.last_step_seconds, float(self._stop_requested), interval)
        step_seconds, stop, interval, *own = self._take(self._batches, count, values)
        seconds = time.perf_counter() - start
        self._stragglers.note_call(own, seconds, self.steps.step)
        if summed is not None:
            waited = (self.steps.all_reduced_seconds or 0.0) - summed
            self._stragglers.note_own(0.0 if self._speed.cold else (seconds - waited) / count)
        self.seconds["compile" if self._speed.cold else "step"] += seconds
        if not self._started:
            self._started = True
            self.past.note_new_steps(self.resumed_from or 0, self.rank.workers)
        self._speed.add(count, seconds)
        if self.rank.workers == 1:
            step_seconds = self._speed.last_step_seconds
        if step_seconds:
            self._call_steps = max(1, round(CALL_SECONDS / step_seconds))
        # A mean over the workers, of which only the chief writes.
        self._saves.note_steps(count, step_seconds, interval * self.rank.workers)
        return stop > 0

    def _take(self, batches: Any, count: int, values: WorkerValues) -> list[float]:
        """Take `count` steps; return the means of `values` over the workers, and each worker's own step seconds."""
        try:
            with self.watchdog.call(f"train in phase {self.steps.phase(self.steps.step)}"):
                return self.steps.train(batches, count, [*values, *self._stragglers.values])
        except MemoryError as error:
            raise ConfigurationError(
                f"train.batch_size: {self.settings.batch_size} examples do not fit the device's memory "
                f"({error}). Raise train.accumulation_steps, lower data.image_size, or name a larger device."
            ) from error

    def _end_epoch(self, step: int) -> None:
        evaluated = self._evaluate(step)
        if not math.isfinite(evaluated.loss):
            self._roll_back("eval loss")
            return
        number = len(self.history) + 1
        if not self._speed.warm:
            self._cold_epochs.add(number)
        rate, seconds = self._speed.end_epoch()
        epoch = Epoch(
            epoch=number,
            step=step,
            learning_rate=self.steps.learning_rate,
            train_loss=self.steps.loss_sum / self.data.steps_per_epoch,
            eval_loss=evaluated.loss,
            metric=evaluated.metric,
            examples_per_second=rate,
            seconds=seconds,
            top5_accuracy=evaluated.top5,
            selected=evaluated.selected,
            elapsed_seconds=round(time.time() - self.began, 3),
        )
        self.steps.loss_sum = 0.0
        self.history.append(epoch)
        if self._save(step):
            self._note_epoch(epoch)

    def _evaluate(self, step: int) -> Evaluated:
        """Return the losses and metrics of the model on the eval split."""
        with self._clock("eval"):
            if self._evaluation is None:
                self._evaluation = self.steps.distributed(self.data.evaluation())
            batches, remaining = iter(self._evaluation), self.data.evaluation_steps
            score = self.steps.objective.score
            totals = np.zeros(EVAL_SUMS + (score.count if score else 0), np.float32)
            while remaining:
                count = min(remaining, self._call_steps)
                with self.watchdog.call("evaluate"):
                    totals = self.steps.evaluate(batches, count, totals)
                remaining -= count
                self._report_progress(step)
        top5_counts = has_top5(self.data.folder.document)
        return Evaluated.from_sums(totals, score, self.checkpoints.selection, top5_counts=top5_counts)

    def _save(self, step: int) -> bool:
        """Start to write a checkpoint of `step`; return False after a rollback because a variable is not finite."""
        with self._clock("save"):
            start = time.perf_counter()
            bad = self.steps.not_finite()
            if bad is None:
                if self.rank.chief:
                    self.writer.wait()
                    arrays = self.steps.arrays()
                    # The first checkpoint of a process compiles the test for finite values, which does not count.
                    waited = time.perf_counter() - start if self.writer.count else 0.0
                    self.writer.save(self._progress(step), arrays, waited)
                    if self.settings.checkpoints.every_steps == 1:  # half of this interval is no step
                        self.writer.wait()
                self._saves.note_saved(step)
                return True
        self._roll_back(bad)
        return False

    def _progress(self, step: int) -> Progress:
        return Progress(
            identity=self.checkpoints.identity,
            step=step,
            history=list(self.history),
            rollbacks=list(self.rollbacks),
            began=self.began,
        )

    def _save_last(self) -> None:
        """Save before the process stops, unless nothing is new or a variable is not finite."""
        step = self.steps.step
        if not self.rank.chief:
            return
        if not self.writer.wait(LAST_WAIT_SECONDS):
            saved = self._saves.saved_step
            text = f"the checkpoint of step {saved} is still being written: step {step} is not saved."
            events.warn(text)
        elif step > self._saves.saved_step and self.steps.not_finite() is None:
            self.checkpoints.save(self._progress(step), self.steps.arrays())
            events.emit("saved", step=step)

    def _request_stop(self) -> None:
        """Stop after the current call: in the middle of one, the other workers would wait forever."""
        self._stop_requested = True

    @contextmanager
    def _finishing_writes(self) -> Iterator[None]:
        """Finish the checkpoint under way, however the block ends."""
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
        if self._stop_requested:
            raise Preempted()
        raise PeerLost("another worker got SIGTERM. Start again when it is back.")

    def _roll_back(self, quantity: str) -> None:
        """Resume from the last checkpoint with a smaller learning rate, once. Raises `DataError` the second time."""
        step = self.steps.step
        if self.steps.scale != 1.0:
            raise DataError(
                f"train: {quantity} is not finite at step {step}, again after one retry at {RETRY_SCALE:g} times the "
                f"learning rate {self.settings.optimizer.learning_rate:g}. Lower train.optimizer.learning_rate, set "
                "train.optimizer.clip_norm, or look for NaN and extreme values in the data."
            )
        checkpoint = self._newest()
        if checkpoint is None:
            raise DataError(f"train: {quantity} is not finite at step {step}, and no checkpoint is left to go back to.")
        rollback = Rollback(what=quantity, step=step, back_to=checkpoint.progress.step, learning_rate_scale=RETRY_SCALE)
        events.emit("diverged", **rollback.model_dump())
        self._load(checkpoint)
        self.rollbacks.append(rollback)
        self.steps.scale = RETRY_SCALE

    def _report_progress(self, done: int, at_once: bool = False) -> None:
        self.watchdog.note_progress()
        self._reporter.report(done, at_once)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start
