"""The recipe: what to train. It knows no hardware; the environment says where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainyard.core import documents
from trainyard.core.documents import Strict
from trainyard.core.drift import Bounds
from trainyard.core.errors import did_you_mean

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]

MODELS = ("cnn_small", "alexnet", "resnet50", "mobilenet_v3_small", "efficientnet_v2_b0", "mlp", "wide_deep")
CLASSIFICATION_METRICS = ("accuracy", "top5_accuracy", "macro_f1", "roc_auc", "log_loss", "calibration_error")
REGRESSION_METRICS = ("mae", "rmse", "r2")
SMALLER_IS_BETTER = frozenset({"log_loss", "calibration_error", "mae", "rmse"})


class Numeric(Strict):
    """A number. What is missing is imputed; the z-score, range or quantile buckets come from the training split."""

    type: Literal["numeric"]
    scale: Literal["zscore", "minmax", "buckets", "none"] = "zscore"
    buckets: Annotated[int, Field(ge=2)] = Field(10, description="Number of quantile buckets for scale: buckets.")
    impute: Literal["mean", "median"] | float = Field("mean", description="Stands in for a missing value.")


class Category(Strict):
    """A string out of a vocabulary that the training split gives."""

    type: Literal["category"]
    vocabulary_size: Positive = Field(10_000, description="The most frequent values that get an id of their own.")
    min_count: Positive = Field(1, description="Rarer values count as out of vocabulary.")
    oov_buckets: Positive = Field(1, description="Ids shared by the values out of vocabulary.")


class Date(Strict):
    """A day written YYYY-MM-DD (a time of day may follow): becomes days since 1970, month and weekday."""

    type: Literal["date"]


class SplitFractions(Strict):
    """Share of the examples of each split; an example's place depends on its content and the seed alone."""

    train: Fraction = 0.8
    eval: Fraction = 0.1
    test: Fraction = 0.1

    @model_validator(mode="after")
    def _sum(self) -> Self:
        if abs(self.train + self.eval + self.test - 1) > 1e-6:
            raise ValueError(f"the fractions add up to {self.train + self.eval + self.test:g}, not to 1")
        return self


class Data(Strict):
    """Which records to read, and how."""

    format: Literal["image_folder", "tfrecord", "csv", "tfds"] = Field(
        description="image_folder: one folder of images a class. tfrecord: tf.Example. csv: with a header line, .gz too. tfds: a prepared TensorFlow Datasets folder."
    )
    path: str | None = Field(
        None, description="Folder, file or glob, local, gs:// or s3://; relative to the recipe's file."
    )
    window_days: Positive | None = Field(
        None,
        description="Read so many days, the last one that before the run's (UTC); path then names one day, such as gs://b/day=%Y-%m-%d.",
    )
    max_missing_days: Annotated[int, Field(ge=0)] = Field(
        0, description="The run stops when more of the window's days than this hold no files."
    )
    bundled: Literal["digits", "breast_cancer"] | None = Field(
        None, description="Instead of path: a real data set that scikit-learn carries, written out in `format`."
    )
    label: str = Field("label", description="Name of the column or feature to predict.")
    features: dict[str, Annotated[Numeric | Category | Date, Field(discriminator="type")]] = Field(
        default_factory=dict, description="csv and tabular tfrecord: the columns to learn from. Others are left out."
    )
    image_size: tuple[Positive, Positive] | None = Field(
        None, description="Height and width that images are resized to; by default those of the first image."
    )
    channels: Literal[1, 3] = 3
    split: SplitFractions = SplitFractions()
    max_bad_fraction: Fraction = Field(0.01, description="The run stops when more of the records than this are bad.")
    max_image_pixels: Positive = Field(50_000_000, description="Larger images are quarantined from their header.")
    shard_examples: Positive = Field(4096, description="Examples a shard, about.")

    @model_validator(mode="after")
    def _source(self) -> Self:
        if (self.path is None) == (self.bundled is None):
            raise ValueError("give either path or bundled")
        _check_window(self.path or "", self.window_days, self.format)
        if self.format == "csv" and not self.features:
            raise ValueError("format csv needs features: name at least one column to learn from")
        return self

    @property
    def is_image(self) -> bool:
        """Whether the examples are images: they are unless columns are named."""
        return not self.features


