"""Measures exported files: int8 beside float32, and `export` beside the bare converters and interpreters.

python -m benchmarks.commands.exports prints the table. The networks learn the bundled digits.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cost import cost

NETWORKS = {"cnn_small": (32, 5), "mobilenet_v3_small": (64, 15)}
"""Pixels of a side, and epochs."""
_TURNS, _CALLS = 9, 100
_EXPORTS = 3
LITE = {"litert_float32": "model_float32.tflite", "litert_int8": "model_int8.tflite"}
_CALIBRATION = 200
STEPS = [sys.executable, "-m", "trainyard.steps"]


def section() -> str:
    """Return the part of the page."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        rows = "\n".join(_quantized(place / network, network, *sizes) for network, sizes in NETWORKS.items())
        bare, ours = _beside_converters(place / "digits")
    return f"""An image at a time on one core, median of {_TURNS} turns of {_CALLS} calls of either file in one process.
*Loss* is that of accuracy on the eval split of the digits (the float32 file's is in parentheses); *output* the largest
difference of a probability.

| network | pixels | float32, ms | int8, ms | times as fast | loss | output | float32, KiB | int8, KiB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}

The whole step `export` of digits takes {ours:.1f} CPU seconds, **{ours / bare:.2f}** of the {bare:.1f} of a program
that loads the model, writes a SavedModel, a float32 and an int8 file with TensorFlow's converters and predicts the eval
split by all three and the model (median of {_EXPORTS}, in turns, imports included; the aim is 1.2). `export` also
writes the files for devices, answers the same raw records by every path, one of them a server in another process, and
measures latencies."""


def recipe(folder: Path, network: str, side: int | None, epochs: int, calibration: int = _CALIBRATION) -> Path:
    """Write the recipe of `network` to `folder`, and return its path."""
    document: dict[str, Any] = {
        "name": "digits",
        "data": {"format": "image_folder", "bundled": "digits", "channels": 1},
        "model": {"name": network},
        "train": {"epochs": epochs, "batch_size": 64, "optimizer": {"name": "adamw", "learning_rate": 0.003}},
        "export": {"formats": ["saved_model", *LITE], "calibration_examples": calibration, "max_accuracy_drop": 1},
    }
    if side:
        document["data"]["image_size"] = [side, side]
    folder.mkdir()
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


def train(folder: Path, path: Path) -> list[str]:
    """Train a model in `folder` and return the options of a step that reads it."""
    examples, model = folder / "examples", folder / "model"
    run([*STEPS, "preprocess", "--recipe", str(path), "--output", str(examples)])
    given = ["--examples", str(examples), "--checkpoints", str(folder / "checkpoints"), "--output", str(model)]
    run([*STEPS, "train", "--recipe", str(path), *given])
    return ["--recipe", str(path), "--examples", str(examples), "--model", str(model)]


def _quantized(folder: Path, network: str, side: int, epochs: int) -> str:
    """Return the row of a network."""
    options = train(folder, recipe(folder, network, side, epochs))
    output = folder / "exported"
    run([*STEPS, "export", *options, "--output", str(output)])
    files = {file["format"]: file for file in json.loads((output / "exports.json").read_text())["exports"]}
    float32, int8 = (files[format] for format in LITE)
    whole, small = _in_turns(*(output / name for name in LITE.values()))
    loss = float32["accuracy"] - int8["accuracy"]
    return (
        f"| `{network}` | {side} | {whole * 1e3:.3f} | {small * 1e3:.3f} | {whole / small:.2f} | {loss:+.4f} "
        f"({float32['accuracy']:.4f}) | {int8['max_abs_difference']:.3f} | {float32['bytes'] / 1024:,.0f} "
        f"| {int8['bytes'] / 1024:,.0f} |"
    )


def _in_turns(*files: Path) -> list[float]:
    """Return the median seconds of an answer of each LiteRT file."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    opened = [Interpreter(str(file), num_threads=1) for file in files]
    for each in opened:
        each.allocate_tensors()
        (details,) = each.get_signature_runner().get_input_details().values()
        each.set_tensor(details["index"], np.zeros(details["shape"], details["dtype"]))
    seconds: list[list[float]] = [[] for _ in opened]
    for turn in range(_TURNS + 1):
        for own, each in zip(seconds, opened, strict=True):
            start = time.perf_counter()
            for _ in range(_CALLS):
                each.invoke()
            if turn:  # the first warms up
                own.append((time.perf_counter() - start) / _CALLS)
    return [statistics.median(own) for own in seconds]


def _beside_converters(folder: Path) -> tuple[float, float]:
    """Return the CPU seconds of the bare program and of the step `export`."""
    options = train(folder, recipe(folder, "cnn_small", None, 5))
    bare, ours = [], []
    for turn in range(_EXPORTS):
        arguments = [str(folder / "examples"), str(folder / "model"), str(folder / f"bare-{turn}")]
        bare.append(cost([sys.executable, "-m", "benchmarks.commands.exports", *arguments]).cpu_seconds)
        ours.append(cost([*STEPS, "export", *options, "--output", str(folder / f"ours-{turn}")]).cpu_seconds)
    return statistics.median(bare), statistics.median(ours)


def run(command: list[str]) -> None:
    """Run a command without its output."""
    subprocess.run(command, check=True, capture_output=True)


def bare(examples: str, model: str, output: Path) -> None:
    """Export the model and compare the files on the eval split, as a person would write it."""
    import numpy as np
    import tensorflow as tf

    from trainyard.data import trained
    from trainyard.data.examples import open_examples

    folder, network = open_examples(examples), trained.load(model)
    images, labels, _keys = next(iter(folder.batches("eval", 10_000)))
    images = {name: tf.cast(values, tf.float32) for name, values in images.items()}
    learnt, _labels, _keys = next(iter(folder.batches("train", _CALIBRATION)))
    shape = images["image"].shape[1:]

    @tf.function(input_signature=[tf.TensorSpec((None, *shape), tf.float32, name="image")])
    def predict(image: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": tf.nn.softmax(network({"image": image}, training=False))}

    output.mkdir()
    holder = tf.Module()
    holder.variables_of_network = [variable.value for variable in network.weights]  # without them the calibrator fails
    signatures = {"serving_default": predict.get_concrete_function()}
    tf.saved_model.save(holder, str(output / "saved_model"), signatures=signatures)
    one = tf.function(predict).get_concrete_function(tf.TensorSpec((1, *shape), tf.float32, name="image"))
    answers = {"trained": predict(images["image"])["probabilities"].numpy()}
    served = tf.saved_model.load(str(output / "saved_model")).signatures["serving_default"]
    answers["saved_model"] = served(image=images["image"])["probabilities"].numpy()
    for format, name in LITE.items():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([one], holder)
        if format == "litert_int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: (
                {"image": image[None]} for image in learnt["image"].numpy().astype(np.float32)
            )
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        (output / name).write_bytes(converter.convert())
        answers[format] = _interpreted(output / name, images["image"].numpy())
    for format, probabilities in answers.items():
        difference = np.abs(probabilities - answers["trained"]).max()
        print(format, np.mean(probabilities.argmax(axis=1) == labels.numpy()), difference)


def _interpreted(path: Path, images: Any) -> Any:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    ask: Callable[..., dict[str, Any]] = interpreter.get_signature_runner()
    return np.concatenate([ask(image=image[None])["probabilities"] for image in images])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        bare(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    else:
        print(section())
