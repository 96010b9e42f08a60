"""The second pipeline: tf.Transform analyses the training split, then every example is transformed and written."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import Message
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from trainyard.beam.library import beam  # before every other import of Beam

# isort: split
import pyarrow as pa
import tensorflow_transform.beam as tft_beam
from numpy.typing import NDArray
from tensorflow_transform.tf_metadata import schema_utils
from tfx_bsl.public.tfxio import TFExampleBeamRecord

from trainyard import events
from trainyard.beam import progress
from trainyard.beam.runner import pipeline
from trainyard.beam.tasks import run_tasks
from trainyard.contract.artifacts.preprocess import WEIGHT
from trainyard.contract.document import Split
from trainyard.data.examples import Transform
from trainyard.runtime import step
from trainyard.spec.gates import Task
from trainyard.steps.preprocess.parts import Part, Parts
from trainyard.steps.preprocess.shards import Layout, read_shard, shard_name, write_shard
from trainyard.steps.preprocess.statistics import labels_apart
from trainyard.steps.preprocess.task_store import TaskStore, remove_unfinished
from trainyard.steps.preprocess.transforming.encode import Column, as_column, encode_examples
from trainyard.steps.preprocess.transforming.vocabularies import VOCABULARIES
from trainyard.storage import storage

_ANALYSIS = "analysis"
_GRAPH = "transform.zip"
_EXAMPLES = "examples"
_MEASURED = "measured"  # of a bucket's shards, the size and checksum; there once the shard is

if TYPE_CHECKING:
    from tensorflow.core.protobuf.saved_model_pb2 import _NodeDef
    from tfx_bsl.public.tfxio import TensorAdapterConfig


@dataclass(frozen=True, kw_only=True)
class TransformSettings:
    """The settings of the second pipeline.

    parts: the rows, where the first one left them. raw_spec: parsing specification of the raw features. materialize:
    whether the shards hold the transformed features, or (default images) only the raw ones. rounds: whether what was
    learned in float64 gets the digits of float32, so that it is the same from every engine. label_ids: class id by
    name, None for regression. weight: the column that says how much a row counts, if there is one. examples: those of
    all splits. source_bytes: of the files that they were read from. batch_size: examples that tf.Transform takes at
    once; left to Beam it would follow the machine's speed, and the last digit of a mean with it.
    """

    parts: Parts
    raw_spec: dict[str, tf.io.FixedLenFeature]
    preprocessing_fn: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]
    materialize: bool
    rounds: bool
    task: Task
    label_ids: dict[str, int] | None
    weight: str | None
    layouts: dict[Split, Layout]
    examples: int
    source_bytes: int
    batch_size: int
    beam_options: str


def transform(settings: TransformSettings, attempt: str, output: Path) -> None:
    """Write the transform graph to `output`/transform and the example shards to `output`/examples.

    attempt: the name of the folder that both are written to and moved from at the end; what is there of an earlier one,
    of equal settings, stays. Shards that workers leave in a bucket stay where they are, and are the output's.
    """
    work = settings.parts.work.below(attempt)
    folder = Path(work.folder)
    folder.mkdir(exist_ok=True)
    shards = _Shards(settings, work, attempt)
    with progress.reported(settings.examples, "examples", shards.finished):
        temporary = folder / _ANALYSIS
        shutil.rmtree(temporary, ignore_errors=True)  # of an attempt that was killed
        if not (folder / "transform").exists():
            temporary.mkdir()
            _make_graph(settings, work, str(temporary))
            (temporary / "graph").rename(folder / "transform")
            shutil.rmtree(temporary)
        shards.write()
    (folder / "transform").rename(output / "transform")
    shards.move(output)
    shutil.rmtree(folder)


def _make_graph(settings: TransformSettings, work: TaskStore, temporary: str) -> None:
    """Write the transform graph to `temporary`/graph, and to where workers find it, unless it is there."""
    graph = Path(temporary, "graph")
    if work.uri and work.exists(_GRAPH):
        work.read_folder(_GRAPH, graph)
        return
    _analyze(settings, str(graph), temporary)
    folders = [temporary, f"{settings.parts.work.folder}/{VOCABULARIES}"]
    make_reproducible(graph / "transform_fn", folders, rounds=settings.rounds)
    if work.uri:
        work.write_folder(_GRAPH, graph)


def _analyze(settings: TransformSettings, graph: str, work: str) -> None:
    weight = {WEIGHT: tf.io.FixedLenFeature((), tf.float32)} if settings.weight else {}
    config = _adapter(settings.raw_spec | weight)
    # tf.Transform's temporary files need a folder that all workers see: without one, this process alone analyses.
    beam_options = "" if settings.parts.work.uri else settings.beam_options
    # The default transform of images learns nothing, so it needs none.
    parts = [part for part in settings.parts.parts if part.rows["train"]] if settings.materialize else []
    with (
        warnings.catch_warnings(),
        pipeline(beam_options) as root,
        tft_beam.Context(temp_dir=work, force_tf_compat_v1=False),
    ):
        # tf.Transform divides 0 by 0 when it merges two empty batches, and takes 0 for it.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="tensorflow_transform")
        spread = root | "Parts" >> beam.Create(list(enumerate(parts))) | "Spread" >> beam.GroupByKey()
        train = spread | "Train batches" >> beam.ParDo(_ReadTrain(settings, config.arrow_schema))
        transform_fn = (train, config) | tft_beam.AnalyzeDataset(settings.preprocessing_fn)
        _ = transform_fn | tft_beam.WriteTransformFn(graph)


def _adapter(raw_spec: dict[str, tf.io.FixedLenFeature]) -> TensorAdapterConfig:
    schema = schema_utils.schema_from_feature_spec(raw_spec)
    source = TFExampleBeamRecord(physical_format="tfrecord", telemetry_descriptors=["trainyard"], schema=schema)
    return source.TensorAdapterConfig()


class _ReadTrain(beam.DoFn):
    def __init__(self, settings: TransformSettings, schema: pa.Schema) -> None:
        self._work, self._batch_size, self._schema = settings.parts.work, settings.batch_size, schema
        self._weight = settings.weight

    def process(self, numbered: tuple[int, Iterable[Part]]) -> Iterator[pa.RecordBatch]:
        """Yield the training rows of a part that count in batches, as tf.Transform takes them."""
        _, [part] = numbered
        rows = part.training_rows(self._work, self._weight)
        for start in range(0, len(rows), self._batch_size):
            batch = rows.slice(start, self._batch_size)
            columns = [_lists(batch[self._stored(column.name)], column.type) for column in self._schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _stored(self, name: str) -> str:
        return f"measure/{self._weight}" if self._weight and name == WEIGHT else f"raw/{name}"


def _lists(values: pa.Array, kind: pa.DataType) -> pa.LargeListArray:
    """Return a list of one value for each of `values`."""
    offsets = np.arange(len(values) + 1, dtype=np.int64)
    return pa.LargeListArray.from_arrays(offsets, values.cast(kind.value_type, safe=False))


class _Shards:
    """The shards of an attempt: those that are there, and those to write."""

    def __init__(self, settings: TransformSettings, work: TaskStore, attempt: str) -> None:
        self._settings, self._work, self._attempt = settings, work, attempt
        final = step.current_output()
        uri = storage.join(storage.attempt(final, attempt), _EXAMPLES) if work.uri else ""
        self._examples = TaskStore(f"{work.folder}/{_EXAMPLES}", uri)
        self._measured = work.below(_MEASURED)
        self._names = {
            shard_name(split, shard, layout.shards): (split, shard)
            for split, layout in settings.layouts.items()
            for shard in range(layout.shards)
        }

    def finished(self) -> int:
        """Return the number of examples in the existing shards."""
        layouts = self._settings.layouts
        return sum(layouts[split].examples[shard] for split, shard in self._done())

    def write(self) -> None:
        """Write those that are not there."""
        if done := self._done():
            events.emit("kept", done=len(done), total=len(self._names), unit="shards")
        run_tasks(
            _WriteShard(self._settings, self._work, self._examples, self._measured),
            lambda: sorted(set(self._names.values()) - self._done()),
            self._settings.beam_options,
            self._settings.source_bytes,
            "trainyard.steps.preprocess.prepare",
        )

    def move(self, output: Path) -> None:
        """Have the output hold them."""
        if not self._work.uri:
            remove_unfinished(Path(self._examples.folder))
            Path(self._examples.folder).rename(output / _EXAMPLES)
            return
        files = {name: storage.File(**json.loads(self._measured.content(name))) for name in self._names}
        storage.adopt(output, self._attempt, {f"{_EXAMPLES}/{name}": file for name, file in files.items()})

    def _done(self) -> set[tuple[Split, int]]:
        names = (self._measured if self._work.uri else self._examples).names()
        return {shard for name, shard in self._names.items() if name in names}


class _WriteShard:
    """Makes the final examples of a shard: transformed and raw features, label and key."""

    def __init__(self, settings: TransformSettings, work: TaskStore, examples: TaskStore, measured: TaskStore) -> None:
        self._parts, self._layouts = settings.parts, settings.layouts
        self._work, self._shards, self._measured = work, examples, measured
        self._raw_names, self._weight = list(settings.raw_spec), settings.weight
        self._task, self._label_ids = settings.task, settings.label_ids
        self._batch_size, self._materialize = settings.batch_size, settings.materialize

    @cached_property
    def _transform(self) -> Transform | None:
        """The transform graph, loaded once a worker."""
        if not self._materialize:
            return None
        if not self._work.uri:
            return Transform(f"{self._work.folder}/transform/transform_fn")
        with tempfile.TemporaryDirectory() as folder:
            self._work.read_folder(_GRAPH, Path(folder))
            return Transform(f"{folder}/transform_fn")

    def __call__(self, numbered: tuple[Split, int]) -> None:
        """Write one shard."""
        split, shard = numbered
        layout = self._layouts[split]
        batches = read_shard(self._parts, split, layout.buckets(shard), self._batch_size)
        examples = (example for batch, images in batches for example in self._examples(batch, images))
        name = shard_name(split, shard, layout.shards)
        file = self._shards.write(name, lambda path: write_shard(examples, path))
        if file:
            self._measured.write_bytes(name, json.dumps(asdict(file)).encode())

    def _examples(self, batch: pa.RecordBatch, images: list[bytes] | None) -> Iterator[bytes]:
        columns: dict[str, Column] = {}
        raw = {name: as_column(batch[f"raw/{name}"]) if images is None else images for name in self._raw_names}
        if self._transform:
            inputs = {name: tf.constant(values) for name, values in raw.items()}
            transformed = self._transform(inputs)
            columns |= {name: tensor.numpy() for name, tensor in transformed.items()}
        columns |= {f"raw/{name}": values for name, values in raw.items()}
        columns["label"] = self._labels(batch["label"])
        if self._weight:
            columns[WEIGHT] = as_column(batch[f"measure/{self._weight}"])
        columns["key"] = as_column(batch["source"])
        progress.count("examples", len(batch))
        yield from encode_examples(columns)

    def _labels(self, labels: pa.Array) -> NDArray[Any]:
        """Return class ids (n,), targets (n,) or (n, targets), or 1 where an example has a class (n, classes)."""
        if self._label_ids is not None and self._task == "classification":
            return np.array([self._label_ids[label] for label in labels.to_pylist()], np.int64)
        texts = labels_apart(labels)
        if self._label_ids is None:
            return np.array([[float(part) for part in label] for label in texts]).astype(np.float32)
        has = np.zeros((len(texts), len(self._label_ids)), np.int64)
        for row, classes in enumerate(texts):
            has[row, [self._label_ids[name] for name in classes if name in self._label_ids]] = 1  # others are dropped
        return has


_NUMBERED = re.compile(r"(\w+_)(\d+)")
_BITS = 24  # of a float32's significand


def make_reproducible(saved_model: Path, folders: Sequence[str], *, rounds: bool) -> None:
    """Rewrite the folder `saved_model` so that equal content gives equal bytes; `folders` are those of vocabularies.

    tf.Transform names each lookup table after the temporary file of its vocabulary, and tables of one name are one
    table in a process. So the path becomes the digest of all vocabularies: two models share a table only if it is
    the same. TensorFlow numbers functions, and names captured tensors, by what the process did before: functions are
    renumbered in order, and captured tensors have no name. The nodes of a function come out of Python's sets.
    `fingerprint.pb` holds a random number and nothing that loading needs.

    rounds: whether float64 values that were learned get the digits of float32, as the columns have. Those beyond
    depend on the order in which an engine merges what its workers found.
    """
    digest = hashlib.sha256()
    for asset in sorted((saved_model / "assets").glob("*")):
        digest.update(f"{asset.name}\0".encode() + asset.read_bytes())
    stable = digest.hexdigest()[:16].encode()
    file = saved_model / "saved_model.pb"
    model = SavedModel.FromString(file.read_bytes())
    for node in _nodes(model):
        if "shared_name" in node.attr:
            for folder in folders:
                node.attr["shared_name"].s = node.attr["shared_name"].s.replace(folder.encode(), stable)
    if rounds:
        _round_learned(model)
    _renumber(model)
    file.write_bytes(model.SerializeToString(deterministic=True))
    (saved_model / "fingerprint.pb").unlink(missing_ok=True)


def _round_learned(model: SavedModel) -> None:
    """Round the constants that functions capture; those that they are written with are inside of them."""
    for node in (node for meta_graph in model.meta_graphs for node in meta_graph.graph_def.node):
        tensor = node.attr["value"].tensor
        if node.op == "Const" and tensor.dtype == tf.float64.as_datatype_enum:
            significands, exponents = np.frexp(tf.make_ndarray(tensor))
            rounded = np.ldexp(np.round(significands * 2**_BITS), exponents - _BITS)
            tensor.CopyFrom(tf.make_tensor_proto(rounded))


def _renumber(model: SavedModel) -> None:
    libraries = [meta_graph.graph_def.library for meta_graph in model.meta_graphs]
    matches = [_NUMBERED.fullmatch(function.signature.name) for item in libraries for function in item.function]
    ordered = sorted({match[0]: match for match in matches if match}.values(), key=lambda match: int(match[2]))
    names: dict[Any, Any] = {match[0]: f"{match[1]}{rank}" for rank, match in enumerate(ordered)}
    _rename(model, names | {name.encode(): new.encode() for name, new in names.items()})
    for library in libraries:
        library.function.sort(key=lambda function: function.signature.name)
        for function in library.function:
            function.node_def.sort(key=lambda node: node.name)
        for attributes in (argument.attr for item in library.function for argument in item.arg_attr.values()):
            if "_user_specified_name" in attributes and attributes["_user_specified_name"].s.isdigit():
                del attributes["_user_specified_name"]


def _rename(message: Message, names: dict[Any, Any]) -> None:
    """Replace the texts, bytes and keys of maps in `message` that are in `names`.

    Measured with 1,000 columns: 0.03 s; as protobuf's text format, which every node was printed and parsed in, 2.7 s.
    """
    content = message.SerializeToString()
    if not any(name in content for name in names if isinstance(name, bytes)):
        return
    for field, value in message.ListFields():
        if isinstance(value, str | bytes):
            setattr(message, field.name, names.get(value, value))
            continue
        parts = [value]
        if isinstance(value, MutableMapping):
            moved = {key: value[key].SerializeToString() for key in value if key in names}
            for key in moved:
                del value[key]
            for key, entry in moved.items():
                value[names[key]].ParseFromString(entry)
            parts = list(value.values())
        elif isinstance(value, MutableSequence):
            if field.message_type is None:
                value[:] = [names.get(part, part) for part in value]
            parts = list(value)
        for part in parts:
            if isinstance(part, Message):
                _rename(part, names)


def _nodes(model: SavedModel) -> Iterator[_NodeDef]:
    for graph in (meta_graph.graph_def for meta_graph in model.meta_graphs):
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def