def _check_window(path: str, days: int | None, format: str) -> None:
    named = re.findall("%.?", path)
    dated = sorted(named) == ["%Y", "%d", "%m"]
    if days is None and dated:
        raise ValueError("path names a day by %Y, %m and %d. Say by window_days how many of them to read")
    if days is not None and not dated:
        raise ValueError("window_days needs a path with %Y, %m and %d in it, each once, such as /data/day=%Y-%m-%d")
    if days is not None and format == "tfds":
        raise ValueError("window_days is not for format tfds: a prepared data set is one folder")


class Model(Strict):
    """Which network. Sizes of images and number of classes come from the data."""

    name: (
        Literal["cnn_small", "alexnet", "resnet50", "mobilenet_v3_small", "efficientnet_v2_b0", "mlp", "wide_deep"]
        | None
    ) = None
    hidden: list[Positive] = Field([64, 32], description="Units a layer, for mlp and wide_deep.")
    dropout: Fraction = 0.2


class Optimizer(Strict):
    """How weights follow the gradients; the learning rate is the peak that warm-up reaches."""

    name: Literal["adamw", "sgd", "lamb", "lars"] = Field(
        "adamw", description="lamb and lars scale each weight's step by its own norm: for batches of thousands."
    )
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    learning_rate_batch: Positive | None = Field(
        None,
        description="Batch size that learning_rate is meant for: the rate grows in proportion to train.batch_size.",
    )
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    momentum: Fraction = 0.9
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(1.0, description="Largest global gradient norm.")


class Augment(Strict):
    """Random changes to training images, each drawn from (seed, epoch, position)."""

    shift: Fraction = Field(0.0, description="Largest shift as a share of the image's size.")
    flip: bool = Field(False, description="Mirror left and right.")
    rotate: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="Largest rotation in degrees.")
    zoom: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Largest change of scale, as a share.")
    contrast: Fraction = Field(0.0, description="Largest change of contrast, as a share.")


class EarlyStopping(Strict):
    """Stop when the eval loss has not fallen for `patience` epochs."""

    patience: Positive


class Checkpoints(Strict):
    """When to save, and how many to keep beside the best one."""

    every_steps: Positive | None = Field(
        None,
        description="Steps that a kill costs at most; it saves twice as often. By default once or twice an epoch, by what that costs.",
    )
    keep: Annotated[int, Field(ge=2)] = 3


class Train(Strict):
    """The schedule. batch_size is the global batch, over all devices."""

    epochs: Positive = 10
    batch_size: Positive = 64
    workers: Positive = Field(1, description="Processes that train together; each takes its part of every batch.")
    accumulation_steps: Positive = Field(
        1, description="Parts of a batch that are computed one after the other, in the memory of one of them."
    )
    optimizer: Optimizer = Optimizer()
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_epochs: Annotated[float, Field(ge=0)] = 1.0
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    xla: bool = Field(False, description="Compile TensorFlow's computation with XLA, as JAX and TPUs do anyway.")
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    augment: Augment = Augment()
    early_stopping: EarlyStopping | None = None
    checkpoints: Checkpoints = Checkpoints()
    warm_start: Literal["champion"] | None = Field(
        None, description="Begin with the weights of the model that was pushed last; the first one with its own."
    )

    @model_validator(mode="after")
    def _equal_parts(self) -> Self:
        parts = self.workers * self.accumulation_steps
        if self.batch_size % parts:
            near = parts * max(1, round(self.batch_size / parts))
            each = "one a worker" if self.accumulation_steps == 1 else "one a worker and an accumulation step"
            raise ValueError(
                f"batch_size: {self.batch_size} examples make no {parts} equal parts, {each}; {near} would"
            )
        return self


