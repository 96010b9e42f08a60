"""What each step's folder holds: the contract between the steps.

Steps share these documents and the files that they name, never code. Every path in a document is relative to the
folder that holds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.errors import DataError
from trainyard.storage import storage

Split = Literal["train", "eval", "test"]
SPLITS: tuple[Split, ...] = ("train", "eval", "test")


class Part(BaseModel):
    """A frozen part of a document; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Document(Part):
    """A JSON file with a fixed name in a step's folder."""

    file: ClassVar[str]

    @classmethod
    def read(cls, folder: str) -> Self:
        """Return the document of the committed `folder`; raises `DataError` where there is none of this version."""
        content = storage.read(folder, cls.file)
        if content is None:
            raise DataError(f"{folder}: no {cls.file}, so it is no output of the step that writes one.")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            fault = error.errors()[0]
            raise DataError(
                f"{folder}/{cls.file}: another version of Trainyard wrote it "
                f"({'.'.join(map(str, fault['loc']))}: {fault['msg']}). Run the step again."
            ) from error

    def write(self, folder: Path) -> None:
        """Write the document into the (staging) `folder`."""
        (folder / self.file).write_text(self.model_dump_json(indent=1), encoding="utf-8")


class ImageShape(Part):
    """Size of the images that the model takes, in pixels."""

    height: int
    width: int
    channels: Literal[1, 3]


class Feature(Part):
    """One input of the model, after the transform: a batch of it has shape (batch, *shape).

    vocabulary_size: for integer ids the number of different ones, out-of-vocabulary buckets included; else None.
    encoded: the shards hold no such feature but the encoded image `raw/<name>`, which `trainyard.data` decodes.
    """

    name: str
    dtype: Literal["float32", "int64"]
    shape: tuple[int, ...]
    vocabulary_size: int | None = None
    encoded: bool = False


class Unknown(Part):
    """The ids of strings out of vocabulary: first_id + hash of the UTF-8 bytes, an unsigned 64-bit number, modulo buckets."""

    hash: Literal["farmhash fingerprint64"] = "farmhash fingerprint64"
    buckets: int
    first_id: int


class Column(Part):
    """What the transform by type of column learned of one from the training split, exactly; None is what it does not use.

    A number, or the days since 1970 of a date: `imputed` where it is missing, then (x - mean) / standard_deviation,
    (x - low) / (high - low), 0 where the divisor is 0, or how many of the boundaries are at most x.
    A category: its line in the file `vocabulary`, counted from 0; `missing` stands for an empty one.
    """

    imputed: float | None = None
    mean: float | None = None
    standard_deviation: float | None = None
    low: float | None = None
    high: float | None = None
    boundaries: list[float] | None = None
    vocabulary: str | None = None
    missing: str | None = None
    unknown: Unknown | None = None


class RawFeature(Part):
    """One input of the serving signature, before the transform: a batch of it has shape (batch,).

    A string may be empty and a number NaN where the value is missing. learned: None where the transform is that of images
    or the recipe's own.
    """

    name: str
    dtype: Literal["float32", "int64", "string"]
    learned: Column | None = None


class SplitFiles(Part):
    """The TFRecord shards of a split and how many examples they hold, together and each."""

    examples: int
    files: list[str]
    shard_examples: list[int]
    class_counts: list[int] | None


class Window(Part):
    """The days that data were read of, written YYYY-MM-DD: from first to last, those in `missing` held no files."""

    first: str
    last: str
    missing: list[str]


class Quarantined(Part):
    """One record that was set aside."""

    source: str
    reason: str
    detail: str


class Examples(Document):
    """Output of preprocess. The folder holds, beside this document:

    examples/<split>-00000-of-00004.tfrecord   uncompressed TFRecord of serialized tf.Example with the transformed
        features by name (encoded images excepted), every raw feature as `raw/<name>`, `label` (int64 class id, or
        float32 target) and `key` (bytes, names the record's origin)
    transform/      tf.Transform's output folder; transform/transform_fn is the SavedModel that maps raw features to features
    schema.pbtxt, statistics.json, labels.txt (one label a line, in id order), quarantine.jsonl (`Quarantined` a line)
    """

    file = "examples.json"

    task: Literal["classification", "regression"]
    label: str
    labels: list[str] | None
    splits: dict[Split, SplitFiles]
    features: list[Feature]
    raw_features: list[RawFeature]
    image: ImageShape | None
    quarantined: int
    quarantine: dict[str, int]
    warnings: list[str]
    fingerprint: str
    window: Window | None = None


