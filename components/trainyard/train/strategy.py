"""Which devices train, and in which precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from trainyard.core.recipe import Train

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def strategy() -> tf.distribute.Strategy:
    """Return the strategy over the devices of this process: mirrored over several GPUs, else one device."""
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def devices() -> list[str]:
    """Return the names of the devices that train, such as CPU:0."""
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name.removeprefix("/device:") for device in found]


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
