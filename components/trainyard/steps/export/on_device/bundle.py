"""Puts modules that device files are made of into one file, without Trainyard."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from trainyard.contract import image_formats
from trainyard.contract.statistics import decision
from trainyard.quality import decoding
from trainyard.steps.export.on_device import columns, files, fingerprint, images, predict, words
from trainyard.values import missing, patterns, text, zones

COLUMNS = (patterns, zones, text, missing, fingerprint, words, decision, files, columns)
IMAGES = (image_formats, decoding, decision, files, images)
"""The modules of `preprocess.py` for tables and for images, those that others use first."""

_FUTURE = "from __future__ import annotations"


def preprocess_file(modules: Sequence[ModuleType]) -> str:
    """Return the content of preprocess.py."""
    return _bundle(
        '"""Makes the inputs of the exported files beside this one; needs NumPy, and Pillow for images."""', modules
    )


def predict_file() -> str:
    """Return the content of predict.py."""
    return _bundle(f'"""{predict.__doc__}"""', (predict,), "from preprocess import Preprocessing\n")


def _bundle(docstring: str, modules: Sequence[ModuleType], extra: str = "") -> str:
    """Return the sources of `modules` in one, in which each name is that of one of them."""
    imports, bodies = dict[str, None](), []
    for module in modules:
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            is_docstring = isinstance(node, ast.Expr) and node.lineno == 1
            if isinstance(node, ast.Import | ast.ImportFrom) or is_docstring:
                statement = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                if not is_docstring and "trainyard" not in statement and statement != _FUTURE:
                    imports[statement] = None
                lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
        bodies.append(re.sub(r"\bpatterns\.", "", "\n".join(lines)).strip())
    head = "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line)))
    return f"{docstring}\n\n{_FUTURE}\n\n{head}\n{extra}\n\n" + "\n\n\n".join(bodies) + "\n"
