"""Writes the chosen pool to an environment's file, keeping its comments and order."""

from __future__ import annotations

import math
from pathlib import Path

import yaml

from trainyard.errors import ConfigurationError
from trainyard.spec import documents
from trainyard.spec.environment import BUNDLED, Environment
from trainyard.storage import storage

# Chosen: the timeout is this multiple of the plan's upper estimate, and at least this many seconds, because the plan
# does not count the pull of the image and more.
ROOM = 2
LEAST_SECONDS = 3600


def timeout(hours: float) -> int:
    """Return the timeout in seconds of a training with the upper estimate `hours`."""
    return max(LEAST_SECONDS, math.ceil(ROOM * hours * 3600))


def set_train_pool(name: str, pool: str, timeout_seconds: int | None = None) -> Path:
    """Set `placement.train` of the environment `name` to `pool` in its file, and return the file.

    timeout_seconds: also set `timeout_seconds.train`. Raises `ConfigurationError` if the environment is bundled,
    because such a file is not the user's.
    """
    path = documents.find("environment", name, BUNDLED)
    if path.resolve().parent == BUNDLED.resolve():
        raise ConfigurationError(
            f"--place: the environment '{name}' comes with Trainyard and is not written. "
            f"Copy {path} to your own file and give its path to -e."
        )
    text = path.read_text(encoding="utf-8")
    changed = with_train(text, "placement", pool)
    if timeout_seconds is not None:
        changed = with_train(changed, "timeout_seconds", str(timeout_seconds))
    read = documents.parse(changed, Environment, name=str(path))
    if read.placement.get("train") != pool or timeout_seconds not in (None, read.timeout_seconds.get("train")):
        raise ConfigurationError(f"{path}: it cannot be edited. Write `placement: {{train: {pool}}}` into it by hand.")
    if changed != text:
        storage.write_text(str(path.absolute()), changed)
    return path


def with_train(text: str, section: str, written: str) -> str:
    """Set `train: written` in the mapping `section` of the environment's text, and change nothing else.

    >>> print(with_train("placement: {default: cpu}  # all", "placement", "gpu"))
    placement: {train: gpu, default: cpu}  # all
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    sections = {key.value: (key, value) for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    if section not in sections or not isinstance(sections[section][1], yaml.MappingNode):
        return f"{text.rstrip()}\n{section}:\n  train: {written}\n"
    node = sections[section][1]
    for key, value in node.value:
        if key.value == "train" and isinstance(value, yaml.SequenceNode) and value.value and not value.flow_style:
            return f"{text[: key.end_mark.index]}: {written}{text[value.value[-1].end_mark.index :]}"
        if key.value == "train":
            return text[: value.start_mark.index] + written + text[value.end_mark.index :]
    if node.flow_style:
        inside = f"train: {written}, " if node.value else f"train: {written}"
        return text[: node.start_mark.index + 1] + inside + text[node.start_mark.index + 1 :]
    first = node.value[0][0].start_mark
    return f"{text[: first.index]}train: {written}\n{' ' * first.column}{text[first.index :]}"
