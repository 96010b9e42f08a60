"""Warm start: initializes a training with the weights of the champion."""

from __future__ import annotations

import keras

from trainyard import events
from trainyard.contract.artifacts.train import TARGET_INVERSE
from trainyard.contract.version import EXTRA, LABELS, names
from trainyard.data import trained
from trainyard.errors import ConfigurationError
from trainyard.storage import storage

_VOCABULARIES = "transform/transform_fn/assets/"
_PUSHED_VOCABULARIES = f"{EXTRA}/vocabularies/"
_FIELD = "train.warm_start"
_ADVICE = "Leave train.warm_start out of the recipe to train from first weights."


def load_champion(champion: str, model: keras.Model, examples: str, labels: list[str] | None, scale: str) -> None:
    """Load the weights of the pushed version in the folder `champion` into `model`; dropout seeds stay.

    Raises `ConfigurationError` if classes (`labels`, those of `examples`), vocabularies or model variables differ,
    because the weights would mean something else, or if it learned its targets on another scale than `scale`. Raises
    as `trained.load_pushed`.
    """
    require_same_ids(champion, examples, labels, _FIELD, _ADVICE)
    pushed_model = trained.load_pushed(champion)
    inverse = [layer.name for layer in pushed_model.layers if layer.name in TARGET_INVERSE]
    if len(inverse) != ("none", "log", "log1p").index(scale):
        raise ConfigurationError(
            f"{_FIELD}: {champion} learned its targets on another scale than train.target.scale: {scale}. {_ADVICE}"
        )
    pushed = {variable.path: variable for variable in pushed_model.weights}
    variables = {variable.path: variable for variable in model.weights}
    for name in sorted(variables.keys() | pushed.keys()):
        shape, pushed_shape = (
            tuple(weights[name].shape) if name in weights else "missing" for weights in (variables, pushed)
        )
        if shape != pushed_shape:
            raise ConfigurationError(
                f"{_FIELD}: {champion} is another model: its variable '{name}' is {pushed_shape}, and "
                f"{shape} in this one. {_ADVICE}"
            )
    for name, variable in variables.items():
        variable.assign(pushed[name].numpy())
    events.emit("warm_start", champion=champion, variables=len(variables))


def require_same_ids(version: str, examples: str, labels: list[str] | None, field: str, advice: str) -> None:
    """Raise `ConfigurationError` if the pushed `version` has other classes or vocabularies than `examples`.

    labels: those of `examples`. field: the recipe field that names the version. advice: the last sentence of the error.
    """
    before = names(version, f"{EXTRA}/{LABELS}") or []
    if before != (labels or []):
        changed = sorted({*before} ^ {*(labels or [])})
        difference = f"'{changed[0]}' is only in one of them" if changed else "their order changed"
        raise ConfigurationError(
            f"{field}: {version} tells apart {len(before)} classes, the data have {len(labels or [])} "
            f"({difference}). {advice}"
        )
    pushed = _files(version, "push", _PUSHED_VOCABULARIES)
    current = _files(examples, "preprocess", _VOCABULARIES)
    changed = sorted(name for name in pushed.keys() | current.keys() if pushed.get(name) != current.get(name))
    if changed:
        raise ConfigurationError(
            f"{field}: the vocabulary '{changed[0]}' is another one than that of {version} ({len(changed)} "
            f"changed), so its ids mean something else. {advice}"
        )


def _files(folder: str, made_by: str, prefix: str) -> dict[str, storage.File]:
    """Return size and checksum of each file below `prefix`."""
    files = storage.require(folder, made_by).files
    return {name.removeprefix(prefix): file for name, file in files.items() if name.startswith(prefix)}
