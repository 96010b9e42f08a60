"""Decodes images: one function for preprocess, evaluation and the serving graph.

docs/reference/images.md defines what the pixels of an image are.
"""

from __future__ import annotations

import tensorflow as tf

from trainyard.contract.artifacts.preprocess import ImageShape
from trainyard.contract.image_formats import JPEG_MAGIC, PNG_BITS, PNG_MAGIC


def decode_image(encoded: tf.Tensor, shape: ImageShape, *, pixels: bool = False) -> tf.Tensor:
    """Return the image in the scalar string `encoded` as float32 (height, width, channels) in 0..255.

    JPEG and PNG are taken, PNG as `decode_png` does. An image of another size is resized, with antialiasing if it
    shrinks. If it is `pixels`, it holds them of this shape, row by row, a byte each.
    Raises `tf.errors.InvalidArgumentError` when the graph runs on anything else.
    """
    size = (shape.height, shape.width)
    if pixels:
        return tf.cast(tf.reshape(tf.io.decode_raw(encoded, tf.uint8), (*size, shape.channels)), tf.float32)
    image = tf.cond(
        tf.equal(tf.strings.substr(encoded, 0, len(PNG_MAGIC)), PNG_MAGIC),
        lambda: decode_png(encoded, shape.channels, shape.white_level),
        lambda: _decode_jpeg(encoded, shape.channels),
    )
    image.set_shape((None, None, shape.channels))
    resized = tf.cond(
        tf.reduce_all(tf.equal(tf.shape(image)[:2], size)),
        lambda: tf.cast(image, tf.float32),
        lambda: tf.image.resize(image, size, antialias=True),
    )
    return tf.ensure_shape(resized, (*size, shape.channels))


def _decode_jpeg(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    # TensorFlow's decoders take GIF, BMP and WebP as well, but drop transparency and palettes.
    is_jpeg = tf.equal(tf.strings.substr(encoded, 0, len(JPEG_MAGIC)), JPEG_MAGIC)
    with tf.control_dependencies(
        [tf.debugging.assert_equal(is_jpeg, tf.constant(True), "image: JPEG or PNG is expected.")]
    ):
        is_cmyk = tf.equal(tf.image.extract_jpeg_shape(encoded)[2], 4)
    # Of CMYK, TensorFlow shows a JPEG without Adobe's marker as its negative.
    refused = "image: a JPEG in CMYK is not decoded here. Convert it to RGB."
    with tf.control_dependencies([tf.debugging.assert_equal(is_cmyk, tf.constant(False), refused)]):
        return tf.io.decode_image(encoded, channels=channels, expand_animations=False)


def decode_png(encoded: tf.Tensor, channels: int, white_level: float | None = None) -> tf.Tensor:
    """Return the PNG in the scalar string `encoded` as uint8 (height, width, channels), composited on white.

    16 bits a channel become 8: `white_level` becomes 255, and so does all above it. Without it, the low byte is
    dropped.
    """
    header = tf.ensure_shape(tf.io.decode_raw(tf.strings.substr(encoded, PNG_BITS, 2), tf.uint8), (2,))
    bits, color = tf.unstack(header)
    dtype = tf.uint8 if white_level is None else tf.uint16
    decoded = tf.io.decode_png(encoded, channels=4, dtype=dtype)
    # libpng's own gray is no mean of the colors, so it decodes that apart.
    levels = decoded[:, :, :3] if channels == 3 else tf.io.decode_png(encoded, channels=1, dtype=dtype)
    alpha = tf.cast(decoded[:, :, 3:], tf.int32)
    if white_level is None:
        values = tf.cast(levels, tf.int32)
    else:
        alpha, levels = alpha // 257, tf.cast(levels, tf.float32)
        white = tf.where(tf.equal(bits, 16), tf.constant(white_level, tf.float32), 65535.0)
        values = tf.cast(tf.minimum(tf.round(levels * 255 / white), 255), tf.int32)
    # libpng makes an opaque pixel of fewer bits 1, 3 or 15: https://github.com/pnggroup/libpng, png_set_add_alpha.
    opaque = tf.bitwise.left_shift(1, tf.cast(bits, tf.int32)) - 1
    is_gray, is_opaque_palette = tf.equal(color, 0), tf.equal(color, 3) & tf.reduce_all(tf.equal(alpha, opaque))
    small_alpha = tf.where(is_gray & (alpha > 0) | is_opaque_palette, 255, tf.where(is_gray, 0, alpha))
    alpha = tf.where(bits < 8, small_alpha, alpha)
    return tf.cast((values * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)


def encode_pixels(pixels: tf.Tensor, shape: ImageShape) -> tf.Tensor:
    """Return the images whose pixels the strings (n,) hold as PNG (n,), which `decode_image` gives back unchanged."""
    images = tf.reshape(tf.io.decode_raw(pixels, tf.uint8), (-1, shape.height, shape.width, shape.channels))
    return tf.map_fn(lambda image: tf.io.encode_png(image, compression=1), images, fn_output_signature=tf.string)


def decode_pixels(encoded: tf.Tensor, shape: ImageShape, *, pixels: bool = False, quick: bool = False) -> tf.Tensor:
    """Decode an image of the shards as `decode_image` does, but to uint8, a quarter of the bytes.

    A resized image is rounded. Preprocess stores no image with an alpha channel.

    quick: one that shrinks to more than half has no antialiasing, in half the time. Measured from 256 pixels to 224, a
    value then differs by 0.6 of 255 in the mean: for training, whose images change anyway.
    """
    size = (shape.height, shape.width)
    if pixels:
        return tf.reshape(tf.io.decode_raw(encoded, tf.uint8), (*size, shape.channels))
    image = tf.io.decode_image(encoded, channels=shape.channels, expand_animations=False)
    image.set_shape((None, None, shape.channels))

    def antialiased() -> tf.Tensor:
        return as_pixels(tf.image.resize(image, size, antialias=True))

    def resized() -> tf.Tensor:
        if not quick:
            return antialiased()
        small = tf.reduce_all(tf.shape(image)[:2] < (2 * shape.height, 2 * shape.width))
        return tf.cond(small, lambda: resize_quickly(image, size), antialiased)

    same = tf.reduce_all(tf.equal(tf.shape(image)[:2], size))
    return tf.ensure_shape(tf.cond(same, lambda: image, resized), (*size, shape.channels))


def resize_quickly(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Return the uint8 `image` (height, width, channels) in another size, without antialiasing."""
    # Measured: 0.6 of ResizeBilinear's time on uint8, 0.86 with the cast.
    floats = tf.cast(image, tf.float32)[tf.newaxis]
    return as_pixels(tf.raw_ops.ResizeBilinear(images=floats, size=size, half_pixel_centers=True)[0])


def as_pixels(image: tf.Tensor) -> tf.Tensor:
    """Return float32 values rounded to uint8, those beyond 0..255 to its ends."""
    # Measured: 0.4 of the time of adding a half and tf.cast.
    rounded = tf.raw_ops.QuantizeV2(input=image, min_range=0.0, max_range=255.0, T=tf.quint8, mode="MIN_FIRST")
    return tf.bitcast(rounded[0], tf.uint8)
