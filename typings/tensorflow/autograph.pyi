from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

class experimental:
    @staticmethod
    def do_not_convert(func: Callable[_P, _R]) -> Callable[_P, _R]: ...
