"""Counts, statistics and conformity of rows, gathered part by part, so that any number of workers can share it.

The quantiles are exact for columns of any length, in whatever order their rows come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainyard.contract.document import FrozenModel
from trainyard.contract.statistics.drift import is_common, top_values
from trainyard.quality.conformity import Conformity, Rows, check_rows
from trainyard.quality.tables.columns import DAY_DIGITS, Numbers
from trainyard.spec.columns import Date, Numeric
from trainyard.spec.data_schema import ImageSchema, TableSchema
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.parts import Parts
from trainyard.steps.preprocess.readers.records import LABELS_APART
from trainyard.values.moments import WeightedMoments
from trainyard.values.numbers import MOST_OF_TARGET, coarse
from trainyard.values.quantiles import index_of_rank

_DISTINCT = 10_000  # chosen: values a feature whose counts are kept exactly
_TOP = 20
_AROUND = ".,;:!?\"'()[]{}<>«»“”„‘’…-"  # of a word, not part of it; chosen
_BINS = 256  # of a histogram while counting; chosen
_BITS = 16  # of a number are counted at once
_DAY_SECONDS = 86400
_SIGN = np.uint64(1 << 63)
Limits = Mapping[str, tuple[float, float]]
"""The lowest and the highest number that a column keeps, by its name."""


@dataclass
class Texts:
    """The counts of texts; beyond 10,000 distinct ones the rarest are forgotten, except in `count`."""

    count: int = 0
    missing: int = 0
    values: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_values(cls, values: pa.Array) -> Texts:
        """Count `values`; the empty text counts as missing."""
        texts = cls(values=_counts(values))
        texts.missing = texts.values.pop("", 0)
        texts.count = texts.values.total()
        texts._forget()
        return texts

    def merge(self, other: Texts) -> None:
        """Count all that `other` counted."""
        self.count += other.count
        self.missing += other.missing
        self.values.update(other.values)
        self._forget()

    def document(self, samples: bool = False) -> dict[str, Any]:
        """Return the counts and the most frequent values, equal counts in the order of the values.

        samples: values that are rare or long, too, not only common ones.
        """
        kept = {value: count for value, count in self.values.items() if samples or is_common(value, count)}
        return {
            "count": self.count,
            "missing": self.missing,
            "distinct": len(self.values),
            "top": [entry.model_dump() for entry in top_values(kept, _TOP)],
        }

    def _forget(self) -> None:
        if len(self.values) > 2 * _DISTINCT:
            self.values = Counter(dict(self.values.most_common(_DISTINCT)))


@dataclass
class Prose:
    """The words of a column of texts and the lengths of the texts in characters: no text is kept as it is."""

    count: int = 0
    missing: int = 0
    words: Texts = field(default_factory=Texts)
    lengths: Numbers = field(default_factory=Numbers)

    @classmethod
    def from_values(cls, values: pa.Array, separator: str | None) -> Prose:
        """Return the summary of the texts `values`, cut at `separator` or into words without punctuation."""
        present = values.filter(pc.not_equal(values, ""))
        lengths = Numbers.from_values(pc.utf8_length(present).to_numpy(zero_copy_only=False).astype(np.float64), _BINS)
        if separator is None:
            parts = pc.utf8_trim(pc.utf8_lower(_flattened(pc.utf8_split_whitespace(present))), _AROUND)
        else:
            parts = pc.utf8_trim_whitespace(_flattened(pc.split_pattern(present, separator)))
        words = Texts.from_values(parts)
        words.missing = 0
        return cls(len(present), len(values) - len(present), words, lengths)

    def merge(self, other: Prose) -> None:
        """Count all that `other` counted."""
        self.count += other.count
        self.missing += other.missing
        self.words.merge(other.words)
        self.lengths.merge(other.lengths, _BINS)

    def document(self) -> dict[str, Any]:
        """Return the counts, the frequent words and the lengths."""
        words = self.words.document()
        lengths = self.lengths.document()
        return {
            "count": self.count,
            "missing": self.missing,
            "words": self.words.count,
            "distinct": words["distinct"],
            "top": words["top"],
            **{name: lengths[name] for name in ("mean", "std", "min", "max") if name in lengths},
        }


def _flattened(lists: pa.Array) -> pa.Array:
    return pc.call_function("list_flatten", [lists])


class SplitSummary(FrozenModel):
    """The summary of one split.

    label_weights has the sums of the sample weights by label, if there are weights. buckets counts the examples by the
    first 16 bits of their order key. first is the (source, height, width) of the image that comes first by name.
    constant is how many images are one color, and the first of them by name. level is the largest value after decoding
    in images of more than 8 bits without a white level, -1 if there are none. digests is the sum of the records'
    digests modulo 2^256, which no order changes. days: of each date, as numbers since 1970. target_moments: by
    the scale, without scales that the targets do not fit.
    """

    examples: int = 0
    labels: dict[str, int] = {}
    label_weights: dict[str, float] = {}
    statistics: dict[str, dict[str, Any]] = {}
    days: dict[str, dict[str, Any]] = {}
    buckets: dict[int, int] = {}
    first: tuple[str, int, int] | None = None
    constant: tuple[int, str] = (0, "")
    level: int = -1
    digests: str = "0"
    target_moments: dict[str, list[tuple[float, float]]] = {}


@dataclass
class Summary:
    """A `SplitSummary` in the making; digests in hexadecimal."""

    examples: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    label_weights: dict[str, float] = field(default_factory=dict)
    numbers: dict[str, Numbers] = field(default_factory=dict)
    texts: dict[str, Texts] = field(default_factory=dict)
    prose: dict[str, Prose] = field(default_factory=dict)
    days: dict[str, Numbers] = field(default_factory=dict)
    first: tuple[str, int, int] | None = None
    constant: tuple[int, str] = (0, "")
    level: int = -1
    digests: str = "0"
    targets: dict[str, list[WeightedMoments]] = field(default_factory=dict)

    @classmethod
    def from_rows(
        cls,
        rows: pa.RecordBatch,
        targets: Sequence[str],
        prose: Mapping[str, str | None] = MappingProxyType({}),
        dates: Collection[str] = (),
        weight: str | None = None,
    ) -> Summary:
        """Return the summary of `rows`; `targets` names the numbers to predict, for regression.

        prose: the columns of texts, and what stands between the parts of each, None for words. dates: the columns that
        hold days with their hours, of which the days are counted. weight: the column of sample weights.
        """
        summary = cls(examples=len(rows))
        if targets:
            numbers = np.array([[float(part) for part in label] for label in labels_apart(rows["label"])], np.float64)
            numbers = numbers.reshape(len(rows), len(targets))  # of no rows too
            summary.numbers = {
                name: Numbers.from_values(numbers[:, index], _BINS) for index, name in enumerate(targets)
            }
            counted = rows[f"measure/{weight}"].to_numpy(zero_copy_only=False) if weight else np.ones(len(rows))
            summary.targets = _target_moments(numbers, counted)
        else:
            for label, count in _counts(rows["label"]).items():
                summary.labels.update(dict.fromkeys(_apart(label), count))
            summary._add_weights(_sums(rows["label"], rows[f"measure/{weight}"]) if weight else {})
        for column in rows.schema:
            kind, _, name = column.name.partition("/")
            if kind in ("raw", "measure") and pa.types.is_floating(column.type):
                summary.numbers[name] = Numbers.from_values(rows[column.name].to_numpy(zero_copy_only=False), _BINS)
            elif kind in ("raw", "measure") and pa.types.is_string(column.type):
                if name in prose:
                    summary.prose[name] = Prose.from_values(rows[column.name], prose[name])
                else:
                    texts = rows[column.name]
                    summary.texts[name] = Texts.from_values(texts if name not in dates else _days(texts))
                    if name in dates:
                        summary.days[name] = Numbers(least_digits=DAY_DIGITS)
                        summary.days[name].merge(Numbers.from_values(_as_numbers(texts), _BINS), _BINS)
        if "measure/height" in rows.schema.names and len(rows):
            first = pc.index(rows["source"], pc.min(rows["source"])).as_py()
            height, width = (int(rows[f"measure/{side}"][first].as_py()) for side in ("height", "width"))
            summary.first = (rows["source"][first].as_py(), height, width)
            constant = rows["source"].filter(pc.equal(rows["pixels/constant"], pa.scalar(1.0)))
            summary.constant = (len(constant), pc.min(constant).as_py() or "")
            levels = rows["pixels/level"].to_numpy()
            summary.level = int(np.nan_to_num(levels, nan=-1).max())
        return summary

    def _add_weights(self, weights: Mapping[str, float]) -> None:
        for label, weight in weights.items():
            for name in _apart(label):
                self.label_weights[name] = self.label_weights.get(name, 0.0) + weight

    def merge(self, other: Summary) -> None:
        """Count all that `other` counted."""
        self.examples += other.examples
        self.labels.update(other.labels)
        self._add_weights(other.label_weights)
        self.digests = f"{(int(self.digests, 16) + int(other.digests, 16)) % 2**256:x}"
        self.first = min(filter(None, (self.first, other.first)), default=None)
        names = [name for count, name in (self.constant, other.constant) if count]
        self.constant = (self.constant[0] + other.constant[0], min(names, default=""))
        self.level = max(self.level, other.level)
        for name, numbers in other.numbers.items():
            self.numbers.setdefault(name, Numbers()).merge(numbers, _BINS)
        for scale, moments in other.targets.items():
            own = self.targets.setdefault(scale, [WeightedMoments() for _ in moments])
            for target, more in zip(own, moments, strict=True):
                target.merge(more)
        for name, texts in other.texts.items():
            self.texts.setdefault(name, Texts()).merge(texts)
        for name, days in other.days.items():
            self.days.setdefault(name, Numbers(least_digits=DAY_DIGITS)).merge(days, _BINS)
        for name, prose in other.prose.items():
            self.prose.setdefault(name, Prose()).merge(prose)

    def document(self, buckets: dict[int, int], samples: bool = False) -> SplitSummary:
        """Return the summary as its document; samples: with texts that are rare or long."""
        statistics = {name: numbers.document() for name, numbers in self.numbers.items()}
        statistics |= {name: texts.document(samples) for name, texts in self.texts.items()}
        statistics |= {name: prose.document() for name, prose in self.prose.items()}
        return SplitSummary(
            examples=self.examples,
            labels=dict(sorted(self.labels.items())),
            label_weights=dict(sorted(self.label_weights.items())),
            statistics=dict(sorted(statistics.items())),
            days={name: days.document() for name, days in sorted(self.days.items())},
            buckets=buckets,
            first=self.first,
            constant=self.constant,
            level=self.level,
            digests=f"{int(self.digests, 16):064x}",
            target_moments={
                scale: [target.rounded() for target in moments]
                for scale, moments in self.targets.items()
                if all(target.are_known and _fits(scale, target) for target in moments)
            },
        )


def _target_moments(targets: NDArray[np.float64], weights: NDArray[np.float64]) -> dict[str, list[WeightedMoments]]:
    """Return the moments of `targets` (n, targets) on each scale, as shards hold them: of 32 bits."""
    stored = targets.astype(np.float32).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = {"none": stored, "log": np.log(stored), "log1p": np.where(stored < 0, np.nan, np.log1p(stored))}
    return {scale: [WeightedMoments.from_values(each, weights) for each in on.T] for scale, on in scaled.items()}


def _fits(scale: str, target: WeightedMoments) -> bool:
    return scale == "none" or coarse(target.low, target.high, target.deviation, MOST_OF_TARGET) is None


def _days(times: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(times, 0, len("2024-03-01"))


def labels_apart(labels: pa.Array) -> list[list[str]]:
    """Return the classes, or the targets, of each record's label."""
    return [_apart(label) for label in labels.to_pylist()]