class Epoch(Part):
    """Evidence of one epoch. `metric` is the eval split's accuracy, or its mean absolute error for regression."""

    epoch: int
    step: int
    learning_rate: float
    train_loss: float
    eval_loss: float
    metric: float
    examples_per_second: float
    seconds: float


class Rollback(Part):
    """One time that `what` was not finite at `step`: training went on from the checkpoint of step back_to."""

    what: str
    step: int
    back_to: int
    learning_rate_scale: float


class Restart(Part):
    """One time that a gang was started again: what broke it, and what that cost.

    step: the last step told before. resumed_at: the checkpoint's step that it went on from, so lost_steps are done
    again. seconds: from the break's discovery to the first new steps.
    """

    reason: str
    step: int
    resumed_at: int
    lost_steps: int
    seconds: float


class Device(Part):
    """One device that trained and what it delivered, measured on its own before the training.

    product: its name by its driver; memory_bytes: 0 where unknown; tflops: of a matrix product in the precision that the
    device is made for (float32 on a CPU); gb_per_second: read and written in its memory.
    """

    name: str
    product: str
    memory_bytes: int
    tflops: float
    gb_per_second: float


class Training(Document):
    """Output of train. The folder holds model.keras (outputs logits (batch, classes), or (batch, 1) for regression;
    inputs a dict by feature name) and tensorboard/ beside this document.

    examples_per_second leaves the warm-up steps out. bottleneck compares step_ms, the mean step on real batches, with
    cached_step_ms, the median of a few calls on a cached one after the training; it is unclear where the ranges of both (of
    the epochs, of those calls) overlap, as they do on a busy machine. seconds splits the wall time by what it was spent on.

    step_split_ms splits step_ms: input is what it waits for beyond a cached batch, all_reduce the sum of the gradients
    on its own, compute the rest; checkpoint is what the saving of the state adds to a step. checkpoint_write_seconds
    were spent beside the training on checkpoint_writes of them.

    goodput is the share of the wall time, all restarts included, that went into steps which count; goodput_seconds
    splits that time. Of a gang of pods it begins with the Job: queue is the wait for worker 0, meet that for the others.

    Of a gang: worker_examples_per_second is one worker's share; all_reduce_ms the time of a step's sum of
    gradient_bytes over all replicas, on its own; restarts what was survived.

    engine is what trained; measured are the devices of the chief, versions those of the engine and of what drives them.

    For the planner: hardware is what one device is (GPU: its product name), cores those of this worker; of one example,
    flops_per_example are the operations of a step, activations the numbers that its layers put out, kept those of them that
    the backward pass reads (0: not counted). finished: ISO time.
    warm_start: the champion's version whose weights came first, '' where they were the model's own.
    """

    file = "training.json"

    model: str
    parameters: int
    steps: int
    epochs: int
    best_epoch: int
    workers: int
    devices: list[str]
    precision: str
    examples_per_second: float
    bottleneck: Literal["input", "compute", "unclear"]
    step_ms: float
    cached_step_ms: float
    step_range_ms: list[float] = []
    cached_step_range_ms: list[float] = []
    resumed_from: int | None
    history: list[Epoch]
    seconds: dict[str, float]
    replicas: int = 1
    worker_examples_per_second: float | None = None
    all_reduce_ms: float = 0.0
    gradient_bytes: int = 0
    restarts: list[Restart] = []
    rollbacks: list[Rollback] = []
    goodput: float | None = None
    goodput_seconds: dict[str, float] = {}
    step_split_ms: dict[str, float] = {}
    checkpoint_writes: int = 0
    checkpoint_write_seconds: float = 0.0
    hardware: str = ""
    engine: Literal["tensorflow", "jax"] = "tensorflow"
    measured: list[Device] = []
    versions: dict[str, str] = {}
    cores: int = 0
    flops_per_example: float = 0.0
    activations_per_example: int = 0
    kept_per_example: int = 0
    finished: str = ""
    warm_start: str = ""


