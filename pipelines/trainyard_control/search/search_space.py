"""The search space of a sweep: values or ranges by key of a recipe, and the blocks of a cnn_small."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigurationError
from trainyard.graph import model_sections
from trainyard.spec import plain_yaml, trees
from trainyard.spec import recipe as recipes
from trainyard.spec.model import CONVOLUTIONS, parse_block
from trainyard.spec.recipe import Recipe

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

_RANGE = re.compile(r"(log:)?([^:,\s]+):([^:,\s]+)")
_FORM = "Write KEY=a,b,c for values, KEY=1:8 for a range, KEY=log:1e-4:1e-1 for one by its order of magnitude."
_BLOCKS_FORM = "Write STAGES KINDS:CHANNELS:REPEATS, such as '2:4 conv|separable|residual:16|32|64:1|2|3'."
_BLOCKS = re.compile(r"([1-9][0-9]?)(?::([1-9][0-9]?))?\s+(\S+)")
_SECTIONS = sorted(model_sections() - {"task"})  # models of different tasks cannot be compared


@dataclass(frozen=True)
class Dimension:
    """One key with its `values`, or its range from `low` to `high`, of whole numbers if both are."""

    key: str
    values: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values, or the ends of the range."""
        return self.values or (self.low, self.high)

    def suggest(self, sampled: BaseTrial) -> Any:
        """Sample a value for a trial. The sampler chooses among the JSON of `values`."""
        if self.values:
            return self.value(sampled.suggest_categorical(self.key, [json.dumps(value) for value in self.values]))
        if isinstance(self.low, int) and isinstance(self.high, int):
            return sampled.suggest_int(self.key, self.low, self.high, log=self.log)
        return self.value(sampled.suggest_float(self.key, self.low, self.high, log=self.log))

    def value(self, sampled: Any) -> Any:
        """Convert a sampled value to the recipe's; numbers have six digits."""
        if self.values:
            return json.loads(sampled)
        return sampled if isinstance(sampled, int) else min(self.high, max(self.low, float(f"{sampled:.6g}")))

    def parameters(self, value: Any) -> dict[str, Any]:
        """Return the sampler's parameters that give `value`."""
        return {self.key: json.dumps(value) if self.values else value}


def override(key: str, value: Any) -> str:
    """Format a value as an override of `--set`."""
    return f"{key}={json.dumps(value)}"


def variant(recipe: str, overrides: list[str], values: dict[str, Any]) -> Recipe:
    """Load `recipe` with the `values` of a trial. Trees leave out what the recipe sets for networks, and vice versa."""
    foreign = (
        trees.foreign_settings(recipes.load(recipe, overrides), values["model.name"]) if "model.name" in values else ()
    )
    return recipes.load(recipe, [*overrides, *(override(key, value) for key, value in [*foreign, *values.items()])])


def parse(recipe: str, overrides: list[str], over: list[str]) -> list[Dimension]:
    """Parse dimensions, each KEY=VALUES.

    Raises `ConfigurationError` if a form is unknown, a range is empty, or the recipe does not take a value.
    """
    dimensions: list[Dimension] = []
    for text in over:
        key, equals, described = text.partition("=")
        if not equals or not described:
            raise ConfigurationError(f"over {text[:200]!r}: has no values. {_FORM}")
        if key.partition(".")[0] not in _SECTIONS:
            raise ConfigurationError(
                f"over {key[:200]}: no model depends on it. Keys of {', '.join(_SECTIONS)} can be tried."
            )
        if any(key == other.key for other in dimensions):
            raise ConfigurationError(f"over {key}: given twice. Name all its values at once.")
        dimensions.append(_dimension(key, described))
    for dimension in dimensions:
        for value in dimension.ends:
            variant(recipe, overrides, {dimension.key: value})
    return dimensions


def _dimension(key: str, described: str) -> Dimension:
    match = _RANGE.fullmatch(described)
    if match is None:
        read = plain_yaml.YamlText(f"[{described}]", f"over {key}")
        values = read.content or []
        if read.faults:
            raise ConfigurationError(f"{str(read.faults[0])[:300]} {_FORM}")
        if len({json.dumps(value) for value in values}) < max(2, len(values)):
            raise ConfigurationError(f"over {key}={described[:200]}: needs two or more different values. {_FORM}")
        return Dimension(key, values=tuple(values))
    low, high = (_number(key, text) for text in match.groups()[1:])
    if low >= high or (match[1] and low <= 0):
        allowed = "a lower end above 0 and below the upper one" if match[1] else "a lower end below the upper one"
        raise ConfigurationError(f"over {key}={described}: the range is empty. Give {allowed}.")
    return Dimension(key, low=low, high=high, log=bool(match[1]))


