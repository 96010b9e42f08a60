"""An image file as the pixels that the model takes, as docs/reference/images.md defines them, with Pillow and NumPy."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from trainyard.contract.image_formats import BROKEN, FORMATS, KEPT_MODES, ORIENTATION
from trainyard.quality.decoding import PixelForm, UnscaledImageError, depth_of, in_eight_bits
from trainyard.steps.export.on_device.files import Files

_MOST_PIXELS = 100_000_000
# Shares of red, green and blue in 32768. Source: png_set_rgb_to_gray of libpng 1.6 with the 0.299 and 0.587 of
# TensorFlow's png_io.cc; it truncates.
_GRAY = np.array((9797, 19234, 3737), np.int32)
_ONE_HALF = 1 << 15


class Preprocessing(Files):
    """Makes the model's pixels of encoded images, as bytes."""

    def read(self, path: str) -> list[bytes]:
        """Return the image in a file, as bytes."""
        return [Path(path).read_bytes()]

    def _values(self, example: bytes) -> dict[str, np.ndarray[Any, Any]]:
        (name,) = (entry["feature"] for entry in self._content["inputs"])
        return {name: image_input(example, self._content["image"])}


def image_input(encoded: bytes, shape: Any) -> np.ndarray[Any, Any]:
    """Return the image in the bytes of a file as float32 (height, width, channels) in 0..255.

    shape: the height, width, channels and white_level that the model takes, by name. Raises `ValueError`.
    """
    pixels = _decoded(encoded, PixelForm(shape["channels"], shape["white_level"]))
    pixels = pixels.reshape(*pixels.shape[:2], shape["channels"])
    return resized(pixels, shape["height"], shape["width"])


def _decoded(encoded: bytes, form: PixelForm) -> np.ndarray[Any, Any]:
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels, at most {_MOST_PIXELS} are taken")
            is_plain = image.mode in KEPT_MODES.get(image.format or "", ()) and getattr(image, "n_frames", 1) == 1
            if is_plain and image.getexif().get(ORIENTATION, 1) == 1:
                return _as_decoders_do(image, encoded, form)
            depth = depth_of(image, encoded)
            image.load()
            return np.asarray(ImageOps.exif_transpose(in_eight_bits(image, form, depth)))
    except (Image.DecompressionBombError, UnscaledImageError) as error:
        raise ValueError(str(error)) from error
    except UnidentifiedImageError as error:  # its message has the address of the buffer
        raise ValueError(f"no image: {len(encoded):,} bytes that begin with {encoded[:8]!r}") from error
    except BROKEN as error:
        raise ValueError(f"no image that can be read ({error})") from error


def _as_decoders_do(image: Any, encoded: bytes, form: PixelForm) -> np.ndarray[Any, Any]:
    """Return the pixels of a JPEG or PNG as TensorFlow's decoders give them, which differ from Pillow's."""
    if image.format == "JPEG":
        return _jpeg(image, form.channels)
    depth = depth_of(image, encoded)
    image.load()
    if form.channels == 3 or image.mode not in ("P", "RGB", "RGBA") or (depth > 8 and form.white_level is not None):
        return np.asarray(in_eight_bits(image, form, depth))
    pixels = np.asarray(image.convert("RGBA"), np.int32)
    colors, alpha = pixels[..., :3], pixels[..., 3]
    values = np.where((colors == colors[..., :1]).all(axis=-1), colors[..., 0], colors @ _GRAY >> 15)
    return np.asarray((values * alpha + 255 * (255 - alpha) + 127) // 255, np.uint8)


def _jpeg(image: Any, channels: int) -> np.ndarray[Any, Any]:
    """Return the JPEG that Pillow opened as libjpeg gives it with its fast integer transform and fancy upsampling.

    Pillow has the first without the second. Source: libjpeg-turbo 3, jdsample.c and jdcolor.c.
    """
    sampling = [(across, down) for _, across, down, _ in image.layer]
    in_colors = image.mode == "RGB" and image.info.get("adobe_transform") != 0
    if in_colors:
        image.draft("L" if channels == 1 else "YCbCr", image.size)
    image.decoderconfig = (1, 1)
    if image.mode != "YCbCr":
        return np.asarray(image.convert("L" if channels == 1 else "RGB"))
    y, *chroma = np.moveaxis(np.asarray(image, np.int32), -1, 0)
    widest, highest = max(across for across, _ in sampling), max(down for _, down in sampling)
    cb, cr = (
        _upsampled(plane, widest // across, highest // down) - 128
        for plane, (across, down) in zip(chroma, sampling[1:])  # noqa: B905 - Python 3.9
    )
    red = y + ((_fix(1.402) * cr + _ONE_HALF) >> 16)
    green = y + ((-_fix(0.34414) * cb + _ONE_HALF - _fix(0.71414) * cr) >> 16)
    blue = y + ((_fix(1.772) * cb + _ONE_HALF) >> 16)
    return np.asarray(np.clip(np.stack([red, green, blue], axis=-1), 0, 255), np.uint8)


def _upsampled(plane: np.ndarray[Any, Any], across: int, down: int) -> np.ndarray[Any, Any]:
    """Return `plane`, whose values were repeated, with a triangle filter instead."""
    small = plane[::down, ::across]
    if (across, down) not in ((1, 2), (2, 1), (2, 2)) or (across == 2 and small.shape[1] <= 2):
        return plane
    height, width = plane.shape
    if down == 2:
        above, below = np.vstack([small[:1], small[:-1]]), np.vstack([small[1:], small[-1:]])
        if across == 1:
            upper, lower = (3 * small + above + 1) >> 2, (3 * small + below + 2) >> 2
            return np.stack([upper, lower], axis=1).reshape(-1, width)[:height]
        small = np.stack([3 * small + above, 3 * small + below], axis=1).reshape(-1, small.shape[1])[:height]
    left, right = np.hstack([small[:, :1], small[:, :-1]]), np.hstack([small[:, 1:], small[:, -1:]])
    first, second, shift = (8, 7, 4) if down == 2 else (1, 2, 2)
    both = np.stack([(3 * small + left + first) >> shift, (3 * small + right + second) >> shift], axis=-1)
    return both.reshape(len(small), -1)[:, :width]


def _fix(number: float) -> int:
    return int(number * 65536 + 0.5)


def resized(pixels: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """Return `pixels` (height, width, channels) in another size as float32: bilinear, antialiased if it shrinks."""
    if pixels.shape[:2] == (height, width):
        return pixels.astype(np.float32)
    rows, columns = _weights(pixels.shape[0], height), _weights(pixels.shape[1], width)
    by_row = (rows @ pixels.astype(np.float64).reshape(pixels.shape[0], -1)).reshape(height, pixels.shape[1], -1)
    return (columns @ by_row).astype(np.float32)


def _weights(size: int, wanted: int) -> np.ndarray[Any, Any]:
    """Return by how much each of `size` pixels counts in each of `wanted`, computed in float32.

    Source: TensorFlow's ScaleAndTranslate with the triangle kernel, ComputeSpansCore, as tf.image.resize calls it.
    """
    step = np.float32(1) / (np.float32(wanted) / np.float32(size))
    reach = max(step, np.float32(1))
    middle = (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * step
    distance = np.arange(size, dtype=np.float32)[None] + np.float32(0.5) - middle[:, None]
    weights = np.maximum(np.float32(0), np.float32(1) - np.abs(distance * (np.float32(1) / reach)))
    return np.asarray(weights * (np.float32(1) / weights.sum(axis=1, keepdims=True, dtype=np.float32)), np.float64)
