"""The vocabularies of categories and texts, counted part by part on whatever workers there are."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from pyarrow import ipc

from trainyard.beam.tasks import run_tasks
from trainyard.data.values import lower_tensor
from trainyard.spec.columns import Category, Text
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.parts import Part, Parts
from trainyard.steps.preprocess.task_store import TaskStore
from trainyard.values.patterns import SPLIT_WORDS, TIDY_SIGNS

MISSING = "[missing]"
"""The value of a category that an empty text counts as."""
NO_VALUES = "49d0cd50-04bb-48c0-bc6f-5b575dce351a"
"""The line of an empty vocabulary; tf.Transform writes the same (1.21, analyzers.py)."""
VOCABULARIES = "vocabularies"
"""Of an attempt: the folder of the vocabularies."""
_VALUES = 5_000_000  # chosen: counted at once; they take about 0.5 GB (measured)
_HASHES = 1 << 61  # of a value
_ROWS = 1000  # chosen: texts cut into words at once
_Counts = Mapping[str, Counter[bytes]]  # the rows of each value, or the times of each word, by column


def vocabulary_names(data: Data) -> dict[str, str]:
    """Return a file name for the vocabulary of each column, whatever characters its name has.

    The order in which a recipe names its features is not in it: keys do not change with that either.
    """
    return {
        name: f"vocabulary_{index}_{re.sub(r'[^A-Za-z0-9]', '_', name)}"
        for index, name in enumerate(sorted(data.features))
    }


def write_vocabularies(
    data: Data, parts: Parts, counted: TaskStore, beam_options: str, source_bytes: int, folder: Path
) -> None:
    """Write the vocabulary of each category and text to `folder`, as tf.Transform would.

    tf.Transform 1.21 took 1.2 CPU seconds a category, and 120 µs a text of 20 words and their pairs, this takes 20
    (measured). Rows count if their weight is above 0. counted: for the counts of each part, which an attempt after this
    one finds. source_bytes: of the files that the rows came from.
    """
    features = _with_vocabulary(data)
    train = {part.name: part for part in parts.parts if part.rows["train"]} if features else {}

    def pending() -> list[Part]:
        done = counted.names()
        return [part for name, part in train.items() if name not in done]

    def read() -> Iterator[_Counts]:
        for name in train:
            batch = ipc.open_stream(pa.py_buffer(counted.content(name))).read_next_batch()
            yield {column: _as_counts(batch, column) for column in features}

    if train:
        task = _CountPart(data, parts.work, counted)
        run_tasks(task, pending, beam_options, source_bytes, "trainyard.steps.preprocess.prepare")
    folder.mkdir(exist_ok=True)
    names = vocabulary_names(data)
    for column, values in frequent_values(data, in_shares(read)).items():
        (folder / names[column]).write_bytes(b"".join(value + b"\n" for value in values))


def frequent_values(data: Data, counts: Iterable[_Counts]) -> dict[str, list[bytes]]:
    """Return the lines of each vocabulary, the most frequent value first. One with a line break has no line.

    counts: each value once.
    """
    features = _with_vocabulary(data)
    kept: dict[str, list[tuple[int, bytes]]] = {column: [] for column in features}
    for counted in counts:
        for column, feature in features.items():
            found = (
                (count, value)
                for value, count in counted[column].items()
                if value and count >= feature.min_count and not re.search(rb"[\r\n]", value)
            )
            kept[column] = heapq.nlargest(feature.vocabulary_size, chain(kept[column], found))
    return {column: [value for _, value in values] or [NO_VALUES.encode()] for column, values in kept.items()}


def in_shares(read: Callable[[], Iterable[_Counts]]) -> Iterator[_Counts]:
    """Yield the sums of what `read` gives, each value once; it is read once for each 5 million values.

    So memory is bounded.
    """
    start = 0
    while start < _HASHES:
        end, sums = _HASHES, dict[str, Counter[bytes]]()
        for counts in read():
            for column, counted in counts.items():
                sums.setdefault(column, Counter()).update(_hashed(counted, start, end))
            while sum(map(len, sums.values())) > _VALUES:
                end = (start + end) // 2
                sums = {column: _hashed(counted, start, end) for column, counted in sums.items()}
        if sums:
            yield sums
        start = end


def words(texts: tf.Tensor, feature: Text) -> tf.RaggedTensor:
    """Return the first `feature.words` words, or values, of each of `texts` (n,), also of several words."""
    cut = plain_words(texts) if feature.separator is None else _values(texts, feature.separator)
    if feature.ngrams > 1:
        cut = tf.strings.ngrams(cut, [*range(1, feature.ngrams + 1)])
    return cut[:, : feature.words]


def plain_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Return the words of each text in lower case."""
    texts = tf.strings.regex_replace(texts, r"\x00", " ")  # measured: there `lower` ends a text (TensorFlow 2.21)
    texts = lower_tensor(texts)
    for pattern, replacement in TIDY_SIGNS + SPLIT_WORDS:
        texts = tf.strings.regex_replace(texts, pattern, replacement)
    return tf.strings.split(texts)


