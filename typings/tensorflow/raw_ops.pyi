from collections.abc import Sequence

import numpy as np
from tensorflow import DType, Tensor

def ImageProjectiveTransformV3(
    *,
    images: Tensor,
    transforms: Tensor,
    output_shape: Sequence[int],
    fill_value: float,
    interpolation: str,
    fill_mode: str,
) -> Tensor: ...
def QuantizeV2(
    *, input: Tensor, min_range: float, max_range: float, T: DType, mode: str
) -> tuple[Tensor, Tensor, Tensor]: ...
def RandomIndexShuffle(*, index: Tensor, seed: Tensor, max_index: np.int64, rounds: int) -> Tensor: ...
def ResizeBilinear(*, images: Tensor, size: Sequence[int], half_pixel_centers: bool) -> Tensor: ...
