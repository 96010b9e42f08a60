"""Where a step's output belongs: a folder named by all that the output depends on.

Equal code, recipe and inputs give the same folder, so a re-run finds what is done, resumes what is not, and two runs of
the same thing meet in one place instead of writing two.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from trainyard.core import storage
from trainyard.core.recipe import Recipe

STEPS = ("preprocess", "train", "evaluate", "export", "push")

_SECTIONS = {
    "preprocess": {"seed", "task", "data"},
    "train": {"seed", "task", "model", "train"},
    "evaluate": {"seed", "task", "evaluate"},
    "export": {"seed", "task", "export"},
    "push": {"push"},
}


def output_uri(root: str, recipe: Recipe, step: str, *inputs: str) -> str:
    """Return the folder of `step`'s output below the storage `root`.

    `inputs` are what the step reads: the folders of earlier steps, which carry keys themselves, or a fingerprint.
    """
    sections = recipe.model_dump(mode="json", include=_SECTIONS[step])
    parts = [step, code_digest(recipe.module), json.dumps(sections, sort_keys=True), *inputs]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return storage.join(root, recipe.name, step, key)


def code_digest(module: str | None = None) -> str:
    """Return the SHA-256 over this package's source and the recipe's own `module`."""
    own = Path(module).read_bytes() if module else b""
    return hashlib.sha256(_package_digest() + own).hexdigest()


@cache
def _package_digest() -> bytes:
    digest = hashlib.sha256()
    package = Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return digest.digest()


def fingerprint(recipe: Recipe) -> str:
    """Return what names the state of the recipe's source without reading its records.

    Local files count with path, size and modification time; a bundled source with its name, for its content is fixed by
    the locked package. Raises `DataError` where nothing matches the path.
    """
    raise NotImplementedError
