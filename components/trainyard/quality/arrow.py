"""Arrow without pandas."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def block_pandas_import() -> None:
    """Have pyarrow take pandas for not installed, unless it is imported already.

    Most of pyarrow's functions import pandas once, only to see whether their arguments are of it. That takes 3
    CPU-seconds, more than to profile 100,000 rows (seen with pyarrow 25, which has no setting for it).
    """
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.scalar("")
        finally:
            sys.meta_path.remove(finder)
