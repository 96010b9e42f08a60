from collections.abc import Callable, Sequence

import tensorflow as tf
from keras import KerasTensor, Layer, Variable
from keras.initializers import Initializer

class Activation(Layer):
    def __init__(self, activation: str, *, name: str | None = None, dtype: str | None = None) -> None: ...

class ReLU(Layer): ...
class LeakyReLU(Layer): ...
class ELU(Layer): ...
class Softmax(Layer): ...
class Subtract(Layer): ...
class Average(Layer): ...
class ZeroPadding1D(Layer): ...
class ZeroPadding2D(Layer): ...
class Cropping1D(Layer): ...
class Cropping2D(Layer): ...
class UpSampling2D(Layer): ...
class Permute(Layer): ...
class RepeatVector(Layer): ...
class Identity(Layer): ...
class AveragePooling1D(Layer): ...
class AveragePooling2D(Layer): ...
class GlobalAveragePooling1D(Layer): ...

class GlobalAveragePooling2D(Layer):
    def __init__(self, *, name: str | None = None) -> None: ...

class Normalization(Layer):
    def __init__(self, *, mean: Sequence[float], variance: Sequence[float]) -> None: ...

class InputLayer(Layer): ...
class DepthwiseConv1D(Layer): ...

class SeparableConv1D(Layer):
    filters: int
    def __init__(
        self, filters: int, kernel_size: int, *, padding: str = "valid", depth_multiplier: int = 1
    ) -> None: ...

class SeparableConv2D(Layer):
    filters: int
    def __init__(self, filters: int, kernel_size: int, *, padding: str = "valid") -> None: ...

class Conv1DTranspose(Layer): ...

class Conv2DTranspose(Layer):
    def __init__(self, filters: int, kernel_size: int, *, strides: int = 1, padding: str = "valid") -> None: ...

class Conv3DTranspose(Layer): ...
class RNN(Layer): ...

class LSTM(RNN):
    def __init__(self, units: int) -> None: ...

class Bidirectional(Layer):
    def __init__(self, layer: Layer) -> None: ...

class DepthwiseConv2D(Layer):
    def __init__(self, kernel_size: int, *, padding: str = "valid", use_bias: bool = True) -> None: ...

class Flatten(Layer): ...

class Add(Layer):
    def __init__(self, *, dtype: str | None = None, name: str | None = None) -> None: ...

class BatchNormalization(Layer):
    axis: int
    momentum: float
    epsilon: float
    renorm: bool
    beta: Variable
    gamma: Variable
    moving_mean: Variable
    moving_variance: Variable
    def __init__(self, *, epsilon: float = 1e-3, gamma_initializer: str = "ones", name: str | None = None) -> None: ...
    call: Callable[..., tf.Tensor]

class Concatenate(Layer): ...

class Conv2D(Layer):
    def __init__(
        self,
        filters: int,
        kernel_size: int,
        *,
        strides: int = 1,
        padding: str = "valid",
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str = "glorot_uniform",
        name: str | None = None,
    ) -> None: ...

class Dense(Layer):
    kernel: Variable
    def __init__(
        self,
        units: int,
        *,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        dtype: str | None = None,
        name: str | None = None,
    ) -> None: ...

class _SeedGenerator:
    def next(self) -> tf.Tensor: ...

class Dropout(Layer):
    rate: float
    noise_shape: Sequence[int | None] | None
    seed_generator: _SeedGenerator
    def __init__(self, rate: float) -> None: ...
    call: Callable[..., tf.Tensor]

class Embedding(Layer):
    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        embeddings_initializer: str | Initializer = "uniform",
        trainable: bool = True,
        dtype: str | None = None,
        name: str | None = None,
    ) -> None: ...

class LayerNormalization(Layer):
    def __init__(self, *, epsilon: float, name: str | None = None) -> None: ...

class EinsumDense(Layer):
    equation: str
    kernel: Variable
    def __init__(self, equation: str, output_shape: tuple[int | None, ...]) -> None: ...

class MultiHeadAttention(Layer):
    num_heads: int
    key_dim: int
    value_dim: int
    query_dense: EinsumDense
    key_dense: EinsumDense
    value_dense: EinsumDense
    output_dense: EinsumDense
    def __init__(
        self, num_heads: int, key_dim: int, *, kernel_initializer: str | Initializer, name: str | None = None
    ) -> None: ...
    def __call__(self, query: KerasTensor, value: KerasTensor) -> KerasTensor: ...  # type: ignore[override]

class MaxPooling2D(Layer):
    def __init__(
        self, pool_size: int, *, strides: int | None = None, padding: str = "valid", name: str | None = None
    ) -> None: ...

class Rescaling(Layer):
    scale: list[float]
    offset: list[float]
    def __init__(
        self,
        scale: float | list[float],
        offset: float | list[float] = 0.0,
        *,
        dtype: str | None = None,
        name: str | None = None,
    ) -> None: ...

class Reshape(Layer):
    def __init__(self, target_shape: Sequence[int]) -> None: ...