class Gate(Strict):
    """One condition that the model must meet on the test split; give one bound.

    A difference is the model's value minus the champion's on the same examples; without a champion it holds.
    """

    metric: str
    min: float | None = None
    max: float | None = None
    min_difference: float | None = None
    max_difference: float | None = None
    slice: str | None = Field(None, description="Judge this slice alone, written feature=value.")

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str) -> str:
        known = (*CLASSIFICATION_METRICS, *REGRESSION_METRICS)
        if value not in known:
            raise ValueError(f"no such metric.{did_you_mean(value, known)} Known: {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if [self.min, self.max, self.min_difference, self.max_difference].count(None) != 3:
            raise ValueError("give exactly one of min, max, min_difference, max_difference")
        return self


class Evaluate(Strict):
    """How the model is judged."""

    slices: list[str] = Field([], description="Features by whose values the metrics are split.")
    bootstrap: Positive = Field(1000, description="Resamples behind each interval.")
    gates: list[Gate] = []
    worst: Annotated[int, Field(ge=0, le=100)] = Field(24, description="Worst examples shown in the report.")


Format = Literal["saved_model", "keras", "litert_float32", "litert_float16", "litert_int8"]


class Export(Strict):
    """Which files leave, and how far each may be from the trained model."""

    formats: list[Format] = ["saved_model", "keras", "litert_float32", "litert_float16", "litert_int8"]
    max_accuracy_drop: Annotated[float, Field(ge=0)] = Field(
        0.01, description="Largest fall of accuracy (or relative rise of the mean absolute error) of any file."
    )
    calibration_examples: Positive = Field(200, description="Training examples that calibrate int8.")


class Push(Strict):
    """Where the blessed model goes: version folders below <storage>/<recipe>/models by default."""

    path: str | None = None


class Recipe(Strict):
    """What to train: data, model, schedule, gates and exports."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")]
    description: str = ""
    module: str | None = Field(
        None, description="Python file beside the recipe with preprocessing_fn, build_model or metrics of its own."
    )
    seed: int = 1
    task: Literal["classification", "regression"] = "classification"
    data: Data
    model: Model = Model()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    export: Export = Export()
    push: Push = Push()
    drift: Bounds = Bounds()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.model.name is None and self.module is None:
            raise ValueError(f"model.name: is required unless module has a build_model. Known: {', '.join(MODELS)}")
        if self.model.name and (self.model.name in ("mlp", "wide_deep")) == self.data.is_image:
            kind = "images" if self.data.is_image else "columns"
            raise ValueError(f"model.name: '{self.model.name}' does not take {kind}")
        allowed = CLASSIFICATION_METRICS if self.task == "classification" else REGRESSION_METRICS
        for gate in self.evaluate.gates:
            if gate.metric not in allowed:
                raise ValueError(
                    f"evaluate.gates: '{gate.metric}' is no metric of a {self.task}. Known: {', '.join(allowed)}"
                )
        for name in self.evaluate.slices:
            if name not in self.data.features and name != self.data.label:
                raise ValueError(f"evaluate.slices: no feature '{name}'.{did_you_mean(name, self.data.features)}")
        if "saved_model" not in self.export.formats:
            raise ValueError(
                "export.formats: push serves the SavedModel, and evaluate compares with it. Add saved_model"
            )
        if self.train.warm_start and "keras" not in self.export.formats:
            raise ValueError("train.warm_start: takes the champion's model.keras. Add keras to export.formats")
        if self.task == "regression" and self.data.is_image:
            raise ValueError("task: regression takes columns, not images")
        return self


BUNDLED = Path(__file__).parent.parent / "recipes"


def load(name: str, overrides: list[str] | None = None) -> Recipe:
    """Return the recipe `name` (see `documents.find`) with every path in it made absolute. Raises `ConfigurationError`."""
    path = documents.find("recipe", name, BUNDLED)
    recipe = documents.load(path, Recipe, overrides or [])
    return recipe.model_copy(
        update={
            "module": _beside(path, recipe.module),
            "data": recipe.data.model_copy(update={"path": _beside(path, recipe.data.path)}),
        }
    )


def _beside(recipe: Path, path: str | None) -> str | None:
    return path if path is None or "://" in path else str((recipe.parent / path).absolute())
