"""ResNet-50 v1.5: the stride of each stage is in the 3 x 3 convolution, not in the 1 x 1 before it.

Source of the network: K. He et al., Deep Residual Learning for Image Recognition, 2015, arXiv:1512.03385; of its
stride: NVIDIA DeepLearningExamples, TensorFlow/Classification/ConvNets/resnet50v1.5, README.md; of residual branches
that start at zero (gamma 0): P. Goyal et al., 2017, arXiv:1706.02677, section 5.1.
"""

from __future__ import annotations

import keras
from keras import layers

from trainyard.spec.model import ModelConfig

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
_EXPANSION = 4
_EPSILON = 1.001e-5  # as the ResNet of Keras


def network(model: ModelConfig, image: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Return logits (batch, outputs) of 16 blocks, conv2_block1 to conv5_block3."""
    x = layers.Rescaling(1 / 127.5, offset=-1)(image)
    x = _convolution(x, 64, 7, 2, "conv1")
    x = layers.Activation("relu", name="conv1_relu")(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same", name="pool1")(x)
    for stage, (filters, blocks) in enumerate(_STAGES, 2):
        for block in range(1, blocks + 1):
            x = _block(x, filters, 2 if block == 1 and stage > 2 else 1, block == 1, f"conv{stage}_block{block}")
    x = layers.GlobalAveragePooling2D(name="avg_pool")(x)
    x = layers.Dropout(model.dropout)(x)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)


def _block(x: keras.KerasTensor, filters: int, stride: int, is_first: bool, name: str) -> keras.KerasTensor:
    shortcut = _convolution(x, _EXPANSION * filters, 1, stride, f"{name}_0") if is_first else x
    x = layers.Activation("relu", name=f"{name}_1_relu")(_convolution(x, filters, 1, 1, f"{name}_1"))
    x = layers.Activation("relu", name=f"{name}_2_relu")(_convolution(x, filters, 3, stride, f"{name}_2"))
    x = _convolution(x, _EXPANSION * filters, 1, 1, f"{name}_3", gamma="zeros")
    return layers.Activation("relu", name=f"{name}_out")(layers.Add(name=f"{name}_add")([shortcut, x]))


def _convolution(
    x: keras.KerasTensor, filters: int, size: int, stride: int, name: str, gamma: str = "ones"
) -> keras.KerasTensor:
    x = layers.Conv2D(
        filters,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    return layers.BatchNormalization(epsilon=_EPSILON, gamma_initializer=gamma, name=f"{name}_bn")(x)
