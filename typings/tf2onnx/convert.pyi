from collections.abc import Callable, Sequence

from onnx import ModelProto
from tensorflow import TensorSpec

def from_function(
    function: Callable[..., object],
    input_signature: Sequence[dict[str, TensorSpec]] | None = None,
    opset: int | None = None,
) -> tuple[ModelProto, None]: ...
