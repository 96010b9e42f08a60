"""What the devices that TensorFlow trains on deliver, and whether it lists those that are expected."""

from __future__ import annotations

import tensorflow as tf

from trainyard.contract.artifacts.train import Device
from trainyard.steps.train.engines.probe import SIZES, calls_per_second, device_record, report
from trainyard.steps.train.engines.tensorflow import strategy
from trainyard.steps.train.expected_devices import devices_error, expected_devices, visible_devices


def check() -> None:
    """Raise `InfrastructureError` if TensorFlow does not list the expected devices.

    Call it before a strategy is made: it starts no device.
    """
    expected = expected_devices()
    if expected is None or expected.kind == "tpu":  # TensorFlow lists TPUs after their start alone
        return
    devices = tf.config.list_physical_devices(expected.kind.upper())
    if len(devices) != expected.count:
        raise devices_error(expected, f"TensorFlow {tf.version.VERSION} lists {len(devices)}")


def probe() -> list[Device]:
    """Return, and emit, what each device of this process computes and copies in a second.

    Call it in the training process. TFLOP/s are those of a matrix product (float32 on a CPU, else bfloat16 or float16),
    GB/s those of reading and writing.
    """
    details = _details()
    return report([_measured(name, details) for name in strategy.devices()], versions())


def versions() -> dict[str, str]:
    """Return the versions of what drives the devices: TensorFlow, what it was built with, and the driver."""
    build = tf.sysconfig.get_build_info()
    version_by_name = {"tensorflow": tf.version.VERSION, "driver": visible_devices("gpu").driver}
    if tf.config.list_physical_devices("GPU"):
        version_by_name |= {"cuda": str(build.get("cuda_version", "")), "cudnn": str(build.get("cudnn_version", ""))}
    return {name: value for name, value in version_by_name.items() if value}


def _details() -> dict[str, tuple[str, int]]:
    """Return product name and memory of each GPU, by the device's name."""
    gpus = visible_devices("gpu").gpus or []
    details = {}
    for index, device in enumerate(tf.config.list_physical_devices("GPU")):
        name = tf.config.experimental.get_device_details(device).get("device_name", "GPU")
        details[f"GPU:{index}"] = (str(name), gpus[index].memory_bytes if index < len(gpus) else 0)
    return details


def _measured(name: str, details: dict[str, tuple[str, int]]) -> Device:
    kind = name.partition(":")[0]
    edge, size = SIZES[kind]
    with tf.device(name):
        matrix = tf.cast(tf.random.stateless_normal((edge, edge), (1, 2)) / edge**0.5, strategy.native_precision())
        vector = tf.zeros(size // 4, tf.float32)
        products = calls_per_second(lambda x: tf.matmul(matrix, x), matrix, _wait)
        copies = calls_per_second(lambda x: x + 1.0, vector, _wait)
    return device_record(name, *details.get(name, (kind, 0)), products, copies)


def _wait(value: tf.Tensor) -> None:
    tf.reshape(value, [-1])[0].numpy()
