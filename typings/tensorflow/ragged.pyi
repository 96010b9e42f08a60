from collections.abc import Sequence

from tensorflow import DType, Tensor

def constant(pylist: Sequence[object], dtype: DType, ragged_rank: int, inner_shape: tuple[int, ...]) -> Tensor: ...
