"""The section `train` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainyard.spec import documents
from trainyard.spec.documents import Strict
from trainyard.spec.tables.columns import Column, Count, Examples
from trainyard.spec.training import command
from trainyard.spec.training.augment import Augment
from trainyard.spec.training.command import Argument, FileName, FileText
from trainyard.uris import Image, Source

Epochs = Annotated[int, Field(gt=0, le=100_000)]
Weight = Annotated[float, Field(ge=0, le=1e6)]


class Optimizer(Strict):
    """How weights follow the gradients; the learning rate is the peak that warm-up reaches."""

    name: Literal["adamw", "sgd", "lamb", "lars"] = Field(
        "adamw", description="lamb and lars scale each weight's step by its own norm: for batches of thousands."
    )
    learning_rate: Annotated[float, Field(ge=1e-12, le=1000)] = Field(
        1e-3, description="Peak of the schedule, after the warm-up."
    )
    learning_rate_batch: Examples | None = Field(
        None,
        description="Batch size that learning_rate is meant for: the rate grows in proportion to train.batch_size.",
    )
    weight_decay: Annotated[float, Field(ge=0, le=100)] = Field(
        1e-4, description="Of all weights but biases and normalisation."
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="Of sgd and lars.")
    clip_norm: Annotated[float, Field(ge=1e-9, le=1e9)] | None = Field(1.0, description="Largest global gradient norm.")


class EarlyStopping(Strict):
    """Stop when the eval loss has not fallen for `patience` epochs."""

    patience: Epochs = Field(description="Epochs without a better eval loss before the training ends.")


class Checkpoints(Strict):
    """When to save, and how many to keep beside the best one."""

    every_steps: Count | None = Field(
        None,
        description="Steps that a kill costs at most; it saves twice as often. "
        "By default once or twice an epoch, by what that costs.",
    )
    keep: Annotated[int, Field(ge=2, le=1000)] = Field(3, description="The newest so many stay, and the best one.")


class FineTune(Strict):
    """Train the new last layer first, then all layers at a smaller learning rate; each with a schedule of its own."""

    head_epochs: Epochs = Field(3, description="First epochs, in which only the last layer learns; part of epochs.")
    learning_rate_factor: Annotated[float, Field(ge=1e-9, le=1)] = Field(
        0.1, description="Of the epochs after them: what optimizer.learning_rate is multiplied by."
    )


class Teacher(Strict):
    """A pushed model whose answers are learned beside the labels, so that a small network comes near a large one."""

    model: Source = Field(
        description="The folder of a pushed version with the same features and classes, such as models/3; local, "
        "gs:// or s3://."
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Of the loss, what compares with the teacher's answers; the rest compares with the labels."
    )
    temperature: Annotated[float, Field(ge=1e-3, le=1000)] = Field(
        4.0, description="classification: what the logits of both are divided by for it; more of it softens answers."
    )

    @field_validator("model")
    @classmethod
    def _is_there(cls, model: str, info: ValidationInfo) -> str:
        return documents.require_source(model, info, "Name the folder of a pushed version, or its URI")


class Stage(Strict):
    """Some epochs on smaller images."""

    epochs: Epochs = Field(description="How many, after those of the stage before.")
    size: Annotated[int, Field(ge=8, le=8192)] = Field(
        description="Pixels that the shorter side of the images is shrunk to, on the device; less than data.image_size."
    )


class Train(Strict):
    """The schedule. batch_size is the global batch, over all devices."""

    epochs: Epochs = Field(10, description="Passes over the training split, at most.")
    batch_size: Examples = Field(64, description="Examples that change the weights once, of all workers together.")
    workers: Annotated[int, Field(gt=0, le=1024)] = Field(
        1, description="Processes that train together; each takes its part of every batch."
    )
    accumulation_steps: Examples = Field(
        1, description="Parts of a batch that are computed one after the other, in the memory of one of them."
    )
    optimizer: Optimizer = Optimizer()
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="Learning rate after the warm-up: half a cosine down to 0, or the peak throughout."
    )
    warmup_epochs: Annotated[float, Field(ge=0, le=100_000)] = Field(
        1.0, description="Epochs in which the learning rate grows from 0 to its peak; parts of one are possible."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="classification: share of the target that all classes get in equal parts."
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type that layers compute in; weights stay float32. auto: bfloat16 on TPUs and on GPUs that have "
        "it, float16 on older GPUs, float32 on CPUs.",
    )
    xla: bool = Field(False, description="Compile TensorFlow's computation with XLA, as JAX and TPUs do anyway.")
    batch_statistics: Literal["global", "worker"] = Field(
        "global",
        description="What batch normalization takes its mean and variance from. global: the batch, so that any number "
        "of workers trains the same weights; they wait for each other at each such layer. worker: each device's part "
        "of it, which should have 16 examples or more; nothing waits before the gradients are summed.",
    )
    class_weights: (
        Literal["balanced"] | Annotated[dict[Column, Weight], Field(min_length=1, max_length=10_000)] | None
    ) = Field(
        None,
        description="classification: how much an example of a class counts in the loss, 1 if none is named. "
        "balanced: so that every class counts the same.",
    )
    augment: Augment = Augment()
    progressive_resizing: list[Stage] = Field(
        [],
        max_length=10,
        description="Train the first epochs on smaller images, which cost less by the square of their side, such as "
        "[{epochs: 18, size: 128}]; the others have the size of the data. For networks with global pooling.",
    )
    early_stopping: EarlyStopping | None = Field(None, description="By default all epochs are trained.")
    checkpoints: Checkpoints = Checkpoints()
    fine_tune: FineTune | None = Field(
        None, description="With model.weights: two phases. By default all epochs are alike."
    )
    warm_start: Literal["champion"] | None = Field(
        None, description="Begin with the weights of the model that was pushed last; the first one with its own."
    )
    teacher: Teacher | None = Field(
        None,
        description="Learn from the answers of a pushed model too (distillation). By default the labels alone.",
    )
    command: Annotated[list[Argument], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="A program of your own that trains instead, as [python, my_train.py, --layers, '3']; it starts in "
        "every worker and leaves its `result`.",
    )
    result: Literal["keras", "folder"] = Field(
        "keras",
        description="What the command leaves. keras: model.keras, which is judged on the test split and exported. "
        "folder: model/ with whatever serves it, pushed as it is, and metrics.json, which the gates go by.",
    )
    image: Image | None = Field(
        None,
        description="Container image that the command runs in on a cluster, as registry/name@sha256:…, built FROM "
        "Trainyard's image for the pool. By default the environment's.",
    )
    files: (
        Annotated[list[FileName], Field(max_length=100)] | Annotated[dict[FileName, FileText], Field(max_length=100)]
    ) = Field(
        [],
        description="Files beside the recipe that lie in the command's folder when it starts; those that the command "
        "names itself need not be given. 64 KiB together.",
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
        parts = self.workers * self.accumulation_steps
        if self.batch_size % parts:
            near = parts * max(1, round(self.batch_size / parts))
            one_part = "one a worker" if self.accumulation_steps == 1 else "one a worker and an accumulation step"
            raise ValueError(
                f"batch_size: {self.batch_size} examples make no {parts} equal parts, {one_part}; {near} would"
            )
        return self
