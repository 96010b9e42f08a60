"""Judges one encoded image: from its header first, then by decoding it whole."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps, UnidentifiedImageError

from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.readers.files import image_limit, too_many_bytes
from trainyard.steps.preprocess.readers.records import BadRecord, Record, content_digest

# What Pillow's decoders raise on broken input, seen on a corpus of cut and flipped files.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError, struct.error, zlib.error)
# Pillow knows more, among them EPS, for which it starts Ghostscript, and ICO, whose header hides how large a picture is.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "AVIF", "JPEG2000", "PPM")
_ORIENTATION = 0x0112  # the EXIF tag
_KEPT_MODES = {"JPEG": {"L", "RGB"}, "PNG": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"}}


def image_record(encoded: bytes, label: str, source: str, data: Data) -> Record:
    """Return the record of one image, as `check_image` judges it. Raises `BadRecord`."""
    if len(encoded) > image_limit(data):
        raise too_many_bytes(len(encoded), image_limit(data))
    image = check_image(encoded, data.max_image_pixels, data.channels)
    measures = {"height": float(image.height), "width": float(image.width), "bytes": float(len(image.encoded))}
    return Record(source, label, {"image": image.encoded}, content_digest({"image": encoded}), measures)


@dataclass(frozen=True)
class CheckedImage:
    """An image that TensorFlow decodes as Pillow shows it, and its size in pixels."""

    encoded: bytes
    height: int
    width: int


def check_image(encoded: bytes, max_pixels: int, channels: int) -> CheckedImage:
    """Return the image, re-encoded as PNG only where its bytes would not come out the same in training.

    Re-encoded are: an EXIF orientation other than upright, CMYK, an animation (its first frame), and formats other than
    JPEG and PNG. Raises `BadRecord`: zero_bytes, not_an_image, too_many_pixels (judged from the header, before any
    pixel is decoded) or truncated_image.
    """
    if not encoded:
        raise BadRecord("zero_bytes", "the file is empty")
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            _check_size(image, max_pixels)
            image.load()
            kept = encoded if _is_plain(image) and _tensorflow_decodes(encoded, channels) else None
            if kept is not None:
                return CheckedImage(kept, image.height, image.width)
            return _as_png(image, channels)
    except Image.DecompressionBombError as error:
        raise BadRecord("too_many_pixels", str(error)) from error
    except UnidentifiedImageError as error:
        raise BadRecord("not_an_image", f"{len(encoded)} bytes that begin with {encoded[:8]!r}") from error
    except _BROKEN as error:
        raise BadRecord("truncated_image", str(error)) from error


def _check_size(image: Image.Image, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        raise BadRecord("too_many_pixels", f"{image.width} x {image.height} pixels, at most {max_pixels} are taken")


def _is_plain(image: Image.Image) -> bool:
    upright = image.getexif().get(_ORIENTATION, 1) == 1
    return upright and image.mode in _KEPT_MODES.get(image.format or "", ()) and getattr(image, "n_frames", 1) == 1


def _tensorflow_decodes(encoded: bytes, channels: int) -> bool:
    try:
        tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    except tf.errors.InvalidArgumentError:
        return False
    return True


def _as_png(image: Image.Image, channels: int) -> CheckedImage:
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16 bits: Pillow's convert would cut off at 255 what TensorFlow scales
        upright = Image.fromarray((np.clip(np.asarray(upright), 0, 65535) // 256).astype(np.uint8))
    stream = io.BytesIO()
    upright.convert("L" if channels == 1 else "RGB").save(stream, "PNG")
    return CheckedImage(stream.getvalue(), upright.height, upright.width)
