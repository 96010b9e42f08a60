"""The cost of one example: operations and activations, counted from a network's layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras

from trainyard.contract.epochs import TRAINING_PASSES

# The gradients of these activations need only the output: f' is a function of f.
_BY_OUTPUT = frozenset({"relu", "relu6", "leaky_relu", "elu", "sigmoid", "tanh", "softmax"})
_layers = keras.layers
_BY_OUTPUT_LAYERS = (_layers.ReLU, _layers.LeakyReLU, _layers.ELU, _layers.Softmax)
_ACTIVATIONS = (_layers.Activation, *_BY_OUTPUT_LAYERS)
# Linear in their inputs and without weights: the gradient needs only shapes. Dropout keeps only its bit mask,
# an embedding only ids.
_LINEAR = (
    _layers.Add, _layers.Subtract, _layers.Average, _layers.Concatenate, _layers.ZeroPadding1D, _layers.ZeroPadding2D,
    _layers.Cropping1D, _layers.Cropping2D, _layers.UpSampling2D, _layers.Flatten, _layers.Reshape, _layers.Permute,
    _layers.RepeatVector, _layers.Identity, _layers.AveragePooling1D, _layers.AveragePooling2D,
    _layers.GlobalAveragePooling1D, _layers.GlobalAveragePooling2D, _layers.Rescaling, _layers.Normalization,
    _layers.Dropout, _layers.Embedding,
)  # fmt: skip
_NO_KERNELS = ("embeddings", "bias")
_SEPARABLE = (_layers.SeparableConv1D, _layers.SeparableConv2D)
_TRANSPOSED = (_layers.Conv1DTranspose, _layers.Conv2DTranspose, _layers.Conv3DTranspose)


@dataclass(frozen=True)
class Cost:
    """The cost of one example.

    flops: of a training step, forward and backward. activations: numbers that all layers output. saved_activations:
    those that stay in memory for the backward pass.
    """

    parameters: int
    flops_per_example: float
    activations_per_example: int
    saved_activations_per_example: int


def cost(model: keras.Model) -> Cost:
    """Return the cost of `model` from the shapes of its layers.

    A layer with kernels (weights of two or more dimensions, except biases and embeddings) takes a multiplication and an
    addition for each weight and position; any other layer takes one operation for each output number. This is exact for
    convolutions, dense and recurrent layers and MultiHeadAttention; other products without weights are not counted.
    """
    flops, activations = 0.0, 0
    for layer in _leaves(model):
        if isinstance(layer, keras.layers.MultiHeadAttention):
            attention = _Attention.from_layer(layer)
            flops += attention.flops
            activations += sum(attention.inside) + attention.scores + attention.outputs
            continue
        outputs = sum(math.prod(shape[1:]) for shape in _output_shapes(layer))
        activations += outputs
        kernels = [weights for weights in layer.weights if len(weights.shape) >= 2 and weights.name not in _NO_KERNELS]
        flops += sum(2 * math.prod(kernel.shape) * _positions(layer, kernel, outputs) for kernel in kernels) or outputs
    return Cost(model.count_params(), TRAINING_PASSES * flops, activations, _saved_activations(model))


def _saved_activations(model: keras.Model) -> int:
    """Return the numbers of one example that the gradients need; a tensor with several readers counts once.

    A gradient needs the layer's output if it is in _BY_OUTPUT, nothing if the layer is in _LINEAR and has no weights,
    and otherwise the inputs: for products, normalization and max pooling.
    """
    sizes: dict[int, int] = {}
    for layer in _leaves(model):
        activation = getattr(getattr(layer, "activation", None), "__name__", "linear")
        tensors = [] if isinstance(layer, (*_LINEAR, *_ACTIVATIONS)) else keras.tree.flatten(layer.input)
        if activation in _BY_OUTPUT or isinstance(layer, _BY_OUTPUT_LAYERS):
            tensors = [*tensors, *keras.tree.flatten(layer.output)]
        elif activation != "linear" or isinstance(layer, _ACTIVATIONS):
            tensors = [*tensors, *keras.tree.flatten(layer.input)]
        sizes |= {id(tensor): math.prod(size or 1 for size in tensor.shape[1:]) for tensor in tensors}
        if isinstance(layer, keras.layers.MultiHeadAttention):
            sizes[id(layer)] = sum(_Attention.from_layer(layer).inside)
    return sum(sizes.values())


@dataclass(frozen=True)
class _Attention:
    """The cost of MultiHeadAttention for one example, without the softmax's few operations.

    inside: numbers of queries, keys, values, probabilities and weighted values, which the gradients need; scores:
    inputs of the softmax; outputs: of the layer.
    """

    flops: float
    inside: tuple[int, ...]
    scores: int
    outputs: int

    @classmethod
    def from_layer(cls, layer: keras.layers.MultiHeadAttention) -> _Attention:
        shapes = [tensor.shape for tensor in keras.tree.flatten(layer.input)]
        # Keras lists the tensors as passed: query, value, and key if it differs.
        queries, keys = (math.prod(size or 1 for size in shape[1:-1]) for shape in shapes[:2])
        scores = layer.num_heads * queries * keys
        kernels = ((layer.query_dense, queries), (layer.key_dense, keys), (layer.value_dense, keys))
        projections = sum(math.prod(dense.kernel.shape) * count for dense, count in kernels)
        projections += math.prod(layer.output_dense.kernel.shape) * queries
        key, value = layer.num_heads * layer.key_dim, layer.num_heads * layer.value_dim
        return cls(
            2.0 * (projections + scores * (layer.key_dim + layer.value_dim)),
            (queries * key, keys * key, keys * value, scores, queries * value),
            scores,
            sum(math.prod(shape[1:]) for shape in _output_shapes(layer)),
        )


def _leaves(model: keras.Model) -> list[keras.Layer]:
    """Return the layers that compute something, including those of nested models."""
    layers: list[keras.Layer] = []
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            layers += _leaves(layer)
        elif not isinstance(layer, keras.layers.InputLayer):
            layers.append(layer)
    return layers


def _output_shapes(layer: keras.Layer) -> list[tuple[int, ...]]:
    return [tuple(size or 1 for size in output.shape) for output in keras.tree.flatten(layer.output)]


def _positions(layer: Any, kernel: keras.Variable, outputs: int) -> float:
    """Return the number of times that the kernel is applied to one example."""
    if isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional):
        return float(keras.tree.flatten(layer.input)[0].shape[1] or 1)  # steps of the sequence
    if isinstance(layer, _TRANSPOSED):  # at each input position; the last dimension is the input channels
        return math.prod(size or 1 for size in layer.input.shape[1:]) / kernel.shape[-1]
    if isinstance(layer, _SEPARABLE):  # both kernels
        return outputs / layer.filters
    if isinstance(layer, keras.layers.EinsumDense):  # for each input number, divided by those that share its letters
        given, _, letters = layer.equation.partition("->")[0].partition(",")
        shared = math.prod(size for at, size in zip(letters, kernel.shape, strict=True) if at in given)
        return math.prod(size or 1 for size in layer.input.shape[1:]) / shared
    depthwise = isinstance(layer, keras.layers.DepthwiseConv1D | keras.layers.DepthwiseConv2D)
    return outputs / (math.prod(kernel.shape[-2:]) if depthwise else kernel.shape[-1])
