"""Decoding of images: one function for training, evaluation and the serving graph, so that they cannot differ."""

from __future__ import annotations

import tensorflow as tf

from trainyard.contract.artifacts import ImageShape


def decode_image(encoded: tf.Tensor, shape: ImageShape) -> tf.Tensor:
    """Return the picture in the scalar string `encoded` as float32 (height, width, channels) in 0..255.

    JPEG and PNG are taken; 16 bits a channel become 8. An image of another size is resized, with antialiasing where it
    shrinks. Raises `tf.errors.InvalidArgumentError` when the graph runs on anything else.
    """
    image = tf.io.decode_image(encoded, channels=shape.channels, expand_animations=False)
    image.set_shape((None, None, shape.channels))
    size = (shape.height, shape.width)
    resized = tf.cond(
        tf.reduce_all(tf.equal(tf.shape(image)[:2], size)),
        lambda: tf.cast(image, tf.float32),
        lambda: tf.image.resize(image, size, antialias=True),
    )
    return tf.ensure_shape(resized, (*size, shape.channels))
