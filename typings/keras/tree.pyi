from collections.abc import Mapping, Sequence

from keras import KerasTensor

def flatten(structure: KerasTensor | Sequence[KerasTensor] | Mapping[str, KerasTensor]) -> list[KerasTensor]: ...