def _apart(label: str) -> list[str]:
    return label.split(LABELS_APART) if label else []


def _counts(values: pa.Array) -> Counter[str]:
    counted = pc.value_counts(values)
    return Counter(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))


def _sums(values: pa.Array, weights: pa.Array) -> dict[str, float]:
    encoded = values.dictionary_encode()
    sums = np.bincount(encoded.indices.to_numpy(), weights.to_numpy(zero_copy_only=False), len(encoded.dictionary))
    return dict(zip(encoded.dictionary.to_pylist(), sums.tolist(), strict=True))


def clip_limits(data: Data, parts: Parts) -> Limits:
    """Return the quantiles of the training split that each feature with `clip` and a value there is limited to.

    Those of dates are days since 1970.
    """
    named = {name: feature.clip for name, feature in data.features.items() if isinstance(feature, Numeric | Date)}
    columns = {f"{'measure' if name in data.derive else 'raw'}/{name}": clip for name, clip in named.items() if clip}

    found = quantiles(lambda: parts.batches("train"), columns, f"measure/{data.weight}" if data.weight else None)
    return {name.partition("/")[2]: (low, high) for name, (low, high) in found.items()}


def quantiles(
    batches: Callable[[], Iterable[pa.RecordBatch]],
    shares: Mapping[str, tuple[float, float]],
    weight: str | None = None,
) -> dict[str, tuple[float, float]]:
    """Return for each column of `shares` its `values.quantiles.weighted_quantiles`, in memory that rows do not grow.

    A column of texts holds days. A column without a value is left out. batches: read four times, 16 bits of the numbers
    each. weight: the column of sample weights.
    """
    ends = {(name, is_low): pair[not is_low] for name, pair in shares.items() for is_low in (True, False)}
    prefixes, ranks = dict.fromkeys(ends, np.uint64(0)), dict[tuple[str, bool], float]()
    for shift in range(64 - _BITS, -1, -_BITS) if shares else ():
        totals = {key: np.zeros(1 << _BITS) for key in ends}
        for rows in batches():
            weights = rows[weight].to_numpy(zero_copy_only=False) if weight else np.ones(len(rows))
            for name in shares:
                numbers = _as_numbers(rows[name])
                is_counted = ~np.isnan(numbers) & (weights > 0)
                keys, counted = _sortable(numbers[is_counted]), weights[is_counted]
                for end in ((name, True), (name, False)):
                    is_inside = keys >> np.uint64(shift + _BITS) == prefixes[end] if ranks else slice(None)
                    digits = (keys[is_inside] >> np.uint64(shift)) & np.uint64((1 << _BITS) - 1)
                    totals[end] += np.bincount(digits.astype(np.int64), counted[is_inside], 1 << _BITS)
        if not ranks:
            ranks = {end: share * totals[end].sum() for end, share in ends.items() if totals[end].any()}
        for end, rank in ranks.items():
            digit = index_of_rank(totals[end], rank, is_low=end[1])
            ranks[end] = rank - totals[end][:digit].sum()
            prefixes[end] = prefixes[end] << np.uint64(_BITS) | np.uint64(digit)
    known = (name for name in shares if (name, True) in ranks)
    return {name: (_number(prefixes[name, True]), _number(prefixes[name, False])) for name in known}


