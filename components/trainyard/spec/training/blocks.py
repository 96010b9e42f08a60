"""The blocks of a network in a recipe: `conv:32`, `separable:64:2`, `residual:128` and `pool`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["conv", "separable", "residual", "pool"]
CONVOLUTIONS: tuple[str, ...] = tuple(kind for kind in get_args(Kind) if kind != "pool")
MOST_CHANNELS, MOST_REPEATS = 4096, 16  # chosen: more is a typo in a network for small images
FORM = "Write KIND:CHANNELS, KIND:CHANNELS:REPEATS or pool, such as conv:32 or separable:64:2"
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True)
class Block:
    """Layers in sequence. channels: outputs of each; repeats: number of layers; 0 and 1 for a pool.

    conv: a 3 x 3 convolution. separable: a 3 x 3 convolution of each channel, then a 1 x 1 convolution over all.
    residual: two convolutions added to their input. pool: 2 x 2 maximum. Batch normalization follows each convolution.
    """

    kind: Kind
    channels: int = 0
    repeats: int = 1

    def __str__(self) -> str:
        if self.kind == "pool":
            return self.kind
        return f"{self.kind}:{self.channels}" + (f":{self.repeats}" if self.repeats > 1 else "")


def parse(text: str) -> Block:
    """Parse a block. Raises `ValueError` with a sentence if `text` is invalid.

    >>> parse("separable:64:2")
    Block(kind='separable', channels=64, repeats=2)
    """
    kind, *numbers = text.split(":")
    if kind not in get_args(Kind):
        raise ValueError(f"'{text[:100]}': no block '{kind[:50]}'. Known: {', '.join(get_args(Kind))}. {FORM}")
    if kind == "pool" and not numbers:
        return Block("pool")
    if kind == "pool" or not 1 <= len(numbers) <= 2 or not all(_NUMBER.fullmatch(number) for number in numbers):
        raise ValueError(f"'{text[:100]}': is no block. {FORM}")
    channels, repeats = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 1
    if channels > MOST_CHANNELS or repeats > MOST_REPEATS:
        raise ValueError(f"'{text[:100]}': {MOST_CHANNELS} channels and {MOST_REPEATS} repeats are the most")
    return Block(kind, channels, repeats)  # type: ignore[arg-type]  # of get_args(Kind)


def smallest_side(blocks: list[str]) -> int:
    """Return the smallest image side, in pixels, that leaves one position after all pools."""
    return 1 << sum(parse(text).kind == "pool" for text in blocks)
