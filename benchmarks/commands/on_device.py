"""Speed of preprocess.py, which a device runs, beside the transform graph of TensorFlow: one example at a time.

python -m benchmarks.commands.on_device prints the table. The models are those of bundled recipes, trained for an epoch.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.commands.predict import train

_REPEATS, _CALLS = 5, 500
_INPUTS = {"tabular": "A row of 30 numbers", "digits": "A PNG file of 8 x 8 pixels"}


def section() -> str:
    """Return the part of the page."""
    with tempfile.TemporaryDirectory() as name:
        for recipe in _INPUTS:
            train(recipe, Path(name))
        times = {model: measured(Path(name, "runs", recipe)) for recipe, model in _INPUTS.items()}
    lines = "\n".join(
        f"| {model} | {graph * 1e6:,.0f} | {ours * 1e6:,.0f} | {graph / ours:.1f} |"
        for model, (graph, ours) in times.items()
    )
    return f"""Microseconds an example, median of {_REPEATS} turns of {_CALLS} calls in one process.

| input | transform graph | `preprocess.py` | times as fast |
| --- | ---: | ---: | ---: |
{lines}"""


def measured(outputs: Path) -> tuple[float, float]:
    """Return the seconds that the graph and preprocess.py take for one example, in turns."""
    import numpy as np
    import tensorflow as tf

    from trainyard.data.examples import load_transform, open_examples

    (examples,) = {path.parent for path in (outputs / "preprocess").glob("*/examples.json")}
    (device,) = (outputs / "models").glob("*/assets.extra")
    spec = importlib.util.spec_from_file_location("preprocess", device / "preprocess.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    preprocessing, transform = module.Preprocessing(device), load_transform(str(examples))
    batch, _labels = next(iter(open_examples(str(examples)).raw_batches("eval", 1)))
    raw = {name: tensor.numpy() for name, tensor in batch.items()}
    row: Any = raw["image"][0] if "image" in raw else {name: values[0].item() for name, values in raw.items()}
    turns: dict[str, Callable[[], Any]] = {
        "graph": lambda: {
            name: np.asarray(tensor)
            for name, tensor in transform({name: tf.constant(values) for name, values in raw.items()}).items()
        },
        "ours": lambda: preprocessing.features(row),
    }
    seconds: dict[str, list[float]] = {"graph": [], "ours": []}
    for turn in range(_REPEATS + 1):
        for name, call in turns.items():
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            if turn:  # the first warms up
                seconds[name].append((time.perf_counter() - start) / _CALLS)
    return statistics.median(seconds["graph"]), statistics.median(seconds["ours"])


if __name__ == "__main__":
    print(section())
