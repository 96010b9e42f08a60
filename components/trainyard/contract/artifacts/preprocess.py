"""The files in the folder of preprocess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from trainyard.contract.document import Document, FrozenModel, Split
from trainyard.spec.gates import Task
from trainyard.spec.train import Target

WEIGHT = "_weight"
"""The feature of the shards that says how much an example counts; no feature's own name begins so."""


class ImageShape(FrozenModel):
    """Size of the images that the model takes, in pixels.

    white_level: the value of white in images of more than 8 bits a channel; None if it is the largest one.
    """

    height: int
    width: int
    channels: Literal[1, 3]
    white_level: float | None = None


class Feature(FrozenModel):
    """One input of the model, after the transform: a batch of it has shape (batch, *shape).

    vocabulary_size: for integer ids the number of different ones, including out-of-vocabulary buckets; otherwise None.
    encoded: the shards hold no such feature but the encoded image `raw/<name>`, which `trainyard.data` decodes.
    pixels: what `raw/<name>` holds then is not encoded: height x width x channels bytes, row by row.
    filler: the id that fills up a row of fewer ids, which says nothing itself; None of a feature of one id.
    missing_of: the feature that this one tells about: 1 if its value was missing and is imputed, otherwise 0.
    """

    name: str
    dtype: Literal["float32", "int64"]
    shape: tuple[int, ...]
    vocabulary_size: int | None = None
    encoded: bool = False
    pixels: bool = False
    filler: int | None = None
    missing_of: str | None = Field(None, exclude_if=lambda name: name is None)


class Unknown(FrozenModel):
    """The ids of strings out of vocabulary: first_id + hash of the UTF-8 bytes (unsigned, 64 bits) modulo buckets."""

    hash: Literal["farmhash fingerprint64"] = "farmhash fingerprint64"
    buckets: int
    first_id: int


class Column(FrozenModel):
    """The constants that the transform learned for one column, in full precision; None if its type uses none.

    A number, or the days since 1970 of a date: `imputed` if it is missing, then (x - mean) / standard_deviation,
    (x - low) / (high - low), 0 if the divisor is 0, or how many of the boundaries are at most x. If `log`, x is
    sign(x) log(1 + |x|) of the number in the data before all else, and the others are in those units. Only `clip_low`
    and `clip_high` come before: a number beyond them counts as the nearer one. With `indicator`, the feature of that
    name is 1 if the number is missing, otherwise 0.
    A category: its line in the file `vocabulary`, counted from 0; `missing` stands for an empty one. A word of a text:
    its line counted from 1, and 1 more than `unknown` says if it has none.
    """

    clip_low: float | None = None
    clip_high: float | None = None
    log: Literal[True] | None = None
    imputed: float | None = None
    mean: float | None = None
    standard_deviation: float | None = None
    low: float | None = None
    high: float | None = None
    boundaries: list[float] | None = None
    indicator: str | None = Field(None, exclude_if=lambda name: name is None)
    vocabulary: str | None = None
    missing: str | None = None
    unknown: Unknown | None = None


class RawFeature(FrozenModel):
    """One input of the serving signature, before the transform: a batch of it has shape (batch,).

    If the value is missing, a string is empty and a number NaN. learned: None if the transform is that of images or
    the recipe's own, or if only formulas read it.
    """

    name: str
    dtype: Literal["float32", "int64", "string"]
    learned: Column | None = None


class ComputedFeature(FrozenModel):
    """A feature computed from raw features by the recipe's `formula`. learned: as for raw features."""

    name: str
    formula: str
    learned: Column | None = None


class SplitFiles(FrozenModel):
    """The TFRecord shards of a split, and the number of examples of the split and of each shard.

    class_counts: the examples of each class. class_weights: the sum of their sample weights, None without weights.
    """

    examples: int
    files: list[str]
    shard_examples: list[int]
    class_counts: list[int] | None
    class_weights: list[float] | None = None

    @property
    def class_totals(self) -> Sequence[float] | None:
        """The sum of the sample weights of each class, or its examples without weights."""
        return self.class_counts if self.class_weights is None else self.class_weights


TargetMoments = tuple[float, float]
"""Mean and standard deviation of a target in a split, by the sample weights; 1 for the deviation of equal targets."""


class Window(FrozenModel):
    """The days that data were read of, written YYYY-MM-DD: from first to last, those in `missing` held no files."""

    first: str
    last: str
    missing: list[str]


class Examples(Document):
    """Output of preprocess. The folder holds, beside this document:

    examples/<split>-00000-of-00004.tfrecord   uncompressed TFRecord of serialized tf.Example with the transformed
        features by name (encoded images excepted), every raw feature as `raw/<name>`, `label` (int64 class id;
        of multi_label an int64 for each of `labels`, 1 if it is one; or float32 target, one for each of `targets` if
        there are several), `key` (bytes, names the record's origin) and, if there is a mean_weight, `_weight` (float32)
    transform/      tf.Transform's output folder; transform/transform_fn maps raw features to features (SavedModel)
    schema.pbtxt, statistics.json, labels.txt (one label a line, in id order), quarantine.jsonl (of each bad
        record its source, such as a.csv:17, reason and detail)

    target_moments: of each target in the training split. target_log_moments: the same of their logarithms, without the
    scales that the targets of the training or the eval split do not fit. eval_target_moments: in the eval split.
    """

    file = "examples.json"
    made_by = "preprocess"

    task: Task
    label: str
    labels: list[str] | None
    targets: list[str] = []
    target_moments: list[TargetMoments] = []
    target_log_moments: dict[Literal["log", "log1p"], list[TargetMoments]] = {}
    eval_target_moments: list[TargetMoments] = []
    splits: dict[Split, SplitFiles]
    features: list[Feature]
    raw_features: list[RawFeature]
    computed_features: list[ComputedFeature] = []
    mean_weight: float | None = None  # of the training split; None if all examples count the same
    image: ImageShape | None
    quarantined: int
    unselected: int = 0  # rows that data.where leaves out
    quarantine: dict[str, int]
    warnings: list[str]
    fingerprint: str
    window: Window | None = None

    def moments(self, target: Target) -> list[TargetMoments]:
        """Return the moments of each target as `target` has it learned; [] if they need all examples."""
        if target.clip is not None:
            return []
        return self.target_moments if target.scale == "none" else self.target_log_moments.get(target.scale, [])

    @property
    def columns(self) -> list[RawFeature | ComputedFeature]:
        """The raw features, and those computed from them."""
        return [*self.raw_features, *self.computed_features]

    @property
    def indicators(self) -> dict[str, str]:
        """The features that tell which values are missing, by the feature that they tell about."""
        return {feature.missing_of: feature.name for feature in self.features if feature.missing_of}

    @property
    def outputs(self) -> int:
        """The number of model outputs per example: logits of the classes, or predictions."""
        return len(self.labels or self.targets) or 1

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one example's label."""
        return (self.outputs,) if self.task == "multi_label" or self.targets else ()


class Anomaly(FrozenModel):
    """One way in which data do not fit: of a column, what was expected, what was received, and how many rows.

    such_as: some of the rows by name, with what each holds.
    """

    column: str
    reason: str
    expected: str
    received: str
    rows: int = 0
    such_as: list[str] = []

    @property
    def sentence(self) -> str:
        """The anomaly as a person reads it."""
        rows = f" in {self.rows:,} {'row' if self.rows == 1 else 'rows'}" if self.rows else ""
        such_as = f", such as {'; '.join(self.such_as)}" if self.such_as else ""
        return f"{self.column}: expected {self.expected}, received {self.received}{rows}{such_as}"
