"""Writes the chosen pool into an environment's file: one line changes, comments and order stay."""

from __future__ import annotations

from pathlib import Path

import yaml

from trainyard.core import documents, storage
from trainyard.core.environment import BUNDLED, Environment
from trainyard.core.errors import ConfigurationError


def place_train(name: str, pool: str) -> Path:
    """Let `placement.train` of the environment `name` be `pool`, in its file, and return the file.

    Raises `ConfigurationError` where the environment comes with Trainyard: such a file is not the user's own.
    """
    path = documents.find("environment", name, BUNDLED)
    if path.resolve().parent == BUNDLED.resolve():
        raise ConfigurationError(
            f"--place: the environment '{name}' comes with Trainyard and is not written. "
            f"Copy {path} to a file of your own and give its path to -e."
        )
    text = path.read_text(encoding="utf-8")
    changed = with_train_on(text, pool)
    read = documents.parse(changed, Environment, name=str(path))
    if read.placement.get("train") != pool:
        raise ConfigurationError(f"{path}: its placement cannot be edited. Write `train: {pool}` into it by hand.")
    if changed != text:
        storage.write_text(str(path.absolute()), changed)
    return path


def with_train_on(text: str, pool: str) -> str:
    """Return the environment `text` with `placement.train: pool`, and nothing else changed."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    sections = {key.value: (key, value) for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    if "placement" not in sections or not isinstance(sections["placement"][1], yaml.MappingNode):
        return f"{text.rstrip()}\nplacement:\n  train: {pool}\n"
    node = sections["placement"][1]
    for key, value in node.value:
        if key.value == "train":
            return text[: value.start_mark.index] + pool + text[value.end_mark.index :]
    if node.flow_style:
        inside = f"train: {pool}, " if node.value else f"train: {pool}"
        return text[: node.start_mark.index + 1] + inside + text[node.start_mark.index + 1 :]
    first = node.value[0][0].start_mark
    return f"{text[: first.index]}train: {pool}\n{' ' * first.column}{text[first.index :]}"
