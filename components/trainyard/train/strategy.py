"""Which devices train, and in which precision."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import keras
import tensorflow as tf

from trainyard.core.recipe import Train

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


@dataclass(frozen=True)
class Place:
    """Which worker of the gang this process is. Worker 0 is the chief: it alone writes."""

    index: int
    workers: int

    @property
    def chief(self) -> bool:
        """Whether this process writes checkpoints and the model."""
        return self.index == 0


def place() -> Place:
    """Return this process's place in the gang that TF_CONFIG describes; the only worker where there is none."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return Place(0, 1)
    return Place(int(config["task"]["index"]), len(config["cluster"]["worker"]))


def strategy() -> tf.distribute.Strategy:
    """Return the strategy over the gang's devices; waits for every worker of it, without a deadline.

    Several workers: gradients over gRPC in a ring, or over NCCL where there are GPUs. One worker: mirrored over its
    GPUs, or its logical CPUs, where there is more than one; else one device.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if place().workers > 1:
        kinds = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.NCCL if gpus else kinds.RING)
        made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    elif len(tf.config.list_logical_devices("GPU" if gpus else "CPU")) > 1:
        made = tf.distribute.MirroredStrategy([f"/{name}" for name in devices()])
    else:
        return tf.distribute.get_strategy()
    # The input never ends early: without this each step would ask every worker whether it still has a batch.
    made.extended.experimental_enable_get_next_as_optional = False
    return made


def devices() -> list[str]:
    """Return the names of the devices that train, such as CPU:0."""
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    own = f"/task:{place().index}/"
    return [d.name.split("/device:")[1] for d in found if "/task:" not in d.name or own in d.name]


def precision(train: Train) -> str:
    """Return float32, bfloat16 or float16: the recipe's, or the fastest that this device does well.

    auto: bfloat16 on a GPU that has it (compute capability 8), float16 on an older one, float32 on a CPU, where
    bfloat16 was measured slower without AMX and gains little on small networks with it.
    """
    if train.precision != "auto":
        return train.precision
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "float32"
    major, _ = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability", (0, 0))
    return "bfloat16" if major >= 8 else "float16"


@contextmanager
def computing_in(name: str) -> Iterator[None]:
    """Let layers built in the block compute in precision `name`; their weights stay float32."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[name])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
