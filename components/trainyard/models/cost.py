"""What one example costs a network: operations and numbers in memory, counted from its layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import keras

# Chosen as usual: the backward pass takes the products of the forward pass twice, for inputs and for weights.
# Source: A. Griewank and A. Walther, Evaluating Derivatives, 2008, chapter 4; D. Hernandez and T. Brown, arXiv:2005.04305.
TRAINING_PASSES = 3


@dataclass(frozen=True)
class Cost:
    """Cost of a network. flops_per_example: of one training step, forward and backward. activations: numbers an example
    leaves in memory until the backward pass."""

    parameters: int
    flops_per_example: float
    activations_per_example: int


def cost(model: keras.Model) -> Cost:
    """Return what `model` costs, from the shapes of its layers.

    A layer with kernels (weights of two dimensions or more) takes a multiplication and an addition a weight and output
    position; any other takes one operation an output number. That counts convolutions and dense layers exactly, products
    without weights (attention) not at all.
    """
    flops, activations = 0.0, 0
    for layer in _leaves(model):
        outputs = sum(math.prod(shape[1:]) for shape in _output_shapes(layer))
        activations += outputs
        kernels = [] if isinstance(layer, keras.layers.Embedding) else [w for w in layer.weights if len(w.shape) >= 2]
        flops += sum(2 * math.prod(kernel.shape) * _positions(layer, kernel, outputs) for kernel in kernels) or outputs
    return Cost(model.count_params(), TRAINING_PASSES * flops, activations)


def _leaves(model: keras.Model) -> list[keras.Layer]:
    """Return the layers that compute something, those of nested models among them."""
    found: list[keras.Layer] = []
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            found += _leaves(layer)
        elif not isinstance(layer, keras.layers.InputLayer):
            found.append(layer)
    return found


def _output_shapes(layer: keras.Layer) -> list[tuple[int, ...]]:
    outputs = layer.output if isinstance(layer.output, list | tuple) else [layer.output]
    return [tuple(size or 1 for size in output.shape) for output in outputs]


def _positions(layer: keras.Layer, kernel: object, outputs: int) -> float:
    """Return how often the kernel is applied to one example."""
    depthwise = isinstance(layer, keras.layers.DepthwiseConv1D | keras.layers.DepthwiseConv2D)
    channels = math.prod(kernel.shape[-2:]) if depthwise else kernel.shape[-1]  # type: ignore[attr-defined]
    return outputs / channels