def _as_numbers(column: pa.Array) -> NDArray[np.float64]:
    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    written = pc.utf8_slice_codeunits(
        pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column), 0, len("2024-03-01")
    )
    seconds = pc.strptime(written, format="%Y-%m-%d", unit="s", error_is_null=True).cast(pa.int64()).cast(pa.float64())
    return np.asarray(seconds.to_numpy(zero_copy_only=False), np.float64) / _DAY_SECONDS


def _sortable(numbers: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return unsigned integers in the order of the numbers."""
    bits = (numbers + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _number(key: np.uint64) -> float:
    return float(np.where(key & _SIGN, key ^ _SIGN, ~key).astype(np.uint64).view(np.float64))


def conformity(rows: pa.RecordBatch, data: Data) -> Conformity:
    """Compare `rows` with the schema of `data`; without a schema nothing is compared."""
    schema = _schema(data, rows.schema.names) if data.schema_ else None
    if schema is None or not rows.num_rows:
        return Conformity()
    columns = {name.removeprefix("raw/"): rows[name] for name in rows.schema.names if name.startswith("raw/")}
    if isinstance(schema, ImageSchema):
        columns = {name: rows[name] for name in ("measure/height", "measure/width")} | {"label": rows["label"]}
    elif not data.label_separator:
        labels = pc.split_pattern(rows["label"], LABELS_APART)
        columns |= {name: pc.list_element(labels, index) for index, name in enumerate(data.labels)}
    sources = rows["source"]
    return check_rows(schema, Rows(rows.num_rows, columns, lambda index: sources[index].as_py()))


def _schema(data: Data, names: list[str]) -> TableSchema | ImageSchema | None:
    """Return the schema of what is read: the columns that the recipe leaves out are not."""
    schema = data.expected
    if schema is None or isinstance(schema, ImageSchema):
        return schema
    labels = [] if data.label_separator else data.labels  # a cell of several classes is no value that a schema lists
    read = {name: column for name, column in schema.columns.items() if f"raw/{name}" in names or name in labels}
    return schema.model_copy(update={"columns": read, "other_columns": "allowed"})
