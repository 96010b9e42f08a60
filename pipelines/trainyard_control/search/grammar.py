"""Networks to search: some stages of blocks with a pool between them, each block one of those that a grammar allows."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigurationError
from trainyard.spec import recipe as recipes
from trainyard.spec.training import blocks
from trainyard.spec.training.blocks import CONVOLUTIONS
from trainyard_control.search.space import override

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

_FORM = "Write STAGES KINDS:CHANNELS:REPEATS, such as '2:4 conv|separable|residual:16|32|64:1|2|3'."
_TEXT = re.compile(r"([1-9][0-9]?)(?::([1-9][0-9]?))?\s+(\S+)")


@dataclass(frozen=True)
class Grammar:
    """Lists of blocks: from `fewest` to `most` stages, in each a kind, channels and repeats out of these."""

    fewest: int
    most: int
    kinds: tuple[str, ...]
    channels: tuple[int, ...]
    repeats: tuple[int, ...]

    key = "model.blocks"
    values: tuple[Any, ...] = ()  # too many to name

    @property
    def size(self) -> int:
        """How many networks there are."""
        a_stage = len(self.kinds) * len(self.channels) * len(self.repeats)
        return sum(a_stage**stages for stages in range(self.fewest, self.most + 1))

    @property
    def cheapest(self) -> list[list[str]]:
        """Of each kind a network of the fewest stages and one of the most, with the fewest channels and repeats."""
        return [
            _with_pools([_block(kind, min(self.channels), min(self.repeats))] * stages)
            for kind in self.kinds
            for stages in sorted({self.fewest, self.most})
        ]

    def suggest(self, drawn: BaseTrial) -> list[str]:
        """Return the blocks that the sampler draws for a trial."""
        stages = drawn.suggest_categorical("stages", list(range(self.fewest, self.most + 1)))
        return _with_pools(
            [
                _block(
                    drawn.suggest_categorical(f"kind of stage {number}", self.kinds),
                    drawn.suggest_categorical(f"channels of stage {number}", self.channels),
                    drawn.suggest_categorical(f"repeats of stage {number}", self.repeats),
                )
                for number in range(1, stages + 1)
            ]
        )

    def parameters(self, value: list[str]) -> dict[str, Any]:
        """Return what a sampler would have drawn for the blocks `value`, by name."""
        stages = [block for block in map(blocks.parse, value) if block.kind != "pool"]
        drawn: dict[str, Any] = {"stages": len(stages)}
        for number, block in enumerate(stages, 1):
            drawn[f"kind of stage {number}"] = block.kind
            drawn[f"channels of stage {number}"] = block.channels
            drawn[f"repeats of stage {number}"] = block.repeats
        return drawn


def parse(recipe: str, overrides: list[str], text: str) -> Grammar:
    """Return the grammar that `text` writes.

    Raises `ConfigurationError` if it writes none, or the recipe does not take the network of the most stages.
    """
    match = _TEXT.fullmatch(text.strip())
    parts = match[3].split(":") if match else []
    if match is None or len(parts) not in (2, 3):
        raise ConfigurationError(f"grammar {text[:200]!r}: is no grammar. {_FORM}")
    kinds, channels, repeats = (part.split("|") for part in [*parts, "1"][:3])
    if unknown := [kind for kind in kinds if kind not in CONVOLUTIONS]:
        raise ConfigurationError(
            f"grammar {text[:200]!r}: no block '{unknown[0][:50]}'. Known: {', '.join(CONVOLUTIONS)}. {_FORM}"
        )
    try:
        for number in itertools.product(channels, repeats):
            blocks.parse(":".join(["conv", *number]))
    except ValueError as error:
        raise ConfigurationError(f"grammar {text[:200]!r}: {error}. {_FORM}") from error
    if any(len({*choices}) < len(choices) for choices in (kinds, channels, repeats)):
        raise ConfigurationError(f"grammar {text[:200]!r}: names something twice. {_FORM}")
    fewest, most = int(match[1]), int(match[2] or match[1])
    if fewest > most:
        raise ConfigurationError(f"grammar {text[:200]!r}: {fewest}:{most} stages are an empty range. {_FORM}")
    grammar = Grammar(fewest, most, tuple(kinds), tuple(map(int, channels)), tuple(map(int, repeats)))
    if grammar.size < 2:
        raise ConfigurationError(f"grammar {text[:200]!r}: allows one network, which leaves no choice. {_FORM}")
    for value in grammar.cheapest:
        recipes.load(recipe, [*overrides, override(grammar.key, value)])
    return grammar


def _block(kind: str, channels: int, repeats: int) -> str:
    return str(blocks.parse(f"{kind}:{channels}:{repeats}"))


def _with_pools(stages: list[str]) -> list[str]:
    """Return the blocks with a pool between two of them."""
    return [block for stage in stages for block in ("pool", stage)][1:]
