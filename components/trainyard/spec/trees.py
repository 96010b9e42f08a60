"""Boosted trees: the parts of a recipe that they do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainyard.spec import documents
from trainyard.spec.networks import TREES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainyard.spec.plain_yaml import Location
    from trainyard.spec.recipe import Recipe

FORMATS = ("saved_model", "keras", "litert_float32", "onnx")
"""The formats of boosted trees: in fewer bits, a value near a threshold would take the other branch."""

_MODEL, _TRAIN = {"name", "trees"}, {"class_weights", "early_stopping", "select", "target"}
_INSTEAD = {"epochs": "Set model.trees.max_iter", "optimizer": "Set model.trees.learning_rate"}


def has_setting(name: str | None, key: str) -> bool:
    """Return True if the model `name` has the setting `key`: trees have no layers, and networks no `model.trees`."""
    section, _, rest = key.partition(".")
    field = rest.partition(".")[0]
    if name != TREES:
        return (section, field) != ("model", "trees")
    return field in {"model": _MODEL, "train": _TRAIN}.get(section, {field})


def foreign_settings(recipe: Recipe, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings of `recipe` that the model `name` does not have, by key, each with its default.

    A search compares networks and trees by one recipe, which sets what either of them needs.
    """
    for section, part in (("model", recipe.model), ("train", recipe.train)):
        for key in documents.changed(part):
            if not has_setting(name, f"{section}.{key}"):
                yield f"{section}.{key}", type(part)().model_dump(mode="json")[key]


def faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    """Yield the parts of `recipe` that boosted trees cannot follow, each with the reason."""
    data, model, train, export = recipe.data, recipe.model, recipe.train, recipe.export
    one = f"{TREES} predicts one class or one number a row. Name mlp or wide_deep"
    if recipe.task == "multi_label":
        yield ("task",), one
    if data.targets:
        yield ("data", "targets"), one
    for name, feature in data.features.items():
        if feature.type == "text":
            yield ("data", "features", name), f"{TREES} takes no text. Leave it out, or name mlp or wide_deep"
    for name in documents.changed(model, _MODEL):
        yield ("model", name), f"is of networks, and {TREES} has none. Leave it out; it has model.trees"
    for name in documents.changed(train, _TRAIN):
        instead = _INSTEAD.get(
            name, "It has model.trees, train.early_stopping, train.select, train.target and train.class_weights"
        )
        yield ("train", name), f"is of networks, and {TREES} has none. Leave it out. {instead}"
    if recipe.evaluate.time_to:
        yield ("evaluate", "time_to"), f"is the time to an accuracy, and {TREES} keeps none. Leave it out"
    for name in export.formats or ():
        if name not in FORMATS:
            why = "" if name == "litert_batch" else ", whose fewer bits change its branches"
            yield ("export", "formats"), f"{TREES} has no {name}{why}. Leave it out"
    for host, limits in export.devices.items():
        if limits.format not in FORMATS:
            yield (
                ("export", "devices", host),
                f"measures {limits.format}, which {TREES} lacks. Set format: litert_float32",
            )
    if export.min_mapped_share is not None:
        yield ("export", "min_mapped_share"), f"is of litert_int8, which {TREES} lacks. Leave it out"
