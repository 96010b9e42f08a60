"""The section `train` of a recipe, and the augmentation of images in it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from trainyard.spec import documents
from trainyard.spec.columns import Column, Count, Examples, Quantiles
from trainyard.spec.command import Argument
from trainyard.spec.documents import Strict
from trainyard.spec.gates import class_text
from trainyard.uris import Image, Source

Fraction = Annotated[float, Field(ge=0, le=1)]
_Area = Annotated[float, Field(ge=0.01, le=1)]
_Aspect = Annotated[float, Field(ge=0.1, le=10)]
_Alpha = Annotated[float, Field(ge=0, le=100)]


class Crop(Strict):
    """Random crop of the stored image, resized to the image size.

    Source: C. Szegedy et al., Going Deeper with Convolutions, arXiv:1409.4842, section 6.
    """

    scale: Annotated[tuple[_Area, _Area], Field(strict=False)] = Field(
        (0.08, 1.0), description="Minimum and maximum area, as a share of the image."
    )
    ratio: Annotated[tuple[_Aspect, _Aspect], Field(strict=False)] = Field(
        (0.75, 1.3333), description="Minimum and maximum width relative to the height."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, (least, greatest) in (("scale", self.scale), ("ratio", self.ratio)):
            if least > greatest:
                raise ValueError(f"{name}: the least, {least:g}, is above the greatest, {greatest:g}")
        return self


class RandAugment(Strict):
    """Random operations out of fourteen: color, sharpness, shear, rotation, shift.

    Source: E. Cubuk et al., RandAugment, arXiv:1909.13719.
    """

    operations: Annotated[int, Field(ge=1, le=10)] = Field(2, description="Operations per image.")
    magnitude: Annotated[float, Field(ge=0, le=10)] = Field(
        9.0, description="Strength of each operation; 10 is the maximum."
    )


class Augment(Strict):
    """Random augmentation of training images, from (seed, step, position in the batch)."""

    crop: Crop | None = Field(None, description="Random crop instead of the whole image.")
    shift: Fraction = Field(0.0, description="Maximum shift, as a share of the image size.")
    flip: bool = Field(False, description="Random horizontal flip.")
    rotate: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="Maximum rotation in degrees.")
    zoom: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Maximum zoom, as a share.")
    rand_augment: RandAugment | None = Field(None, description="Random operations out of fourteen.")
    brightness: Fraction = Field(0.0, description="Maximum change of brightness, as a share.")
    contrast: Fraction = Field(0.0, description="Maximum change of contrast, as a share.")
    saturation: Fraction = Field(0.0, description="Maximum change of saturation, as a share; color images only.")
    hue: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.0, description="Maximum change of hue, as a share of the color circle; color images only."
    )
    cutout: Fraction = Field(0.0, description="Side of a gray square over the image, as a share of the shorter side.")
    mixup: _Alpha = Field(
        0.0,
        description="classification: blend pairs of images and labels by a share from Beta(mixup, mixup). 0 disables"
        " it.",
    )
    cutmix: _Alpha = Field(
        0.0,
        description="classification: swap a window between pairs of images, and the same share of labels. With "
        "mixup, each pair gets one of the two.",
    )

    @property
    def resamples(self) -> bool:
        """True if pixels are interpolated."""
        return bool(self.shift or self.rotate or self.zoom)

    @property
    def mixes(self) -> bool:
        """True if images and their labels are mixed in pairs."""
        return bool(self.mixup or self.cutmix)

    @property
    def on_device(self) -> bool:
        """True if some augmentation runs on the device."""
        return bool(self.brightness or self.contrast or self.saturation or self.hue or self.cutout or self.mixes)


Epochs = Annotated[int, Field(ge=1, le=100_000)]
Weight = Annotated[float, Field(ge=0, le=1e6)]


class Optimizer(Strict):
    """The optimizer."""

    name: Literal["adamw", "sgd", "lamb", "lars"] = Field(
        "adamw", description="lamb and lars scale each weight's step by its norm, for batches of thousands."
    )
    learning_rate: Annotated[float, Field(ge=1e-12, le=1000)] = Field(
        1e-3, description="Peak learning rate, after the warm-up."
    )
    learning_rate_batch: Examples | None = Field(
        None,
        description="Batch size for which learning_rate was chosen; the rate scales linearly with train.batch_size.",
    )
    weight_decay: Annotated[float, Field(ge=0, le=100)] = Field(
        1e-4, description="Weight decay, without biases and normalization."
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="Momentum of sgd and lars.")
    clip_norm: Annotated[float, Field(ge=1e-9, le=1e9)] | None = Field(1.0, description="Maximum global gradient norm.")


class EarlyStopping(Strict):
    """Stop when what `select` names has not improved for `patience` epochs."""

    patience: Epochs = Field(description="Number of epochs without improvement before training stops.")


class Checkpoints(Strict):
    """When to save checkpoints, and how many to keep besides the best one."""

    every_steps: Count | None = Field(
        None,
        description="Maximum number of steps lost on a kill; saves every half interval. Default: at each "
        "epoch's end, and in between as often as cost and the pool's `preemption_rate` allow.",
    )
    keep: Annotated[int, Field(ge=2, le=1000)] = Field(
        3, description="Number of newest checkpoints to keep, besides the best one."
    )


class FineTune(Strict):
    """Train the new last layer first, then all layers at a smaller learning rate, each with a separate schedule."""

    head_epochs: Epochs = Field(3, description="Epochs for the last layer alone, out of epochs.")
    learning_rate_factor: Annotated[float, Field(ge=1e-9, le=1)] = Field(
        0.1, description="Factor for optimizer.learning_rate in the other epochs."
    )


class Teacher(Strict):
    """A pushed model whose predictions are learned besides the labels (distillation)."""

    model: Source = Field(
        description="Folder of a pushed version with the same features and classes, such as models/3; local, gs:// "
        "or s3://."
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Share of the loss that compares with the teacher; the rest uses the labels."
    )
    temperature: Annotated[float, Field(ge=1e-3, le=1000)] = Field(
        4.0, description="classification: divisor of both models' logits; a larger one softens the probabilities."
    )

    @field_validator("model")
    @classmethod
    def _is_there(cls, model: str, info: ValidationInfo) -> str:
        return documents.require_source(model, info, "Name the folder of a pushed version, or its URI")


class Stage(Strict):
    """Epochs on smaller images."""

    epochs: Epochs = Field(description="Number of epochs, after the previous stage.")
    size: Annotated[int, Field(ge=8, le=8192)] = Field(
        description="Pixels of the shorter side, less than data.image_size; the device shrinks the images."
    )


MEAN_EXAMPLES = 100_000
"""First examples of the training split that give `target.mean` its factor. Chosen: with noise of deviation 1 the factor
is then off by 0.4 %."""


class Target(Strict):
    """The scale on which a regression learns its targets. The model answers, and is judged, in their original units."""

    scale: Literal["none", "log", "log1p"] = Field(
        "none",
        description="log: the logarithm of the target, which must be above 0. log1p: the logarithm of 1 + target, "
        "which must be at least 0.",
    )
    clip: Quantiles | None = Field(
        None,
        description="Quantiles of the training split, such as [0.01, 0.99]: targets beyond them count as these while "
        "the model learns. Metrics use the targets as they are.",
    )
    mean: bool = Field(
        False,
        description="With a logarithmic scale: predict means, whose sum is that of the targets, instead of medians. "
        "The factor is learned on the training split, and part of every exported file.",
    )


LOSS = "loss"


class Select(Strict):
    """A metric of one class or one target that chooses the epoch to keep."""

    model_config = ConfigDict(serialize_by_alias=True)

    metric: Annotated[str, Field(max_length=64)] = Field(description="As of select itself, or f1 with class.")
    class_name: Annotated[str, BeforeValidator(class_text), Field(max_length=512)] | None = Field(
        None, alias="class", description="Judge this class against the rest: f1, roc_auc, pr_auc."
    )
    target: Annotated[str, Field(max_length=256)] | None = Field(
        None, description="Judge only this one of data.targets."
    )


class Train(Strict):
    """Training. batch_size is the global batch, over all devices."""

    epochs: Epochs = Field(10, description="Maximum passes over the training split.")
    batch_size: Examples = Field(64, description="Examples per weight update, over all workers.")
    workers: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="Number of training processes; each computes its part of every batch."
    )
    accumulation_steps: Examples = Field(
        1, description="Number of parts of a batch computed one after the other, to save memory."
    )
    optimizer: Optimizer = Optimizer()
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="Learning rate after the warm-up: cosine decay to 0, or constant."
    )
    warmup_epochs: Annotated[float, Field(ge=0, le=100_000)] = Field(
        1.0, description="Epochs in which the learning rate rises from 0; may be a fraction."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="classification: label smoothing factor."
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Compute type; weights stay float32. auto: bfloat16 on TPUs and GPUs that support it, float16 on"
        " older GPUs, float32 on CPUs.",
    )
    xla: bool = Field(False, description="Compile TensorFlow's computation with XLA. JAX and TPUs always do.")
    batch_statistics: Literal["global", "worker"] = Field(
        "global",
        description="Statistics of batch normalization. global: of the whole batch, so that any number of workers "
        "trains the same weights; workers wait for each other at each such layer. worker: of each "
        "device's part, at least 16 examples, without waiting.",
    )
    target: Target = Target()
    class_weights: (
        Literal["balanced"] | Annotated[dict[Column, Weight], Field(min_length=1, max_length=10_000)] | None
    ) = Field(
        None,
        description="classification: weight of each class in the loss, default 1. balanced: inverse to the class "
        "frequency.",
    )
    augment: Augment = Augment()
    progressive_resizing: list[Stage] = Field(
        [],
        max_length=10,
        description="Train the first epochs on smaller images, such as [{epochs: 18, size: 128}]; the rest use the "
        "size of the data. For networks with global pooling.",
    )
    select: Annotated[str, Field(max_length=64)] | Select | None = Field(
        None,
        description="Metric of the eval split that chooses the epoch to keep, and ends the training with "
        "early_stopping. classification: accuracy, top5_accuracy, macro_f1, roc_auc, pr_auc, log_loss. multi_label: "
        "f1, macro_f1, exact_match, roc_auc, pr_auc, log_loss. regression: mae, rmse, r2. loss: the loss that is "
        "trained, with class_weights. Default: the metric of the first gate, if it is one of these; otherwise loss.",
    )
    early_stopping: EarlyStopping | None = Field(None, description="Default: train all epochs.")
    checkpoints: Checkpoints = Checkpoints()
    fine_tune: FineTune | None = Field(None, description="With model.weights: train in two phases. Default: one phase.")
    warm_start: Literal["champion"] | None = Field(
        None, description="Start with the weights of the latest pushed model, if there is one."
    )
    teacher: Teacher | None = Field(
        None,
        description="Distillation: also learn from a pushed model's predictions.",
    )
    command: Annotated[list[Argument], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="Custom training program, such as [python, my_train.py, --layers, '3']; it starts in every "
        "worker and saves its `result`.",
    )
    result: Literal["keras", "folder"] = Field(
        "keras",
        description="What the command saves. keras: model.keras, which is evaluated on the test split and exported. "
        "folder: model/, pushed unchanged, and metrics.json for the gates.",
    )
    image: Image | None = Field(
        None,
        description="Container image of the steps that call the recipe's code on a cluster, such as "
        "registry/name@sha256:…, built FROM Trainyard's image for the pool of train. Default: the environment's.",
    )

    @property
    def selected(self) -> Select | None:
        """`select` in its long form."""
        return Select(metric=self.select) if isinstance(self.select, str) else self.select

    @model_validator(mode="after")
    def _equal_parts(self) -> Self:
        if why := self.unequal_parts(self.workers):
            raise ValueError(f"{why}. Give {self.nearest_batch(self.workers)}")
        return self

    def unequal_parts(self, workers: int, devices: int = 1) -> str:
        """Return the reason why `workers` with `devices` each cannot share the batch equally, or ''."""
        parts, each = self._parts(workers, devices), "device" if devices > 1 else "worker"
        if not self.batch_size % parts:
            return ""
        step = " and accumulation step" if self.accumulation_steps > 1 else ""
        pairs = ", in pairs for mixup and cutmix" if self.augment.mixes else ""
        return f"batch_size: {self.batch_size} examples make no {parts} equal parts, one a {each}{step}{pairs}"

    def nearest_batch(self, workers: int, devices: int = 1) -> int:
        """Return the nearest batch size that divides equally."""
        parts = self._parts(workers, devices)
        return parts * max(1, round(self.batch_size / parts))

    def _parts(self, workers: int, devices: int) -> int:
        pairs = 2 if self.augment.mixes else 1  # mixup and cutmix take the images of a device in pairs
        return workers * max(1, devices) * self.accumulation_steps * pairs
