"""Settings of a recipe as keywords: `train__epochs=3` is `--set train.epochs=3`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.errors import ConfigurationError


def overrides(set_: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return `settings` as `--set` has them, after those of `set_`. Raises `ConfigurationError` for no value of YAML.

    >>> overrides(["seed=1"], {"train__epochs": 3, "export__formats": ("saved_model",)})
    ['seed=1', 'train.epochs=3', 'export.formats=["saved_model"]']
    """
    return [*set_, *(f"{key.replace('__', '.')}={_text(key, value)}" for key, value in settings.items())]


def _text(key: str, value: Any) -> str:
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{key}: is a {type(value).__name__}, which no recipe can hold. Write a number, a text, a list or a dict."
        ) from error


def _plain(value: Any) -> Any:
    """Return a path as text, and a scalar or array of NumPy as numbers."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
