"""TensorFlow as the engine: tf.distribute over the devices that it lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import keras
import tensorflow as tf

from trainyard.errors import PeerLost
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.engines.objective import Objective
from trainyard.steps.train.engines.optimizer import optimizer
from trainyard.steps.train.engines.phases import phases
from trainyard.steps.train.engines.resizing import Resizing
from trainyard.steps.train.engines.teacher import TeacherModel
from trainyard.steps.train.engines.tensorflow import strategy, tensorflow_probe
from trainyard.steps.train.engines.tensorflow.all_reduce import AllReduce
from trainyard.steps.train.engines.tensorflow.replica_layers import synchronize_layers
from trainyard.steps.train.engines.tensorflow.steps import TensorFlowSteps

# What TensorFlow raises if another worker of the gang is gone (seen: Unavailable, Internal, Aborted, Cancelled).
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
    check = staticmethod(tensorflow_probe.check)
    devices = staticmethod(strategy.devices)
    hardware = staticmethod(strategy.hardware)
    precision = staticmethod(strategy.precision)
    versions = staticmethod(tensorflow_probe.versions)
    probe = staticmethod(tensorflow_probe.probe)

    def join(self) -> None:
        """Make the strategy over the gang's devices."""
        self.strategy = strategy.create_strategy()
        self.replicas = self.strategy.num_replicas_in_sync

    def leave(self) -> None:
        """Do nothing: workers that are done wait to be stopped, for TensorFlow takes one that leaves for a lost one."""

    def steps(
        self,
        build: Callable[[], keras.Model],
        recipe: Recipe,
        steps_per_epoch: int,
        objective: Objective,
        precision: str,
        load_teacher: Callable[[], TeacherModel | None],
    ) -> TensorFlowSteps:
        """Return the steps of the model that `build` returns; its variables are the strategy's."""
        all_reduce, train = AllReduce(self.strategy), recipe.train
        xla = train.xla and not tf.config.list_logical_devices("TPU")
        with self.strategy.scope():
            model = build()
            replicated, own = self.replicas > 1, train.batch_statistics == "worker"
            apart = synchronize_layers(model, all_reduce, xla, own) if replicated else []
            make = partial(optimizer, train, float16=precision == "float16", gradients_summed=replicated)
            return TensorFlowSteps(
                self.strategy,
                model,
                phases(model, recipe, steps_per_epoch, make),
                Resizing(model, train.progressive_resizing, steps_per_epoch),
                objective,
                load_teacher(),
                all_reduce,
                train.augment,
                train.accumulation_steps,
                xla,
                apart,
            )

    def is_peer_loss(self, error: Exception) -> bool:
        """Whether TensorFlow says of another worker, or the ring from within a step, that it is gone."""
        ring_lost = isinstance(error, tf.errors.UnknownError) and PeerLost.__name__ in error.message
        return ring_lost or isinstance(error, _PEER_ERRORS)
