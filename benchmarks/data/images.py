"""Images: what preprocess costs an added JPEG, beside bare loops of libjpeg-turbo, in CPU seconds of all processes.

python -m benchmarks.data.data prints the rows; this module is run for one side of one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import google_crc32c
import numpy as np
import simplejpeg
from PIL import Image

from benchmarks.cost import cost

_FEW, _DIFFERENT = 400, 40
SIZES = {"original": (224, 224), "training_size": (375, 500)}
_SMALL = (341, 256)  # width and height that preprocess stores of 500 x 375 pixels, for an image_size of 224


def write(folder: Path, images: int, height: int, width: int) -> None:
    """Write JPEG files of low-passed noise with grain, each other bytes (a number after the end), in two classes."""
    draw = np.random.default_rng(1)
    encoded = []
    for _ in range(_DIFFERENT):
        coarse = Image.fromarray(draw.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        pixels = np.clip(smooth + draw.normal(0, 5, smooth.shape), 0, 255).astype(np.uint8)
        encoded.append(simplejpeg.encode_jpeg(pixels, 90, colorsubsampling="420"))
    for index in range(images):
        path = folder / "ab"[index % 2] / f"{index:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded[index % _DIFFERENT] + b"%06d" % index)


def bare(folder: Path, output: Path, store: str) -> None:
    """Read each file, decode it, keep or shrink and encode it, checksum and write what is kept."""
    with output.open("wb") as stream:
        for path in sorted(folder.glob("*/*.jpg")):
            encoded = path.read_bytes()
            pixels = simplejpeg.decode_jpeg(encoded)
            if store == "training_size":
                small = Image.fromarray(pixels).resize(_SMALL, Image.Resampling.BICUBIC)
                encoded = simplejpeg.encode_jpeg(np.asarray(small), 90, colorsubsampling="420")
            stream.write(google_crc32c.value(encoded).to_bytes(4, "little"))
            stream.write(encoded)


def preprocess(folder: Path, output: Path, store: str) -> None:
    """Run the step."""
    from trainyard.spec.recipe import Recipe
    from trainyard.steps.preprocess.run import run

    size = {"image_size": [224, 224]} if store == "training_size" else {}
    data = {"format": "image_folder", "path": str(folder), "store": store, **size}
    output.mkdir()
    run(Recipe.model_validate({"name": "images", "data": data, "model": {"name": "cnn_small"}}), output)


def cost_of_an_image(side: str, store: str, images: int) -> float:
    """Return the CPU seconds of an added image: what a run costs before the first one is left out."""
    costs = []
    for count in (_FEW, images):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder, "in"), count, *SIZES[store])
            options = ["--side", side, "--store", store, "--in", folder]
            costs.append(cost([sys.executable, "-m", "benchmarks.data.images", *options]).cpu_seconds)
    return (costs[1] - costs[0]) / (images - _FEW)


def main() -> None:
    """Run one side of a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("preprocess", "bare"), required=True)
    parser.add_argument("--store", choices=tuple(SIZES), required=True)
    parser.add_argument("--in", dest="folder", type=Path, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    side = preprocess if options.side == "preprocess" else bare
    side(options.folder / "in", options.folder / "out", options.store)


if __name__ == "__main__":
    main()
