"""The input of a training against bare libjpeg-turbo and NumPy: images a CPU-second of the whole process.

    python -m benchmarks.data.input

The images are smooth noise of the size of photographs' files. What is measured of Trainyard is all of its input, from
the shard's record to the uint8 batch; of the bare loops the decoding, cutting, mirroring and copying into the batch.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainyard.data  # noqa: F401 - first: sets what TensorFlow reads while it is imported

# isort: split

import numpy as np
import simplejpeg
import tensorflow as tf
from PIL import Image

from benchmarks.data import random_images
from trainyard.data.examples import ExampleFolder, open_examples
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.input import input as training_input
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.input.service.client import InputService
from trainyard.steps.train.input.service.worker import InputProcess
from trainyard.steps.train.peers import settings

SIZE, STORED, BATCH, EPOCHS, ROUNDS = 224, 256, 64, 12, 2
"""Pixels of the model's side and of an image's that windows are cut out of; images a batch; the best of two rounds."""


@dataclass(frozen=True)
class Row:
    """Images a CPU-second of one kind of input, ours and that of a bare loop."""

    work: str
    ours: float
    against: str
    bare: float


def measure(images: int = 512) -> list[Row]:
    """Return the rows, all measured in this process one after another, on one core as the bare loops have it."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    with tempfile.TemporaryDirectory() as folder:
        small, large = (
            open_examples(random_images.write_photographs(f"{folder}/{side}", side, SIZE, images))
            for side in (SIZE, STORED)
        )
        encoded = {side: _encoded(data) for side, data in ((SIZE, small), (STORED, large))}
        draw = np.random.default_rng(1)
        flips, offsets = draw.random(images) < 0.5, draw.integers(0, STORED - SIZE + 1, (images, 2))
        window = {"crop": {"scale": [0.5, 1.0]}, "flip": True}
        raw = draw.integers(0, 256, (images, SIZE, SIZE, 3), np.uint8)
        decoded = _rate(images, lambda: _decode(encoded[SIZE], flips, None))
        cut = _rate(images, lambda: _decode(encoded[STORED], flips, offsets))
        resized = _rate(images, lambda: _decode(encoded[STORED], flips, offsets, resize=True))
        sides = (STORED * np.sqrt(draw.uniform(0.5, 1, images))).astype(np.int32)
        corners = (draw.random((images, 2)) * (STORED - sides[:, None] + 1)).astype(np.int32)
        plain = _plain(encoded[STORED], np.column_stack([corners, sides, sides]), flips)
        by_hand = _rate(images, lambda: [None for _ in plain])
        copied = _rate(images, lambda: _copy(raw, flips))
        turned = {"shift": 0.1, "rotate": 10}
        return [
            Row("JPEG, decode", _ours(small, {}, 0), "decode + copy", _rate(images, lambda: _decode(encoded[SIZE]))),
            Row("JPEG, flip", _ours(small, {"flip": True}, 0), "decode + flip", decoded),
            *_served(small, {"flip": True}),
            Row("JPEG, random resized crop, flip", _ours(large, window, 0), "decode + crop + flip", cut),
            Row("JPEG, random resized crop, flip", _ours(large, window, 0), "the same in Pillow", resized),
            Row("JPEG, random resized crop, flip", _ours(large, window, 0), "the same in plain tf.data", by_hand),
            Row("JPEG of 256, flip", _ours(large, {"flip": True}, 0), "the same in Pillow", resized),
            Row("memory, flip", _ours(small, {"flip": True}), "copy + flip", copied),
            Row("memory, shift, rotate", _ours(small, turned), "copy + flip", copied),
            Row("memory, RandAugment", _ours(small, {"rand_augment": {}}), "copy + flip", copied),
        ]


def section(rows: list[Row]) -> str:
    """Return the part of the page."""
    lines = "\n".join(
        f"| {row.work} | {row.ours:.0f} | {row.against} | {row.bare:.0f} | {row.ours / row.bare:.2f} |" for row in rows
    )
    return f"""Images of {SIZE} x {SIZE} per CPU-second, from shards or memory to uint8 batches of {BATCH}; crops are
cut from images of {STORED} x {STORED}. Bare loops: simplejpeg (libjpeg-turbo) and NumPy. All bound to one core. The
input worker is a local process.

| work | Trainyard | against | bare | ratio |
| --- | ---: | --- | ---: | ---: |
{lines}"""