def _number(key: str, text: str) -> float:
    try:
        value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,15}", text) else float(text)
        if not math.isfinite(value):
            raise ValueError(text)
    except ValueError as error:
        raise ConfigurationError(f"over {key}: {text[:100]!r} is not a number. {_FORM}") from error
    return value


@dataclass(frozen=True)
class BlockSpace:
    """Lists of blocks: from `min_stages` to `max_stages` stages, each with one of the kinds, channels and repeats."""

    min_stages: int
    max_stages: int
    kinds: tuple[str, ...]
    channels: tuple[int, ...]
    repeats: tuple[int, ...]

    key = "model.blocks"
    values: tuple[Any, ...] = ()  # too many to list

    @property
    def size(self) -> int:
        """The number of networks."""
        a_stage = len(self.kinds) * len(self.channels) * len(self.repeats)
        return sum(a_stage**stages for stages in range(self.min_stages, self.max_stages + 1))

    @property
    def cheapest(self) -> list[list[str]]:
        """For each kind the networks with the fewest and the most stages, with the fewest channels and repeats."""
        return [
            _with_pools([_block(kind, min(self.channels), min(self.repeats))] * stages)
            for kind in self.kinds
            for stages in sorted({self.min_stages, self.max_stages})
        ]

    def suggest(self, sampled: BaseTrial) -> list[str]:
        """Sample the blocks of a trial."""
        stages = sampled.suggest_categorical("stages", list(range(self.min_stages, self.max_stages + 1)))
        return _with_pools(
            [
                _block(
                    sampled.suggest_categorical(f"kind of stage {number}", self.kinds),
                    sampled.suggest_categorical(f"channels of stage {number}", self.channels),
                    sampled.suggest_categorical(f"repeats of stage {number}", self.repeats),
                )
                for number in range(1, stages + 1)
            ]
        )

    def parameters(self, value: list[str]) -> dict[str, Any]:
        """Return the sampler's parameters that give the blocks `value`."""
        stages = [block for block in map(parse_block, value) if block.kind != "pool"]
        sampled: dict[str, Any] = {"stages": len(stages)}
        for number, block in enumerate(stages, 1):
            sampled[f"kind of stage {number}"] = block.kind
            sampled[f"channels of stage {number}"] = block.channels
            sampled[f"repeats of stage {number}"] = block.repeats
        return sampled


def parse_blocks(recipe: str, overrides: list[str], text: str) -> BlockSpace:
    """Parse which blocks a network may have.

    Raises `ConfigurationError` if it cannot be parsed, or the recipe does not take its largest network.
    """
    match = _BLOCKS.fullmatch(text.strip())
    parts = match[3].split(":") if match else []
    if match is None or len(parts) not in (2, 3):
        raise ConfigurationError(f"blocks {text[:200]!r}: not stages and blocks. {_BLOCKS_FORM}")
    kinds, channels, repeats = (part.split("|") for part in [*parts, "1"][:3])
    if unknown := [kind for kind in kinds if kind not in CONVOLUTIONS]:
        raise ConfigurationError(
            f"blocks {text[:200]!r}: no block '{unknown[0][:50]}'. Known: {', '.join(CONVOLUTIONS)}. {_BLOCKS_FORM}"
        )
    try:
        for number in itertools.product(channels, repeats):
            parse_block(":".join(["conv", *number]))
    except ValueError as error:
        raise ConfigurationError(f"blocks {text[:200]!r}: {error}. {_BLOCKS_FORM}") from error
    if any(len({*choices}) < len(choices) for choices in (kinds, channels, repeats)):
        raise ConfigurationError(f"blocks {text[:200]!r}: has a repeated value. {_BLOCKS_FORM}")
    min_stages, max_stages = int(match[1]), int(match[2] or match[1])
    if min_stages > max_stages:
        raise ConfigurationError(
            f"blocks {text[:200]!r}: {min_stages}:{max_stages} stages are an empty range. {_BLOCKS_FORM}"
        )
    space = BlockSpace(min_stages, max_stages, tuple(kinds), tuple(map(int, channels)), tuple(map(int, repeats)))
    if space.size < 2:
        raise ConfigurationError(f"blocks {text[:200]!r}: allows only one network. {_BLOCKS_FORM}")
    for value in space.cheapest:
        recipes.load(recipe, [*overrides, override(space.key, value)])
    return space


def _block(kind: str, channels: int, repeats: int) -> str:
    return str(parse_block(f"{kind}:{channels}:{repeats}"))


def _with_pools(stages: list[str]) -> list[str]:
    """Insert a pool between stages."""
    return [block for stage in stages for block in ("pool", stage)][1:]
