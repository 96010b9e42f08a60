"""The log of a server: sampled requests and their answers in hourly Parquet files, which appear when they are whole.

A request never waits for the log. What its bounds cannot hold is dropped and counted.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter
from pyarrow import parquet

from trainyard import events
from trainyard.contract import version
from trainyard.contract.answer_log import HOUR, METADATA, AnswersDescription, answer_names, own_columns
from trainyard.errors import ConfigurationError, TrainyardError, TransientError, bug_sentence
from trainyard.serving.records import Row
from trainyard.serving.versions import LoadedModel
from trainyard.spec import formula
from trainyard.steps.predict.pushed_model import PushedModel
from trainyard.steps.predict.source import Array
from trainyard.storage import storage
from trainyard.uris import path_error, without_secrets

_MOST_ROWS = 50_000  # that wait for the writer; chosen: seconds of the fastest model
_MOST_QUEUED_BYTES = 64 << 20  # that wait for the writer; chosen
_MOST_BYTES = 1 << 30  # of files that are not yet published; chosen
_MOST_FILE_BYTES = 256 << 20  # then a new file begins within the hour; chosen
_GROUP_ROWS, _GROUP_BYTES = 10_000, 32 << 20  # of a row group; chosen
_NUMBER_BYTES = 32  # in Python
_PAUSE_SECONDS = 0.1  # between looks at the queue; chosen: were the thread woken by each request, that would cost more
_AGAIN_SECONDS = 60.0  # between tries to publish; chosen
_DEADLINE_SECONDS = 20.0  # of one try; chosen: Kubernetes kills a pod after 30
_ARROW = {"float32": pa.float64(), "int64": pa.int64(), "string": pa.string()}


@dataclass(frozen=True)
class _Item:
    """The rows (n) of one request with their answers (n, ...). time: in seconds since 1970. bytes: about its memory.

    shadow: the model is the shadow of the one that served.
    """

    model: LoadedModel
    rows: Sequence[Row]
    answers: Array
    request_id: str
    time: float
    bytes: int
    shadow: bool


class _Layout:
    """The columns of the files for one version. Images and private columns are left out."""

    def __init__(self, model: LoadedModel, *, shadow: bool) -> None:
        pushed = model.pushed
        private, every = private_inputs(pushed), [feature.name for feature in pushed.inputs]
        kept = [] if pushed.pixels else [feature for feature in pushed.inputs if feature.name not in private]
        self._inputs = [(pushed.inputs.index(feature), feature.name, _ARROW[feature.dtype]) for feature in kept]
        names = [feature.name for feature in kept]
        answers = answer_names(pushed.labels, pushed.targets)
        about = AnswersDescription(
            version=model.number,
            folder=pushed.folder,
            digest=model.digest,
            labels=None if pushed.labels is None else list(pushed.labels),
            label_separator=pushed.label_separator,
            thresholds=dict(pushed.thresholds),
            targets=None if pushed.targets is None else list(pushed.targets),
            own=own_columns(["id", "time", "version", "shadow", *answers], every),
            shadow=shadow,
            left_out=[name for name in every if name not in names],
        )
        types = [pa.float32()] * len(answers)
        if pushed.labels is not None:
            types = [pa.string(), pa.list_(pa.float32(), len(pushed.labels))]
        own = zip(
            about.own.values(), [pa.string(), pa.timestamp("us", "UTC"), pa.int64(), pa.bool_(), *types], strict=True
        )
        fields = [*own, *((name, kind) for _, name, kind in self._inputs)]
        self.schema = pa.schema(fields, {METADATA: about.model_dump_json()})

    def table(self, items: Sequence[_Item]) -> pa.Table:
        """Return the rows of the requests `items`."""
        ids, times, rows = list[str](), list[int](), list[Row]()
        for item in items:
            count = len(item.rows)
            ids += [item.request_id] if count == 1 else [f"{item.request_id}/{row}" for row in range(count)]
            times += [int(item.time * 1e6)] * count
            rows += item.rows
        columns = [
            pa.array(ids, pa.string()),
            pa.array(times, pa.timestamp("us", "UTC")),
            pa.array([items[0].model.number] * len(rows), pa.int64()),
            pa.array([items[0].shadow] * len(rows), pa.bool_()),
            *self._answers(items[0].model, np.concatenate([item.answers for item in items])),
            *(pa.array([_value(row[place]) for row in rows], kind) for place, _, kind in self._inputs),
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _answers(self, model: LoadedModel, answers: Array) -> list[pa.Array]:
        values = answers.astype(np.float32).reshape(len(answers), -1)
        if model.pushed.labels is None:
            return [pa.array(np.ascontiguousarray(column)) for column in values.T]
        classes = next(output.values for output in model.outputs(answers) if output.name == "label")
        return [
            pa.array(classes, pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1]),
        ]


def _value(value: Any) -> Any:
    """Return a value as a file has it: None if it is missing."""
    return None if value == "" or value != value else value


def private_inputs(model: PushedModel) -> frozenset[str]:
    """Return the inputs that the recipe calls private, and those that a private column is computed of."""
    data = version.record(model.folder).recipe.get("data") or {}
    private = {name for name, feature in (data.get("features") or {}).items() if feature.get("private")}
    computed = [data["derive"][name] for name in private if name in (data.get("derive") or {})]
    sources = {name for text in computed for name in formula.columns(formula.parse(text))}
    return frozenset(private | sources)


@dataclass
class _File:
    """An open file: its layout, its hour, and the rows that wait for the next row group."""

    path: Path
    layout: _Layout
    hour: str
    writer: Any
    waiting: list[_Item] = field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0
    rows: int = 0

    def add(self, item: _Item) -> None:
        """Keep the rows until `write`."""
        self.waiting.append(item)
        self.waiting_rows += len(item.rows)
        self.waiting_bytes += item.bytes

    def write(self) -> None:
        """Write the waiting rows as a row group."""
        if self.waiting:
            self.writer.write_table(self.layout.table(self.waiting))
            self.rows += self.waiting_rows
            self.waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0


class AnswerLog:
    """Writes to `folder`, local or in a bucket. sample: the share of the requests that are logged.

    Each server has its own files, so that several may share a folder. Raises `ConfigurationError` for an invalid name,
    `InfrastructureError` if the folder cannot be created.
    """

    def __init__(self, folder: str, sample: float, registry: CollectorRegistry) -> None:
        if why := path_error(folder):
            raise ConfigurationError(f"--log {without_secrets(folder)[:200]!r}: {why}. Name a folder or a bucket's.")
        storage.require_place(storage.join(folder, "file"))
        self._folder, self._sample = folder.rstrip("/"), sample
        self._server, self._files_made = uuid4().hex[:12], 0
        self._random = random.Random()  # noqa: S311 - two servers must not draw alike
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._ended = threading.Event()
        self._offered, self._taken = [0, 0], [0, 0]  # rows and bytes, each written by one thread
        self._open: dict[tuple[str, str, str, bool], _File] = {}
        self._closed: list[tuple[Path, str, int]] = []  # path, name and rows of files that are not yet published
        self._spool = Path(tempfile.mkdtemp(prefix="trainyard-log-"))
        self._again, self._failure = 0.0, ""
        self._publishing: threading.Thread | None = None
        self._written = Counter("trainyard_log_rows", "Rows in published files of the log.", registry=registry)
        self._dropped = Counter("trainyard_log_dropped_rows", "Rows that the log dropped.", registry=registry)
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def offer(self, model: LoadedModel, rows: Sequence[Row], answers: Array, request_id: str) -> bool:
        """Log the answers to a request if it is drawn, and return whether it is logged."""
        return self._random.random() < self._sample and self.add(model, rows, answers, request_id)

    def add(
        self, model: LoadedModel, rows: Sequence[Row], answers: Array, request_id: str, *, shadow: bool = False
    ) -> bool:
        """Log the answers to a request, at once, whatever the state of the log; return False if they are dropped.

        shadow: `model` is the shadow of the one that served.
        """
        inputs: Sequence[Row] = rows if model.pushed.pixels is None else [()] * len(rows)  # images are not logged
        added = (len(rows), memory(inputs))
        waiting = [offered - taken + new for offered, taken, new in zip(self._offered, self._taken, added, strict=True)]
        if waiting[0] > _MOST_ROWS or waiting[1] > _MOST_QUEUED_BYTES:
            self._dropped.inc(len(rows))
            return False
        self._offered = [before + new for before, new in zip(self._offered, added, strict=True)]
        self._queue.put(_Item(model, inputs, answers, request_id, time.time(), added[1], shadow))
        return True

    def finish(self, seconds: float) -> None:
        """Publish all files within `seconds`; rows of the others are dropped."""
        self._ended.set()
        self._thread.join(seconds)
        if lost := sum(rows for _, _, rows in self._closed):
            self._drop(lost, TransientError(f"{lost:,} rows were not published before the server ended."))
        shutil.rmtree(self._spool, ignore_errors=True)

    def _work(self) -> None:
        while True:
            items, is_last = self._next()
            for item in items:
                try:
                    self._add(item)
                except Exception as error:  # noqa: BLE001 - the log must not end the server
                    self._drop(len(item.rows), error)
            done = sum(len(item.rows) for item in items), sum(item.bytes for item in items)
            self._taken = [before + new for before, new in zip(self._taken, done, strict=True)]
            hour = _hour(time.time())
            for key, file in list(self._open.items()):
                if is_last or file.hour != hour:
                    self._close(self._open.pop(key))
            if is_last:
                if self._publishing:
                    self._publishing.join()
                self._publish()
                return
            is_busy = self._publishing is not None and self._publishing.is_alive()
            if self._closed and not is_busy and time.monotonic() >= self._again:
                self._publishing = threading.Thread(target=self._publish, daemon=True)
                self._publishing.start()

    def _next(self) -> tuple[list[_Item], bool]:
        """Return the items that wait, after a pause, and whether they are the last."""
        items, is_last = list[_Item](), self._ended.wait(_PAUSE_SECONDS)
        with suppress(Empty):
            while True:
                items.append(self._queue.get_nowait())
        return items, is_last

    def _add(self, item: _Item) -> None:
        hour = _hour(item.time)
        key = hour, item.model.pushed.folder, item.model.digest, item.shadow  # equal versions are apart
        file = self._open.get(key)
        if file is None:
            if self._spooled() > _MOST_BYTES:
                self._dropped.inc(len(item.rows))
                return
            file = self._open[key] = self._created(item, hour)
        file.add(item)
        if file.waiting_rows < _GROUP_ROWS and file.waiting_bytes < _GROUP_BYTES:
            return
        try:
            file.write()
        except Exception as error:  # noqa: BLE001 - such as a full disk
            self._abandon(self._open.pop(key), error)
        else:
            if file.path.stat().st_size > _MOST_FILE_BYTES:
                self._close(self._open.pop(key))

    def _created(self, item: _Item, hour: str) -> _File:
        self._files_made += 1
        name = f"{'shadow-' if item.shadow else ''}v{item.model.number}"
        path = self._spool / f"{hour}.{name}.{self._server}.{self._files_made}.parquet"
        layout = _Layout(item.model, shadow=item.shadow)
        return _File(path, layout, hour, parquet.ParquetWriter(path, layout.schema, compression="zstd"))

    def _spooled(self) -> int:
        total = 0
        for path in self._spool.iterdir():
            with suppress(FileNotFoundError):  # it was published meanwhile
                total += path.stat().st_size
        return total

    def _close(self, file: _File) -> None:
        try:
            file.write()
            file.writer.close()
        except Exception as error:  # noqa: BLE001 - such as a full disk
            self._abandon(file, error)
        else:
            self._closed.append((file.path, file.path.name, file.rows))

    def _abandon(self, file: _File, error: Exception) -> None:
        self._drop(file.rows + file.waiting_rows, error)
        with suppress(Exception):
            file.writer.close()
        file.path.unlink(missing_ok=True)

    def _publish(self) -> None:
        """Publish the closed files in their order; those that cannot be are tried again later."""
        while self._closed:
            path, name, rows = self._closed[0]
            try:
                with storage.deadline(_DEADLINE_SECONDS):
                    storage.publish_file(path, storage.join(self._folder, name))
            except Exception as error:  # noqa: BLE001 - the next try may succeed
                self._again = time.monotonic() + _AGAIN_SECONDS
                self._say(error)
                return
            self._failure = ""
            self._written.inc(rows)
            path.unlink(missing_ok=True)
            self._closed.pop(0)

    def _drop(self, rows: int, error: Exception) -> None:
        self._dropped.inc(rows)
        self._say(error)

    def _say(self, error: Exception) -> None:
        failure = str(error) if isinstance(error, TrainyardError | OSError) else bug_sentence(error)
        if failure != self._failure:
            events.emit("warning", message=f"The log of answers: {failure}")
        self._failure = failure


def memory(rows: Sequence[Row]) -> int:
    """Return about how many bytes `rows` take, by the first of them."""
    return len(rows) * sum(len(value) if isinstance(value, str | bytes) else _NUMBER_BYTES for value in rows[0])


def _hour(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(HOUR)