class Interval(Part):
    """A 95 % confidence interval."""

    low: float
    high: float


class Threshold(Part):
    """One condition of a gate and how it ended.

    bound is what `value` is held against: at least it, or at most it where the metric is better when smaller; `name`
    says which. champion is the champion's own value where the condition is a difference to it; `value` is then the
    difference. value is None where it could not be measured (no such slice, no champion yet); note says why.
    """

    name: str
    value: float | None
    bound: float
    interval: Interval | None
    passed: bool
    champion: float | None = None
    note: str = ""


class Verdict(Part):
    """What a gate decided, and why."""

    verdict: Literal["blessed", "refused"]
    thresholds: list[Threshold]


class SliceMetrics(Part):
    """Metrics over the examples of one slice, such as `sex=female`, with the interval of the main one."""

    name: str
    examples: int
    metrics: dict[str, float]
    interval: Interval | None


class ClassMetrics(Part):
    """How one class was found: precision, recall and F1, and how many examples it has."""

    label: str
    precision: float
    recall: float
    f1: float
    examples: int


class Roc(Part):
    """One class against the rest: the curve's points in order of falling threshold."""

    label: str
    false_positive_rate: list[float]
    true_positive_rate: list[float]
    threshold: list[float]


class Confidence(Part):
    """The examples whose highest probability lies in one bin: its mean, and the share of them that is right."""

    confidence: float
    accuracy: float
    examples: int


class Mistake(Part):
    """One of the worst examples. picture is a PNG below the folder, or None where the example is no image."""

    key: str
    label: str
    predicted: str
    loss: float
    picture: str | None


class Evaluation(Document):
    """Output of evaluate on one split. The folder holds, beside this document:

    predictions.npz   keys (n,) bytes, labels (n,) int64 class ids or float32 targets, outputs (n, classes) float32
        probabilities or (n,) float32 predictions
    verdict.json      `gate` alone
    worst/*.png       the pictures of `worst`

    confusion[i][j] counts the examples of class i that were taken for class j. metrics and intervals hold the same
    names, less those that have no interval. calibration (classification) holds the bins of confidence that have
    examples; scatter (regression) holds (target, prediction) of up to 1,000 examples. champion is the folder of the
    model last pushed, champion_metrics its metrics on the same examples.
    """

    file = "evaluation.json"

    split: Split
    examples: int
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    classes: list[ClassMetrics]
    confusion: list[list[int]]
    roc: list[Roc]
    slices: list[SliceMetrics]
    worst: list[Mistake]
    champion: str | None
    gate: Verdict
    champion_metrics: dict[str, float] = {}
    calibration: list[Confidence] = []
    scatter: list[tuple[float, float]] = []


EXPORTS_SPLIT: Split = "eval"
"""What exports are compared on: the test split judges the model once, before."""


class Latency(Part):
    """Milliseconds for one example, batch size 1, on the CPU that exported the file."""

    p50: float
    p95: float


class Export(Part):
    """One exported file or folder and how it compares with the trained model on the whole eval split.

    accuracy is the mean absolute error for regression; accuracy_difference is the export's minus the trained model's;
    max_abs_difference is over the probabilities (or predictions).
    """

    format: str
    path: str
    bytes: int
    accuracy: float
    accuracy_difference: float
    max_abs_difference: float
    latency_ms: Latency


class Exports(Document):
    """Output of export: the files beside this document, their parity, and the gate over it.

    statistics.json (`drift.Statistics`) is that of the examples: a pushed model knows the data that it learnt from.
    """

    file = "exports.json"

    exports: list[Export]
    gate: Verdict


class Pushed(Document):
    """Output of push: where the model went. already is true where this very model was there before."""

    file = "pushed.json"

    path: str
    version: int
    digest: str
    already: bool
