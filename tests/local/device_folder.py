"""What a device makes of raw examples by the files of an export alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def preprocessing(exported: Path) -> Any:
    """Return `Preprocessing` of the preprocess.py in the folder."""
    spec = importlib.util.spec_from_file_location("preprocess_of_export", exported / "preprocess.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Preprocessing(exported)


def features(exported: Path, examples: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return the features of `examples`, (n, ...) each."""
    device = preprocessing(exported)
    made = [device.features(example) for example in examples]
    return {name: np.concatenate([each[name] for each in made]) for name in made[0]}


def answers(exported: Path, examples: Sequence[Any], file: str = "model_float32.tflite") -> np.ndarray:
    """Return what the LiteRT `file` answers to each of `examples`: (n, outputs)."""
    from ai_edge_litert.interpreter import Interpreter

    device, interpreter = preprocessing(exported), Interpreter(str(exported / file))  # which must outlive its runner
    ask = interpreter.get_signature_runner()
    return np.concatenate([next(iter(ask(**device.inputs(example, file)).values())) for example in examples])


def largest_difference(made: dict[str, np.ndarray], expected: dict[str, Any]) -> float:
    """Return the largest difference of a feature, of one above 1 as a share of it; ids are equal or are not."""
    assert made.keys() == expected.keys()
    largest = 0.0
    for name, values in made.items():
        exact = np.asarray(expected[name])
        assert values.dtype == exact.dtype and values.shape == exact.shape, name
        share = np.abs(values - exact) / np.maximum(1, np.abs(exact))
        print(name, share.max())
        largest = max(largest, float(share.max()))
    return largest
