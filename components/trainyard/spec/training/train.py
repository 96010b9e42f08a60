"""The section `train` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainyard.spec import documents
from trainyard.spec.documents import Strict
from trainyard.spec.tables.columns import Column, Count, Examples, Quantiles
from trainyard.spec.training import command
from trainyard.spec.training.augment import Augment
from trainyard.spec.training.command import Argument, FileName, FileText
from trainyard.uris import Image, Source

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
    """Stop when the eval loss has not improved for `patience` epochs."""

    patience: Epochs = Field(description="Number of epochs without improvement before training stops.")


class Checkpoints(Strict):
    """When to save checkpoints, and how many to keep besides the best one."""

    every_steps: Count | None = Field(
        None,
        description="Maximum number of steps lost on a kill; saves every half interval. Default: once or twice an "
        "epoch, depending on the cost.",
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
        description="Container image of the command on a cluster, such as registry/name@sha256:…, built FROM "
        "Trainyard's image for the pool. Default: the environment's.",
    )
    files: (
        Annotated[list[FileName], Field(max_length=100)] | Annotated[dict[FileName, FileText], Field(max_length=100)]
    ) = Field(
        [],
        description="Files next to the recipe to copy to the command's folder; files that the command names are "
        "included. At most 64 KiB together.",
    )

    @field_validator("files")
    @classmethod
    def _are_there(cls, files: list[str] | dict[str, str], info: ValidationInfo) -> list[str] | dict[str, str]:
        folder = (info.context or {}).get(documents.FOLDER)
        if isinstance(files, list) and folder is not None:
            command.require_files(files, folder)
        return files

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
