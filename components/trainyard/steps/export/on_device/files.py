"""Inputs and answers of a file for devices, by preprocessing.json beside it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.contract.statistics.decision import decided_class, decided_classes


class Files(ABC):
    """Makes the inputs of the exported files in `folder`, and reads their outputs; one example at a time."""

    def __init__(self, folder: Path) -> None:
        self._content = json.loads((folder / "preprocessing.json").read_text(encoding="utf-8"))
        self._labels = _lines(folder / "labels.txt")
        self._targets = _lines(folder / "targets.txt")

    @abstractmethod
    def read(self, path: str) -> list[Any]:
        """Return the examples in a file."""

    @abstractmethod
    def _values(self, example: Any) -> Mapping[str, Any]:
        """Return the features of `example` by name."""

    def features(self, example: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return the features of `example`, each (1, ...), by name, as model.keras takes them.

        example: as `read` gives it. Raises `ValueError` that says what is wrong with it.
        """
        values = self._values(example)
        return {
            entry["feature"]: np.asarray(values[entry["feature"]], entry["dtype"]).reshape(entry["shape"])
            for entry in self._content["inputs"]
        }

    def inputs(self, example: Any, file: str) -> dict[str, np.ndarray[Any, Any]]:
        """Return the inputs of the exported `file`, such as model_int8.tflite, for `example`, by name."""
        features, tensors = self.features(example), self._content["files"][file]["inputs"]
        return {
            entry["name"]: _quantized(features[entry["feature"]], tensors[entry["name"]])
            for entry in self._content["inputs"]
            if entry["name"] in tensors
        }

    def answer(self, outputs: Mapping[str, np.ndarray[Any, Any]], file: str) -> dict[str, Any]:
        """Return the answer in the `outputs` of `file`, by name: `label` and `probabilities`, or `prediction`.

        Raises `ValueError` if a number is NaN or infinite.
        """
        tensors = self._content["files"][file]["outputs"]
        real = {name: _real(np.asarray(value), tensors[name]) for name, value in outputs.items()}
        if not all(np.isfinite(value).all() for value in real.values()):
            raise ValueError("the model gives NaN or infinity")
        if self._targets:
            return {
                "prediction": {entry["target"]: float(real[entry["name"]][0]) for entry in self._content["outputs"]}
            }
        if not self._labels:
            return {"prediction": float(real["prediction"][0])}
        probabilities, separator = real["probabilities"][0], self._content["label_separator"]
        thresholds = {self._labels.index(label): value for label, value in self._content["thresholds"].items()}
        if separator is None:
            label = self._labels[int(decided_class(probabilities[None], thresholds)[0])]
        else:
            label = separator.join(compress(self._labels, decided_classes(probabilities[None], thresholds)[0]))
        return {"label": label, "probabilities": dict(zip(self._labels, map(float, probabilities)))}  # noqa: B905


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def _quantized(values: np.ndarray[Any, Any], tensor: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    if "scale" not in tensor:
        return values.astype(tensor["dtype"], copy=False)
    ends = np.iinfo(tensor["dtype"])
    steps = np.rint(values / np.float32(tensor["scale"])) + tensor["zero_point"]
    return np.asarray(np.clip(steps, ends.min, ends.max), tensor["dtype"])


def _real(values: np.ndarray[Any, Any], tensor: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    if "scale" not in tensor:
        return values
    return np.asarray((values.astype(np.float32) - tensor["zero_point"]) * np.float32(tensor["scale"]))
