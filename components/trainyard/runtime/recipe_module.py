"""Loads the recipe's module from the files that travel with the recipe, in a folder of this process."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

from trainyard.errors import RECIPE_PACKAGE, ConfigurationError, module_line
from trainyard.runtime import recipe_packages
from trainyard.spec import code
from trainyard.spec.code import Files
from trainyard.spec.packages import Wheels


class _Loaded:
    """The recipe's module that this process has loaded, and the folder of its files."""

    def __init__(self, key: str, module: str, files: Files, packages: Wheels) -> None:
        self.key = key
        self._packages = [str(recipe_packages.folder(packages))] if packages else []
        self.folder = tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True)
        root = Path(self.folder.name) / RECIPE_PACKAGE
        root.mkdir()
        code.write(files, root)
        self.path = root / module
        # Last: a library must not import a file of the recipe that has the name of another library. The working folder
        # goes behind it: it holds the same names in a notebook or under `python -m`, and is not there on a cluster.
        self.added = [*self._packages, *dict.fromkeys(map(str, (self.path.parent, root, root.parent)))]
        here = [path for path in sys.path if path in ("", os.getcwd())]  # noqa: PTH109 - a path as text
        sys.path[:] = [*(path for path in sys.path if path not in here), *self.added, *here]
        importlib.invalidate_caches()

    def forget(self) -> None:
        """Make nothing of it importable, so that another recipe's files of the same names are found."""
        sys.path[:] = [path for path in sys.path if path not in self.added]
        for name, module in [*sys.modules.items()]:
            if name.partition(".")[0] == RECIPE_PACKAGE or self._brought(getattr(module, "__file__", None)):
                del sys.modules[name]
        self.folder.cleanup()

    def holds(self, file: str | None) -> bool:
        return file is not None and file.startswith(self.folder.name)

    def _brought(self, file: str | None) -> bool:
        return file is not None and (self.holds(file) or any(file.startswith(f"{path}/") for path in self._packages))


_loading = threading.RLock()  # the threads of a Beam worker load it at once
_loaded: list[tuple[_Loaded, ModuleType]] = []  # at most one


def load_module(module: str, files: Files, packages: Wheels) -> ModuleType:
    """Return the recipe's `module`, run once, with the other `files` beside it, and its `packages`.

    Local modules are imported by their names, or relative to it. Raises `ConfigurationError` if it fails, or imports a
    local module that has the name of an installed one.
    """
    key = f"{module} {code.digest(files)} {sorted(each.sha256 for each in packages.values())}"
    with _loading:
        if not _loaded or _loaded[0][0].key != key:
            while _loaded:
                _loaded.pop()[0].forget()
            loaded = _Loaded(key, module, files, packages)
            try:
                _loaded.append((loaded, _run(loaded, module, files)))
            except BaseException:
                loaded.forget()
                raise
        return _loaded[0][1]


def _run(loaded: _Loaded, module: str, files: Files) -> ModuleType:
    for name in sorted(code.local_names(module, files)):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None and not loaded.holds(found.origin):
            raise ConfigurationError(
                f"{module}: imports the local module '{name}', which has the name of an installed one "
                f"({found.origin}). Rename the local one."
            )
    name = ".".join([RECIPE_PACKAGE, *Path(module).parent.parts, Path(module).stem.replace(".", "_")])
    spec = importlib.util.spec_from_file_location(name, loaded.path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{module}: not a Python file. module names a file that ends in .py.")
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{module}: the recipe's module imports '{error.name}', which is neither installed nor beside the recipe. "
            "Name its package under packages, import within a function what it alone needs, and list under files what "
            "it imports by other means."
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"{module}: the recipe's module fails to load ({type(error).__name__}: {error}{module_line(error)}). "
            "Correct it, or leave module out."
        ) from error
    return made
