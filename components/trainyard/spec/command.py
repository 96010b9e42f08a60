"""A custom training program: its files, and the recipe keys that it makes ineffective."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trainyard import uris
from trainyard.errors import ConfigurationError
from trainyard.spec import documents
from trainyard.spec.documents import is_secret
from trainyard.spec.plain_yaml import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainyard.spec.recipe import Recipe
    from trainyard.spec.train import Train

MAX_FILE_BYTES = 64 << 10
"""Maximum size of all files together. A pod gets them in the recipe, a variable of at most 128 KiB (Linux)."""

Argument = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")]
FileName = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)*$")]
FileText = Annotated[str, Field(max_length=MAX_FILE_BYTES)]

# Keys of `train` that a program may follow or ignore; all others apply only to Trainyard's own training.
_USABLE = {
    "command",
    "image",
    "files",
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
        if train.files:
            yield ("train", "files"), "need train.command, which is not set. Set it, or leave them out"
        if train.image:
            yield ("train", "image"), "needs train.command, which is not set. Set it, or leave it out"
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
    if fault := _size_fault(_texts(train)):
        yield ("train", "files"), fault


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


def with_files(train: Train, folder: Path) -> Train:
    """Return `train` with the texts of the program's files in `folder`, because a pod does not see them.

    They are the files in `files`, and each command argument that is a file there. Raises `ConfigurationError` if one
    cannot be read, is not text, or is larger than MAX_FILE_BYTES.
    """
    if train.command is None or isinstance(train.files, dict):
        return train
    beside = [argument for argument in train.command if _is_beside(folder, argument)]
    names = list(dict.fromkeys([*beside, *train.files]))
    texts = {name: documents.read_text(folder / name, limit=MAX_FILE_BYTES) for name in names}
    if fault := _size_fault(texts):
        raise ConfigurationError(f"train.files: {', '.join(names)}: {fault}.")
    return train.model_copy(update={"files": texts})


def require_files(names: list[str], folder: Path) -> None:
    """Raise ValueError if one of `names` is not a file in `folder`."""
    for name in names:
        if not os.path.isfile(uris.resolve(folder, name)):  # noqa: PTH113 - Path's raises for a name too long
            raise ValueError(f"there is no file '{name}' beside the recipe. Name one")


def texts(train: Train) -> dict[str, str]:
    """Return the program's files of a loaded recipe, by name. Raises `ConfigurationError` if they were not read."""
    if train.files and not isinstance(train.files, dict):
        raise ConfigurationError("train.files: are names, and the files were not read. Load the recipe from its file.")
    return _texts(train)


def _texts(train: Train) -> dict[str, str]:
    return train.files if isinstance(train.files, dict) else {}


def _size_fault(texts: dict[str, str]) -> str:
    size = sum(len(text.encode()) for text in texts.values())
    if size <= MAX_FILE_BYTES:
        return ""
    return (
        f"hold {size:,} bytes, and may {MAX_FILE_BYTES:,} together, for they travel with the recipe. "
        "Put the code into the image that trains"
    )


def _is_beside(folder: Path, argument: str) -> bool:
    name = Path(argument)
    if name.is_absolute() or ".." in name.parts or len(argument) > 256:
        return False
    return os.path.isfile(folder / name)  # noqa: PTH113 - as above
