"""Reads TFRecord files of tf.Example: images with a label, or named columns. TFDS shards are such files too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from google.protobuf.message import DecodeError
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from trainyard.contract.artifacts.preprocess import Quarantined
from trainyard.contract.batches import batched
from trainyard.spec.recipe import Recipe
from trainyard.steps.preprocess.readers.files import image_limit, open_file, too_many_bytes
from trainyard.steps.preprocess.readers.images import image_record
from trainyard.steps.preprocess.readers.records import MOST_ROWS, BadRecord, BadSource, Record, in_batches
from trainyard.steps.preprocess.readers.tables.columns import ColumnJudge, Mask
from trainyard.steps.preprocess.readers.tables.rows import check_row, typed_label
from trainyard.steps.preprocess.readers.tfds import Dataset
from trainyard.storage import tfrecord
from trainyard.values.columns import as_texts

_MAX_COLUMNS = 16 << 20  # bytes of an example without its image; chosen
_GROUP_BYTES = 4 << 20  # judged at once; chosen
_FEW_EXAMPLES = 96  # as for rows of CSV files
_IMAGE_NAMES = ("image/encoded", "image")


def read_tf_batches(
    path: str, name: str, recipe: Recipe, dataset: Dataset | None
) -> Iterator[pa.RecordBatch | Quarantined]:
    """Yield the examples of the file at `path` in batches, and why one is bad; `name` stands for the file in messages.

    With a TFDS `dataset`, integer labels get their names. Raises `BadSource` if the file is corrupt or holds another
    number of records than the data set's own description says.
    """
    examples = _examples(path, name, recipe, dataset)
    if recipe.data.is_image:
        yield from in_batches(_items(examples, recipe, dataset), recipe.data)
    else:
        judge = _Judge(recipe, dataset)
        for group in batched(examples, _Example, _bytes, MOST_ROWS, _GROUP_BYTES):
            yield from judge.items(group)


def read_tf_examples(path: str, name: str, recipe: Recipe, dataset: Dataset | None) -> Iterator[Record | Quarantined]:
    """Yield what `read_tf_batches` does, one by one."""
    return _items(_examples(path, name, recipe, dataset), recipe, dataset)


@dataclass(frozen=True)
class _Example:
    source: str
    serialized: bytes | BadRecord


def _examples(path: str, name: str, recipe: Recipe, dataset: Dataset | None) -> Iterator[_Example]:
    limit, number = _MAX_COLUMNS + (image_limit(recipe.data) if recipe.data.is_image else 0), 0
    with open_file(path) as stream:
        for number, serialized in enumerate(read_records(stream, name, limit), 1):
            yield _Example(f"{name}:{number}", serialized)
    if dataset is not None and number != dataset.records[name]:
        raise BadSource(
            f"{name}: {number} records, dataset_info.json counts {dataset.records[name]}. Prepare it again."
        )


def read_records(stream: IO[bytes], name: str, limit: int) -> Iterator[bytes | BadRecord]:
    """Yield the records of one TFRecord file, and for one of more than `limit` bytes, passed over, why it is not read.

    Raises `BadSource` that names file and record if a checksum differs, those of what is passed over included.
    """
    try:
        for record in tfrecord.read_records(stream, limit):
            yield too_many_bytes(record, limit) if isinstance(record, int) else record
    except tfrecord.DamagedRecord as error:
        raise BadSource(f"{name}: {error}") from error


def _bytes(example: _Example) -> int:
    return 0 if isinstance(example.serialized, BadRecord) else len(example.serialized)


class _Judge:
    """Judges examples of named columns, many at once."""

    def __init__(self, recipe: Recipe, dataset: Dataset | None) -> None:
        self._recipe, self._dataset = recipe, dataset
        self._columns = ColumnJudge(recipe.data, recipe.task)
        self._decoder = ExamplesToRecordBatchDecoder()

    def items(self, group: list[_Example]) -> Iterator[pa.RecordBatch | Quarantined]:
        """Yield the good examples of `group` as batches, and the bad ones in order."""
        if len(group) < _FEW_EXAMPLES:
            yield from in_batches(_items(group, self._recipe, self._dataset), self._recipe.data)
            return
        try:
            texts, odd = self._texts([_serialized(example) for example in group])
        except (BadRecord, RuntimeError, pa.ArrowInvalid):  # one of them is no example, or of other types than others
            yield from self.items(group[: len(group) // 2])
            yield from self.items(group[len(group) // 2 :])
            return
        plain = np.flatnonzero(~odd)
        indices = pa.array(plain)
        sources = pa.array([example.source for example in group], pa.string()).take(indices)
        batch, bad_rows = self._columns.check({name: column.take(indices) for name, column in texts.items()}, sources)
        bad = {int(plain[index]): item for index, item in bad_rows.items()}
        for index in np.flatnonzero(odd).tolist():
            item = _item(group[index], self._recipe, self._dataset)
            if isinstance(item, Record):
                raise AssertionError(f"{item.source}: a column of it is odd, the example is not")
            if item is not None:
                bad[index] = item
        if batch.num_rows:
            yield batch
        yield from (item for _, item in sorted(bad.items()))

    def _texts(self, serialized: list[bytes]) -> tuple[dict[str, pa.Array], Mask]:
        """Return the columns of the recipe as texts, and which examples must be judged alone."""
        decoded = self._decoder.DecodeBatch(serialized)
        odd = np.zeros(len(serialized), np.bool_)
        texts = {}
        for name in self._recipe.data.columns:
            texts[name], several = _column_texts(decoded, name, self._recipe.data.separators.get(name))
            odd |= several
        label = self._recipe.data.label
        if label in texts and self._dataset is not None and self._dataset.label_names is not None:
            texts[label] = self._label_names(texts[label], label)
            odd |= texts[label].is_null().to_numpy(zero_copy_only=False).astype(np.bool_)
        return texts, odd

    def _label_names(self, ids: pa.Array, name: str) -> pa.Array:
        """Return the names of the labels, null of one that has none."""
        encoded = ids.dictionary_encode()
        names: list[str | None] = []
        for label in encoded.dictionary.to_pylist():
            try:
                names.append(_label_name(label, name, self._dataset))
            except BadRecord:
                names.append(None)
        return pa.array(names, pa.string()).take(encoded.indices)


def _serialized(example: _Example) -> bytes:
    if isinstance(example.serialized, BadRecord):
        raise example.serialized
    return example.serialized


def _column_texts(decoded: pa.RecordBatch, name: str, separator: str | None) -> tuple[pa.Array, Mask]:
    """Return the value of each example as `_text` does, and which examples have several though they may not."""
    rows = decoded.num_rows
    index = decoded.schema.get_field_index(name)
    if index < 0 or decoded.column(index).null_count == rows:
        return pa.array([""] * rows, pa.string()), np.zeros(rows, np.bool_)
    lists = decoded.column(index)
    if separator is not None:
        values = pa.ListArray.from_arrays(lists.offsets, _value_texts(lists.values))
        joined = pc.if_else(lists.is_valid(), pc.binary_join(values, separator), "")
        return joined, np.zeros(rows, np.bool_)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    starts = np.array(lists.offsets.to_numpy())[:-1]
    return _value_texts(lists.values.take(pa.array(starts, mask=counts == 0))), counts > 1


def _value_texts(values: pa.Array) -> pa.Array:
    return as_texts(values)


def _items(examples: Iterable[_Example], recipe: Recipe, dataset: Dataset | None) -> Iterator[Record | Quarantined]:
    """Yield what the examples are, but for the rows that `data.where` leaves out."""
    items = (_item(example, recipe, dataset) for example in examples)
    return (item for item in items if item is not None)


def _item(example: _Example, recipe: Recipe, dataset: Dataset | None) -> Record | Quarantined | None:
    try:
        return _record(_serialized(example), example.source, recipe, dataset)
    except BadRecord as error:
        return Quarantined(source=example.source, reason=error.reason, detail=error.detail)


def _record(serialized: bytes, source: str, recipe: Recipe, dataset: Dataset | None) -> Record | None:
    try:
        features = tf.train.Example.FromString(serialized).features.feature
    except DecodeError as error:
        raise BadRecord("not_an_example", f"{len(serialized)} bytes are no tf.Example") from error
    separators = recipe.data.separators
    columns = {
        name: _text(features[name], name, separators.get(name)) if name in features else ""
        for name in recipe.data.columns
    }
    name = recipe.data.label
    if name in columns:
        columns[name] = _label_name(columns[name], name, dataset)
    if not recipe.data.is_image:
        return check_row(columns, source, recipe.data, recipe.task)
    label = typed_label(columns[name], name, recipe.data, recipe.task)
    encoded = _image(features, (dataset.image,) if dataset and dataset.image else _IMAGE_NAMES)
    return image_record(encoded, label, source, recipe.data)


def _label_name(label: str, name: str, dataset: Dataset | None) -> str:
    if dataset is None or dataset.label_names is None or not label:
        return label
    if not label.isdecimal() or int(label) >= len(dataset.label_names):
        raise BadRecord(
            "unknown_label", f"'{name}' is {label[:40]}, {name}.labels.txt names {len(dataset.label_names)}"
        )
    return dataset.label_names[int(label)]


def _image(features: Mapping[str, tf.train.Feature], names: tuple[str, ...]) -> bytes:
    for name in names:
        if name in features and features[name].bytes_list.value:
            return bytes(features[name].bytes_list.value[0])
    raise BadRecord(
        "not_an_image", f"no bytes in {' or '.join(names)}; the example has {', '.join(sorted(features))[:80]}"
    )


def _text(feature: tf.train.Feature, name: str, separator: str | None) -> str:
    """Return the value of a tf.train.Feature as text, empty if it has none; several with `separator` between them."""
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else ()
    if len(values) > 1 and separator is None:
        raise BadRecord("mistyped_value", f"'{name}': one value is expected, {len(values)} were found")
    if kind != "bytes_list":
        numbers = pa.array(values, pa.float32() if kind == "float_list" else pa.int64())
        return (separator or "").join(as_texts(numbers).to_pylist())
    try:
        return (separator or "").join(bytes(value).decode("utf-8") for value in values)
    except UnicodeDecodeError as error:
        raise BadRecord("mistyped_value", f"'{name}': is not UTF-8, {error.object[:40]!r} was found") from error