def _values(texts: tf.Tensor, separator: str) -> tf.RaggedTensor:
    """Split each text at the separators, without surrounding white space and empty parts."""
    cut = tf.strings.split(texts, separator)
    values = cut.with_flat_values(tf.strings.strip(cut.flat_values))
    return tf.ragged.boolean_mask(values, values.with_flat_values(tf.not_equal(values.flat_values, "")))


def _with_vocabulary(data: Data) -> dict[str, Category | Text]:
    return {name: feature for name, feature in data.features.items() if isinstance(feature, Category | Text)}


def _hashed(counts: Counter[bytes], start: int, end: int) -> Counter[bytes]:
    """Return the `counts` of the values with a hash from `start` on and below `end`."""
    return Counter({value: count for value, count in counts.items() if start <= hash(value) % _HASHES < end})


def _as_counts(batch: pa.RecordBatch, column: str) -> Counter[bytes]:
    values, counts = (batch[f"{kind}/{column}"].flatten().to_pylist() for kind in ("values", "counts"))
    return Counter(dict(zip(values, counts, strict=True)))


class _CountPart:
    """Counts the values, or words, of each column in the training rows of a part: a row of lists in `counted`."""

    def __init__(self, data: Data, work: TaskStore, counted: TaskStore) -> None:
        self._data, self._work, self._counted = data, work, counted

    @cached_property
    def _cut(self) -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
        """The functions that cut texts (n,) into words (m,), by column, traced once a worker."""
        texts = {name: feature for name, feature in self._data.features.items() if isinstance(feature, Text)}
        return {name: _word_function(feature) for name, feature in texts.items()}

    def __call__(self, part: Part) -> None:
        """Count those of one part."""
        rows = part.training_rows(self._work, self._data.weight)
        counts: dict[str, pa.Array] = {}
        for name, feature in _with_vocabulary(self._data).items():
            values = rows[f"{'measure' if name in self._data.derive else 'raw'}/{name}"]
            if isinstance(feature, Category):
                found = pc.value_counts(pc.if_else(pc.equal(values, ""), MISSING, values).cast(pa.binary()))
            else:
                found = pc.value_counts(_words_of(values, self._cut[name]))
            for kind in ("values", "counts"):
                whole = np.array([0, len(found)], np.int64)
                counts[f"{kind}/{name}"] = pa.LargeListArray.from_arrays(whole, found.field(kind))
        batch = pa.RecordBatch.from_pydict(counts)

        def fill(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as stream, ipc.new_stream(stream, batch.schema) as writer:
                writer.write_batch(batch)

        self._counted.write(part.name, fill)


def _word_function(feature: Text) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function from texts (n,) to all their words (m,)."""

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)], autograph=False)
    def cut(texts: tf.Tensor) -> tf.Tensor:
        return words(texts, feature).flat_values

    return cut


def _words_of(values: pa.Array, cut: Callable[[tf.Tensor], tf.Tensor]) -> pa.Array:
    """Return the words that `cut` finds in the texts of a column, as binary."""
    texts = values.to_numpy(zero_copy_only=False)
    found = [cut(tf.constant(texts[start : start + _ROWS])).numpy() for start in range(0, len(texts), _ROWS)]
    return pa.array(np.concatenate([np.empty(0, object), *found]), pa.binary())
