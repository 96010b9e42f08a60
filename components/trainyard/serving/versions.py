"""Pushed versions: loaded, answering rows, and replaced while requests are answered."""

from __future__ import annotations

import asyncio
import io
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from trainyard import events
from trainyard.contract import version
from trainyard.contract.pushed_versions import aliases
from trainyard.contract.statistics.decision import decided_class, decided_classes
from trainyard.errors import TrainyardError, bug_sentence
from trainyard.readers.rows import BadRow
from trainyard.serving.records import Records, Row
from trainyard.spec.columns import input_name
from trainyard.steps.predict.images import IMAGES
from trainyard.steps.predict.prediction import served_model
from trainyard.steps.predict.pushed_model import PushedModel, open_model, version_folder
from trainyard.steps.predict.source import Array, InputBatch
from trainyard.storage import storage

_MOST_ROWS = 1024  # of a batch of several requests; chosen: what costs once a batch is then little
_NUMPY: dict[str, Any] = {"float32": np.float32, "int64": np.int64, "string": object}
DATATYPES = {"float32": "FP32", "int64": "INT64", "string": "BYTES"}
"""Of the Open Inference Protocol."""

_AGAIN_SECONDS = 60.0  # chosen: a version that could not be loaded costs a core for seconds


@dataclass(frozen=True)
class Output:
    """One output of the answers, `values` (n, ...): probabilities, label and label_id, or prediction."""

    name: str
    datatype: str
    values: Any


class LoadedModel:
    """The version in the folder `pushed.folder`.

    number: its version, by the folder's name, otherwise by its record. digest: of its files. records: reads requests
    for it. most_rows: of a batch of several requests. seconds: that the last batch took.
    """

    def __init__(self, folder: str) -> None:
        """Load it. Raises `DataError` if it is not the folder that was pushed."""
        manifest = storage.committed(folder)
        self.pushed: PushedModel = open_model(folder)
        self.digest = version.digest(manifest) if manifest else ""
        name = folder.rstrip("/").rpartition("/")[2]
        recorded = manifest.origin.get("number", 1) if manifest else 1
        self.number = int(name) if name.isdecimal() else int(recorded)
        self.records = Records(self.pushed)
        self.most_rows = _MOST_ROWS if self.pushed.pixels is None else IMAGES
        self.seconds = math.inf
        self._served = served_model(self.pushed)
        self.answer([[self._warm_up_row()]])  # TensorFlow prepares a graph when it runs first

    def answer(self, requests: Sequence[Sequence[Row]]) -> list[Array | list[BadRow]]:
        """Return for each request its outputs (n, ...), or its rows without one, whose `file` is the row's number.

        All rows of all requests are one batch.
        """
        rows = [row for request in requests for row in request]
        keys = pa.array([str(number) for number in range(len(rows))], pa.string())
        inputs = {
            input_name(feature.name): np.array(values, _NUMPY[feature.dtype])
            for feature, values in zip(self.pushed.inputs, zip(*rows, strict=True), strict=True)
        }
        bad: dict[int, BadRow] = {}
        outputs: Array = np.zeros(0)
        for answer in self._served.answer(InputBatch(keys, inputs)):
            if isinstance(answer, BadRow):
                bad[int(answer.file)] = answer
                continue
            if len(answer[1]) == len(rows):
                outputs = answer[1]
                break
            places, values = np.array(answer[0].to_pylist(), np.int64), answer[1]
            if not len(outputs):
                outputs = np.zeros((len(rows), *values.shape[1:]), values.dtype)
            outputs[places] = values
        answers: list[Array | list[BadRow]] = []
        start = 0
        for request in requests:
            end = start + len(request)
            wrong = [
                BadRow(str(row - start), None, bad[row].reason, bad[row].detail) for row in bad if start <= row < end
            ]
            answers.append(wrong or outputs[start:end])
            start = end
        return answers

    def outputs(self, values: Array) -> list[Output]:
        """Return the answers `values` by the names that the serving signature has for them."""
        labels, separator = self.pushed.labels, self.pushed.label_separator
        if labels is None:
            return [Output("prediction", "FP32", values)]
        probabilities = Output("probabilities", "FP32", values)
        if separator is not None:
            chosen = decided_classes(values, dict(self.pushed.thresholds))
            texts = [separator.join(compress(labels, has)) for has in chosen]
            return [probabilities, Output("label", "BYTES", texts)]
        ids = decided_class(values, dict(self.pushed.thresholds))
        return [probabilities, Output("label", "BYTES", [labels[id_] for id_ in ids]), Output("label_id", "INT64", ids)]

    def described_outputs(self) -> list[dict[str, Any]]:
        """Return name, datatype and shape of each output; -1 is the number of rows."""
        size = len(self.pushed.labels or self.pushed.targets or ())
        example = np.zeros((1, size) if size else (1,), np.float32)
        return [
            {"name": output.name, "datatype": output.datatype, "shape": [-1, *np.shape(output.values)[1:]]}
            for output in self.outputs(example)
        ]

    def _warm_up_row(self) -> Row:
        """Return a row of missing values, or a white image."""
        if self.pushed.pixels is not None:
            stream = io.BytesIO()
            Image.new("L", (8, 8), 255).save(stream, "PNG")
            return (stream.getvalue(),)
        missing = {"float32": float("nan"), "int64": 0, "string": ""}
        return tuple(missing[feature.dtype] for feature in self.pushed.inputs)


class ServingVersion:
    """The model that `version_folder` finds for `folder`, which is looked at again every `seconds`.

    labels: the aliases of its version. is_shadow: it is asked beside the one that serves.
    """

    def __init__(self, folder: str, seconds: float, *, is_shadow: bool = False) -> None:
        """Load it. Raises `DataError` if there is none or it is damaged."""
        self._folder, self._seconds, self._is_shadow = folder, seconds, is_shadow
        self._failed = ("", 0.0)
        self.model = LoadedModel(version_folder(folder))
        self.reloads, self.failure = 0, ""
        self.labels: frozenset[str] = frozenset()
        try:
            self.labels = _labels(self.model.pushed.folder)
        except TrainyardError as error:
            self._fail(str(error))

    async def watch(self) -> None:
        """Replace the model whenever another version serves. One that cannot be loaded leaves the old one in place."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await asyncio.to_thread(self._update)
            except TrainyardError as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a new version, the old one serves on
                self._fail(bug_sentence(error))

    def _update(self) -> None:
        path = version_folder(self._folder)
        failed, at = self._failed
        if path == self.model.pushed.folder:
            self.labels = _labels(path)
            self.failure, self._failed = "", ("", 0.0)
            return
        if path == failed and time.monotonic() - at < _AGAIN_SECONDS:
            return
        self._failed = (path, time.monotonic())
        model, labels = LoadedModel(path), _labels(path)
        self.model, self.labels = model, labels
        self.reloads += 1
        self.failure, self._failed = "", ("", 0.0)
        events.emit(
            "shadow" if self._is_shadow else "serving", version=self.model.number, folder=path, digest=self.model.digest
        )

    def _fail(self, message: str) -> None:
        if message != self.failure:
            state = "stays the shadow" if self._is_shadow else "serves on"
            events.emit("warning", message=f"Version {self.model.number} {state}: {message}")
        self.failure = message


def _labels(folder: str) -> frozenset[str]:
    """Return the aliases of the version in `folder`. Raises `DataError` if their file is damaged."""
    versions, _, number = folder.rstrip("/").rpartition("/")
    named = aliases(versions) if number.isdecimal() and versions else {}
    return frozenset(name for name, version in named.items() if version == int(number))
