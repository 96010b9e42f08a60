"""The champion's weights as those that a training begins with."""

from __future__ import annotations

import keras

from trainyard import events
from trainyard.contract.champion import EXTRA
from trainyard.data import trained
from trainyard.errors import ConfigurationError
from trainyard.storage import storage

_VOCABULARIES = "transform/transform_fn/assets/"
_PUSHED_VOCABULARIES = f"{EXTRA}/vocabularies/"
_ADVICE = "Leave train.warm_start out of the recipe to train from first weights."


def begin_with(champion: str, model: keras.Model, examples: str, labels: list[str] | None) -> None:
    """Give `model` the weights of the pushed version in the folder `champion`; those of a dropout's draws stay its own.

    Raises `ConfigurationError` where the weights would mean something else here: the classes (`labels`, those of
    `examples`), the vocabularies or the model's variables are not the same. Raises as `trained.load_pushed`.
    """
    _require_same_ids(champion, examples, labels)
    theirs = {each.path: each for each in trained.load_pushed(champion).weights}
    ours = {each.path: each for each in model.weights}
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = (tuple(found[name].shape) if name in found else "missing" for found in (ours, theirs))
        if here != there:
            raise ConfigurationError(
                f"train.warm_start: {champion} is another model: its variable '{name}' is {there}, and {here} in this "
                f"one. {_ADVICE}"
            )
    for name, variable in ours.items():
        variable.assign(theirs[name].numpy())
    events.emit("warm_start", champion=champion, variables=len(ours))


def _require_same_ids(champion: str, examples: str, labels: list[str] | None) -> None:
    before = (storage.read(champion, f"{EXTRA}/labels.txt") or b"").decode().split("\n")[:-1]
    if before != (labels or []):
        changed = sorted({*before} ^ {*(labels or [])})
        which = f"'{changed[0]}' is only in one of them" if changed else "their order changed"
        raise ConfigurationError(
            f"train.warm_start: {champion} tells apart {len(before)} classes, the data have {len(labels or [])} ({which}). "
            f"{_ADVICE}"
        )
    there = _files(champion, "push", _PUSHED_VOCABULARIES)
    here = _files(examples, "preprocess", _VOCABULARIES)
    changed = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    if changed:
        raise ConfigurationError(
            f"train.warm_start: the vocabulary '{changed[0]}' is another one than that of {champion} ({len(changed)} "
            f"changed), so its ids mean something else. {_ADVICE}"
        )


def _files(folder: str, made_by: str, prefix: str) -> dict[str, storage.File]:
    """Return the size and checksum of each file below `prefix`."""
    files = storage.require(folder, made_by).files
    return {name.removeprefix(prefix): file for name, file in files.items() if name.startswith(prefix)}