def _served(folder: ExampleFolder, augment: dict[str, Any]) -> list[Row]:
    """Return the cost of an input worker, and the cost left to the training process."""
    alone = _ours(folder, augment, 0)
    with _input_worker(folder.uri) as (service, process):
        both = _ours(folder, augment, 0, service, process)
        own = _ours(folder, augment, 0, service)
    return [
        Row("JPEG, flip, by an input worker: both processes", both, "in one process", alone),
        Row("JPEG, flip, by an input worker: training process", own, "in one process", alone),
    ]


@contextmanager
def _input_worker(examples: str) -> Iterator[tuple[InputService, int]]:
    """Give a service of one input worker and the id of its process."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    token = secrets.token_hex(16)
    own = {settings.INPUT_WORKERS: address, settings.WORKER_INDEX: "0", settings.GANG_TOKEN: token}
    options = {"examples": examples, "output": f"{examples}-never"}
    process = InputProcess(options, {**os.environ, **own}, lambda line: print(line, end="", file=sys.stderr))
    try:
        yield InputService.connect([address], token, 60), process.program.pid
    finally:
        process.program.kill()
        process.program.wait()


def _ours(
    folder: ExampleFolder,
    augment: dict[str, Any],
    memory_bytes: int = 4 << 30,
    service: InputService | None = None,
    process: int | None = None,
) -> float:
    recipe = Recipe.model_validate(
        {
            "name": "t",
            "data": {"format": "image_folder", "path": "/nowhere"},
            "model": {"name": "cnn_small"},
            "train": {"epochs": EPOCHS, "batch_size": BATCH, "augment": augment},
        }
    )
    training_input.MEMORY_BYTES = memory_bytes
    data = Input(recipe, folder, None, service=service)
    batches = data.train(0)

    def all_epochs() -> None:  # to the end: what was prepared ahead is counted, and nothing else
        for _ in batches:
            pass

    return _rate(recipe.train.epochs * data.steps_per_epoch * BATCH, all_epochs, process)


def _rate(images: int, work: Callable[[], None], process: int | None = None) -> float:
    """Return the images a CPU-second of this process, and of `process` if one is given."""
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time() + _cpu_seconds(process)
        work()
        best = min(best, time.process_time() + _cpu_seconds(process) - start)
    return images / best


def _cpu_seconds(process: int | None) -> float:
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _encoded(folder: ExampleFolder) -> list[bytes]:
    batches = folder.raw_batches("train", BATCH).as_numpy_iterator()
    return [each for features, _ in batches for each in features["image"]]


def _decode(
    encoded: list[bytes],
    flips: np.ndarray | None = None,
    offsets: np.ndarray | None = None,
    resize: bool = False,
) -> None:
    batch = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
    for number, each in enumerate(encoded):
        image = simplejpeg.decode_jpeg(each)
        if offsets is not None:
            top, left = offsets[number]
            if resize:
                side = SIZE - SIZE // 8
                box = (left, top, left + side, top + side)
                image = np.asarray(Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))
            else:
                image = image[top : top + SIZE, left : left + SIZE]
        batch[number % BATCH] = image[:, ::-1] if flips is not None and flips[number] else image


def _plain(encoded: list[bytes], boxes: np.ndarray, flips: np.ndarray) -> tf.data.Dataset[Any]:
    """Return batches as TensorFlow's documentation makes them: no records, no seeds that survive a restart.

    boxes: top, left, height and width of each window.
    """

    def cut(each: tf.Tensor, box: tf.Tensor, flips: tf.Tensor) -> tf.Tensor:
        image = tf.image.resize(tf.io.decode_and_crop_jpeg(each, box, channels=3), (SIZE, SIZE))
        return tf.cast(tf.cond(flips, lambda: tf.image.flip_left_right(image), lambda: image), tf.uint8)

    slices = tf.data.Dataset.from_tensor_slices((encoded, boxes, flips))
    return slices.map(cut, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)


def _copy(images: np.ndarray, flips: np.ndarray) -> None:
    batch = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
    for number, image in enumerate(images):
        batch[number % BATCH] = image[:, ::-1] if flips[number] else image


if __name__ == "__main__":
    tf.config.set_visible_devices([], "GPU")
    print(section(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 512)))
