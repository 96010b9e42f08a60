"""TensorFlow as the engine: tf.distribute over the devices that it lists."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from trainyard.contract.artifacts import Device
from trainyard.errors import PeerLost
from trainyard.spec.recipe import Train
from trainyard.steps.train.engines import probe
from trainyard.steps.train.engines.objective import Objective
from trainyard.steps.train.engines.optimizer import Schedule, optimizer
from trainyard.steps.train.engines.tensorflow import strategy
from trainyard.steps.train.engines.tensorflow.replicas import join_replicas
from trainyard.steps.train.engines.tensorflow.steps import TensorFlowSteps
from trainyard.steps.train.engines.tensorflow.sums import Sums

# What TensorFlow raises where another worker of the gang is gone (seen: Unavailable, Internal, Aborted, Cancelled).
_PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.InternalError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
)


class TensorFlowEngine:
    """The engine of every device but the slices of several hosts and the chips that TensorFlow has no build for."""

    replicas = 1

    def check(self) -> None:
        """Return where TensorFlow lists what was promised."""
        probe.check()

    def join(self) -> None:
        """Make the strategy over the gang's devices."""
        self.strategy = strategy.strategy()
        self.replicas = self.strategy.num_replicas_in_sync

    def leave(self) -> None:
        """Do nothing: workers that are done wait to be stopped, for TensorFlow takes one that leaves for a lost one."""

    def devices(self) -> list[str]:
        """Return the names of this process's devices that train."""
        return strategy.devices()

    def hardware(self) -> str:
        """Return what one of the devices is."""
        return strategy.hardware()

    def precision(self, train: Train) -> str:
        """Return the recipe's precision, or the device's own."""
        return strategy.precision(train)

    def probe(self) -> list[Device]:
        """Measure each device."""
        return probe.probe()

    def versions(self) -> dict[str, str]:
        """Return the versions of TensorFlow and of what drives the devices."""
        return probe.versions()

    def steps(
        self, build: Callable[[], keras.Model], train: Train, steps_per_epoch: int, objective: Objective, precision: str
    ) -> TensorFlowSteps:
        """Return the steps of the model that `build` returns; its variables are the strategy's."""
        sums = Sums(self.strategy)
        xla = train.xla and not tf.config.list_logical_devices("TPU")
        with self.strategy.scope():
            model = build()
            several = self.replicas > 1
            if several:
                join_replicas(model, sums, xla)
            schedule = Schedule(train, steps_per_epoch)
            chosen = optimizer(train, schedule, float16=precision == "float16", summed=several)
            chosen.build(model.trainable_variables)
            return TensorFlowSteps(
                self.strategy, model, chosen, schedule, objective, sums, train.accumulation_steps, xla
            )

    def lost_a_worker(self, error: Exception) -> bool:
        """Whether TensorFlow says of another worker, or the ring from within a step, that it is gone."""
        told = isinstance(error, tf.errors.UnknownError) and PeerLost.__name__ in error.message
        return told or isinstance(error, _PEER_ERRORS)
