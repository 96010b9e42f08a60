"""A custom training program: the recipe keys that it makes ineffective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trainyard.spec import documents
from trainyard.spec.documents import is_secret
from trainyard.spec.plain_yaml import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainyard.spec.recipe import Recipe

Argument = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")]

# Keys of `train` that a program may follow or ignore; all others apply only to Trainyard's own training.
_USABLE = {
    "command",
    "image",
    "result",
    "workers",
    "epochs",
    "batch_size",
    "optimizer",
    "schedule",
    "warmup_epochs",
    "label_smoothing",
}


def faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    """Yield the parts of `recipe` without effect under a custom program, each with the reason."""
    train = recipe.train
    if train.command is None:
        if recipe.files and not recipe.module:
            yield ("files",), "need module or train.command, and neither is set. Set one, or leave them out"
        for name in ("packages", "requirements"):
            if getattr(recipe, name) and not recipe.module:
                yield (name,), "needs module or train.command, and neither is set. Set one, or leave it out"
        if train.image and not recipe.module:
            yield ("train", "image"), "needs module or train.command, and neither is set. Set one, or leave it out"
        if train.result == "folder":
            yield ("train", "result"), "needs train.command, which is not set. Set it, or leave it out"
        return
    for name in documents.changed(recipe.model):
        yield ("model", name), "is of the networks that Trainyard trains, and train.command trains. Leave it out"
    for name in documents.changed(train, _USABLE):
        yield ("train", name), "is done by Trainyard's own training, and train.command trains. Leave it out"
    if any(map(_gives_secret, train.command, [*train.command[1:], ""])):
        yield (
            ("train", "command"),
            "holds what looks like a secret, and every package and run would show it. Have the program read an "
            "environment variable, and name that under secrets in the environment",
        )
    if train.result == "folder":
        yield from _folder_faults(recipe)


def _gives_secret(argument: str, following: str) -> bool:
    return argument.startswith("-") and is_secret("", argument if "=" in argument else f"{argument} {following}")


def _folder_faults(recipe: Recipe) -> Iterator[tuple[Location, str]]:
    why = "is of models that Trainyard judges and exports, and train.result: folder is pushed as it is. Leave it out"
    if recipe.module:
        yield ("module",), why
    if recipe.threshold:
        yield ("threshold",), why
    for section, allowed in (("evaluate", {"gates"}), ("export", set[str]())):
        for name in documents.changed(getattr(recipe, section), allowed):
            yield (section, name), why
    for index, gate in enumerate(recipe.evaluate.gates):
        for name in ("slice", "target", "largest_gap_between", "class_name"):
            if getattr(gate, name) is not None:
                yield ("evaluate", "gates", index, name.removesuffix("_name")), why
        if gate.against != "champion":
            yield ("evaluate", "gates", index, "against"), why
