"""Compares the int8 files of TensorFlow's converter with those of ai-edge-quantizer, which Trainyard does not use.

pip install --no-deps --target FOLDER ai-edge-quantizer==0.10.0 immutabledict==4.3.1 litert-lm-builder==0.18.1
PYTHONPATH=FOLDER python -m benchmarks.commands.quantizers [NETWORK...] prints the table.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import exports

_CALIBRATION = 300


def main(networks: Iterable[str]) -> None:
    """Print the figures of each network, on the test split of digits."""
    print("| network | int8 file of | largest difference of a probability | accuracy (float32) | KiB |")
    print("| --- | --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name:
        for network in networks:
            folder = Path(name) / network
            recipe = exports.recipe(folder, network, *exports.NETWORKS[network], calibration=_CALIBRATION)
            options = exports.train(folder, recipe)
            exports.run([*exports.STEPS, "export", *options, "--output", str(folder / "exported")])
            print(_rows(folder, network), flush=True)


def _rows(folder: Path, network: str) -> str:
    """Return the rows of a network that was exported in `folder`."""
    from trainyard.data.examples import open_examples

    examples = open_examples(str(folder / "examples"))
    learnt, _labels, _keys = next(iter(examples.batches("train", _CALIBRATION)))
    images, labels, _keys = next(iter(examples.batches("test", 10_000)))
    float32, converted = (folder / "exported" / name for name in exports.LITE.values())
    quantized = folder / "quantized.tflite"
    _quantize(float32, learnt["image"].numpy().astype(np.float32), quantized)
    expected = _answers(float32, images["image"].numpy())
    whole = np.mean(expected.argmax(axis=1) == labels.numpy())
    lines = []
    for title, file in {"TensorFlow": converted, "ai-edge-quantizer": quantized}.items():
        found = _answers(file, images["image"].numpy())
        difference, accuracy = np.abs(found - expected).max(), np.mean(found.argmax(axis=1) == labels.numpy())
        size = file.stat().st_size / 1024
        lines.append(f"| `{network}` | {title} | {difference:.3f} | {accuracy:.4f} ({whole:.4f}) | {size:,.1f} |")
    return "\n".join(lines)


def _answers(file: Path, images: Any) -> Any:
    """Return the probabilities (images, classes) of a LiteRT file, whose input and output may be int8."""
    from ai_edge_litert.interpreter import Interpreter

    ask = Interpreter(str(file), num_threads=1).get_signature_runner()
    (source,), (target,) = ask.get_input_details().values(), ask.get_output_details().values()
    scale, zero = source["quantization"]
    if scale:
        images = np.clip(np.rint(images / scale) + zero, -128, 127).astype(np.int8)
    found = np.concatenate([ask(image=image[None])["probabilities"] for image in images])
    scale, zero = target["quantization"]
    return (found.astype(np.float32) - zero) * scale if scale else found


def _quantize(float32: Path, images: Any, target: Path) -> None:
    """Write the file `float32` with int8 weights and activations to `target`."""
    from ai_edge_quantizer import quantizer, recipe

    own = quantizer.Quantizer(str(float32))
    own.load_quantization_recipe(recipe.static_wi8_ai8())
    ranges = own.calibrate({"serving_default": [{"image": image[None]} for image in images]})
    own.quantize(ranges).export_model(target)


if __name__ == "__main__":
    main(sys.argv[1:] or exports.NETWORKS)
