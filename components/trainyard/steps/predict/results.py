"""Keeps predictions in memory, or writes them as Parquet, CSV or JSON lines; the files appear when they are whole."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import compress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv
from pyarrow import parquet

from trainyard.contract import version
from trainyard.contract.statistics.decision import decided_class, decided_classes
from trainyard.contract.version import EXTRA
from trainyard.errors import ConfigurationError
from trainyard.quality.tables.cells import UnknownCounter, Vocabulary
from trainyard.readers.rows import BadRow
from trainyard.spec.columns import input_name
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.source import Array, InputBatch
from trainyard.storage import disk
from trainyard.uris import is_bucket, path_error

MOST_CLASSES = 50
"""With a column of scores each; chosen. Of more classes the first `TOP` are written."""

TOP = 5

_ENDINGS = (".parquet", ".csv", ".jsonl")


def rejected_file(out: Path) -> Path:
    """Return the path of the file of inputs without a prediction."""
    return out.with_name(f"{out.name}.rejected.csv")


def require_writable(out: str, *, force: bool) -> Path:
    """Return the file to write. Raises `ConfigurationError` if its name does not fit or it exists without `force`.

    `InfrastructureError` if its folder is not there or not writable.
    """
    fault = path_error(out) or ("is in a bucket. A file of this machine is written; copy it" if is_bucket(out) else "")
    path = Path(out)
    if not fault and not out.endswith(_ENDINGS):
        fault = f"ends in none of {', '.join(_ENDINGS)}"
    if fault:
        raise ConfigurationError(f"--out {out[:200]!r}: {fault}. Name a file such as predictions.parquet.")
    with disk.os_errors(path):
        files = [file for file in (path, rejected_file(path)) if file.exists()]
        if files and (not force or any(not file.is_file() for file in files)):
            raise ConfigurationError(f"--out {out}: {files[0]} already exists. Name another file, or give --force.")
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"--out {out}: there is no folder {path.absolute().parent}. Create it first.")
    return path


class OutputSchema:
    """The columns of predictions: the class and scores of a classifier; otherwise a number, or one for each target.

    If an example may have several classes, these stand in one text as `PushedModel.label_separator` says, and each has
    its score.
    """

    def __init__(self, model: PushedModel) -> None:
        self.schema = pa.schema([(name, kind) for name, kind in _columns(model)])
        self._labels, self._separator, self._thresholds = model.labels, model.label_separator, dict(model.thresholds)
        self._names = None if model.labels is None else pa.array(model.labels, pa.string())

    def batch(self, keys: pa.Array, outputs: Array) -> pa.RecordBatch:
        """Return the answers `outputs`, probabilities (n, classes) or predictions, for `keys` (n,) as columns."""
        if self._labels is None or self._names is None:
            columns = [keys, *(pa.array(column, pa.float32()) for column in outputs.reshape(len(outputs), -1).T)]
        elif self._separator is not None:
            chosen = decided_classes(outputs, self._thresholds)
            texts = (self._separator.join(compress(self._labels, has)) for has in chosen)
            columns = [keys, pa.array(texts, pa.string()), *map(pa.array, np.ascontiguousarray(outputs.T))]
        else:
            order = decided_class(outputs, self._thresholds)[:, None]
            if len(self._labels) > MOST_CLASSES:
                order = _top(outputs, order)
            scores = np.take_along_axis(outputs, order, axis=1)
            columns = [keys, self._names.take(pa.array(order[:, 0])), pa.array(scores[:, 0])]
            if len(self._labels) <= MOST_CLASSES:
                columns += [pa.array(np.ascontiguousarray(outputs[:, index])) for index in range(len(self._labels))]
            else:
                for rank in range(1, order.shape[1]):
                    columns += [self._names.take(pa.array(order[:, rank])), pa.array(scores[:, rank])]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class Sink:
    """A sink for predictions. predicted, reasons: counts so far; first: the first rejected input and its reason.

    unknown: counts the values of the inputs that the model never saw.
    """

    def __init__(self, model: PushedModel) -> None:
        self.predicted, self.reasons = 0, Counter[str]()
        self.first = ""
        self.unknown = UnknownInputs(model)
        self._outputs = OutputSchema(model)

    def add(self, keys: pa.Array, outputs: Array) -> None:
        """Take the answers `outputs` for `keys`, with the shapes of `OutputSchema.batch`."""
        raise NotImplementedError

    def reject(self, item: BadRow) -> None:
        """Take and count what has no prediction."""
        self.first = self.first or f"{item.key}: {item.detail}"
        self.reasons[item.reason] += 1


class Table(Sink):
    """Predictions in memory. rejected: what has none."""

    def __init__(self, model: PushedModel) -> None:
        super().__init__(model)
        self.rejected: list[BadRow] = []
        self._batches: list[pa.RecordBatch] = []

    @property
    def table(self) -> pa.Table:
        """The predictions so far."""
        return pa.Table.from_batches(self._batches, self._outputs.schema)

    def add(self, keys: pa.Array, outputs: Array) -> None:
        """Keep the answers."""
        self._batches.append(self._outputs.batch(keys, outputs))
        self.predicted += len(keys)

    def reject(self, item: BadRow) -> None:
        """Keep what has no prediction."""
        super().reject(item)
        self.rejected.append(item)


class Results(Sink):
    """Writes the files of a prediction as hidden files next to `out`, and renames them at the end."""

    def __init__(self, out: Path, model: PushedModel) -> None:
        super().__init__(model)
        self.classes: Counter[str] = Counter()
        self._out = out
        self._temporary: dict[Path, IO[bytes]] = {}
        self._rejected: Any = None

    def __enter__(self) -> Self:
        with disk.os_errors(self._out):
            self._writer = _WRITERS[self._out.suffix](self._open(self._out), self._outputs.schema)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, ValueError):
            self._writer.close()
        for stream in self._temporary.values():
            Path(stream.name).unlink(missing_ok=True)
            with suppress(OSError):  # a full disk has been reported, and takes the rest no more
                stream.close()

    def add(self, keys: pa.Array, outputs: Array) -> None:
        """Write the answers `outputs`, probabilities (n, classes) or predictions (n,), for the inputs `keys` (n,)."""
        batch = self._outputs.batch(keys, outputs)
        with disk.os_errors(self._out):
            self._writer.write_batch(batch)
        self.predicted += batch.num_rows
        if "score" in batch.schema.names:
            counts = pc.value_counts(batch.column("prediction")).to_pylist()
            self.classes.update({entry["values"]: entry["counts"] for entry in counts})

    def reject(self, item: BadRow) -> None:
        """Write what has no prediction."""
        super().reject(item)
        path = rejected_file(self._out)
        with disk.os_errors(path):
            if self._rejected is None:
                text = io.TextIOWrapper(self._open(path), "utf-8", "backslashreplace", newline="", write_through=True)
                self._rejected = csv.writer(text, lineterminator="\n")
                self._rejected.writerow(["key", "reason", "detail"])
            self._rejected.writerow([item.key, item.reason, item.detail])

    def publish(self) -> None:
        """Give the files their names; the predictions last, and only if there are any."""
        with disk.os_errors(self._out):
            self._writer.close()
            for path in (rejected_file(self._out), self._out):
                stream = self._temporary.get(path)
                if stream is None:
                    path.unlink(missing_ok=True)  # of a prediction that is replaced
                elif path != self._out or self.predicted:
                    if not stream.closed:
                        stream.flush()
                    Path(stream.name).replace(path)

    def _open(self, path: Path) -> IO[bytes]:
        umask = os.umask(0)
        os.umask(umask)
        file, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        os.fchmod(file, 0o666 & ~umask)
        stream = open(name, "wb")  # noqa: PTH123, SIM115 - closed by `__exit__`
        os.close(file)
        self._temporary[path] = stream
        return stream


def _top(outputs: Array, first: Array) -> Array:
    """Return the ids (n, TOP) of the class `first` (n, 1), and of the others with the largest scores."""
    ranked = np.array(outputs)
    np.put_along_axis(ranked, first, np.inf, axis=1)
    return np.argsort(-ranked, axis=1, kind="stable")[:, :TOP]


def _columns(model: PushedModel) -> list[tuple[str, pa.DataType]]:
    labels = model.labels
    if labels is None:
        names = [f"prediction_{target}" for target in model.targets] if model.targets else ["prediction"]
        return [("key", pa.string()), *((name, pa.float32()) for name in names)]
    columns = [("key", pa.string()), ("prediction", pa.string())]
    if model.label_separator is not None:
        return columns + [(f"score_{label}", pa.float32()) for label in labels]
    columns.append(("score", pa.float32()))
    if len(labels) <= MOST_CLASSES:
        return columns + [(f"score_{label}", pa.float32()) for label in labels]
    for rank in range(2, TOP + 1):
        columns += [(f"prediction_{rank}", pa.string()), (f"score_{rank}", pa.float32())]
    return columns


class _JsonLines:
    def __init__(self, stream: IO[bytes], _schema: pa.Schema) -> None:
        self._stream = stream

    def write_batch(self, batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        self._stream.write("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())

    def close(self) -> None:
        self._stream.flush()


def _parquet(stream: IO[bytes], schema: pa.Schema) -> parquet.ParquetWriter:
    """Return a writer with dictionaries of classes alone: keys and scores differ, so they would take time and space."""
    classes = [field.name for field in schema if field.name != "key" and pa.types.is_string(field.type)]
    return parquet.ParquetWriter(stream, schema, compression="zstd", use_dictionary=classes)


_WRITERS: dict[str, Callable[[IO[bytes], pa.Schema], Any]] = {
    ".parquet": _parquet,
    ".csv": pa_csv.CSVWriter,
    ".jsonl": _JsonLines,
}


class UnknownInputs(UnknownCounter):
    """Counts by column of the model's inputs."""

    def __init__(self, model: PushedModel) -> None:
        vocabularies = dict[str, Vocabulary]()
        for feature in model.inputs:
            file = feature.vocabulary and f"{EXTRA}/{version.VOCABULARIES}/{feature.vocabulary}"
            if file and feature.learned and (values := version.names(model.folder, file)) is not None:
                is_text = feature.column is not None and feature.column.type == "text"
                separator = feature.column.separator if feature.column else None
                vocabulary = Vocabulary(pa.array(values, pa.string()), is_text, separator, feature.learned.missing)
                vocabularies[feature.name] = vocabulary
        super().__init__(vocabularies)

    def add_batch(self, batch: InputBatch) -> None:
        """Count the cells of `batch`."""
        self.add({name: pa.array(batch.inputs[input_name(name)], pa.string()) for name in self.vocabularies})
