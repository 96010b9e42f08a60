import numpy as np
from numpy.typing import NDArray

def decode_jpeg(
    data: bytes,
    colorspace: str = "RGB",
    *,
    min_height: int = 0,
    min_width: int = 0,
    min_factor: float = 1,
    strict: bool = True,
) -> NDArray[np.uint8]: ...
def encode_jpeg(
    image: NDArray[np.uint8], quality: int = 85, colorspace: str = "RGB", colorsubsampling: str = "444"
) -> bytes: ...
