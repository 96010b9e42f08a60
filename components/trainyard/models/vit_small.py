"""The small Vision Transformer, ViT-S/16, from Keras layers.

Source: A. Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, arXiv:2010.11929; its small size: H. Touvron et al.,
Training data-efficient image transformers, 2021, arXiv:2012.12877 (DeiT-S), and A. Steiner et al., How to train your
ViT?, 2021, arXiv:2106.10270. The mean of the tokens replaces the class token: L. Beyer et al., Better plain ViT
baselines for ImageNet-1k, 2022, arXiv:2205.01580.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from trainyard.spec.model import ModelConfig

_BLOCKS, _WIDTH, _HEADS, _HIDDEN = 12, 384, 6, 1536
_PATCHES, _PATCHES_A_SIDE = (16, 8, 4, 2), 8  # chosen: 64 tokens and more, as 14 x 14 of 224 pixels have 196


def network(model: ModelConfig, image: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Return logits (batch, outputs) of 12 attention blocks, block1 to block12, over the patches of the image.

    The patch size is the largest of 16, 8, 4 and 2 pixels that gives at least 8 patches on the shorter side, otherwise
    2. Patches at the right and lower border are padded with zeros.
    """
    side = min(image.shape[1:3])
    size = next((size for size in _PATCHES if side >= size * _PATCHES_A_SIDE), _PATCHES[-1])
    x = layers.Rescaling(1 / 127.5, offset=-1)(image)
    x = layers.Conv2D(_WIDTH, size, strides=size, padding="same", kernel_initializer="lecun_normal", name="patches")(x)
    count = x.shape[1] * x.shape[2]
    x = layers.Reshape((count, _WIDTH))(x)
    # Computed from the input, so that the embedding is part of the graph; one row serves the whole batch.
    numbers = keras.ops.zeros_like(x[:1, :, 0], dtype="int32") + np.arange(count, dtype=np.int32)
    positions = layers.Embedding(count, _WIDTH, embeddings_initializer=_small(), name="positions")(numbers)
    x = layers.Add()([x, positions])
    for number in range(1, _BLOCKS + 1):
        x = _block(x, f"block{number}")
    x = layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(model.dropout)(x)
    return layers.Dense(outputs, dtype="float32", name="logits")(x)


def _block(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    attended = layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm1")(x)
    attended = layers.MultiHeadAttention(
        _HEADS, _WIDTH // _HEADS, kernel_initializer=_small(), name=f"{name}_attention"
    )(attended, attended)
    x = layers.Add(name=f"{name}_add1")([x, attended])
    hidden = layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm2")(x)
    hidden = layers.Dense(_HIDDEN, kernel_initializer=_small(), name=f"{name}_dense1")(hidden)
    hidden = layers.Activation("gelu", name=f"{name}_gelu")(hidden)
    hidden = layers.Dense(_WIDTH, kernel_initializer=_small(), name=f"{name}_dense2")(hidden)
    return layers.Add(name=f"{name}_add2")([x, hidden])


def _small() -> keras.initializers.Initializer:
    """Return a new initializer, because a reused one draws the same numbers."""
    return keras.initializers.TruncatedNormal(stddev=0.02)
