"""The network in a recipe, and its blocks: `conv:32`, `separable:64:2`, `residual:128` and `pool`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from trainyard.spec import documents
from trainyard.spec.documents import Strict
from trainyard.spec.networks import IMAGENET, KERAS_APPLICATIONS, Network
from trainyard.uris import Source

_Kind = Literal["conv", "separable", "residual", "pool"]
CONVOLUTIONS: tuple[str, ...] = tuple(kind for kind in get_args(_Kind) if kind != "pool")
_MOST_CHANNELS, _MOST_REPEATS = 4096, 16  # chosen: more is a typo in a network for small images
_FORM = "Write KIND:CHANNELS, KIND:CHANNELS:REPEATS or pool, such as conv:32 or separable:64:2"
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True)
class Block:
    """Layers in sequence. channels: outputs of each; repeats: number of layers; 0 and 1 for a pool.

    conv: a 3 x 3 convolution. separable: a 3 x 3 convolution of each channel, then a 1 x 1 convolution over all.
    residual: two convolutions added to their input. pool: 2 x 2 maximum. Batch normalization follows each convolution.
    """

    kind: _Kind
    channels: int = 0
    repeats: int = 1

    def __str__(self) -> str:
        if self.kind == "pool":
            return self.kind
        return f"{self.kind}:{self.channels}" + (f":{self.repeats}" if self.repeats > 1 else "")


def parse_block(text: str) -> Block:
    """Parse a block. Raises `ValueError` with a sentence if `text` is invalid.

    >>> parse_block("separable:64:2")
    Block(kind='separable', channels=64, repeats=2)
    """
    kind, *numbers = text.split(":")
    if kind not in get_args(_Kind):
        raise ValueError(f"'{text[:100]}': no block '{kind[:50]}'. Known: {', '.join(get_args(_Kind))}. {_FORM}")
    if kind == "pool" and not numbers:
        return Block("pool")
    if kind == "pool" or not 1 <= len(numbers) <= 2 or not all(_NUMBER.fullmatch(number) for number in numbers):
        raise ValueError(f"'{text[:100]}': is no block. {_FORM}")
    channels, repeats = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 1
    if channels > _MOST_CHANNELS or repeats > _MOST_REPEATS:
        raise ValueError(f"'{text[:100]}': {_MOST_CHANNELS} channels and {_MOST_REPEATS} repeats are the most")
    return Block(kind, channels, repeats)  # type: ignore[arg-type]  # of get_args(_Kind)


def smallest_side(blocks: list[str]) -> int:
    """Return the smallest image side, in pixels, that leaves one position after all pools."""
    return 1 << sum(parse_block(text).kind == "pool" for text in blocks)


Units = Annotated[int, Field(ge=1, le=65_536)]

BlockText = Annotated[str, Field(max_length=64), AfterValidator(lambda text: str(parse_block(text)))]

UNTIL = "until "
"""Prefix of a value of model.freeze that names a block."""
_FREEZE = rf"^(none|backbone|{UNTIL}\S+)$"


TREE_CLASSES = 50
"""Most classes of boosted trees without a warning. Simulated with scikit-learn 1.9: with 56 they answer well, with 100
they diverge, to an accuracy of 0.04 where a network has 0.75 (docs/how-to/own-table.md)."""


class Trees(Strict):
    """The trees of boosted_trees, in scikit-learn's terms."""

    max_iter: Annotated[int, Field(ge=1, le=10_000)] = Field(
        100, description="Maximum boosting iterations; each adds a tree, for more than two classes one per class."
    )
    learning_rate: Annotated[float, Field(ge=1e-6, le=1)] = Field(
        0.1, description="Factor for the answers of each tree; a smaller one needs more iterations."
    )
    max_leaf_nodes: Annotated[int, Field(ge=2, le=65_536)] = Field(31, description="Maximum leaves of a tree.")
    min_samples_leaf: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        20, description="Minimum training rows of a leaf; a table of some hundred rows needs fewer."
    )


class ModelConfig(Strict):
    """The network, or the trees. Image size and number of classes come from the data."""

    name: Network | None = Field(
        None,
        description="Required, unless module has a build_model or train.command is set. mlp, wide_deep "
        "and boosted_trees take columns, others images.",
    )
    blocks: list[BlockText] | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Blocks of cnn_small: conv, separable or residual with channels and repeats, or pool, such as "
        "[conv:32, pool, separable:64:2]. Default: pairs of convolutions that fit the image size.",
    )
    hidden: list[Units] = Field(
        [64, 32], max_length=100, description="Units of the hidden layers, for mlp and wide_deep."
    )
    trees: Trees = Trees()
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.2, description="Dropout rate before the last layer, or after each hidden one."
    )
    width: Annotated[float, Field(ge=0.05, le=16)] = Field(
        1.0,
        description="Width multiplier of the layers of cnn_small, mlp, wide_deep and mobilenet_v3_*; for mobilenet, "
        "0.75 and 1 have weights: imagenet.",
    )
    depth: Annotated[float, Field(ge=0.1, le=16)] = Field(
        1.0,
        description="Depth multiplier of the convolutions per block (cnn_small) or hidden layers (mlp, wide_deep).",
    )
    weights: Source | None = Field(
        None,
        description="Pretrained weights: imagenet (published by Keras), a .keras or .weights.h5 file, or the folder "
        "of a pushed version; local, gs:// or s3://. The last layer is new, except for a pushed version "
        "with the same classes.",
    )
    freeze: str = Field(
        "none",
        pattern=_FREEZE,
        description="With weights: layers to freeze. backbone: all but the last. until BLOCK: up to the last layer "
        "whose name starts so, such as until conv4 of resnet50.",
    )

    @field_validator("weights")
    @classmethod
    def _is_there(cls, weights: str | None, info: ValidationInfo) -> str | None:
        if weights is None or weights == IMAGENET:
            return weights
        return documents.require_source(weights, info, "Name one, a bucket's URI, or imagenet")

    @field_validator("freeze", mode="before")
    @classmethod
    def _is_known(cls, freeze: object) -> object:
        if isinstance(freeze, str) and not re.search(_FREEZE, freeze):
            raise ValueError(f"'{freeze[:100]}' is not known. Write none, backbone, or until BLOCK")
        return freeze

    def channels(self, count: int) -> int:
        """Return the channels or units of a layer of `count` at this width."""
        return max(1, round(count * self.width))

    def repeats(self, count: int) -> int:
        """Return the layers of a block of `count` at this depth."""
        return max(1, round(count * self.depth))

    @property
    def hidden_units(self) -> list[int]:
        """The units of each hidden layer at this width and depth: [64, 32] twice as deep is [64, 64, 32, 32]."""
        count = self.repeats(len(self.hidden)) if self.hidden else 0
        return [self.channels(self.hidden[index * len(self.hidden) // count]) for index in range(count)]

    @property
    def network_module(self) -> str:
        """The module that builds the network."""
        module = "applications" if self.name in KERAS_APPLICATIONS else self.name
        return f"trainyard.models.{module}"
