"""Imports: large libraries in less time, and the Python file of a recipe."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

from trainyard.errors import RECIPE_MODULE, ConfigurationError, module_line


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Hide the modules `names` while the block imports, and from nobody afterwards; not those that are imported.

    What is imported stays: looking through it for garbage, now and at every later collection, finds none.
    """
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        for name in hidden:
            del sys.modules[name]


@cache
def load_module(path: str) -> ModuleType:
    """Return the recipe's module at `path`, run once. Raises `ConfigurationError` if it is missing or fails."""
    spec = importlib.util.spec_from_file_location(RECIPE_MODULE, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path}: not a Python file. module names a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{path}: the recipe's module imports '{error.name}', which is not installed. Import within a function "
            "what it alone needs, and copy into the file what it takes from other files of yours."
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"{path}: the recipe's module fails to load ({type(error).__name__}: {error}{module_line(error)}). "
            "Correct it, or leave module out."
        ) from error
    return module
