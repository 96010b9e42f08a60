from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from keras import KerasTensor

T = TypeVar("T")

def flatten(structure: KerasTensor | Sequence[KerasTensor] | Mapping[str, KerasTensor]) -> list[KerasTensor]: ...
def map_structure(
    func: Callable[[KerasTensor], T], *structures: KerasTensor | Sequence[KerasTensor] | Mapping[str, KerasTensor]
) -> T | list[T] | dict[str, T]: ...
